// SPDX-License-Identifier: MIT
/*
 * target.c - what lies where in the target: objects with code, functions of its libc, and room for the stub.
 *
 *   libc.so.6   r--  r-x                         r--  rw-
 *                    [ code ............ | room ]           the rest of the last page of code: zeros that nothing uses
 *
 * Not here: threads (threads.c).
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attach.h"

#define PAGE_BYTES 4096u

struct elf_file {
    const unsigned char *data;
    size_t bytes;
    const Elf64_Sym *symbols;
    size_t count;
    const char *names;
    size_t names_bytes;
};

bool target_get(const struct target *target, uintptr_t from, void *to, size_t bytes) {
    return pread(target->memory, to, bytes, (off_t)from) == (ssize_t)bytes;
}

bool target_put(const struct target *target, uintptr_t to, const void *from, size_t bytes) {
    return pwrite(target->memory, from, bytes, (off_t)to) == (ssize_t)bytes;
}

/* The file behind an object, and its dynamic symbols; NULL when it is none. */
static struct elf_file *elf_open(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof(Elf64_Ehdr)) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    struct elf_file *file = calloc(1, sizeof *file);
    void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == NULL || data == MAP_FAILED) {
        free(file);
        return NULL;
    }
    file->data = data;
    file->bytes = (size_t)status.st_size;
    return file;
}

static void elf_close(struct elf_file *file) {
    munmap((void *)(uintptr_t)file->data, file->bytes);
    free(file);
}

static bool holds(const struct elf_file *file, uint64_t offset, uint64_t bytes) {
    return offset <= file->bytes && bytes <= file->bytes - offset;
}

static void elf_symbols(struct elf_file *file) {
    const Elf64_Ehdr *head = (const void *)file->data;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || !holds(file, head->e_shoff, (uint64_t)head->e_shnum * sizeof(Elf64_Shdr))) {
        return;
    }
    const Elf64_Shdr *section = (const void *)(file->data + head->e_shoff);
    for (unsigned i = 0; i < head->e_shnum; i++) {
        if (section[i].sh_type != SHT_DYNSYM || section[i].sh_link >= head->e_shnum) {
            continue;
        }
        const Elf64_Shdr *names = &section[section[i].sh_link];
        if (holds(file, section[i].sh_offset, section[i].sh_size) && holds(file, names->sh_offset, names->sh_size)) {
            file->symbols = (const void *)(file->data + section[i].sh_offset);
            file->count = section[i].sh_size / sizeof(Elf64_Sym);
            file->names = (const char *)file->data + names->sh_offset;
            file->names_bytes = names->sh_size;
        }
    }
}

static const Elf64_Sym *elf_find(const struct elf_file *file, const char *name) {
    size_t bytes = strlen(name) + 1;
    for (size_t i = 1; i < file->count; i++) {
        const Elf64_Sym *symbol = &file->symbols[i];
        if (symbol->st_shndx != SHN_UNDEF && symbol->st_name + bytes <= file->names_bytes &&
            memcmp(file->names + symbol->st_name, name, bytes) == 0) {
            return symbol;
        }
    }
    return NULL;
}

uintptr_t target_libc_symbol(const struct target *target, const char *name, size_t *bytes) {
    const Elf64_Sym *symbol = elf_find(target->libc, name);
    if (symbol != NULL && bytes != NULL) {
        *bytes = symbol->st_size;
    }
    return symbol == NULL ? 0 : target->libc_base + symbol->st_value;
}

const struct object *target_object(const struct target *target, uintptr_t address) {
    for (unsigned i = 0; i < target->count; i++) {
        if (address >= target->objects[i].start && address < target->objects[i].end) {
            return &target->objects[i];
        }
    }
    return NULL;
}

static bool name_begins(const char *path, const char *const *names) {
    const char *base = strrchr(path, '/');
    base = base == NULL ? path : base + 1;
    for (; *names != NULL; names++) {
        if (strncmp(base, *names, strlen(*names)) == 0) {
            return true;
        }
    }
    return false;
}

