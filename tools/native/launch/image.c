// SPDX-License-Identifier: MIT
/*
 * image.c - files as they will lie in memory: the recorder's library, and the start of a program's thread-local storage.
 *
 *   thread-local storage, as the program's libc will lay it out for each thread from the changed PT_TLS:
 *
 *     |<------ tls.ours ------>|<--------- tls.theirs --------->|
 *     | recorder's, all zeros  | program's: .tdata, zeros       | thread pointer
 *
 * The program's variables stay where its code looks for them: below the thread pointer.
 * Not here: who writes it into the process (inject.c).
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inject.h"

enum { PAGE_BYTES = 4096, TLS_ALIGN = 16 };

int elf_open(struct elf *elf, const char *path)
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC), code = 0;
    *elf = (struct elf){NULL, 0};
    if (fd < 0)
        return -errno;
    if (fstat(fd, &about) != 0 || about.st_size < (off_t)sizeof(Elf64_Ehdr))
        code = -ENOEXEC;
    void *data = code ? MAP_FAILED : mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return code ? code : -errno;
    *elf = (struct elf){data, (size_t)about.st_size};
    const Elf64_Ehdr *head = data;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && head->e_machine == EM_X86_64 && head->e_phentsize == sizeof(Elf64_Phdr) &&
        head->e_phoff <= elf->bytes && head->e_phnum * sizeof(Elf64_Phdr) <= elf->bytes - head->e_phoff)
        return 0;
    elf_close(elf);
    return -ENOEXEC;
}

void elf_close(struct elf *elf)
{
    munmap((void *)(uintptr_t)elf->data, elf->bytes);
    elf->data = NULL;
}

const void *elf_header(const struct elf *elf)
{
    return elf->data;
}

static const Elf64_Phdr *segment_at(const struct elf *elf, unsigned n)
{
    const Elf64_Ehdr *head = elf_header(elf);
    return n < head->e_phnum ? (const Elf64_Phdr *)(elf->data + head->e_phoff) + n : NULL;
}

const void *elf_segment(const struct elf *elf, unsigned type)
{
    for (unsigned n = 0; segment_at(elf, n); n++)
        if (segment_at(elf, n)->p_type == type)
            return segment_at(elf, n);
    return NULL;
}

static int holds(const struct elf *elf, uint64_t offset, uint64_t bytes)
{
    return offset <= elf->bytes && bytes <= elf->bytes - offset;
}

/* What the file has for an address; NULL: less than `bytes`. */
static const unsigned char *at_address(const struct elf *elf, uint64_t address, uint64_t bytes)
{
    const Elf64_Phdr *segment;
    for (unsigned n = 0; (segment = segment_at(elf, n)) != NULL; n++) {
        uint64_t into = address - segment->p_vaddr;
        if (segment->p_type == PT_LOAD && address >= segment->p_vaddr && into <= segment->p_filesz && bytes <= segment->p_filesz - into &&
            holds(elf, segment->p_offset + into, bytes))
            return elf->data + segment->p_offset + into;
    }
    return NULL;
}

static uint64_t dynamic(const struct elf *elf, int64_t tag)
{
    const Elf64_Phdr *segment = elf_segment(elf, PT_DYNAMIC);
    if (segment == NULL || !holds(elf, segment->p_offset, segment->p_filesz))
        return 0;
    const Elf64_Dyn *entry = (const void *)(elf->data + segment->p_offset);
    for (size_t n = 0; n < segment->p_filesz / sizeof *entry && entry[n].d_tag != DT_NULL; n++)
        if (entry[n].d_tag == tag)
            return entry[n].d_un.d_val;
    return 0;
}

struct relocations {
    const Elf64_Rela *at;
    size_t count;
};

static struct relocations relocations_of(const struct elf *elf, int64_t table, int64_t bytes)
{
    uint64_t size = dynamic(elf, bytes);
    const Elf64_Rela *at = size == 0 ? NULL : (const void *)at_address(elf, dynamic(elf, table), size);
    return (struct relocations){at, at == NULL ? 0 : size / sizeof *at};
}

static uint64_t rounded(uint64_t bytes, uint64_t align)
{
    return align < 2 ? bytes : (bytes + align - 1) / align * align;
}

struct tls tls_layout(const struct elf *library, const struct elf *program)
{
    const Elf64_Phdr *ours = elf_segment(library, PT_TLS), *theirs = elf_segment(program, PT_TLS);
    uint64_t align = theirs != NULL && theirs->p_align > TLS_ALIGN ? theirs->p_align : TLS_ALIGN;
    return (struct tls){ours == NULL ? 0 : rounded(ours->p_memsz, align), theirs == NULL ? 0 : rounded(theirs->p_memsz, theirs->p_align)};
}

