// SPDX-License-Identifier: MIT
/*
 * slab_meta.c - a slab's own memory: headers of pages, and the sum of all it holds.
 *
 *     the slab's first OS page                           chunks of headers, one OS page, then up to 64 KiB
 *     +------------+-------------+---------------+       +-------+--------+--------+--------+
 *     | quire_slab | home header | home slots    |       | chunk | header | header |  ...   |
 *     +------------+-------------+---------------+       +-------+--------+--------+--------+
 *
 * A small slab is one OS page in all: its first elements lie behind its struct.
 *
 * A thread may look at the header of a page that is going (an address was looked up just before); so an unused header stays a header, and its
 * chunk goes back only after every operation that was going on has ended (slab_grace()).
 *
 * Invariants:
 *   H1  chunk->used is the number of its headers that are not on the list of unused ones
 *
 * Locks: slab->lock throughout.  Not here: pages (slab_page.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "pages/source_internal.h"
#include "slab/slab_internal.h"

enum { CHUNK_BYTES_MAX = 64 << 10 };

struct CACHE_ALIGNED slab_chunk {
    struct quire_span span;
    struct slab_chunk *next;
    size_t stride_bytes;
    uint32_t count, used;
};

/* Memory for bookkeeping comes from the default source, whatever the elements' source is: it must be private to the process. */
static bool meta_take(struct quire_slab *slab, size_t bytes, struct quire_span *span)
{
    struct quire_source *source = quire_source_default();
    if (!account_charge(&slab->account, bytes, slab) || !account_settle(&slab->account, bytes, source->verbs->take(source, bytes, os_page_bytes(), span) == 0))
        return false;
    sanitize_defined(span->start, bytes);
    size_add_relaxed(&slab->account.meta_bytes, bytes);
    return true;
}

static void meta_give(struct quire_slab *slab, const struct quire_span *span)
{
    struct quire_source *source = quire_source_default();
    account_discharge(&slab->account, span->bytes);
    size_sub_relaxed(&slab->account.meta_bytes, span->bytes);
    source_give_cold(source, span); /* unused since a tick at least, or the slab ends */
}

size_t slab_header_bytes(const struct quire_slab *slab, uint32_t words)
{
    return align_up(sizeof(struct slab_page) + words * sizeof(uint64_t) * (slab->markable ? 2 : 1), CACHE_LINE_BYTES);
}

static struct slab_page *header_at(const struct slab_chunk *chunk, uint32_t i)
{
    return (struct slab_page *)(void *)((char *)(uintptr_t)(chunk + 1) + i * chunk->stride_bytes);
}

/* A chunk in memory that may be somebody's leavings: every field that a late look could meet is set. */
static NO_SANITIZE struct slab_chunk *chunk_new(struct quire_slab *slab, uint32_t words)
{
    size_t stride = slab_header_bytes(slab, words), bytes = os_page_bytes();
    while (bytes < sizeof(struct slab_chunk) + stride || (bytes < CHUNK_BYTES_MAX && bytes < size_load_relaxed(&slab->account.mapped_bytes) / 256))
        bytes *= 2;
    struct quire_span span;
    if (!meta_take(slab, bytes, &span))
        return NULL;
    struct slab_chunk *chunk = span.start;
    *chunk = (struct slab_chunk){.span = span, .stride_bytes = stride, .count = (uint32_t)((bytes - sizeof *chunk) / stride)};
    for (uint32_t i = 0; i < chunk->count; i++) {
        struct slab_page *page = header_at(chunk, i);
        *page = (struct slab_page){.chunk = chunk, .words_max = words, .slab = slab};
        page->marks = slab->markable ? &page->free[words] : NULL;
    }
    return chunk;
}

/* A table of pages: a chunk without headers. */
struct slab_table *slab_table_new(struct quire_slab *slab, size_t entries)
{
    struct quire_span span;
    size_t bytes = align_up(sizeof(struct slab_chunk) + sizeof(struct slab_table) + entries * sizeof(struct slab_page *), os_page_bytes());
    if (!meta_take(slab, bytes, &span))
        return NULL;
    struct slab_chunk *chunk = span.start;
    *chunk = (struct slab_chunk){.span = span, .used = 1, .next = slab->chunks};
    slab->chunks = chunk;
    return (struct slab_table *)(void *)(chunk + 1);
}