/* The file of a mapping, also one that has lost its name since (an upgrade, a build); NULL: it cannot be read. */
static struct elf_file *mapped_open(const struct target *target, const struct object *object) {
    char name[96];
    struct elf_file *file = elf_open(object->path);
    if (file == NULL) {
        snprintf(name, sizeof name, "/proc/%d/map_files/%lx-%lx", (int)target->pid, (unsigned long)object->start, (unsigned long)object->end);
        file = elf_open(name);
    }
    if (file == NULL && target->entry >= object->start && target->entry < object->end) {
        snprintf(name, sizeof name, "/proc/%d/exe", (int)target->pid);
        file = elf_open(name);
    }
    return file;
}

/* Of what cannot be read nobody knows that it is no allocator. */
static enum object_kind kind_of(const struct target *target, const struct object *object, const char *library) {
    const char *path = object->path;
    static const char *const loader[] = {"ld-linux", "ld-2.", NULL};
    static const char *const libc[] = {"libc.so", "libc-2.", "libpthread", "libdl.so", "libdl-", NULL};
    if (strncmp(path, "[v", 2) == 0) {  // vdso, vsyscall
        return OBJECT_VDSO;
    }
    if (path[0] != '/' || name_begins(path, loader)) {
        return path[0] == '/' ? OBJECT_LOADER : OBJECT_OTHER;
    }
    if (name_begins(path, libc)) {
        return OBJECT_LIBC;
    }
    struct elf_file *file = strcmp(path, library) == 0 ? NULL : mapped_open(target, object);
    if (file == NULL) {
        return OBJECT_MALLOC;
    }
    elf_symbols(file);
    enum object_kind kind = elf_find(file, "malloc") != NULL ? OBJECT_MALLOC : OBJECT_OTHER;
    elf_close(file);
    return kind;
}

/* Never unloaded: others may be, by another thread, while the stub runs. */
static bool is_lasting(const struct target *target, const struct object *object) {
    return object->kind == OBJECT_LOADER || object->kind == OBJECT_LIBC || (target->entry >= object->start && target->entry < object->end);
}

/* Bytes behind the code of this mapping, up to the next page, if nobody uses them. */
static void room_look(struct target *target, const struct object *object, uint64_t offset) {
    struct elf_file *file = elf_open(object->path);
    if (file == NULL) {
        return;
    }
    const Elf64_Ehdr *head = (const void *)file->data;
    uintptr_t from = 0;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && holds(file, head->e_phoff, (uint64_t)head->e_phnum * sizeof(Elf64_Phdr))) {
        const Elf64_Phdr *segment = (const void *)(file->data + head->e_phoff);
        for (unsigned i = 0; i < head->e_phnum; i++) {
            bool is_this = segment[i].p_type == PT_LOAD && (segment[i].p_flags & PF_X) != 0 && segment[i].p_filesz == segment[i].p_memsz &&
                           segment[i].p_offset / PAGE_BYTES * PAGE_BYTES == offset;
            from = is_this ? object->start + (segment[i].p_offset - offset) + segment[i].p_memsz : from;
        }
    }
    elf_close(file);
    from = (from + 63) & ~(uintptr_t)63;
    size_t room = object->end - from;
    bool is_sure = room >= target->wanted && is_lasting(target, object);
    bool is_better = is_sure != target->is_sure ? is_sure : room > target->place_end - target->place;
    unsigned char bytes[PAGE_BYTES];
    if (from == 0 || from >= object->end || room > PAGE_BYTES || !is_better || !target_get(target, from, bytes, room)) {
        return;
    }
    uint64_t magic = 0;
    memcpy(&magic, bytes, sizeof magic);
    bool is_free = magic == STUB_MAGIC;
    for (size_t i = 0; i < room && (i == 0 || is_free); i++) {
        is_free = magic == STUB_MAGIC || bytes[i] == 0;
    }
    if (is_free) {
        target->place = from;
        target->place_end = object->end;
        target->is_sure = is_sure;
    }
}

