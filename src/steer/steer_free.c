// SPDX-License-Identifier: MIT
/*
 * steer_free.c - a block of a chunk is given back, gets another size, or is asked for its own.
 *
 *     steer_free:  (1) it lies where this thread freed last, or the page map finds the chunk, or it is the heap's; (2) a block begins there: its
 *                  tag; (3) it is this thread's: the tag is that of a freed block, count it; (4) nothing lives there: the chunk is used anew, or goes
 *     another's:   the same by atomic instructions
 *     misuse:      one line, and the process stops, as the heap says it: E1 freed twice, E3 inside a block
 *
 * Locks: none on the short way.
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_internal.h"
#include "os/os.h"
#include "steer/steer_internal.h"

enum {
    TIMED_EVERY = 64,
    TIMED_TICKS_MAX = 20000 /* some microseconds: no free takes so long by itself */
};

static ALWAYS_INLINE struct steer_chunk *chunk_of(const void *p)
{
    uintptr_t found = pagemap_find(p) - OWNER_STEER;
    return likely((found & PAGEMAP_KIND_MASK) == 0) ? (struct steer_chunk *)found : NULL;
}

static ALWAYS_INLINE bool is_live(unsigned tag)
{
    return tag - 1 < TAG_MAX;
}

static ALWAYS_INLINE bool is_block(const void *p, unsigned tag)
{
    return (uintptr_t)p % STEER_GRAIN == 0 && is_live(tag);
}

/* Last blocks of a lane were freed, and their places are the next ones' again (owned_look()): what points there was freed, or never handed out. */
static bool is_next_place(const struct steer_chunk *chunk, const uint8_t *at)
{
    const struct steer_lane *lane = &steer_self->lane[chunk->pool];
    return lane->chunk == chunk && at >= lane->tag;
}

/* A free block, or none at all. */
static COLD __attribute__((noreturn)) void refuse(const struct steer_chunk *chunk, unsigned tag, const void *p)
{
    bool was_block = (uintptr_t)p % STEER_GRAIN == 0 && (tag == TAG_FREED || is_next_place(chunk, steer_tag_at(chunk, p)));
    heap_refuse(&heap_of_process, was_block ? HEAP_E1 : HEAP_E3, p);
}

/*
 * As much is freed of the chunk as had been handed out when it was looked at last.  A last block that goes while others stay is taken back, as from
 * a stack.
 */
static NOINLINE void owned_look(struct steer_chunk *chunk, uint8_t *at, unsigned grains)
{
    struct steer_lane *lane = &steer_self->lane[chunk->pool];
    bool is_current = lane->chunk == chunk;
    if (is_current && at + grains == lane->tag) {
        lane->tag = at;
        steer_tag_set(at, TAG_NONE);
        chunk->left += (int32_t)grains;
    }
    if (is_current)
        steer_chunk_count(chunk, steer_lane_used(lane));
    if (!steer_chunk_is_dead(chunk))
        return;
    if (steer_freed_by_others(chunk) != 0)
        steer_chunk_verify(chunk);
    if (is_current && !u32_load_relaxed(&steer_plan.pool[chunk->pool].is_sent_back)) {
        steer_chunk_clear(chunk, steer_lane_used(lane));
        lane->tag = chunk->tags;
        return;
    }
    int kept = errno;
    steer_lane_drop(lane, chunk);
    steer_chunk_give(chunk);
    errno = kept;
}

static NOINLINE void free_shared(struct steer_chunk *chunk, const void *p)
{
    uint8_t *at = steer_tag_at(chunk, p);
    if (unlikely((uintptr_t)p % STEER_GRAIN != 0))
        refuse(chunk, TAG_NONE, p);
    steer_count_begin(chunk);
    unsigned tag = __atomic_exchange_n(at, TAG_FREED, __ATOMIC_ACQ_REL);
    if (unlikely(!is_live(tag)))
        refuse(chunk, tag, p);
    bool dead = u64_add_seq_cst(&chunk->balance, -(uint64_t)tag) == tag; /* release [steer-balance] */
    steer_count_end();
    if (unlikely(dead)) {
        int kept = errno;
        steer_chunk_dead(chunk);
        errno = kept;
    }
}

static ALWAYS_INLINE void free_owned(struct steer_chunk *chunk, const void *p)
{
    uint8_t *at = steer_tag_at(chunk, p);
    unsigned tag = steer_tag(at);
    if (unlikely(!is_block(p, tag)))
        refuse(chunk, tag, p);
    steer_tag_set(at, TAG_FREED);
    chunk->left -= (int32_t)tag;
    if (unlikely(chunk->left <= 0))
        owned_look(chunk, at, tag);
}

/* (1) and (2), where this thread did not free last. */
static NOINLINE void free_elsewhere(void *p)
{
    owner_t found = pagemap_find(p);
    struct steer_chunk *chunk = (struct steer_chunk *)(found - OWNER_STEER);
    if (((uintptr_t)chunk & PAGEMAP_KIND_MASK) != 0) {
        heap_free_found(found, p);
        return;
    }
    if (addr_load_relaxed(&chunk->owner) != (uintptr_t)steer_self) {
        free_shared(chunk, p);
        return;
    }
    steer_self->hot = chunk;
    steer_self->hot_part = (uintptr_t)p >> STEER_PART_SHIFT;
    free_owned(chunk, p);
}

