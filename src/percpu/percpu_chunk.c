// SPDX-License-Identifier: MIT
/*
 * percpu_chunk.c - a chunk: one unit for each CPU, a map of what is taken in all of them, and which of them were ever written.
 *
 *     span     | unit 0 | unit 1 | ... | shared copy |      aligned to a unit; memory only where something was written
 *     meta     | percpu_chunk | written | bitmap ... |      a bit for each 4, 16 or 64 bytes of a unit, two maps of them, hints
 *
 * Memory is committed by writing.  Allocating writes to no unit; freeing reads the copies of the units that were written and clears what is not
 * zero.  A unit counts as written from its first sequence on (percpu_chunk_touch), or when quire_percpu_at() has handed out an address in it.
 *
 * Locks: the owner's; the bits of `written` are set by any thread.  Not here: which chunk to use (percpu_alloc.c).
 */
#include <string.h>

#include "os/os.h"
#include "os/sanitize.h"
#include "pages/source_internal.h"
#include "percpu/percpu_page.h"

/* ---- lists ---- */

static void enter_list(struct percpu_local *local, struct percpu_chunk *chunk)
{
    percpu_chunks_push(&local->list[chunk->grain][chunk->class], chunk);
    bits_set_one(local->filled[chunk->grain], chunk->class);
}

/* The chunk comes to the local (1), or leaves it (-1): all sums, its pages' lists, and how many of each size are in maps. */
static void local_follows(struct percpu_local *local, struct percpu_chunk *chunk, int change)
{
    size_t bytes, sign = (size_t)change, objects = 0;
    bool paged = percpu_is_paged(chunk->grain);
    local->chunks += (uint32_t)change;
    *percpu_room(local, chunk->grain) += sign * chunk->room;
    for (size_t at = 0; !paged && !percpu_chunk_is_empty(chunk) && (at = percpu_chunk_next(chunk, at, &bytes)) != SIZE_MAX; at += bytes) {
        percpu_mapped_add(local, bytes >> WORD_LOG2, change);
        objects++;
    }
    for (size_t i = 0; paged && i < chunk->pool->room[chunk->grain]; i++) {
        struct percpu_page *page = percpu_page_of(chunk, i);
        objects += page->used;
        local->pages_of[page->words] += page->words ? (uint32_t)change : 0;
        if (page->words && page->filled && change > 0)
            percpu_pages_push(&local->partial[page->words], page);
        else if (page->words && page->filled)
            percpu_pages_remove(&local->partial[page->words], page);
    }
    local->allocs += sign * objects;
    local->objects_peak += sign * objects; /* as much as the last owner's goes down by */
}

void percpu_chunk_link(struct percpu_local *local, struct percpu_chunk *chunk)
{
    enter_list(local, chunk);
    local_follows(local, chunk, 1);
    addr_store_release(&chunk->owner, (uintptr_t)local); /* release [percpu-owner] */
    atomic_fence_signal();
    if (percpu_amid.chunk == chunk)
        percpu_amid.chunk = NULL;
}

static void leave_list(struct percpu_local *local, struct percpu_chunk *chunk)
{
    percpu_chunks_remove(&local->list[chunk->grain][chunk->class], chunk);
    if (!local->list[chunk->grain][chunk->class])
        bits_clear_one(local->filled[chunk->grain], chunk->class);
}

void percpu_chunk_last(struct percpu_local *local, struct percpu_chunk *chunk)
{
    struct percpu_chunk **head = &local->list[chunk->grain][chunk->class];
    leave_list(local, chunk);
    enter_list(local, chunk);
    if (!chunk->next)
        return;
    *head = chunk->next; /* the first of a ring becomes its last */
    chunk->prev->next = chunk;
    chunk->next = NULL;
}

void percpu_chunk_unlink(struct percpu_local *local, struct percpu_chunk *chunk)
{
    leave_list(local, chunk);
    local_follows(local, chunk, -1);
    if (local->seen && *percpu_seen(local, chunk->pool, (uintptr_t)chunk->base) == chunk)
        *percpu_seen(local, chunk->pool, (uintptr_t)chunk->base) = NULL;
}

void percpu_chunk_reclass(struct percpu_local *local, struct percpu_chunk *chunk, size_t longest)
{
    unsigned class = percpu_class_floor(longest);
    if (class == chunk->class)
        return;
    leave_list(local, chunk);
    chunk->class = class;
    enter_list(local, chunk);
}

