// SPDX-License-Identifier: MIT
/*
 * bitmap.h - which of n bits are taken, in runs, found fast by hints for each block of bits.
 *
 * One idea serves three times: the bits are OS pages in the span source, 4-byte words in a percpu chunk, slots in a slab page.
 */
#ifndef QUIRE_BASE_BITMAP_H
#define QUIRE_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BITMAP_NONE SIZE_MAX

struct bitmap; /* fields in bitmap.h: the caller embeds it; maps and hints lie in memory that the caller provides */

/* Bytes of zeroed memory that bitmap_init() needs for `bits`, and the setting up: all bits free.  Touches little of a large memory. */
size_t bitmap_memory_bytes(size_t bits);
void bitmap_init(struct bitmap *map, void *zeroed, size_t bits);

/* Take `run` free bits at a multiple of 2^align_log2: the first such place (lowest index; document it if it is another).  BITMAP_NONE if none. */
size_t bitmap_alloc(struct bitmap *map, size_t run, unsigned align_log2);
/* Free the run that starts at `idx`.  Returns its length, or 0 when no run starts there: nothing has changed then. */
size_t bitmap_free(struct bitmap *map, size_t idx);

/* Looking. */
size_t bitmap_run(const struct bitmap *map, size_t idx);   /* length of the taken run that starts at idx, 0 if none does */
size_t bitmap_start(const struct bitmap *map, size_t idx); /* start of the taken run that contains idx, BITMAP_NONE if idx is free */
bool bitmap_taken(const struct bitmap *map, size_t idx);
/* The first taken (free) run at or after `from`: its start, its length in *run; BITMAP_NONE at the end. */
size_t bitmap_next_taken(const struct bitmap *map, size_t from, size_t *run);
size_t bitmap_next_free(const struct bitmap *map, size_t from, size_t *run);
/* An upper bound of the longest free run, exact after bitmap_alloc() of a longer one failed. */
size_t bitmap_longest_hint(const struct bitmap *map);
/* Derive every hint anew from the bits: after a fork that may have cut an operation in two. */
void bitmap_rebuild(struct bitmap *map);
/* NULL, or the invariant that does not hold: "bitmap B1" ... */
const char *bitmap_check(const struct bitmap *map);

#ifdef __cplusplus
}
#endif
#endif
