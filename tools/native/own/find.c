// SPDX-License-Identifier: MIT
/*
 * find.c - reads symbols of an ELF file: .symtab, where it was not stripped, and .dynsym.
 *
 * Invariants:
 *   N1  each address is in the list once; names of one function that promise different arguments are a refusal
 *   N2  no other symbol lies within the bytes that would be patched
 *
 * Every offset of the file is distrusted: what lies outside of it is as if it were not there.
 * No memory is allocated: this runs inside of a program's first steps.
 */
#include "find.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct symbols {
    const Elf64_Sym *at;
    size_t count;
    const char *strings;
    size_t string_bytes;
};

static const void *part(const struct own_module *module, uint64_t offset, uint64_t bytes) {
    bool inside = offset <= module->image_bytes && bytes <= module->image_bytes - offset;
    return inside ? module->image + offset : NULL;
}

static const Elf64_Ehdr *header_of(const struct own_module *module) {
    const Elf64_Ehdr *header = part(module, 0, sizeof *header);
    bool good = header != NULL && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 && header->e_ident[EI_CLASS] == ELFCLASS64 &&
                header->e_machine == EM_X86_64 && header->e_shentsize == sizeof(Elf64_Shdr) &&
                header->e_phentsize == sizeof(Elf64_Phdr);
    return good ? header : NULL;
}

static bool map(struct own_module *module, const char *path) {
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    if (fstat(fd, &about) == 0 && about.st_size > 0) {
        void *image = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (image != MAP_FAILED) {
            module->image = image;
            module->image_bytes = (size_t)about.st_size;
        }
    }
    close(fd);
    return module->image != NULL;
}

/* The symbols of the n-th section, where it has any. */
static struct symbols symbols_of(const struct own_module *module, unsigned n, bool is_program) {
    const Elf64_Ehdr *header = header_of(module);
    const Elf64_Shdr *sections = part(module, header->e_shoff, (uint64_t)header->e_shnum * sizeof *sections);
    struct symbols found = {NULL, 0, NULL, 0};
    if (sections == NULL || sections[n].sh_link >= header->e_shnum ||
        (sections[n].sh_type != SHT_DYNSYM && (sections[n].sh_type != SHT_SYMTAB || !is_program))) {
        return found;
    }
    const Elf64_Shdr *strings = &sections[sections[n].sh_link];
    found.at = part(module, sections[n].sh_offset, sections[n].sh_size);
    found.strings = part(module, strings->sh_offset, strings->sh_size);
    if (found.at != NULL && found.strings != NULL && strings->sh_size > 0 && found.strings[strings->sh_size - 1] == '\0') {
        found.count = sections[n].sh_size / sizeof *found.at;
        found.string_bytes = strings->sh_size;
    }
    return found;
}

/* The code at an address of the file, and how much of it there is. */
static const unsigned char *code_at(const struct own_module *module, uint64_t address, uint64_t *bytes) {
    const Elf64_Ehdr *header = header_of(module);
    const Elf64_Phdr *segments = part(module, header->e_phoff, (uint64_t)header->e_phnum * sizeof *segments);
    for (unsigned i = 0; segments != NULL && i < header->e_phnum; i++) {
        const Elf64_Phdr *segment = &segments[i];
        bool is_code = segment->p_type == PT_LOAD && (segment->p_flags & PF_X) != 0;
        if (is_code && address >= segment->p_vaddr && address - segment->p_vaddr < segment->p_filesz) {
            *bytes = segment->p_filesz - (address - segment->p_vaddr);
            return part(module, segment->p_offset + (address - segment->p_vaddr), *bytes);
        }
    }
    return NULL;
}

static void refuse(struct own_module *module, const char *name, const char *why) {
    if (module->refused == NULL) {
        module->refused = name;
        module->why = why;
    }
}

static void add(struct own_module *module, const Elf64_Sym *symbol, const struct own_function *named) {
    for (unsigned i = 0; i < module->count; i++) {
        if (module->functions[i].address == symbol->st_value) {
            if (memcmp(&module->functions[i].kind, &named->kind, sizeof named->kind) != 0) {
                refuse(module, named->name, "it is one with a function that takes other arguments");
            }
            return;
        }
    }
    if (module->count == OWN_FUNCTIONS_MAX) {
        refuse(module, named->name, "there are too many of its kind");
        return;
    }
    struct own_function *function = &module->functions[module->count++];
    *function = *named;
    function->address = symbol->st_value;
    function->bytes = symbol->st_size;
    if ((symbol->st_info & 15) == STT_GNU_IFUNC) {
        refuse(module, function->name, "it is chosen when the program starts");
    }
}