void percpu_chunks_move(struct percpu_local *from, struct percpu_local *to)
{
    FOR_EACH_LIST(grain, class)
        while (from->list[grain][class]) {
            struct percpu_chunk *chunk = from->list[grain][class];
            percpu_chunk_unlink(from, chunk);
            percpu_chunk_link(to, chunk);
        }
}

/* ---- life ---- */

/* Whoever finds it in the page map under this lock finds it whole. */
static bool all_enter(struct quire_percpu *pool, struct percpu_chunk *chunk)
{
    lock_take(&pool->lock);
    if (pagemap_set(chunk->base, os_page_bytes(), owner_make(chunk, OWNER_PERCPU)) != 0) {
        lock_drop(&pool->lock);
        return false;
    }
    percpu_all_push(&pool->all, chunk);
    lock_drop(&pool->lock);
    return true;
}

static void all_leave(struct quire_percpu *pool, struct percpu_chunk *chunk)
{
    lock_take(&pool->lock);
    percpu_all_remove(&pool->all, chunk);
    pagemap_clear(chunk->base, os_page_bytes());
    lock_drop(&pool->lock);
}

/* Zero, but for pages that are zero already: one that was never written stays without memory. */
static void clear_written(char *copy, size_t bytes)
{
    for (char *end = copy + bytes, *stop; copy < end; copy = stop) {
        stop = (char *)align_down((uintptr_t)copy + os_page_bytes(), os_page_bytes());
        stop = stop < end ? stop : end;
        for (char *at = copy; at < stop; at += (size_t)1 << WORD_LOG2) {
            uint32_t word;
            memcpy(&word, at, sizeof word);
            if (word) {
                memset(at, 0, (size_t)(stop - at));
                break;
            }
        }
    }
}

/* A span of the pool's source.  What was somebody's gives its memory up first: clearing then finds little to clear. */
static bool span_take(const struct quire_percpu *pool, struct quire_span *span)
{
    const struct quire_source_verbs *verbs = pool->source->verbs;
    size_t unit_bytes = (size_t)1 << pool->window.unit_shift, bytes = pool->units * unit_bytes;
    if (verbs->take(pool->source, bytes, unit_bytes, span) != 0)
        return false;
    if (span->flags & QUIRE_SPAN_ZERO)
        return true;
    verbs->idle(pool->source, span->start, bytes);
    if (verbs->busy(pool->source, span->start, bytes) == 0)
        return true;
    verbs->give(pool->source, span);
    return false;
}

/* Zero, and no huge pages: a huge page would commit units that nobody writes. */
static void span_prepare(const struct quire_percpu *pool, const struct quire_span *span)
{
    if (pool->own_memory && os_huge_bytes() != 0)
        (void)os_advise_nohuge(span->start, span->bytes);
    if (!(span->flags & QUIRE_SPAN_ZERO)) {
        sanitize_defined(span->start, span->bytes);
        clear_written(span->start, span->bytes);
    }
    os_name(span->start, span->bytes, "quire:percpu");
    if (!sanitize_watched())
        return;
    sanitize_no_access(span->start, span->bytes);
    for (uint32_t unit = 0; unit < pool->units; unit++)
        sanitize_defined((char *)span->start + ((size_t)unit << pool->window.unit_shift), (size_t)FIRST_WORDS << WORD_LOG2);
}

static struct percpu_chunk *chunk_make(struct quire_percpu *pool, const struct quire_span *span, const struct quire_span *meta, unsigned grain)
{
    /* Not all at the start of a page: these lines would push each other out of the cache. */
    size_t places = (meta->bytes - pool->chunk_meta_bytes[grain]) / CACHE_LINE_BYTES + 1;
    struct percpu_chunk *chunk = (void *)((char *)meta->start + size_load_relaxed(&pool->chunks) % places * CACHE_LINE_BYTES);
    chunk->pool = pool;
    chunk->base = span->start;
    chunk->span = *span;
    chunk->meta = *meta;
    chunk->written = (atomic_u64 *)(void *)(chunk + 1);
    chunk->grain = grain;
    u32_store_relaxed(&chunk->any_written, pool->watched);
    chunk->class = percpu_class_empty(pool, grain);
    chunk->room = (uint32_t)pool->room[grain];
    void *rest = chunk->written + (pool->units + 63) / 64;
    if (percpu_is_paged(grain)) {
        chunk->free_pages = rest;
        chunk->pages = (char *)align_up((uintptr_t)(chunk->free_pages + (chunk->room + 63) / 64), CACHE_LINE_BYTES);
        chunk->page_stride = percpu_page_stride(grain);
        chunk->bit_log2 = percpu_page_log2(grain, pool->window.unit_shift);
        bits_set(chunk->free_pages, 0, chunk->room);
        return chunk;
    }
    chunk->bit_log2 = WORD_LOG2 + 2 * grain;
    bitmap_init(&chunk->map, rest, pool->unit_words >> (2 * grain));
    bitmap_alloc(&chunk->map, (size_t)FIRST_WORDS >> (2 * grain), 0);
    chunk->edge_log2 = EDGE_LOG2;
    return chunk;
}

