// SPDX-License-Identifier: MIT
/*
 * heap_meta.c - headers of pages and large blocks, away from what they describe.
 *
 *     kind   words       a header's bytes
 *     0      up to 4     128                most sizes: 256 slots
 *     1      up to 20    256
 *     2      up to 36    384
 *     3      up to 128   1152, at 128     secure heaps, and systems with large OS pages
 *
 * A chunk without one in use goes back when memory is given back (owner/headers.h).
 *
 * Locks: the heap's.  Not here: what is in a header (heap_page.c, heap_large.c).
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_walk.h"
#include "os/os.h"

enum { CHUNK_BYTES = 32 << 10 };

static const uint16_t kind_words[HEADER_KINDS] = {4, 20, 36, 128};

/* A secure heap's bookkeeping is mapped apart from all blocks, and no stray write comes to it over the pages beside. */
int heap_meta_map(bool is_secure, size_t bytes, struct quire_span *span)
{
    struct quire_source *source = quire_source_default();
    size_t guard = os_page_bytes();
    void *start;
    if (!is_secure)
        return source->verbs->take(source, bytes, os_page_bytes(), span);
    if (os_reserve(bytes + 2 * guard, guard, &start) != 0)
        return -ENOMEM;
    if (os_commit((char *)start + guard, bytes) != 0) {
        (void)os_unmap(start, bytes + 2 * guard);
        return -ENOMEM;
    }
    if (os_tags_on())
        (void)os_tags_ready((char *)start + guard, bytes); /* its tag is 0, and no block's address has that: none reaches it, however far it is led astray */
    *span = (struct quire_span){(char *)start + guard, bytes, QUIRE_SPAN_ZERO, 0};
    return 0;
}

void heap_meta_unmap(bool is_secure, const struct quire_span *span)
{
    struct quire_source *source = quire_source_default();
    if (is_secure)
        (void)os_unmap((char *)span->start - os_page_bytes(), span->bytes + 2 * os_page_bytes());
    else
        source->verbs->give(source, span);
}

bool heap_meta_take(struct quire_heap *heap, size_t bytes, struct quire_span *span)
{
    if (!account_charge(&heap->account, bytes, heap) || !account_settle(&heap->account, bytes, heap_meta_map(heap_is_secure(heap), bytes, span) == 0))
        return false;
    size_add_relaxed(&heap->account.meta_bytes, bytes);
    return true;
}

void heap_meta_give(struct quire_heap *heap, const struct quire_span *span)
{
    size_sub_relaxed(&heap->account.meta_bytes, span->bytes);
    account_discharge(&heap->account, span->bytes);
    heap_meta_unmap(heap_is_secure(heap), span);
}

static bool chunk_new_locked(struct quire_heap *heap, uint32_t kind)
{
    struct quire_span span;
    if (!heap_meta_take(heap, align_up(CHUNK_BYTES, os_page_bytes()), &span))
        return false;
    headers_add(&heap->headers, &span, kind, (uint32_t)align_up(sizeof(struct heap_page) + kind_words[kind] * sizeof(uint64_t), HEADER_ALIGN));
    return true;
}

struct heap_page *heap_header_new(struct quire_heap *heap, uint32_t words)
{
    uint32_t kind = 0;
    struct header_chunk *chunk;
    while (kind_words[kind] < words)
        kind++;
    lock_take(&heap->lock);
    struct heap_page *page = headers_take(&heap->headers, kind, &chunk);
    if (!page && chunk_new_locked(heap, kind))
        page = headers_take(&heap->headers, kind, &chunk);
    if (page) {
        page->chunk_at = (uint32_t)((char *)page - (char *)chunk);
        page->quick_of = NULL;
    }
    lock_drop(&heap->lock);
    return page;
}

void heap_header_delete(struct quire_heap *heap, struct heap_page *page)
{
    lock_take(&heap->lock);
    heap_state_set(page, HEAP_UNUSED);
    headers_give(&heap->headers, (struct header_chunk *)(void *)((char *)page - page->chunk_at), page);
    lock_drop(&heap->lock);
}

void heap_chunks_give(struct quire_heap *heap, struct header_chunk *chunk)
{
    for (struct header_chunk *next; chunk; chunk = next) {
        struct quire_span span = chunk->span;
        next = chunk->next;
        heap_meta_give(heap, &span);
    }
}

void heap_chunks_trim(struct quire_heap *heap)
{
    lock_take(&heap->lock);
    struct header_chunk *idle = headers_unlink(&heap->headers);
    headers_discard(&heap->headers);
    lock_drop(&heap->lock);
    heap_chunks_give(heap, idle);
}

struct heap_page *heap_header_next(struct quire_heap *heap, struct heap_headers *headers)
{
    while (headers->at == headers->cut) {
        lock_take(&heap->lock);
        struct header_chunk *next = headers->chunk ? headers->chunk->next : heap->headers.chunks;
        if (headers->chunk)
            headers->chunk->pins--;
        if (next)
            next->pins++;
        headers->chunk = next;
        headers->cut = next ? next->cut : 0;
        headers->at = 0;
        lock_drop(&heap->lock);
        if (!next)
            return NULL;
    }
    return header_at(headers->chunk, headers->at++);
}
