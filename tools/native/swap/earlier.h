// SPDX-License-Identifier: MIT
/*
 * earlier.h - blocks that were handed out before the swap: they go back to where they came from.
 */
#ifndef QUIRE_SWAP_EARLIER_H
#define QUIRE_SWAP_EARLIER_H

#include <stdbool.h>
#include <stddef.h>

/* Keeps in mind what memory there is now.  Only one thread may run.  NULL, or why it cannot be done. */
const char *earlier_look(void);

/* The other malloc has handed this out: before the program has it. */
void earlier_mark(const void *block);

/* Whether a block is from before the swap. */
bool earlier_has(const void *block);

/* The first `bytes` of such a block, or fewer: how large it was made nobody says here, so as far as its memory can be read. */
void earlier_copy(void *to, const void *block, size_t bytes);

#endif
