// SPDX-License-Identifier: MIT
/*
 * percpu_page.c - a page's life: nobody's, a size's, nobody's again.
 *
 *     free_pages of the chunk ---percpu_page_new()---> partial list of its size <---> full, on no list
 *              ^                                              |
 *              +--------------percpu_page_delete()------------+  its last object was freed
 *
 * A paged chunk is listed by how many free pages it has, where others are listed by their longest free run.
 *
 * Locks: the local's.  Not here: slots (percpu_page.h).
 */
#include <string.h>

#include "percpu/percpu_page.h"

static void page_cut(struct percpu_page *page, struct percpu_chunk *chunk, uint32_t index, uint32_t words)
{
    uint32_t even = words & -words, first = index ? 0 : (uint32_t)align_up(1U << EDGE_LOG2, even << WORD_LOG2); /* slots keep their alignment */
    page->words = 0; /* for the child of a fork: nobody's until it is whole */
    atomic_fence_signal();
    page->chunk = chunk;
    page->start = (index << chunk->bit_log2) + first;
    page->slots = (uint16_t)((((1U << chunk->bit_log2) - first) >> WORD_LOG2) / words);
    page->used = 0;
    page->free_words = (uint16_t)percpu_page_free_words(chunk->grain);
    page->reciprocal = percpu_page_reciprocal(words);
    bits_set(page->free, 0, page->slots);
    page->filled = (uint32_t)bits_low((page->slots + WORD_BITS - 1U) / WORD_BITS);
    atomic_fence_signal();
    page->words = (uint16_t)words;
}

struct percpu_page *percpu_page_new(struct percpu_local *local, uint32_t words)
{
    struct percpu_chunk *chunk = percpu_chunk_first(local, percpu_paged_kind(words, 0), 1);
    if (!chunk && words >= PERCPU_BIG_WORDS)
        chunk = percpu_chunk_first(local, PERCPU_PAGED_BIG, 1);
    if (!chunk)
        chunk = percpu_chunk_first(local, PERCPU_PAGED, 1); /* which holds as many slots as there can be */
    if (!chunk)
        return NULL;
    uint32_t w = 0;
    while (chunk->free_pages[w] == 0)
        w++;
    uint32_t index = w * 64 + bits_lowest(chunk->free_pages[w]);
    chunk->free_pages[w] &= chunk->free_pages[w] - 1;
    struct percpu_page *page = percpu_page_of(chunk, index);
    page_cut(page, chunk, index, words);
    percpu_room_add(local, chunk, -(size_t)1);
    percpu_chunk_reclass(local, chunk, chunk->room);
    percpu_pages_push(&local->partial[words], page);
    local->pages_of[words]++;
    return page;
}

void percpu_page_delete(struct percpu_local *local, struct percpu_page *page)
{
    struct percpu_chunk *chunk = page->chunk;
    percpu_pages_remove(&local->partial[page->words], page);
    local->pages_of[page->words]--;
    page->words = 0;
    atomic_fence_signal();
    memset(page->free, 0, page->free_words * sizeof *page->free);
    page->filled = 0;
    bits_set_one(chunk->free_pages, (size_t)((char *)page - chunk->pages) / chunk->page_stride);
    percpu_room_add(local, chunk, 1);
    percpu_chunk_reclass(local, chunk, chunk->room);
}
