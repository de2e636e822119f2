// SPDX-License-Identifier: MIT
/*
 * slab_policy.h - what a slab decides, as pure functions of small arguments: how large a page is, which page is next.
 *
 * Not here: doing it (slab_page.c).
 */
#ifndef QUIRE_SLAB_POLICY_H
#define QUIRE_SLAB_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/align.h"

enum {
    SLAB_SLOTS_MAX = 4096, /* of a page: 64 words of 64 bits */
    SLAB_BUCKETS = 8,      /* degrees of fullness that the defragmenter tells apart */
    SLAB_LOOK_PAGES = 3,   /* without it: how many pages are compared */
    SLAB_DEFRAG_PAGES = 16, /* with it: a new page is no more than one part in so many of what the local holds */
    SLAB_LOOK_CLOSELY = 8, /* with it: how many of the fullest degree */
    SLAB_LOOK_BESIDE = 16, /* with it: how many headers behind that of the last one */
};
#define SLAB_PAGE_BYTES_DEFAULT ((size_t)64 << 10)
#define SLAB_PAGE_BYTES_LARGE ((size_t)1 << 20)

/* What a page size is derived from. */
struct slab_sizes {
    size_t slot_bytes, os_page_bytes;
    size_t page_bytes_max; /* asked for; 0: default */
};

/* The end of a page that no slot fits in is more than one part in `parts` of it. */
static inline bool slab_page_wastes(size_t page_bytes, size_t slot_bytes, size_t parts)
{
    return page_bytes < slot_bytes || page_bytes % slot_bytes > page_bytes / parts;
}

/* The smallest page: one OS page, or more where its end would be wasted; whole slots at least. */
static inline size_t slab_page_bytes_least(struct slab_sizes s, size_t most)
{
    size_t bytes = s.os_page_bytes;
    while (bytes < most && slab_page_wastes(bytes, s.slot_bytes, 8))
        bytes *= 2;
    return bytes < most ? bytes : most;
}

/* The largest page: 64 KiB or what was asked, more for large elements up to 1 MiB, no more than the most slots, one slot at least. */
static inline size_t slab_page_bytes_most(struct slab_sizes s)
{
    size_t one = align_up(s.slot_bytes, s.os_page_bytes);
    size_t bytes = s.page_bytes_max ? s.page_bytes_max : SLAB_PAGE_BYTES_DEFAULT;
    bytes = bytes > s.os_page_bytes ? (size_t)1 << log2_floor(bytes) : s.os_page_bytes;
    while (!s.page_bytes_max && bytes < SLAB_PAGE_BYTES_LARGE && (bytes / 8 < s.slot_bytes || slab_page_wastes(bytes, s.slot_bytes, 16)))
        bytes *= 2;
    if (bytes / s.slot_bytes > SLAB_SLOTS_MAX)
        bytes = align_up(SLAB_SLOTS_MAX * s.slot_bytes, s.os_page_bytes);
    return bytes > one ? bytes : one;
}

/* The next page of a set of pages that holds `held_bytes`: it grows twofold. */
static inline size_t slab_page_bytes_next(size_t held_bytes, size_t least, size_t most)
{
    size_t bytes = held_bytes > least ? (size_t)1 << log2_floor(held_bytes) : least;
    bytes = bytes > least ? bytes : least; /* which need not be a power of two */
    return bytes < most ? bytes : most;
}

/* How full a page is, 0 .. SLAB_BUCKETS - 1; a page with room. */
static inline unsigned slab_bucket(uint32_t used, uint32_t slots)
{
    uint32_t bucket = used * SLAB_BUCKETS / slots;
    return bucket < SLAB_BUCKETS ? bucket : (unsigned)SLAB_BUCKETS - 1;
}

/* Is a page of `used` of `slots` fuller than one of `than` of `than_slots`? */
static inline bool slab_fuller(uint32_t used, uint32_t slots, uint32_t than, uint32_t than_slots)
{
    return (uint64_t)used * than_slots > (uint64_t)than * slots;
}

#endif
