// SPDX-License-Identifier: MIT
/*
 * percpu_free.c - an object's end: its copies are cleared, then its bits.
 *
 *     this thread's chunk      by two plain stores, as allocating
 *     another thread's         into that thread's inbox; the one that finds it full visits the thread and empties it
 *     home's, the reserve's    by their lock
 *
 * Copies are cleared first and the bits last: a child of a fork sees an object whole, or gone.  A chunk without objects goes back at once when its
 * local has room enough without it.
 *
 * An object that is free already: its bit in the map's starts is 0 (E1).  What comes through an inbox is refused when that is emptied.
 *
 * Locks: the local's bias; an inbox's, in which nothing is done but copying.  Not here: the map (base/bitmap.h).
 */
#include <errno.h>
#include <string.h>

#include "os/os.h"
#include "percpu/percpu_page.h"

/* Words that were freed; 0: refused. */
static inline size_t map_free(struct percpu_local *local, struct percpu_chunk *chunk, size_t offset)
{
    size_t idx = offset >> chunk->bit_log2, merged;
    if (unlikely(!percpu_offset_fits(chunk, offset)))
        return 0;
    if (u32_load_relaxed(&chunk->any_written) != 0)
        percpu_chunk_clear(chunk, offset, bitmap_run(&chunk->map, idx) << chunk->bit_log2);
    size_t run = bitmap_free_merged(&chunk->map, idx, &merged);
    if (unlikely(run == 0))
        return 0;
    run <<= 2 * chunk->grain;
    percpu_room_add(local, chunk, run);
    percpu_mapped_add(local, run, -1);
    if (unlikely(percpu_class_floor(merged) > chunk->class))
        percpu_chunk_reclass(local, chunk, merged);
    if (unlikely(percpu_chunk_is_empty(chunk)))
        chunk->edge_log2 = EDGE_LOG2;
    return run;
}

static ALWAYS_INLINE size_t page_free(struct percpu_local *local, struct percpu_chunk *chunk, size_t offset)
{
    struct percpu_page *page = percpu_page_at(chunk, offset);
    uint32_t words = page->words;
    if (unlikely(words == 0))
        return 0;
    size_t slot = percpu_page_slot(page, offset);
    if (unlikely(slot >= page->slots || percpu_page_is_free(page, slot)))
        return 0;
    if (unlikely(u32_load_relaxed(&chunk->any_written) != 0))
        percpu_chunk_clear(chunk, offset, (size_t)words << WORD_LOG2);
    percpu_page_free(local, page, slot);
    if (unlikely(page->used == 0))
        percpu_page_delete(local, page);
    return words;
}

/* False: refused, nothing has changed.  *emptied: the chunk has no object left. */
static bool local_free(struct percpu_local *local, struct percpu_chunk *chunk, uintptr_t bits, bool *emptied)
{
    size_t offset = percpu_offset(local->pool, bits), words;
    if (likely(percpu_is_paged(chunk->grain)))
        words = page_free(local, chunk, offset);
    else
        words = map_free(local, chunk, offset);
    if (unlikely(words == 0))
        return false;
    local->frees++;
    *emptied = percpu_chunk_is_empty(chunk);
    return true;
}
/* What is wrong with a ref of this chunk that could not be freed. */
static COLD void refuse(const struct percpu_chunk *chunk, uintptr_t bits)
{
    const struct quire_percpu *pool = chunk->pool;
    size_t offset = percpu_offset(pool, bits);
    if (bits & (((uintptr_t)1 << WORD_LOG2) - 1))
        percpu_refuse(pool, PERCPU_E3, bits);
    bool free = false;
    if (!percpu_is_paged(chunk->grain)) {
        free = percpu_offset_fits(chunk, offset) && !bitmap_taken(&chunk->map, offset >> chunk->bit_log2);
    } else if (offset >= (size_t)1 << EDGE_LOG2) {
        const struct percpu_page *page = percpu_page_at(chunk, offset);
        free = page->words == 0 || percpu_page_slot(page, offset) < page->slots;
    }
    percpu_refuse(pool, free ? PERCPU_E1 : PERCPU_E2, bits);
}

