// SPDX-License-Identifier: MIT
/*
 * static.h - what the parts of the recorder for static programs know of each other.
 *
 *   begin.c    its first steps, before the program's      frames.c  a table of unwind entries, where the program has none
 *   libc.c     as much of libc as the recorder asks for, under libc's names
 */
#ifndef QUIRE_STATIC_STATIC_H
#define QUIRE_STATIC_STATIC_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

#define STATIC_SEGMENTS_MAX 64u

struct static_order;
void static_begin(const struct static_order *order);  // called by begin.c's assembly

/* The one program that there is: what dl_iterate_phdr() tells. */
extern struct dl_phdr_info static_program;

/* Where the program's .eh_frame has no table, as in a file that was linked by -static: one is made.  0: none can be. */
uintptr_t static_frames_table(uintptr_t bias, uintptr_t low, uintptr_t high);

#endif