struct percpu_chunk *percpu_chunk_new(struct quire_percpu *pool, unsigned grain)
{
    struct quire_span span, meta;
    size_t bytes = (size_t)pool->units << pool->window.unit_shift;
    size_t meta_bytes = align_up(pool->chunk_meta_bytes[grain], os_page_bytes());
    percpu_change_begin(pool);
    struct percpu_chunk *chunk = NULL;
    if (!account_charge(&pool->account, bytes + meta_bytes, pool))
        goto no_room;
    if (!source_own_take(meta_bytes, &meta))
        goto no_meta;
    if (!span_take(pool, &span))
        goto no_span;
    span_prepare(pool, &span);
    if (size_load_relaxed(&pool->chunks) != 0 && !percpu_is_paged(grain) && (meta.flags & QUIRE_SPAN_ZERO))
        (void)os_populate(meta.start, meta.bytes); /* the pool is growing: the map will be written all over */
    chunk = chunk_make(pool, &span, &meta, grain);
    percpu_amid.chunk = chunk;
    atomic_fence_signal();
    if (!all_enter(pool, chunk))
        goto no_pagemap;
    sanitize_root(span.start, span.bytes, true); /* here, under a lock of theirs, and not at a first write, which may be a signal handler's */
    size_add_relaxed(&pool->account.meta_bytes, meta_bytes);
    size_max_relaxed(&pool->chunks_peak, size_add_relaxed(&pool->chunks, 1) + 1);
    account_charged(&pool->account);
    percpu_change_end(pool);
    return chunk;
no_pagemap:
    percpu_amid.chunk = NULL;
    sanitize_defined(span.start, span.bytes);
    pool->source->verbs->give(pool->source, &span);
no_span:
    source_own_give(meta);
no_meta:
    account_discharge(&pool->account, bytes + meta_bytes);
no_room:
    percpu_change_end(pool);
    return NULL;
}

void percpu_chunk_delete(struct percpu_chunk *chunk)
{
    struct quire_percpu *pool = chunk->pool;
    struct quire_span span = chunk->span, meta = chunk->meta;
    percpu_change_begin(pool);
    all_leave(pool, chunk);
    percpu_amid.chunk = NULL;
    sanitize_root(span.start, span.bytes, false);
    sanitize_undefined(span.start, span.bytes);
    pool->source->verbs->give(pool->source, &span);
    source_own_give(meta);
    size_sub_relaxed(&pool->chunks, 1);
    size_sub_relaxed(&pool->account.meta_bytes, meta.bytes);
    account_discharge(&pool->account, span.bytes + meta.bytes);
    percpu_change_end(pool);
}

/* ---- what is written ---- */

void percpu_chunk_touch(struct percpu_chunk *chunk, uint32_t unit, bool sequence)
{
    atomic_u64 *word = &chunk->written[unit / 64];
    uint64_t bit = UINT64_C(1) << (unit % 64);
    if (!(u64_load_acquire(word) & bit)) {          /* acquire [percpu-written] */
        u32_store_relaxed(&chunk->any_written, 1); /* first: who sees the bit sees this */
        (void)u64_or_seq_cst(word, bit);           /* release [percpu-written] */
    }
    if (sequence)
        __atomic_store_n(percpu_unit(chunk, unit), 1, __ATOMIC_RELEASE);
}

void percpu_chunk_clear(struct percpu_chunk *chunk, size_t offset, size_t bytes)
{
    for (uint32_t w = 0; w * 64 < chunk->pool->units; w++)
        for (uint64_t units = u64_load_relaxed(&chunk->written[w]); units; units &= units - 1)
            clear_written(percpu_unit(chunk, w * 64 + bits_lowest(units)) + offset, bytes);
    if (unlikely(chunk->pool->watched))
        percpu_tell(sanitize_no_access, chunk, offset, bytes);
    atomic_fence_signal(); /* before its bits go, for the child of a fork */
}