static bool giving = true;

void percpu_give_chunks(bool give)
{
    giving = give;
}

/* It has no object left. */
static inline bool empty_goes(struct percpu_local *local, const struct percpu_chunk *chunk)
{
    return percpu_empty_goes(*percpu_room(local, chunk->grain) - chunk->room, chunk->room);
}

static void empty_give(struct percpu_local *local, struct percpu_chunk *chunk)
{
    if (!empty_goes(local, chunk) || !giving)
        return;
    percpu_chunk_unlink(local, chunk);
    percpu_chunk_delete(chunk);
}

bool percpu_empties_give(struct percpu_local *local, size_t *bytes)
{
    bool any = false;
    struct percpu_chunk *next;
    for (unsigned grain = 0; grain < PERCPU_KINDS; grain++)
        for (struct percpu_chunk *chunk = local->list[grain][percpu_class_empty(local->pool, grain)]; chunk; chunk = next) {
            next = chunk->next;
            if (!percpu_chunk_is_empty(chunk))
                continue;
            if (bytes)
                *bytes += os_resident_bytes(chunk->span.start, chunk->span.bytes);
            percpu_chunk_unlink(local, chunk);
            percpu_chunk_delete(chunk);
            any = true;
        }
    return any;
}

static void free_held(struct percpu_local *local, uintptr_t bits)
{
    struct percpu_chunk *chunk = percpu_chunk_verify(local->pool, bits);
    bool emptied = false;
    if (unlikely(percpu_owner(chunk) != local)) /* freed twice: its chunk went, and another's came there */
        percpu_refuse(local->pool, PERCPU_E2, bits);
    if (unlikely(!local_free(local, chunk, bits, &emptied)))
        refuse(chunk, bits);
    if (unlikely(emptied))
        empty_give(local, chunk);
}

/* ---- the inbox ---- */

void percpu_inbox_drain(struct percpu_local *local)
{
    uintptr_t inbox[PERCPU_INBOX];
    if (u32_load_relaxed(&local->inbox_count) == 0)
        return;
    lock_take(&local->inbox_lock);
    uint32_t count = u32_load_relaxed(&local->inbox_count);
    memcpy(inbox, local->inbox, count * sizeof *inbox);
    u32_store_relaxed(&local->inbox_count, 0);
    lock_drop(&local->inbox_lock);
    for (uint32_t i = 0; i < count; i++)
        free_held(local, inbox[i]);
}

/* Seen from outside: the bit of a live object stays as it is, whatever its owner does beside it.  A free one is for a visit to settle. */
NO_SANITIZE static bool seems_free(const struct percpu_chunk *chunk, size_t offset)
{
    if (percpu_is_paged(chunk->grain)) {
        const struct percpu_page *page = (const void *)(chunk->pages + (offset >> chunk->bit_log2) * chunk->page_stride);
        size_t words = page->words, n = (offset - page->start) >> WORD_LOG2;
        return words == 0 || n % words != 0 || n / words >= page->slots || (page->free[n / words / 64] >> (n / words % 64) & 1);
    }
    size_t idx = offset >> chunk->bit_log2;
    return !((chunk->map.taken[idx / 64] & chunk->map.starts[idx / 64]) >> (idx % 64) & 1);
}

/* False: it is full, its owner has no thread, or the chunk has another owner now. */
static bool inbox_put(struct percpu_local *owner, const struct percpu_chunk *chunk, uintptr_t bits)
{
    bool put = false;
    lock_take(&owner->inbox_lock);
    uint32_t count = u32_load_relaxed(&owner->inbox_count);
    if (count < PERCPU_INBOX && percpu_has_thread(owner) && percpu_owner(chunk) == owner) {
        owner->inbox[count] = bits;
        atomic_fence_signal();
        u32_store_relaxed(&owner->inbox_count, count + 1);
        put = true;
    }
    lock_drop(&owner->inbox_lock);
    return put;
}

/* ---- freeing ---- */

