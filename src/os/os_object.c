// SPDX-License-Identifier: MIT
/*
 * os_object.c - the loaded file that an address lies in.
 *
 *     glibc from 2.35 on   _dl_find_object(): no lock, also in a signal's handler
 *     else                 dl_iterate_phdr(): the loader's lock, which a thread may take twice
 *
 * Allocates nothing, sets no errno.
 * Locks: none, or the loader's.
 */
#include <elf.h>
#include <link.h>
#include <string.h>

#include "os/os.h"

/* glibc's struct dl_find_object, by its place in the ABI of x86-64 and arm64: older headers do not have it. */
struct found {
    unsigned long long flags;
    void *start, *end;
    struct link_map *file;
    void *eh_frame_header;
    unsigned long long reserved[7];
};
extern int find_object(void *address, struct found *result) __asm__("_dl_find_object") __attribute__((weak));

bool os_object_is_quick(void)
{
    return find_object != NULL;
}

static bool find_by_loader(uintptr_t address, struct os_object *object)
{
    struct found found;
    if (find_object((void *)address, &found) != 0)
        return false;
    const ElfW(Ehdr) *header = found.start;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_phentsize != sizeof(ElfW(Phdr)))
        return false;
    *object = (struct os_object){found.file->l_addr, (const ElfW(Phdr) *)((uintptr_t)header + header->e_phoff), header->e_phnum, found.file->l_name, found.eh_frame_header};
    return true;
}

struct search {
    uintptr_t address;
    struct os_object *object;
};

static int visit(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    struct search *search = arg;
    const void *unwind = NULL;
    bool covers = false;
    (void)bytes;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        covers |= segment->p_type == PT_LOAD && search->address - start < segment->p_memsz;
        if (segment->p_type == PT_GNU_EH_FRAME)
            unwind = (const void *)start;
    }
    if (covers)
        *search->object = (struct os_object){info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, info->dlpi_name, unwind};
    return covers;
}

bool os_object_of(uintptr_t address, struct os_object *object)
{
    struct search search = {address, object};
    return find_object ? find_by_loader(address, object) : dl_iterate_phdr(visit, &search) != 0;
}
