// SPDX-License-Identifier: MIT
/*
 * percpu_policy.h - which chunk first, and which may go: pure functions of small arguments.
 *
 * A bit of a chunk's map stands for 4, 16 or 64 bytes.  A thread's first chunk is of 4, so that a small pool has one; the others are of the most
 * that divides the object they are made for: then nothing is wasted, and a map is a fourth or a sixteenth as large.
 *
 * Of a small size that a thread has many of, the further ones lie in pages of that size alone (percpu_page.h).
 *
 * Chunks are listed by the class of their longest free run: 1, 2 ... 7, then four classes to each power of two.  The smallest class that is sure to
 * have room is taken first: the fullest chunk that will do.
 */
#ifndef QUIRE_PERCPU_POLICY_H
#define QUIRE_PERCPU_POLICY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/align.h"

enum {
    PERCPU_GRAINS = 3, /* kinds of chunks with a map of their own: 0, 1, 2 */
    PERCPU_PAGED,      /* kinds that are cut into pages of one size each: of any number of objects, */
    PERCPU_PAGED_64,   /* of 64 at most, */
    PERCPU_PAGED_BIG,  /* and of 2048 at most, larger pages: then the bookkeeping of a million objects stays in the cache */
    PERCPU_KINDS,
    PERCPU_PAGE_LOG2 = 13,
    PERCPU_PAGE_LOG2_BIG = 16,
    PERCPU_FEW_PAGES = 64,    /* of a size, before its next ones are big */
    PERCPU_BIG_WORDS = 8,     /* the smallest object in big pages: 32 bytes */
    PERCPU_PAGED_WORDS = 256, /* the largest object in pages: 1 KiB */
    PERCPU_CLASSES = 96,
    PERCPU_FEW = 256,         /* objects of a thread, all pools together, before it gets chunks of its own */
    PERCPU_LOOKS = 8 /* chunks tried that may have room and need not */
};

/* The class of chunks whose longest free run is `run` words; 0: none. */
static inline unsigned percpu_class_floor(size_t run)
{
    if (run < 8)
        return (unsigned)run;
    unsigned e = log2_floor(run);
    return 8 + (e - 3) * 4 + (unsigned)(run >> (e - 2) & 3);
}

/* The first class all of whose chunks have `run` words together; run is not 0. */
static inline unsigned percpu_class_ceil(size_t run)
{
    return percpu_class_floor(run - 1) + 1;
}

/* The coarsest grain of which an object of so many words is a whole number: 0 (4 bytes), 1 (16), 2 (64). */
static inline unsigned percpu_grain(size_t words)
{
    return words % 4 ? 0 : words % 16 ? 1 : 2;
}

/* A page of few objects needs little bookkeeping; of a size that has some pages already a big one wastes no more than they hold. */
static inline unsigned percpu_paged_kind(size_t words, size_t pages)
{
    if (words >= PERCPU_BIG_WORDS && pages >= PERCPU_FEW_PAGES)
        return PERCPU_PAGED_BIG;
    return (1 << PERCPU_PAGE_LOG2) / 4 / words > 64 ? PERCPU_PAGED : PERCPU_PAGED_64;
}

static inline bool percpu_is_paged(unsigned kind)
{
    return kind >= PERCPU_PAGED;
}

static inline unsigned percpu_page_log2(unsigned kind, unsigned unit_shift)
{
    unsigned log2 = kind == PERCPU_PAGED_BIG ? PERCPU_PAGE_LOG2_BIG : PERCPU_PAGE_LOG2;
    return log2 < unit_shift ? log2 : unit_shift;
}

/* The local has so many objects of a size in maps, half a page full: the next gets a page.  What the page wastes is then at most what the size has. */
static inline bool percpu_popular(size_t objects, size_t words)
{
    return words <= PERCPU_PAGED_WORDS && objects * words * 8 >= (size_t)1 << PERCPU_PAGE_LOG2;
}

/* A chunk has become empty.  It goes if the thread's others of its kind have room for an eighth of it: so the next allocation does not bring it back. */
static inline bool percpu_empty_goes(size_t others_free, size_t room)
{
    return others_free >= room / 8;
}

#endif
