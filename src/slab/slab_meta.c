// SPDX-License-Identifier: MIT
/*
 * slab_meta.c - a slab's own memory: headers of pages, and the sum of all it holds.
 *
 *     the slab's first OS page                           chunks of headers, one OS page, then up to 64 KiB
 *     +------------+-------------+---------------+       +-------+--------+--------+--------+
 *     | quire_slab | home header | home slots    |       | chunk | header | header |  ...   |      owner/headers.h
 *     +------------+-------------+---------------+       +-------+--------+--------+--------+
 *
 * A small slab is one OS page in all: its first elements lie behind its struct.
 *
 * A thread may look at the header of a page that is going (an address was looked up just before); so an unused header stays a header, and its
 * chunk retires only after every operation that was going on has ended (slab_grace()).
 *
 * No grace waits for a thread without a record, whose free looks at a table and at a header before it finds that it has no magazine: so the addresses of
 * both stay the slab's until it ends.  Of a retired chunk all OS pages but the first go back, and what is read there is a header without slots, or an old
 * one.  A table stays whole, for its entries are followed.  Both are used again.
 *
 * Locks: slab->lock throughout.  Not here: pages (slab_page.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "pages/source_internal.h"
#include "slab/slab_internal.h"

enum { CHUNK_BYTES_MAX = 64 << 10, KIND_ORDINARY = 0, KIND_LONGEST = 1 /* of a slab whose pages were let grow later */ };

/* Memory for bookkeeping comes from the default source, whatever the elements' source is: it must be private to the process. */
static bool meta_take(struct quire_slab *slab, size_t bytes, struct quire_span *span)
{
    struct quire_source *source = quire_source_default();
    if (!account_charge(&slab->account, bytes, slab) || !account_settle(&slab->account, bytes, source->verbs->take(source, bytes, os_page_bytes(), span) == 0))
        return false;
    sanitize_defined(span->start, bytes);
    size_add_relaxed(&slab->account.meta_bytes, bytes);
    if (slab->told)
        slab->told(slab->source);
    return true;
}

static void meta_give(struct quire_slab *slab, const struct quire_span *span, size_t charged)
{
    struct quire_source *source = quire_source_default();
    account_discharge(&slab->account, charged);
    size_sub_relaxed(&slab->account.meta_bytes, charged);
    if (slab->told)
        slab->told(slab->source);
    source_give_cold(source, span);
}

size_t slab_header_bytes(const struct quire_slab *slab, uint32_t words)
{
    return align_up(sizeof(struct slab_page) + words * sizeof(uint64_t) * (slab->markable ? 2 : 1), CACHE_LINE_BYTES);
}

/* ---- chunks that retired ---- */

/* `used` is how many of its OS pages are not charged: they went back. */
static size_t retired_bytes(const struct header_chunk *chunk)
{
    return chunk->span.bytes - chunk->used * os_page_bytes();
}

void slab_headers_retire(struct quire_slab *slab, struct header_chunk *idle)
{
    for (struct header_chunk *chunk; (chunk = idle) != NULL;) {
        size_t rest = chunk->span.bytes - os_page_bytes();
        idle = chunk->next;
        if (rest && os_discard((char *)chunk->span.start + os_page_bytes(), rest) == 0) {
            chunk->used = (uint32_t)(rest / os_page_bytes());
            account_discharge(&slab->account, rest);
            size_sub_relaxed(&slab->account.meta_bytes, rest);
        }
        chunk->next = slab->retired;
        atomic_fence_signal(); /* the child of a fork walks the list */
        slab->retired = chunk;
    }
    if (slab->told)
        slab->told(slab->source);
}

/* One of this kind is a chunk again.  NULL: there is none, or the limit is reached. */
static struct header_chunk *chunk_return(struct quire_slab *slab, uint32_t kind)
{
    struct header_chunk **link = &slab->retired, *chunk;
    while ((chunk = *link) != NULL && chunk->kind != kind)
        link = &chunk->next;
    if (!chunk)
        return NULL;
    size_t missing = chunk->span.bytes - retired_bytes(chunk);
    if (!account_charge(&slab->account, missing, slab))
        return NULL;
    account_charged(&slab->account);
    size_add_relaxed(&slab->account.meta_bytes, missing);
    *link = chunk->next;
    struct quire_span span = chunk->span;
    sanitize_defined(span.start, span.bytes);
    chunk = headers_add(&slab->headers, &span, kind, chunk->stride_bytes);
    if (slab->told)
        slab->told(slab->source);
    return chunk;
}

/* ---- headers and tables ---- */

static struct header_chunk *chunk_new(struct quire_slab *slab, uint32_t kind)
{
    struct header_chunk *old = chunk_return(slab, kind);
    if (old)
        return old;
    size_t stride = slab_header_bytes(slab, kind == KIND_ORDINARY ? slab->words_most : SLAB_SLOTS_MAX / WORD_BITS), bytes = os_page_bytes();
    while (bytes < sizeof(struct header_chunk) + stride || (bytes < CHUNK_BYTES_MAX && bytes < size_load_relaxed(&slab->account.mapped_bytes) / 64)) /* of each that retires a page stays: few of them */
        bytes *= 2;
    struct quire_span span;
    return meta_take(slab, bytes, &span) ? headers_add(&slab->headers, &span, kind, (uint32_t)stride) : NULL;
}