static void collect(struct own_module *module, const struct symbols *symbols, bool is_program) {
    for (size_t i = 0; i < symbols->count; i++) {
        const Elf64_Sym *symbol = &symbols->at[i];
        unsigned type = symbol->st_info & 15;
        struct own_function named = {.name = symbols->strings + symbol->st_name};
        if (symbol->st_shndx == SHN_UNDEF || symbol->st_name >= symbols->string_bytes || (type != STT_FUNC && type != STT_GNU_IFUNC)) {
            continue;
        }
        named.family = own_name(named.name, &named.kind);
        if (named.family != OWN_NOBODY && (is_program || named.family != OWN_LIBC)) {
            add(module, symbol, &named);
        }
    }
}

/* N2 */
static void look_between(struct own_module *module, const struct symbols *symbols) {
    for (size_t i = 0; i < symbols->count; i++) {
        uint64_t at = symbols->at[i].st_value;
        unsigned type = symbols->at[i].st_info & 15;
        if (symbols->at[i].st_shndx == SHN_UNDEF || type > STT_FUNC || type == STT_OBJECT) {
            continue;
        }
        for (unsigned k = 0; k < module->count; k++) {
            struct own_function *function = &module->functions[k];
            uint64_t end = function->address + function->plan.skip + ENTRY_JUMP_BYTES;
            if (at > function->address && at < end && at != function->address + function->plan.skip) {
                refuse(module, function->name, "another function begins in its first bytes");
            }
        }
    }
}

static void look_at_code(struct own_module *module) {
    for (unsigned i = 0; i < module->count; i++) {
        struct own_function *function = &module->functions[i];
        uint64_t there = 0;
        function->code = code_at(module, function->address, &there);
        if (function->code == NULL || function->bytes > there) {
            refuse(module, function->name, "its code is not in the file");
            continue;
        }
        uint64_t room = function->bytes + (-(function->address + function->bytes) & 15);
        const char *why = entry_look(function->code, function->bytes, room < there ? room : there, &function->plan);
        if (why != NULL) {
            refuse(module, function->name, why);
        }
    }
}

/* An allocator's own names say whose it is, where they allocate and free; a program's malloc and free alone are one of no known name. */
static void family_find(struct own_module *module) {
    unsigned allocs[OWN_TCMALLOC + 1] = {0}, frees[OWN_TCMALLOC + 1] = {0};
    for (unsigned i = 0; i < module->count; i++) {
        const struct own_function *function = &module->functions[i];
        unsigned *seen = function->kind.call == OWN_FREE ? frees : allocs;
        seen[function->family] += function->kind.call != OWN_EXIT;
    }
    unsigned most = 0;
    for (unsigned family = OWN_MIMALLOC; family <= OWN_TCMALLOC; family++) {
        if (allocs[family] > most && frees[family] > 0) {
            module->family = (enum own_family)family;
            most = allocs[family];
        }
    }
    if (module->family == OWN_NOBODY && allocs[OWN_LIBC] > 0 && frees[OWN_LIBC] > 0) {
        module->family = OWN_LIBC;
    }
}

bool own_read(struct own_module *module, const char *path, bool is_program) {
    memset(module, 0, offsetof(struct own_module, functions));
    if (!map(module, path) || header_of(module) == NULL) {
        return false;
    }
    unsigned sections = header_of(module)->e_shnum;
    for (unsigned n = 0; n < sections; n++) {
        struct symbols symbols = symbols_of(module, n, is_program);
        collect(module, &symbols, is_program);
    }
    family_find(module);
    if (module->family == OWN_NOBODY) {
        return true;
    }
    look_at_code(module);
    for (unsigned n = 0; n < sections; n++) {
        struct symbols symbols = symbols_of(module, n, is_program);
        look_between(module, &symbols);
    }
    return true;
}

void own_close(struct own_module *module) {
    if (module->image != NULL) {
        munmap((void *)(uintptr_t)module->image, module->image_bytes);
    }
    module->image = NULL;
}

bool own_calls(const struct own_module *module, enum own_family family) {
    const Elf64_Ehdr *header = header_of(module);
    for (unsigned n = 0; header != NULL && n < header->e_shnum; n++) {
        struct symbols symbols = symbols_of(module, n, false);
        for (size_t i = 0; i < symbols.count; i++) {
            struct own_kind kind;
            const Elf64_Sym *symbol = &symbols.at[i];
            if (symbol->st_shndx == SHN_UNDEF && symbol->st_name < symbols.string_bytes &&
                own_name(symbols.strings + symbol->st_name, &kind) == family) {
                return true;
            }
        }
    }
    return false;
}
