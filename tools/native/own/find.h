// SPDX-License-Identifier: MIT
/*
 * find.h - the functions of an allocator in one program or library, and whether they can be patched; from the file alone.
 */
#ifndef QUIRE_OWN_FIND_H
#define QUIRE_OWN_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entry.h"
#include "names.h"

#define OWN_FUNCTIONS_MAX 192u

struct own_function {
    uint64_t address, bytes;  // as in the file
    const unsigned char *code;
    const char *name;
    struct own_kind kind;
    enum own_family family;
    struct entry_plan plan;
};

struct own_module {
    const unsigned char *image;  // the file, mapped; names and code lie in it
    size_t image_bytes;
    enum own_family family;  // OWN_NOBODY: there is no allocator in it
    const char *refused, *why;  // the first function that cannot be patched; NULL: all can
    unsigned count;
    struct own_function functions[OWN_FUNCTIONS_MAX];
};

/*
 * False: no file that can be read. A program's own malloc is an allocator, a library's is one where it has names besides those that libc
 * has: calls of malloc are seen on their way there. Closed with own_close(), also after false.
 */
bool own_read(struct own_module *module, const char *path, bool is_program);
void own_close(struct own_module *module);

/* Whether it calls functions that only this family has, of some other file: its users would not be reached by the place of malloc. */
bool own_calls(const struct own_module *module, enum own_family family);

#endif
