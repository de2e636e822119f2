// SPDX-License-Identifier: MIT
/*
 * library.h - a library that is loaded, and its functions by name; without dlopen(), which would run its constructors.
 */
#ifndef QUIRE_SWAP_LIBRARY_H
#define QUIRE_SWAP_LIBRARY_H

#include <link.h>
#include <stdbool.h>

struct library {
    uintptr_t bias;
    const ElfW(Sym) *symbols;
    const ElfW(Half) *versions;  // NULL: none
    const char *names;
    unsigned count;
};

/* False: no such file is loaded. */
bool library_find(struct library *library, const char *path);

/* The default version of a function; NULL when there is none. */
void *library_function(const struct library *library, const char *name);

#endif
