// SPDX-License-Identifier: MIT
/*
 * heap_meta.c - headers of pages and large blocks, away from what they describe.
 *
 *     chunk (a span): | heap_chunk | header | header | header | ...      of one kind: room for so many words of bits
 *
 *     kind   words       a header's bytes
 *     0      up to 4     128                most sizes: 256 slots
 *     1      up to 20    256
 *     2      up to 36    384
 *     3      up to 128   1152, at 128     secure heaps, and systems with large OS pages
 *
 * Headers are used lowest address first, and a chunk without one in use goes back when memory is given back.
 *
 * Locks: the heap's.  Not here: what is in a header (heap_page.c, heap_large.c).
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_walk.h"
#include "os/os.h"

enum { CHUNK_BYTES = 32 << 10 };

static const uint16_t kind_words[HEAP_HEADER_KINDS] = {4, 20, 36, 128};

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
    if (!account_charge(&heap->account, bytes, heap))
        return false;
    if (heap_meta_map(heap_is_secure(heap), bytes, span) != 0) {
        account_discharge(&heap->account, bytes);
        return false;
    }
    account_charged(&heap->account);
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
    struct heap_chunk *chunk = span.start;
    uint32_t stride = (uint32_t)align_up(sizeof(struct heap_page) + kind_words[kind] * sizeof(uint64_t), HEAP_HEADER_ALIGN);
    size_t room = span.bytes - align_up(sizeof *chunk, HEAP_HEADER_ALIGN);
    bool is_zero = (span.flags & QUIRE_SPAN_ZERO) != 0;
    *chunk = (struct heap_chunk){.next = heap->chunks, .span = span, .stride_bytes = stride, .count = (uint32_t)(room / stride), .kind = kind};
    for (uint32_t i = 0; i < chunk->count && !is_zero; i++)
        memset(heap_header_at(chunk, i), 0, stride);
    atomic_fence_signal(); /* the child of a fork walks the list */
    heap->chunks = chunk;
    return true;
}

/* The list holds headers that were used before; behind it, chunk by chunk, those that never were: they are not touched before their time. */
static struct heap_page *fresh_locked(struct quire_heap *heap, uint32_t kind)
{
    struct heap_chunk *chunk = heap->chunks;
    while (chunk && (chunk->kind != kind || chunk->cut == chunk->count))
        chunk = chunk->next;
    if (!chunk) {
        if (!chunk_new_locked(heap, kind))
            return NULL;
        chunk = heap->chunks;
    }
    struct heap_page *page = heap_header_at(chunk, chunk->cut);
    page->chunk = chunk;
    page->kind = (uint8_t)kind;
    heap_state_set(page, HEAP_UNUSED);
    atomic_fence_signal();
    chunk->cut++;
    return page;
}

struct heap_page *heap_header_new(struct quire_heap *heap, uint32_t words)
{
    uint32_t kind = 0;
    while (kind_words[kind] < words)
        kind++;
    lock_take(&heap->lock);
    struct heap_page *page = heap->unused[kind];
    if (page)
        heap->unused[kind] = page->next;
    else
        page = fresh_locked(heap, kind);
    if (page)
        page->chunk->used++;
    lock_drop(&heap->lock);
    return page;
}

void heap_header_delete(struct quire_heap *heap, struct heap_page *page)
{
    lock_take(&heap->lock);
    heap_state_set(page, HEAP_UNUSED);
    page->next = heap->unused[page->kind];
    heap->unused[page->kind] = page;
    page->chunk->used--;
    lock_drop(&heap->lock);
}

/* Chunks without a header in use go back. */
static struct heap_chunk *idle_unlink_locked(struct quire_heap *heap)
{
    struct heap_chunk *idle = NULL;
    for (uint32_t kind = 0; kind < HEAP_HEADER_KINDS; kind++)
        for (struct heap_page **link = &heap->unused[kind]; *link;) {
            if ((*link)->chunk->used == 0)
                *link = (*link)->next;
            else
                link = &(*link)->next;
        }
    for (struct heap_chunk **link = &heap->chunks; *link;) {
        struct heap_chunk *chunk = *link;
        if (chunk->used != 0) {
            link = &chunk->next;
            continue;
        }
        *link = chunk->next;
        chunk->next = idle;
        idle = chunk;
    }
    return idle;
}

size_t heap_chunks_trim(struct quire_heap *heap)
{
    size_t freed = 0;
    bool any = false;
    lock_take(&heap->lock);
    for (struct heap_chunk *chunk = heap->chunks; chunk; chunk = chunk->next)
        any |= chunk->used == 0;
    struct heap_chunk *idle = any ? idle_unlink_locked(heap) : NULL;
    lock_drop(&heap->lock);
    for (struct heap_chunk *next; idle; idle = next) {
        struct quire_span span = idle->span;
        next = idle->next;
        freed += span.bytes;
        heap_meta_give(heap, &span);
    }
    return freed;
}

struct heap_page *heap_header_next(struct quire_heap *heap, struct heap_headers *headers)
{
    while (headers->at == headers->cut) {
        lock_take(&heap->lock);
        headers->chunk = headers->chunk ? headers->chunk->next : heap->chunks;
        headers->cut = headers->chunk ? headers->chunk->cut : 0;
        lock_drop(&heap->lock);
        headers->at = 0;
        if (!headers->chunk)
            return NULL;
    }
    return heap_header_at(headers->chunk, headers->at++);
}

void heap_chunks_destroy(struct quire_heap *heap)
{
    for (struct heap_chunk *chunk = heap->chunks, *next; chunk; chunk = next) {
        struct quire_span span = chunk->span;
        next = chunk->next;
        heap_meta_give(heap, &span);
    }
}

/* Which headers are unused is what their state says. */
void heap_chunks_after_fork(struct quire_heap *heap)
{
    memset(heap->unused, 0, sizeof heap->unused);
    for (struct heap_chunk *chunk = heap->chunks; chunk; chunk = chunk->next) {
        chunk->used = 0;
        for (uint32_t i = chunk->cut; i-- > 0;) {
            struct heap_page *page = heap_header_at(chunk, i);
            page->pins = 0;
            if (page->state != HEAP_UNUSED) {
                chunk->used++;
                continue;
            }
            page->next = heap->unused[page->kind];
            heap->unused[page->kind] = page;
        }
    }
}