static COLD void free_slow(struct quire_percpu *pool, uintptr_t bits)
{
    int kept = errno;
    struct percpu_chunk *chunk = percpu_chunk_verify(pool, bits);
    for (;;) {
        struct percpu_local *owner = percpu_owner(chunk), *mine = percpu_mine(pool);
        if (owner != mine && bias_works() && !seems_free(chunk, percpu_offset(pool, bits)) && inbox_put(owner, chunk, bits))
            break;
        percpu_visit(owner);
        bool still = percpu_owner(chunk) == owner; /* it may have another owner meanwhile */
        if (still) {
            percpu_inbox_drain(owner); /* an older free of the same object would be E1 in either order */
            free_held(owner, bits);
        }
        percpu_release(owner);
        if (still)
            break;
    }
    percpu_reserve_fill(pool);
    errno = kept;
}

/* The chunk was found empty by the short way: it may be gone, or in use again. */
static COLD void emptied_slow(struct quire_percpu *pool, uintptr_t bits)
{
    int kept = errno;
    struct percpu_local *local = percpu_hold(pool);
    struct percpu_chunk *chunk;
    if (percpu_chunk_owner_of(pool, bits, &chunk) == local && percpu_chunk_is_empty(chunk))
        empty_give(local, chunk);
    percpu_release(local);
    percpu_reserve_fill(pool);
    errno = kept;
}

/* The chunk, if it is one of this local's. */
static inline struct percpu_chunk *mine_at(struct percpu_local *local, uintptr_t bits)
{
    struct percpu_chunk **seen = percpu_seen(local, local->pool, bits), *chunk = *seen;
    if (likely(chunk && (uintptr_t)chunk->base == (bits & local->pool->window.unit_mask)))
        return chunk;
    chunk = percpu_chunk_find(local->pool, bits);
    if (!chunk || (struct percpu_local *)addr_load_relaxed(&chunk->owner) != local)
        return NULL;
    return *seen = chunk;
}

/* Any object of this thread's chunks; the rest is for the lock. */
static NOINLINE void free_long(struct quire_percpu *pool, uintptr_t bits)
{
    struct percpu_local *local = percpu_mine(pool);
    if (unlikely(bits == 0))
        return;
    /* What others freed is looked at first, or a second free of the same object would not be seen. */
    if (likely(local && u32_load_relaxed(&local->inbox_count) == 0 && bias_enter(&local->bias))) {
        struct percpu_chunk *chunk = mine_at(local, bits);
        bool emptied = false, freed = likely(chunk != NULL) && local_free(local, chunk, bits, &emptied);
        emptied = unlikely(emptied) && empty_goes(local, chunk);
        bias_leave(&local->bias);
        if (likely(freed && !emptied))
            return;
        if (freed) {
            emptied_slow(pool, bits);
            return;
        }
    }
    free_slow(pool, bits);
}

/* A slot of a page that has others, in a chunk that is all zero.  False: not this way, nothing has changed. */
static ALWAYS_INLINE bool page_free_quick(struct percpu_local *local, const struct quire_percpu *pool, uintptr_t bits)
{
    struct percpu_chunk *chunk = *percpu_seen(local, pool, bits);
    if (unlikely(!chunk) || unlikely((uintptr_t)chunk->base != (bits & pool->window.unit_mask)) || unlikely(!percpu_is_paged(chunk->grain)) ||
        unlikely(u32_load_relaxed(&chunk->any_written) != 0))
        return false;
    size_t offset = bits - (uintptr_t)chunk->base;
    struct percpu_page *page = percpu_page_at(chunk, offset);
    size_t slot = percpu_page_slot(page, offset);
    if (unlikely(page->used <= 1) || unlikely(slot >= page->slots) || unlikely(percpu_page_is_free(page, slot)))
        return false;
    percpu_page_free(local, page, slot);
    local->frees++;
    return true;
}

void quire_percpu_free(struct quire_percpu *pool, struct quire_percpu_ref ref)
{
    struct percpu_local *local = percpu_mine(pool);
    if (likely(local != NULL) && likely(u32_load_relaxed(&local->inbox_count) == 0) && likely(bias_enter(&local->bias))) {
        bool freed = page_free_quick(local, pool, ref.bits);
        bias_leave(&local->bias);
        if (likely(freed))
            return;
    }
    free_long(pool, ref.bits);
}