size_t image_bytes(const struct elf *library)
{
    uint64_t end = 0;
    const Elf64_Phdr *segment;
    for (unsigned n = 0; (segment = segment_at(library, n)) != NULL; n++)
        if (segment->p_type == PT_LOAD && segment->p_vaddr + segment->p_memsz > end)
            end = segment->p_vaddr + segment->p_memsz;
    return rounded(end, PAGE_BYTES);
}

/* What one relocation of the library writes. */
static int relocate(const struct elf *library, const Elf64_Rela *one, uint64_t base, struct tls tls, uint64_t *word)
{
    uint64_t table = dynamic(library, DT_SYMTAB) + ELF64_R_SYM(one->r_info) * sizeof(Elf64_Sym);
    const Elf64_Sym *symbol = (const void *)at_address(library, table, sizeof *symbol);
    if (symbol == NULL)
        return 0;
    uint64_t value = symbol->st_value + (uint64_t)one->r_addend;
    switch (ELF64_R_TYPE(one->r_info)) {
    case R_X86_64_RELATIVE:
        *word = base + (uint64_t)one->r_addend;
        return 1;
    case R_X86_64_TPOFF64:
        *word = value - tls.ours - tls.theirs;
        return 1;
    case R_X86_64_64:
    case R_X86_64_GLOB_DAT:
    case R_X86_64_JUMP_SLOT:
        *word = symbol->st_shndx == SHN_UNDEF ? 0 : base + value; /* weak: it is not there */
        return symbol->st_shndx != SHN_UNDEF || ELF64_ST_BIND(symbol->st_info) == STB_WEAK;
    default:
        return 0;
    }
}

static int relocate_all(const struct elf *library, unsigned char *image, uint64_t base, struct tls tls)
{
    struct relocations sets[2] = {relocations_of(library, DT_RELA, DT_RELASZ), relocations_of(library, DT_JMPREL, DT_PLTRELSZ)};
    size_t bytes = image_bytes(library);
    for (unsigned set = 0; set < 2; set++) {
        for (size_t n = 0; n < sets[set].count; n++) {
            uint64_t word, at = sets[set].at[n].r_offset;
            if (at > bytes - sizeof word || !relocate(library, &sets[set].at[n], base, tls, &word))
                return 0;
            memcpy(image + at, &word, sizeof word);
        }
    }
    return 1;
}

unsigned char *image_make(const struct elf *library, uint64_t base, struct tls tls, size_t *bytes)
{
    const Elf64_Phdr *segment;
    *bytes = image_bytes(library);
    unsigned char *image = calloc(1, *bytes);
    for (unsigned n = 0; image && (segment = segment_at(library, n)) != NULL; n++)
        if (segment->p_type == PT_LOAD && holds(library, segment->p_offset, segment->p_filesz))
            memcpy(image + segment->p_vaddr, library->data + segment->p_offset, segment->p_filesz);
    if (image && !relocate_all(library, image, base, tls)) {
        free(image);
        image = NULL;
    }
    return image;
}

unsigned char *tls_start(const struct elf *program, uint64_t bias, struct tls tls, size_t *bytes)
{
    const Elf64_Phdr *theirs = elf_segment(program, PT_TLS);
    uint64_t filled = theirs == NULL ? 0 : theirs->p_filesz;
    *bytes = tls.ours + filled;
    unsigned char *start = calloc(1, *bytes + 1);
    const unsigned char *from = filled == 0 ? NULL : at_address(program, theirs->p_vaddr, filled);
    if (start == NULL || (filled != 0 && from == NULL) || (filled != 0 && dynamic(program, 36 /* DT_RELR */) != 0)) {
        free(start);
        return NULL;
    }
    if (filled != 0)
        memcpy(start + tls.ours, from, filled);
    struct relocations set = relocations_of(program, DT_RELA, DT_RELASZ);
    for (size_t n = 0; n < set.count; n++) { /* the program's own start writes these to .tdata, not to this */
        uint64_t into = set.at[n].r_offset - (theirs == NULL ? 0 : theirs->p_vaddr), word = bias + (uint64_t)set.at[n].r_addend;
        if (filled >= sizeof word && into <= filled - sizeof word && ELF64_R_TYPE(set.at[n].r_info) == R_X86_64_RELATIVE)
            memcpy(start + tls.ours + into, &word, sizeof word);
    }
    return start;
}
