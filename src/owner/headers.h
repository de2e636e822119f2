// SPDX-License-Identifier: MIT
/*
 * headers.h - headers of pages, away from what they describe.
 *
 *     chunks ---> chunk (a span): | header_chunk | header | header | header | never used ...     of one kind, which says how long they are
 *     roomy[kind] ---> those with a header that is not in use
 *
 * The lowest header of a chunk is used first, and none is touched before its time.  A chunk without one in use is idle: it goes when memory is given back,
 * and so do, of another, the OS pages without one: what is read there is a header that was never used.
 *
 * Invariants:
 *   H1  chunk->used is the number of bits of `taken`; a chunk with fewer than `count` is roomy
 *   H2  what lies below `cut` was zero, or a header, whenever a fork came: its owner's state says whether it is in use
 *
 * Locks: the caller's.  Not here: what is in a header, where a chunk's memory comes from (slab/slab_meta.c, heap/heap_meta.c).
 */
#ifndef QUIRE_OWNER_HEADERS_H
#define QUIRE_OWNER_HEADERS_H

#include <quire/source.h>

#include "base/bits.h"
#include "base/compiler.h"

C_DECLARATIONS_BEGIN

enum { HEADERS_MAX = 512, HEADER_KINDS = 4, HEADER_ALIGN = 128 /* two lines, which processors like to fetch together */ };

struct header_chunk {
    struct header_chunk *next, *roomy_next;
    struct quire_span span;
    uint32_t stride_bytes, count;
    uint16_t kind, given; /* given: of its OS pages those that went back, by bits, since a header there was used */
    uint32_t cut; /* headers that were ever used: those behind are untouched */
    uint32_t used, pins; /* pins: walks that stand on it */
    uint64_t taken[HEADERS_MAX / WORD_BITS];
};
STATIC_ASSERT(sizeof(struct header_chunk) % HEADER_ALIGN == 0, "headers lie behind it");

struct headers {
    struct header_chunk *chunks; /* the newest first */
    struct header_chunk *roomy[HEADER_KINDS];
};

static inline void *header_at(const struct header_chunk *chunk, uint32_t idx)
{
    return (char *)(uintptr_t)(chunk + 1) + (size_t)idx * chunk->stride_bytes;
}

/* The span is a chunk from now on; of no headers if stride_bytes is 0: then `used` is the caller's to set. */
struct header_chunk *headers_add(struct headers *headers, const struct quire_span *span, uint32_t kind, uint32_t stride_bytes);
/* A header, zeroed if it was never used, and its chunk; NULL: a chunk has to be added. */
void *headers_take(struct headers *headers, uint32_t kind, struct header_chunk **chunk);
void headers_give(struct headers *headers, struct header_chunk *chunk, const void *header);
size_t headers_bytes(const struct headers *headers); /* of all chunks */

/* OS pages where no header is in use go back to the system, but for the first of each chunk. */
void headers_discard(struct headers *headers);

/* All idle chunks, off the lists; and on the lists again. */
struct header_chunk *headers_unlink(struct headers *headers);
void headers_relink(struct headers *headers, struct header_chunk *idle);

/* In the child of a fork: which headers are in use is what their state says. */
void headers_after_fork(struct headers *headers, bool (*is_used)(const void *header));

C_DECLARATIONS_END
#endif