/* It is an idle chunk now. */
void slab_table_drop(struct quire_slab *slab, struct slab_table *table)
{
    ((struct slab_chunk *)(void *)table - 1)->used = 0;
    __atomic_store_n(&slab->outgrown, true, __ATOMIC_RELAXED); /* others look at it without the lock */
}

/* The first unused header with room for so many words. */
static struct slab_page *unused_pop(struct quire_slab *slab, uint32_t words)
{
    struct slab_page **link = &slab->headers;
    while (*link && (*link)->words_max < words)
        link = &(*link)->next;
    struct slab_page *page = *link;
    if (page) {
        *link = page->next;
        page->chunk->used++;
    }
    return page;
}

static void unused_push(struct quire_slab *slab, struct slab_page *page)
{
    page->next = slab->headers;
    slab->headers = page;
}

static void chunk_add(struct quire_slab *slab, struct slab_chunk *chunk)
{
    chunk->next = slab->chunks;
    slab->chunks = chunk;
    for (uint32_t i = chunk->count; i-- > 0;) /* the lowest address is used first */
        unused_push(slab, header_at(chunk, i));
}

struct slab_page *slab_header_new(struct quire_slab *slab, uint32_t words)
{
    words = words > slab->words_most ? words : slab->words_most;
    struct slab_page *page = unused_pop(slab, words);
    if (!page) {
        struct slab_chunk *chunk = chunk_new(slab, words);
        if (chunk) {
            chunk_add(slab, chunk);
            page = unused_pop(slab, words);
        }
    }
    return page;
}

void slab_header_delete(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    __atomic_store_n(&page->state, PAGE_UNUSED, __ATOMIC_RELEASE);
    unused_push(slab, page);
    if (--page->chunk->used == 0)
        slab->wakes = true;
}

bool slab_headers_idle(const struct quire_slab *slab)
{
    bool idle = false;
    for (const struct slab_chunk *chunk = slab->chunks; chunk && !idle; chunk = chunk->next)
        idle = chunk->used == 0;
    return idle;
}

/* Between grace and giving a header may be used and given up again: so idle chunks are taken off the lists before the grace. */
struct slab_chunk *slab_headers_unlink(struct quire_slab *slab)
{
    struct slab_chunk *idle = NULL;
    for (struct slab_page **link = &slab->headers; *link;) {
        if ((*link)->chunk->used == 0)
            *link = (*link)->next;
        else
            link = &(*link)->next;
    }
    for (struct slab_chunk **link = &slab->chunks; *link;) {
        struct slab_chunk *chunk = *link;
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

void slab_headers_relink(struct quire_slab *slab, struct slab_chunk *idle)
{
    for (struct slab_chunk *next; idle; idle = next) {
        next = idle->next;
        chunk_add(slab, idle);
    }
}

void slab_headers_give(struct quire_slab *slab, struct slab_chunk *idle)
{
    for (struct slab_chunk *next; idle; idle = next) {
        struct quire_span span = idle->span;
        next = idle->next;
        meta_give(slab, &span);
    }
}

/* Call fn with every header in use whose page is still known as its. */
void slab_headers_each(struct quire_slab *slab, void (*fn)(struct slab_page *page))
{
    for (struct slab_chunk *chunk = slab->chunks; chunk; chunk = chunk->next)
        for (uint32_t i = 0; i < chunk->count; i++) {
            struct slab_page *page = header_at(chunk, i);
            if (page->state == PAGE_UNUSED)
                continue;
            if (owner_object(pagemap_find(page->span.start)) != page)
                page->state = PAGE_UNUSED; /* it was coming or going */
            else if (fn)
                fn(page);
        }
}

/* Which headers are unused is what their state says; what is held is what is there. */
void slab_headers_after_fork(struct quire_slab *slab)
{
    size_t meta_bytes = slab->span.bytes - slab_slots_bytes(slab->home);
    for (struct slab_chunk *chunk = slab->chunks; chunk; chunk = chunk->next)
        meta_bytes += chunk->span.bytes;
    size_store_relaxed(&slab->account.meta_bytes, meta_bytes);
    slab->headers = NULL;
    for (struct slab_chunk *chunk = slab->chunks; chunk; chunk = chunk->next) {
        chunk->used = addr_load_relaxed(&slab->table) == (uintptr_t)(chunk + 1);
        for (uint32_t i = chunk->count; i-- > 0;) {
            struct slab_page *page = header_at(chunk, i);
            if (page->state != PAGE_UNUSED)
                chunk->used++;
            else
                unused_push(slab, page);
        }
    }
}