void steer_free(void *p)
{
    struct steer_thread *self = steer_self;
    if (likely((uintptr_t)p >> STEER_PART_SHIFT == self->hot_part))
        free_owned(self->hot, p);
    else
        free_elsewhere(p);
}

/* ---- what frees cost that a changed program would not make ---- */

enum { CALLS = 64, CALL_TIMES = 32 };

static NOINLINE void nothing(void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

/* What a call by a pointer costs, as one of free does before anything is done: the lowest of several times. */
static COLD uint64_t call_measure(void)
{
    void (*volatile callee)(void *) = nothing;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < CALL_TIMES; i++) {
        uint64_t before = steer_ticks();
        for (int k = 0; k < CALLS; k++)
            callee(NULL);
        uint64_t took = steer_ticks() - before;
        least = took < least ? took : least;
    }
    return least / CALLS;
}

static uint64_t call_ticks(void)
{
    static atomic_u64 known; /* plus one; 0: not measured yet */
    uint64_t ticks = u64_load_relaxed(&known);
    if (unlikely(ticks == 0)) {
        ticks = call_measure() + 1;
        u64_store_relaxed(&known, ticks);
    }
    return ticks - 1;
}

void steer_free_timed(void *p)
{
    struct steer_chunk *chunk = chunk_of(p);
    struct steer_thread *self = steer_self;
    if (!chunk || self->frees++ % TIMED_EVERY != 0 || self == &steer_nobody) {
        steer_free(p);
        return;
    }
    uint64_t call = call_ticks(), empty = steer_ticks(), before = steer_ticks();
    steer_free(p);
    uint64_t after = steer_ticks();
    empty = before - empty; /* what looking at the clock costs by itself */
    if (after - before > TIMED_TICKS_MAX || empty > TIMED_TICKS_MAX)
        return; /* another process had the CPU meanwhile */
    self->timed_frees++;
    self->timed_ticks += call + (after - before > empty ? after - before - empty : 0);
}

/* ---- sizes ---- */

static uint8_t *live_tag(const struct steer_chunk *chunk, const void *p)
{
    uint8_t *at = steer_tag_at(chunk, p);
    if (unlikely(!is_block(p, steer_tag(at))))
        refuse(chunk, steer_tag(at), p);
    return at;
}

size_t steer_usable_bytes(const void *p)
{
    struct steer_chunk *chunk = chunk_of(p);
    return chunk ? (size_t)steer_tag(live_tag(chunk, p)) << STEER_GRAIN_SHIFT : quire_heap_usable_bytes(p);
}

static bool stays(size_t had, size_t bytes)
{
    return bytes <= had && (bytes >= had / 2 || had <= 4 * STEER_GRAIN);
}

bool steer_has(const void *p)
{
    return chunk_of(p) != NULL;
}

bool steer_size_may_fit(const void *p, size_t bytes)
{
    return stays((size_t)steer_tag(live_tag(chunk_of(p), p)) << STEER_GRAIN_SHIFT, bytes);
}

bool steer_free_sized(void *p, size_t bytes)
{
    bool is_hot = (uintptr_t)p >> STEER_PART_SHIFT == steer_self->hot_part;
    const struct steer_chunk *chunk = is_hot ? steer_self->hot : chunk_of(p);
    if (!chunk || !stays((size_t)steer_tag(live_tag(chunk, p)) << STEER_GRAIN_SHIFT, bytes))
        return false;
    steer_free(p);
    return true;
}

/* The last block of this thread's current chunk grows where it is. */
static bool grow_last(const struct steer_chunk *chunk, uint8_t *at, size_t bytes)
{
    struct steer_lane *lane = &steer_self->lane[chunk->pool];
    size_t had = steer_tag(at), grains = (bytes + STEER_GRAIN - 1) >> STEER_GRAIN_SHIFT;
    if (lane->chunk != chunk || at + had != lane->tag || grains - had > (size_t)(lane->end - lane->tag))
        return false;
    steer_tag_set(at, grains);
    lane->tag = at + grains;
    return true;
}

/* What grows out of its place has a life of its own: it moves to the heap. */
void *steer_realloc(void *p, size_t bytes)
{
    struct steer_chunk *chunk = chunk_of(p);
    if (!chunk)
        return quire_heap_realloc(&heap_of_process, p, bytes);
    uint8_t *at = live_tag(chunk, p);
    size_t had = (size_t)steer_tag(at) << STEER_GRAIN_SHIFT;
    if (stays(had, bytes))
        return p;
    if (bytes > had && bytes <= STEER_BLOCK_MAX && grow_last(chunk, at, bytes))
        return p;
    void *fresh = heap_malloc(bytes);
    if (!fresh)
        return bytes <= had ? p : NULL;
    memcpy(fresh, p, had < bytes ? had : bytes);
    steer_free(p);
    return fresh;
}
