// SPDX-License-Identifier: MIT
/*
 * percpu_page.h - pages of objects of one size, for the sizes that a thread has many of.
 *
 *     paged chunk, unit      | page 0    | page 1    | page 2    | ...  8 KiB each, or 64
 *     percpu_page                words 16    words 3     words 0         out of line, one for each
 *                                free 0..128 free 0..682 (nobody's)      a bit for each slot; `filled`: words of these bits that are not 0
 *
 * Taking a slot is two counts of trailing zeros; giving one back is one bit, which tells at once whether it was free already.  A page serves a size
 * while it holds an object of it.
 *
 * Invariants:
 *   G1  slots - used is the number of bits of `free`; filled says which of its words are not 0
 *   G2  a page with a free slot and one that is not is on the partial list of its size; of pages that are all free none is anybody's
 *
 * For percpu*.c only.  Not here: which sizes get pages (percpu_policy.h), pages that come and go (percpu_page.c).
 */
#ifndef QUIRE_PERCPU_PAGE_H
#define QUIRE_PERCPU_PAGE_H

#include "percpu/percpu_internal.h"

enum { PAGE_FREE_WORDS = 32 };
STATIC_ASSERT(PAGE_FREE_WORDS * 64 == 1 << (PERCPU_PAGE_LOG2 - WORD_LOG2), "a bit for each word of a page, should that be its size");
STATIC_ASSERT(PAGE_FREE_WORDS * 64 * PERCPU_BIG_WORDS == 1 << (PERCPU_PAGE_LOG2_BIG - WORD_LOG2), "the same of a big one's smallest objects");

struct percpu_page {
    struct percpu_chunk *chunk;
    struct percpu_page *next, *prev; /* of the partial list */
    uint32_t start;                  /* of slot 0, in the unit */
    uint16_t words, slots, used;     /* words: of a slot; 0: nobody's */
    uint16_t free_words;             /* that there are of `free` */
    uint32_t reciprocal;             /* see percpu_page_slot() */
    uint32_t filled;
    uint64_t free[PAGE_FREE_WORDS];  /* its first word in the same cache line as all that */
};
STATIC_ASSERT(offsetof(struct percpu_page, free) <= CACHE_LINE_BYTES - sizeof(uint64_t), "a page of few objects is one cache line");

LIST_OF(percpu_pages, struct percpu_page, next, prev);

static inline uint32_t percpu_page_free_words(unsigned kind)
{
    return kind == PERCPU_PAGED_64 ? 1 : PAGE_FREE_WORDS;
}

static inline uint32_t percpu_page_stride(unsigned kind)
{
    return (uint32_t)align_up(offsetof(struct percpu_page, free) + percpu_page_free_words(kind) * sizeof(uint64_t), CACHE_LINE_BYTES);
}

static inline struct percpu_page *percpu_page_of(const struct percpu_chunk *chunk, size_t index)
{
    return (struct percpu_page *)(void *)(chunk->pages + index * chunk->page_stride);
}

/* A page for objects of so many words, from a paged chunk of the local's; NULL: none has a free one. */
struct percpu_page *percpu_page_new(struct percpu_local *local, uint32_t words);
/* It has no object left: nobody's. */
void percpu_page_delete(struct percpu_local *local, struct percpu_page *page);

static inline struct percpu_page *percpu_page_at(const struct percpu_chunk *chunk, size_t offset)
{
    return percpu_page_of(chunk, offset >> chunk->bit_log2);
}

/* 2^32 / the bytes of a slot, rounded up. */
static inline uint32_t percpu_page_reciprocal(uint32_t words)
{
    return (uint32_t)(((UINT64_C(1) << (32 - WORD_LOG2)) + words - 1) / words);
}

/*
 * The slot that begins there: below `slots` exactly when one does.  One product says both, as no page has more than 2^16 bytes and no slot more than 2^10:
 * above the point the slot, behind it the rest.  (Lemire, Kaser and Kurz 2019.)  In front of slot 0 it is too high.
 */
static inline size_t percpu_page_slot(const struct percpu_page *page, size_t offset)
{
    uint64_t place = (uint64_t)((uint32_t)offset - page->start) * page->reciprocal;
    return likely((uint32_t)place < page->reciprocal) ? place >> 32 : SIZE_MAX;
}

static inline bool percpu_page_is_free(const struct percpu_page *page, size_t slot)
{
    return bits_test(page->free, slot);
}

/* The lowest of the slots of this word of its bits: the offset in the unit. */
static ALWAYS_INLINE size_t percpu_page_take(struct percpu_page *page, unsigned w, uint64_t bits)
{
    page->free[w] = bits & (bits - 1);
    page->used++;
    return page->start + ((size_t)(w * 64 + bits_lowest(bits)) * page->words << WORD_LOG2);
}

/* Of a page with a free slot. */
static inline size_t percpu_page_alloc(struct percpu_local *local, struct percpu_page *page)
{
    unsigned w = bits_lowest(page->filled);
    size_t offset = percpu_page_take(page, w, page->free[w]);
    if (unlikely(page->free[w] == 0)) {
        page->filled &= page->filled - 1;
        if (page->filled == 0)
            percpu_pages_remove(&local->partial[page->words], page);
    }
    return offset;
}

/* A slot that is not free. */
static ALWAYS_INLINE void percpu_page_free(struct percpu_local *local, struct percpu_page *page, size_t slot)
{
    if (unlikely(page->filled == 0))
        percpu_pages_push(&local->partial[page->words], page);
    page->free[slot / 64] |= UINT64_C(1) << (slot % 64);
    page->filled |= UINT32_C(1) << (slot / 64);
    page->used--;
}

#endif