/* A table that was replaced, with just this mask: who still reads it goes by that. */
static struct slab_table *table_replaced(const struct quire_slab *slab, uintptr_t mask)
{
    for (struct header_chunk *chunk = slab->headers.chunks; chunk; chunk = chunk->next) {
        struct slab_table *table = (struct slab_table *)(void *)(chunk + 1);
        if (chunk->stride_bytes == 0 && table->mask == mask && addr_load_relaxed(&slab->table) != (uintptr_t)table)
            return table;
    }
    return NULL;
}

/* A table of pages: a chunk without headers, that is never idle. */
struct slab_table *slab_table_new(struct quire_slab *slab, size_t entries)
{
    uintptr_t mask = (entries - 1) * sizeof(struct slab_page *);
    struct slab_table *table = table_replaced(slab, mask);
    if (table)
        return table;
    struct quire_span span;
    size_t bytes = align_up(sizeof(struct header_chunk) + sizeof(struct slab_table) + entries * sizeof(struct slab_page *), os_page_bytes());
    if (!meta_take(slab, bytes, &span))
        return NULL;
    struct header_chunk *chunk = headers_add(&slab->headers, &span, 0, 0);
    chunk->used = 1;
    table = (struct slab_table *)(void *)(chunk + 1);
    table->mask = mask;
    return table;
}

static struct header_chunk *chunk_of(const struct slab_page *page)
{
    return (struct header_chunk *)((uintptr_t)page - (size_t)page->chunk_lines * CACHE_LINE_BYTES);
}

struct slab_page *slab_header_new(struct quire_slab *slab, uint32_t words)
{
    uint32_t kind = words <= slab->words_most ? KIND_ORDINARY : KIND_LONGEST;
    struct header_chunk *chunk;
    struct slab_page *page = headers_take(&slab->headers, kind, &chunk);
    if (!page && chunk_new(slab, kind))
        page = headers_take(&slab->headers, kind, &chunk);
    if (page && !page->slab) { /* it was never used; from now on these are there for late looks */
        page->chunk_lines = (uint16_t)((size_t)((char *)page - (char *)chunk) / CACHE_LINE_BYTES);
        __atomic_store_n(&page->slab, slab, __ATOMIC_RELEASE); /* last: the child of a fork may find it half done */
    }
    return page;
}

void slab_header_delete(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    struct header_chunk *chunk = chunk_of(page);
    atomic_fence_signal();
    page->state = PAGE_UNUSED;
    for (unsigned lane = 0; lane < SLAB_LANES; lane++)
        if (slab->lane[lane].picked == page)
            slab->lane[lane].picked = NULL;
    headers_give(&slab->headers, chunk, page);
    slab->wakes |= chunk->used == 0;
}

static void chunks_give(struct quire_slab *slab, struct header_chunk *chunk, bool are_retired)
{
    for (struct header_chunk *next; chunk; chunk = next) {
        struct quire_span span = chunk->span;
        size_t charged = are_retired ? retired_bytes(chunk) : span.bytes;
        next = chunk->next;
        meta_give(slab, &span, charged);
    }
}

void slab_headers_destroy(struct quire_slab *slab)
{
    chunks_give(slab, slab->headers.chunks, false);
    chunks_give(slab, slab->retired, true);
}

struct slab_page *slab_page_after(const struct quire_slab *slab, const struct slab_page *page)
{
    if (!page && slab->home->slot_count)
        return slab->home;
    bool is_first = !page || slab_is_home(page);
    struct header_chunk *chunk = is_first ? slab->headers.chunks : chunk_of(page);
    char *at = is_first ? NULL : (char *)(uintptr_t)page + chunk->stride_bytes;
    for (; chunk; chunk = chunk->next, at = NULL) {
        at = at ? at : header_at(chunk, 0);
        for (char *end = header_at(chunk, chunk->cut); at < end; at += chunk->stride_bytes)
            if (((struct slab_page *)(void *)at)->state != PAGE_UNUSED)
                return (struct slab_page *)(void *)at;
    }
    return NULL;
}

static bool is_used(const void *header)
{
    return ((const struct slab_page *)header)->state != PAGE_UNUSED;
}

void slab_headers_after_fork(struct quire_slab *slab)
{
    size_t bytes = slab->span.bytes - slab_slots_bytes(slab->home) + headers_bytes(&slab->headers);
    for (const struct header_chunk *chunk = slab->retired; chunk; chunk = chunk->next)
        bytes += retired_bytes(chunk);
    size_store_relaxed(&slab->account.meta_bytes, bytes);
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        if (owner_object(pagemap_find(slab_slots(page))) != page)
            page->state = PAGE_UNUSED; /* it was coming or going */
    headers_after_fork(&slab->headers, is_used);
    for (struct header_chunk *chunk = slab->headers.chunks; chunk; chunk = chunk->next)
        chunk->used += chunk->stride_bytes == 0;
}
