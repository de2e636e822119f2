// SPDX-License-Identifier: MIT
/*
 * steer_alloc.c - a block for a call site.
 *
 *     steer_alloc:  (1) the site of the call; (2) its pool: none, and it is the heap's block; (3) the cursor of this thread's lane moves up;
 *                   (4) a byte says where the block begins and how large it is
 *     then          (5) the next chunk; before it: is too much of what the pools hold dead (steer_waste.c)?  Then its sites are the heap's for good
 *
 * A block needs no header: realloc and malloc_usable_size() know its size by the tag, and a free of what is no block is seen.
 *
 * Locks: none on the short way.  Not here: free and realloc (steer_free.c), how much is dead (steer_waste.c).
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_internal.h"
#include "os/os.h"
#include "steer/steer_internal.h"

enum { LOOKED_AT = 8 };

size_t steer_quick_max = STEER_BLOCK_MAX;

/* The lane's list, in the order of stores that steer_thread.c's invariant asks for. */
static void lane_add(struct steer_lane *lane, struct steer_chunk *chunk)
{
    struct lock *lock = &steer_plan.pool[chunk->pool].lanes_lock;
    chunk->prev = NULL;
    chunk->next = lane->chunks;
    lock_take(lock);
    if (chunk->next)
        chunk->next->prev = chunk;
    atomic_fence_signal();
    lane->chunks = chunk;
    lock_drop(lock);
    lane->count++;
}

void steer_lane_drop(struct steer_lane *lane, struct steer_chunk *chunk)
{
    struct lock *lock = &steer_plan.pool[chunk->pool].lanes_lock;
    lock_take(lock);
    if (chunk->next)
        chunk->next->prev = chunk->prev;
    atomic_fence_signal();
    *(chunk->prev ? &chunk->prev->next : &lane->chunks) = chunk->next;
    atomic_fence_signal();
    lock_drop(lock);
    lane->count--;
    if (lane->chunk == chunk) {
        lane->chunk = NULL;
        lane->tag = lane->end = NULL;
    }
}

/* ---- the next chunk ---- */

static COLD void send_back(unsigned pool_idx)
{
    u32_store_relaxed(&steer_plan.pool[pool_idx].is_sent_back, 1);
    for (uint32_t i = 0; i < steer_plan.sites; i++)
        if (steer_plan.pool_first[i] == pool_idx)
            __atomic_store_n(&steer_pool_of[TARGET_SITE + i], 0, __ATOMIC_RELAXED);
    steer_entries_send_back(pool_idx);
}

/* Chunks whose last blocks others freed; a few, and the oldest that were not looked at stay for the next time. */
static void collect(struct steer_lane *lane)
{
    struct steer_chunk *chunk = lane->chunks, *next;
    for (int i = 0; chunk && i < LOOKED_AT; i++, chunk = next) {
        next = chunk->next;
        if (chunk != lane->chunk && steer_chunk_is_dead(chunk)) {
            steer_chunk_verify(chunk);
            steer_lane_drop(lane, chunk);
            steer_chunk_give(chunk);
        }
    }
}

/* The current chunk is full. */
static void retire(struct steer_lane *lane, unsigned pool_idx)
{
    struct steer_chunk *chunk = lane->chunk;
    steer_chunk_count(chunk, steer_lane_used(lane));
    if (u64_load_relaxed(&chunk->balance) != 0)
        u32_store_relaxed(&steer_plan.pool[pool_idx].is_crossed, 1);
    lane->chunk = NULL;
    lane->tag = lane->end = NULL;
    if (u32_load_relaxed(&steer_plan.pool[pool_idx].is_crossed))
        steer_chunk_share(lane, chunk);
}

static ALWAYS_INLINE void *bump(struct steer_lane *lane, size_t grains)
{
    uint8_t *tag = lane->tag;
    lane->tag = tag + grains;
    steer_tag_set(tag, grains);
    return (void *)(lane->shift + (uintptr_t)tag * STEER_GRAIN);
}

