// SPDX-License-Identifier: MIT
/*
 * abi.h - structs that cross the border between a program and a library of another version.
 *
 *     struct_bytes | fields of the first version | fields that came later
 *     |<---------------- first_bytes ----------->|                      |
 *     |<---------------- bytes: as this library was compiled ---------->|
 *
 *     options, sources' verbs    the program's are read: what it does not have is 0; what this library does not have must be 0
 *     statistics                 the program's are written: no more than both have, 0 behind that
 *
 * struct_bytes 0 is the first version, in every version to come: no library with these names serves programs with less.
 *
 * Locks: none.  Not here: what may change when (doc/abi.md).
 */
#ifndef QUIRE_BASE_ABI_H
#define QUIRE_BASE_ABI_H

#include <stddef.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* No struct grows past this: a larger struct_bytes was never meant as one. */
enum { ABI_BYTES_MAX = 4096 };

struct abi_layout {
    const char *name;
    size_t bytes, first_bytes;
};

/* `last`: the last field of the first version. */
#define ABI_LAYOUT(type, last) {#type, sizeof(struct type), offsetof(struct type, last) + sizeof(((struct type *)NULL)->last)}

/* 0 where the program's struct can be read; -EINVAL: struct_bytes is no size of it; -E2BIG: it says something that this library does not know. */
int abi_verify(const struct abi_layout *layout, const void *theirs);

/* Options as this library knows them, in `own`; NULL: all zero.  As abi_verify(), and then `own` is untouched. */
int abi_read(const struct abi_layout *layout, void *own, const void *theirs);

/* Statistics for the program; its struct_bytes becomes what was written.  A struct_bytes that is no size of it stops the process ("statistics E1"). */
void abi_write(const struct abi_layout *layout, const void *own, void *theirs);

C_DECLARATIONS_END
#endif