COLD void percpu_tell(void (*tell)(const void *start, size_t bytes), const struct percpu_chunk *chunk, size_t offset, size_t bytes)
{
    for (uint32_t unit = 0; unit < chunk->pool->units; unit++)
        tell(percpu_unit(chunk, unit) + offset, bytes);
}

/* ---- its objects ---- */

static size_t next_in_pages(const struct percpu_chunk *chunk, size_t from, size_t *bytes)
{
    for (size_t i = from >> chunk->bit_log2; i < chunk->pool->room[chunk->grain]; i++) {
        const struct percpu_page *page = percpu_page_of(chunk, i);
        if (page->words == 0)
            continue;
        size_t slot_bytes = (size_t)page->words << WORD_LOG2, slot = from <= page->start ? 0 : (from - page->start + slot_bytes - 1) / slot_bytes;
        for (; slot < page->slots; slot++)
            if (!percpu_page_is_free(page, slot)) {
                *bytes = slot_bytes;
                return page->start + slot * slot_bytes;
            }
    }
    return SIZE_MAX;
}

size_t percpu_chunk_next(const struct percpu_chunk *chunk, size_t from, size_t *bytes)
{
    if (percpu_is_paged(chunk->grain))
        return next_in_pages(chunk, from, bytes);
    size_t run = 0, edge = (size_t)1 << EDGE_LOG2, bit = (size_t)1 << chunk->bit_log2;
    size_t at = bitmap_next_taken(&chunk->map, align_up(from < edge ? edge : from, bit) >> chunk->bit_log2, &run);
    *bytes = run << chunk->bit_log2;
    return at == BITMAP_NONE ? SIZE_MAX : at << chunk->bit_log2;
}

bool percpu_chunk_has(const struct percpu_chunk *chunk, size_t offset)
{
    if (!percpu_is_paged(chunk->grain))
        return percpu_offset_fits(chunk, offset) && bitmap_run(&chunk->map, offset >> chunk->bit_log2) != 0;
    const struct percpu_page *page = percpu_page_at(chunk, offset);
    size_t slot = percpu_page_slot(page, offset);
    return page->words && slot < page->slots && !percpu_page_is_free(page, slot);
}

/* ---- whose is this ref? ---- */

struct percpu_chunk *percpu_chunk_find(const struct quire_percpu *pool, uintptr_t bits)
{
    owner_t owner = pagemap_find((const void *)(bits & pool->window.unit_mask));
    struct percpu_chunk *chunk = owner_object(owner);
    return likely(owner_kind(owner) == OWNER_PERCPU && chunk->pool == pool) ? chunk : NULL;
}

struct percpu_local *percpu_chunk_owner_of(struct quire_percpu *pool, uintptr_t bits, struct percpu_chunk **chunk)
{
    lock_take(&pool->lock);
    *chunk = percpu_chunk_find(pool, bits);
    struct percpu_local *owner = *chunk ? percpu_owner(*chunk) : NULL; /* none yet: it is being made */
    lock_drop(&pool->lock);
    return owner;
}

/* Nobody's, or another pool's, perhaps one of other units. */
static COLD void refuse_stranger(const struct quire_percpu *pool, uintptr_t bits)
{
    bool others = false, mine = lock_is_mine(&percpu_pools.lock);
    percpu_let_go();
    if (!mine)
        registry_lock(&percpu_pools);
    for (const struct quire_percpu *other = percpu_first; other && !others; other = other->next)
        others = percpu_chunk_find(other, bits) != NULL;
    if (!mine)
        registry_unlock(&percpu_pools);
    percpu_refuse(pool, others ? PERCPU_E4 : PERCPU_E2, bits);
}

struct percpu_chunk *percpu_chunk_verify(const struct quire_percpu *pool, uintptr_t bits)
{
    struct percpu_chunk *chunk = percpu_chunk_find(pool, bits);
    if (unlikely(!chunk))
        refuse_stranger(pool, bits);
    if (unlikely(bits & (((uintptr_t)1 << WORD_LOG2) - 1)))
        percpu_refuse(pool, PERCPU_E3, bits);
    return chunk;
}