static bool next_chunk(struct steer_lane *lane, unsigned pool_idx, struct steer_thread *self)
{
    struct steer_chunk *chunk = lane->chunk;
    if (chunk)
        steer_chunk_count(chunk, steer_lane_used(lane));
    if (chunk && steer_chunk_is_dead(chunk)) {
        steer_chunk_verify(chunk);
        steer_chunk_clear(chunk, steer_lane_used(lane));
        lane->tag = chunk->tags;
        return true;
    }
    if (chunk)
        retire(lane, pool_idx);
    collect(lane);
    if (steer_waste_is_too_much(pool_idx, lane)) {
        send_back(pool_idx);
        return false;
    }
    chunk = steer_chunk_take(pool_idx, self);
    if (!chunk)
        return false;
    lane_add(lane, chunk);
    lane->chunk = chunk;
    lane->tag = chunk->tags;
    lane->end = chunk->tags + chunk->grains;
    lane->shift = (uintptr_t)chunk->base - (uintptr_t)chunk->tags * STEER_GRAIN;
    return true;
}

static void *from_heap(struct steer_thread *self, unsigned site, size_t bytes)
{
    if (self)
        self->count[site].fallbacks++;
    return heap_malloc(bytes);
}

static ALWAYS_INLINE size_t grains_of(size_t bytes)
{
    return (bytes + STEER_GRAIN - 1) >> STEER_GRAIN_SHIFT;
}

static void count(struct steer_thread *self, unsigned site, size_t bytes)
{
    self->count[site].blocks++;
    self->count[site].bytes += bytes;
}

/* (5) */
static NOINLINE void *alloc_slow(unsigned site, size_t bytes)
{
    int kept = errno;
    unsigned pool_idx = steer_pool_now(site);
    struct steer_thread *self = steer_thread_get();
    if (!self || pool_idx == 0 || bytes > STEER_BLOCK_MAX)
        return from_heap(self, site, bytes);
    struct steer_lane *lane = &self->lane[pool_idx];
    size_t grains = grains_of(bytes | (bytes == 0));
    if (grains > (size_t)(lane->end - lane->tag) && !next_chunk(lane, pool_idx, self))
        return from_heap(self, site, bytes);
    errno = kept;
    if (steer_plan.counts)
        count(self, site, bytes);
    return bump(lane, grains);
}

/* (3), (4): the lane is the entry's, read before; bytes - 1 is not below the limit for 0 either. */
static ALWAYS_INLINE void *alloc_at(const struct steer_entry *entry, size_t lane_at, size_t bytes)
{
    struct steer_lane *lane = (struct steer_lane *)(void *)((char *)steer_self + lane_at);
    size_t grains = grains_of(bytes);
    if (unlikely(bytes - 1 >= steer_quick_max) || unlikely(grains > (size_t)(lane->end - lane->tag)))
        return alloc_slow(entry->target, bytes);
    return bump(lane, grains);
}

static NOINLINE void *alloc_by(const struct steer_entry *entry, size_t bytes)
{
    size_t lane_at = u32_load_relaxed(&entry->lane);
    return lane_at == 0 ? heap_malloc(bytes) : alloc_at(entry, lane_at, bytes);
}

/* A call that was not found at once; a wrapper's. */
static NOINLINE void *alloc_anew(size_t bytes, struct steer_call call)
{
    return alloc_by(steer_entry_of(call), bytes);
}
static NOINLINE void *alloc_deep(const struct steer_entry *entry, size_t bytes, const uintptr_t *frame)
{
    return alloc_by(steer_entry_deep(entry, frame), bytes);
}

/* The short way has no call in it. */
void *steer_alloc(size_t bytes, struct steer_call call)
{
    const struct steer_entry *entry = steer_place(call.ret);
    if (unlikely(!steer_is_of(entry, call.ret)))
        return alloc_anew(bytes, call);
    size_t lane_at = u32_load_relaxed(&entry->lane);
    if (lane_at != 0)
        return alloc_at(entry, lane_at, bytes);
    return likely(entry->target < TARGET_NODE) ? heap_malloc(bytes) : alloc_deep(entry, bytes, call.frame);
}

void *steer_alloc_zero(size_t bytes, struct steer_call call)
{
    const struct steer_entry *entry = steer_entry_of(call);
    size_t lane_at = u32_load_relaxed(&entry->lane);
    if (lane_at == 0)
        return heap_malloc_zero(bytes);
    void *p = alloc_at(entry, lane_at, bytes);
    return likely(p != NULL) ? memset(p, 0, bytes) : NULL;
}
