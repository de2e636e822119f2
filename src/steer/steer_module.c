// SPDX-License-Identifier: MIT
/*
 * steer_module.c - whose code is at an address: the loaded file, known by its build id, and the offset in it.
 *
 *     address --os_object_of()--> program headers --> note with the build id
 *
 * Asked once for each call site (steer_site.c), so nothing is kept here and no list has to follow dlopen and dlclose.
 *
 * Locks: none, or the loader's (os/os_object.c).
 */
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>

#include "os/os.h"
#include "steer/steer_internal.h"

enum { BUILD_ID_TYPE = 3 };

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

static bool is_module(const struct os_object *file, const struct steer_module *module)
{
    const ElfW(Phdr) *segments = file->segments;
    for (size_t i = 0; i < file->count; i++) {
        const ElfW(Phdr) *segment = &segments[i];
        const unsigned char *id, *start = (const unsigned char *)(file->bias + segment->p_vaddr);
        if (segment->p_type != PT_NOTE)
            continue;
        size_t bytes = id_in_notes(start, start + segment->p_memsz, &id);
        if (bytes != 0)
            return bytes == module->id_bytes && memcmp(id, module->id, bytes) == 0;
    }
    return false;
}

bool steer_module_of(uintptr_t address, unsigned *module, uint64_t *offset)
{
    struct os_object file;
    if (!os_object_of(address, &file))
        return false;
    *offset = address - file.bias;
    for (*module = 0; *module < steer_plan.modules; ++*module)
        if (is_module(&file, &steer_plan.module[*module]))
            return true;
    return false;
}

/* The loader has put it where the kernel says: its program headers are among what was mapped. */
bool steer_module_is_program(unsigned number)
{
    const ElfW(Phdr) *segments = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    struct os_object file = {.segments = segments, .count = getauxval(AT_PHNUM)};
    for (size_t i = 0; i < file.count; i++)
        if (segments[i].p_type == PT_PHDR)
            file.bias = (uintptr_t)segments - segments[i].p_vaddr;
    return segments && is_module(&file, &steer_plan.module[number]);
}
