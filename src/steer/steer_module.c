// SPDX-License-Identifier: MIT
/*
 * steer_module.c - whose code is at an address: the loaded file, known by its build id, and the offset in it.
 *
 *     address --glibc: _dl_find_object(), no lock--> first page of the file: ELF header, program headers --> note with the build id
 *             --else:  dl_iterate_phdr()
 *
 * Asked once for each call site (steer_site.c), so nothing is kept here and no list has to follow dlopen and dlclose.
 *
 * Locks: none; the loader's in dl_iterate_phdr().
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "steer/steer_internal.h"

enum { BUILD_ID_TYPE = 3 };

struct image {
    uintptr_t address; /* asked for */
    uintptr_t bias;
    const ElfW(Phdr) *segments;
    size_t count;
};

extern int _dl_find_object(void *address, struct dl_find_object *result) __attribute__((weak));

/* The build id in one PT_NOTE segment; 0: none. */
static size_t id_in_notes(const unsigned char *at, const unsigned char *end, const unsigned char **id)
{
    while ((size_t)(end - at) > sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        size_t name_bytes = align_up(note.n_namesz, 4), id_bytes = align_up(note.n_descsz, 4), left = (size_t)(end - at) - sizeof note;
        if (name_bytes > left || id_bytes > left - name_bytes)
            return 0;
        at += sizeof note;
        if (note.n_type == BUILD_ID_TYPE && note.n_namesz == 4 && memcmp(at, "GNU", 4) == 0) {
            *id = at + name_bytes;
            return note.n_descsz;
        }
        at += name_bytes + id_bytes;
    }
    return 0;
}

static bool is_module(const struct image *image, const struct steer_module *module)
{
    for (size_t i = 0; i < image->count; i++) {
        const ElfW(Phdr) *segment = &image->segments[i];
        const unsigned char *id, *start = (const unsigned char *)(image->bias + segment->p_vaddr);
        if (segment->p_type != PT_NOTE)
            continue;
        size_t bytes = id_in_notes(start, start + segment->p_memsz, &id);
        if (bytes != 0)
            return bytes == module->id_bytes && memcmp(id, module->id, bytes) == 0;
    }
    return false;
}

static bool find_by_loader(struct image *image)
{
    struct dl_find_object found;
    if (_dl_find_object((void *)image->address, &found) != 0)
        return false;
    const ElfW(Ehdr) *header = found.dlfo_map_start;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_phentsize != sizeof(ElfW(Phdr)))
        return false;
    image->bias = found.dlfo_link_map->l_addr;
    image->segments = (const ElfW(Phdr) *)((uintptr_t)header + header->e_phoff);
    image->count = header->e_phnum;
    return true;
}

static int visit(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct image *image = arg;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && image->address - (info->dlpi_addr + segment->p_vaddr) < segment->p_memsz) {
            image->bias = info->dlpi_addr;
            image->segments = info->dlpi_phdr;
            image->count = info->dlpi_phnum;
            return 1;
        }
    }
    return 0;
}

bool steer_module_of(uintptr_t address, unsigned *module, uint64_t *offset)
{
    struct image image = {.address = address};
    if (_dl_find_object ? !find_by_loader(&image) : !dl_iterate_phdr(visit, &image))
        return false;
    *offset = address - image.bias;
    for (*module = 0; *module < steer_plan.modules; ++*module)
        if (is_module(&image, &steer_plan.module[*module]))
            return true;
    return false;
}

/* The loader has put it where the kernel says: its program headers are among what was mapped. */
bool steer_module_is_program(unsigned number)
{
    struct image image = {.segments = (const ElfW(Phdr) *)getauxval(AT_PHDR), .count = getauxval(AT_PHNUM)};
    for (size_t i = 0; i < image.count; i++)
        if (image.segments[i].p_type == PT_PHDR)
            image.bias = (uintptr_t)image.segments - image.segments[i].p_vaddr;
    return image.segments && is_module(&image, &steer_plan.module[number]);
}
