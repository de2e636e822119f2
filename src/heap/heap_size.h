// SPDX-License-Identifier: MIT
/*
 * heap_size.h - size classes, and how large their pages are: pure functions.
 *
 *     16 32 48 ... 512     every multiple of 16              classes 0 .. 31
 *     576 640 ... 1024     eight steps to each doubling      classes 32 .. 79
 *     ...     32768        at most 12.5 % more than asked for
 */
#ifndef QUIRE_HEAP_HEAP_SIZE_H
#define QUIRE_HEAP_HEAP_SIZE_H

#include <stddef.h>
#include <stdint.h>

#include "base/align.h"
#include "base/bits.h"
#include "base/compiler.h"

enum {
    HEAP_SLOT_ALIGN = 16,
    HEAP_FINE_MAX = 512,
    HEAP_FINE_CLASSES = HEAP_FINE_MAX / HEAP_SLOT_ALIGN,
    HEAP_SMALL_MAX = 32768,
    HEAP_CLASSES = HEAP_FINE_CLASSES + 6 * 8,
    HEAP_ZERO = HEAP_CLASSES, /* the class of blocks of no bytes, which no request of any size has */
    HEAP_BINS,
    HEAP_SLOTS_MAX = 4096, /* in a page */
    HEAP_PAGE_BYTES_LEAST = 16 << 10
};

/* The class of a request of one byte more than these, at most HEAP_SMALL_MAX. */
static ALWAYS_INLINE size_t heap_class_above(size_t below)
{
    if (likely(below < HEAP_FINE_MAX))
        return below / HEAP_SLOT_ALIGN;
    unsigned log2 = bits_highest(below);
    return HEAP_FINE_CLASSES + (log2 - 9) * 8 + (below >> (log2 - 3) & 7);
}

/* The class of a request, which is at most HEAP_SMALL_MAX. */
static ALWAYS_INLINE unsigned heap_class_of(size_t bytes)
{
    return (unsigned)heap_class_above(bytes - (bytes != 0));
}

static inline uint32_t heap_class_bytes(unsigned class)
{
    if (unlikely(class == HEAP_ZERO))
        return HEAP_SLOT_ALIGN;
    if (class < HEAP_FINE_CLASSES)
        return (class + 1) * HEAP_SLOT_ALIGN;
    unsigned step = class - HEAP_FINE_CLASSES;
    return (9 + step % 8) << (6 + step / 8);
}

/* What divides by it (heap_slot_of()). */
static inline uint64_t heap_reciprocal(uint32_t slot_bytes)
{
    return UINT64_MAX / slot_bytes + 1;
}

/* How many sizes a class serves: its slots' and those below; none, too, is served by the first. */
static inline uint32_t heap_class_sizes(unsigned class)
{
    return class == HEAP_ZERO ? 0 : class == 0 ? HEAP_SLOT_ALIGN + 1 : heap_class_bytes(class) - heap_class_bytes(class - 1);
}

/* The first class from that of `bytes` on whose slots are all multiples of align_bytes, at most an OS page; HEAP_CLASSES: there is none. */
static inline unsigned heap_class_aligned(size_t bytes, size_t align_bytes)
{
    if (bytes > HEAP_SMALL_MAX)
        return HEAP_CLASSES;
    unsigned class = heap_class_of(bytes);
    while (class < HEAP_CLASSES && heap_class_bytes(class) % align_bytes != 0)
        class++;
    return class;
}

/* A page: 64 slots where that is between 16 and 64 KiB, eight slots at least; a power of two, as the source likes it, and whole OS pages. */
static inline size_t heap_page_bytes(size_t slot_bytes, size_t os_page_bytes)
{
    size_t bytes = slot_bytes * 64, least = HEAP_PAGE_BYTES_LEAST;
    bytes = bytes < least ? least : bytes > (64 << 10) ? 64 << 10 : bytes;
    bytes = bytes < slot_bytes * 8 ? slot_bytes * 8 : bytes;
    bytes = (size_t)1 << log2_ceil(bytes);
    return bytes < os_page_bytes ? os_page_bytes : bytes;
}

/* A page that was full is asked for slots again after so many frees: one by one would cost a change of page for each. */
static inline uint16_t heap_rejoin_frees(uint16_t slots)
{
    return slots < 32 ? 1 : slots / 16;
}

#endif
