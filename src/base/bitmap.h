// SPDX-License-Identifier: MIT
/*
 * bitmap.h - which of n bits are taken, in runs, found fast by hints for each block of bits.
 *
 * One idea serves three times: the bits are OS pages in the span source, 4-byte words in a percpu
 * chunk, slots in a slab page.  Words: a *run* is a row of bits taken by one call, or a row of free
 * bits as long as it goes; a *block* is the part of the bits that one set of hints describes.
 *
 * Threads: none; the caller locks.  No function allocates.
 */
#ifndef QUIRE_BASE_BITMAP_H
#define QUIRE_BASE_BITMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

#define BITMAP_NONE SIZE_MAX
#define BITMAP_BITS_MAX ((size_t)UINT32_MAX - 65536)

/* The caller embeds it; maps and hints lie in memory that the caller provides. */
struct bitmap {
    uint64_t *taken;            /* a bit for each that is taken; padding behind the end is taken */
    uint64_t *starts;           /* the boundary map: the first bit of each taken run */
    struct bitmap_hints *hints; /* where there is room */
    uint32_t bits;
};

/*
 * Bytes of zeroed, 8-aligned memory that bitmap_init() needs for 1 .. BITMAP_BITS_MAX bits: two bits
 * for each, and for hints about a fifth of that and 600 bytes.
 */
size_t bitmap_memory_bytes(size_t bits);
/* All bits free.  Touches a page or two of a large memory. */
void bitmap_init(struct bitmap *map, void *zeroed, size_t bits);

/*
 * Take `run` free bits at a multiple of 2^align_log2: the lowest such place.  BITMAP_NONE: there is
 * none (or run is 0).  Cost: independent of the number of bits, but for the first call with an
 * alignment that was not used before, which passes over the hints (2 bytes a block).
 */
size_t bitmap_alloc(struct bitmap *map, size_t run, unsigned align_log2);
/*
 * The taken run that starts at `idx` has `more` bits behind it, if these are free.  False: they are
 * not, or no run starts there; nothing has changed.  Cost: as alloc, without a search.
 */
bool bitmap_extend(struct bitmap *map, size_t idx, size_t more);
/*
 * Free the run that starts at `idx`.  Its length, or 0 when none starts there: nothing changed.  In *merged how long the free run is of which the
 * freed bits are a part now: at least what is returned, exact, and 0 when nothing was freed.
 */
size_t bitmap_free_merged(struct bitmap *map, size_t idx, size_t *merged);
static inline size_t bitmap_free(struct bitmap *map, size_t idx)
{
    size_t merged;
    return bitmap_free_merged(map, idx, &merged);
}

/* ---- looking (bitmap_look.c) ---- */

/* Length of the taken run that starts at idx, 0 if none does. */
size_t bitmap_run(const struct bitmap *map, size_t idx);
bool bitmap_taken(const struct bitmap *map, size_t idx);
/* The first taken run that starts at or after `from`; its length in *run.  BITMAP_NONE at the end. */
size_t bitmap_next_taken(const struct bitmap *map, size_t from, size_t *run);
/* The first free bit at or after `from`; in *run how many are free from there on. */
size_t bitmap_next_free(const struct bitmap *map, size_t from, size_t *run);
/* The length of the longest free run: exact, never too much and never too little.  Cost: as alloc. */
size_t bitmap_longest_hint(const struct bitmap *map);
/*
 * Derive every hint anew from the bits: after a fork that may have cut an operation in two.  A run
 * that was being taken or freed then may stay taken; no bit that somebody holds becomes free.
 */
void bitmap_rebuild(struct bitmap *map);
/* NULL, or the invariant that does not hold: "bitmap B1" ...  Cost: a pass over all bits. */
const char *bitmap_check(const struct bitmap *map);
/* The same for the blocks that hold the bits [from, to) and for what lies above them. */
const char *bitmap_check_range(const struct bitmap *map, size_t from, size_t to);

C_DECLARATIONS_END
#endif
