// SPDX-License-Identifier: MIT
/*
 * names.h - functions of allocators by name, and what they do: enough to record a call from its arguments and its result.
 *
 *   mi_malloc_aligned(size, align)   OWN_ALIGNED, size 0, align 1          _rjem_rallocx(p, size, flags)   OWN_RESIZE, size 1
 */
#ifndef QUIRE_OWN_NAMES_H
#define QUIRE_OWN_NAMES_H

#include <stdbool.h>

enum own_call {
    OWN_NONE,
    OWN_ALLOC,     // the result is a block
    OWN_ZEROED,    // a block of zeros
    OWN_RESIZE,    // the first argument is a block or NULL, the result a block that replaces it, or NULL
    OWN_RESIZE_HERE,  // xallocx: the first argument is a block, the result its size
    OWN_FREE,      // the first argument is a block or NULL
    OWN_POSIX,     // posix_memalign
    OWN_USABLE,    // the first argument is a block, the result how much of it may be used
    OWN_EXIT,      // the process ends with the first argument as its status: no allocator's, but nobody else sees it in a static program
};

#define OWN_NO_ARGUMENT 7u

/* Arguments are counted from 0. */
struct own_kind {
    unsigned char call;      // enum own_call
    unsigned char first;     // where a heap comes before all others: 1
    unsigned char size, count, align;  // OWN_NO_ARGUMENT: there is none. Size and count are multiplied
    bool is_flags;           // `align` are jemalloc's flags
};

/* Whose function this name is: an allocator's by its prefix, libc's, the language's, nobody's that is known. */
enum own_family { OWN_NOBODY, OWN_LIBC, OWN_LANGUAGE, OWN_MIMALLOC, OWN_JEMALLOC, OWN_TCMALLOC };

enum own_family own_name(const char *name, struct own_kind *kind);
const char *own_family_name(enum own_family family);

#endif