static void mapping_take(struct target *target, const char *line, const char *library) {
    unsigned long long start = 0, end = 0, offset = 0;
    char rights[8] = "", path[512] = "";
    if (sscanf(line, "%llx-%llx %7s %llx %*s %*s %511[^\n]", &start, &end, rights, &offset, path) < 4) {
        return;
    }
    if (target->area == 0 && strcmp(path, library) == 0 && offset == 0) {
        struct elf_file *file = elf_open(path);
        if (file != NULL) {
            elf_symbols(file);
            const Elf64_Sym *symbol = elf_find(file, ATTACH_AREA);
            target->area = symbol == NULL ? 0 : (uintptr_t)start + symbol->st_value;
            elf_close(file);
        }
    }
    bool is_libc = strstr(path, "/libc.so.6") != NULL || strstr(path, "/libc-2.") != NULL;
    if (is_libc && offset == 0 && target->libc == NULL) {
        target->libc_base = (uintptr_t)start;
        target->libc = elf_open(path);
        if (target->libc != NULL) {
            elf_symbols(target->libc);
        }
    }
    if (rights[2] != 'x' || target->count == OBJECTS_MAX) {
        return;
    }
    struct object *object = &target->objects[target->count++];
    *object = (struct object){.start = (uintptr_t)start, .end = (uintptr_t)end};
    snprintf(object->path, sizeof object->path, "%s", path);
    object->kind = kind_of(target, object, library);
    if (path[0] == '/' && strcmp(path, library) != 0) {
        room_look(target, object, offset);
    }
}

/* Again, where objects came and went. */
void target_read_maps(struct target *target, const char *library) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)target->pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL) {
        refuse("its memory cannot be looked at", strerror(errno), "start it under quire record");
    }
    target->count = 0;
    target->place = target->place_end = 0;
    target->is_sure = false;
    char line[1024];
    while (fgets(line, sizeof line, maps) != NULL) {
        mapping_take(target, line, library);
    }
    fclose(maps);
}

uint64_t status_number(pid_t tid, const char *name) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)tid);
    FILE *file = fopen(path, "re");
    uint64_t number = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            const char *last = strrchr(line, '\t');
            number = last == NULL ? 0 : strtoull(last, NULL, 10);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return number;
}

static void entry_read(struct target *target) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/auxv", (int)target->pid);
    FILE *file = fopen(path, "re");
    Elf64_auxv_t entry;
    while (file != NULL && fread(&entry, sizeof entry, 1, file) == 1) {
        target->entry = entry.a_type == AT_ENTRY ? (uintptr_t)entry.a_un.a_val : target->entry;
    }
    if (file != NULL) {
        fclose(file);
    }
}

void target_read(struct target *target, const char *library) {
    char path[64];
    entry_read(target);
    target->own_pid = (pid_t)status_number(target->pid, "NSpid:");
    if (target->own_pid == 0) {
        target->own_pid = target->pid;  // a kernel without namespaces of processes
    }
    snprintf(path, sizeof path, "/proc/%d/mem", (int)target->pid);
    target->memory = open(path, O_RDWR | O_CLOEXEC);
    target->objects = calloc(OBJECTS_MAX, sizeof *target->objects);
    if (target->memory < 0 && (errno == EACCES || errno == EPERM)) {
        refuse("forbidden", strerror(errno), "");
    }
    if (target->memory < 0 || target->objects == NULL) {
        refuse("its memory cannot be reached", strerror(errno), "start it under quire record");
    }
    target_read_maps(target, library);
    if (target->libc == NULL || target->libc->symbols == NULL) {
        refuse("its libc cannot be read", "its file has been replaced since it started, or is not glibc's", "restart the program");
    }
}
