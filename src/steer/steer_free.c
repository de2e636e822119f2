// SPDX-License-Identifier: MIT
/*
 * steer_free.c - a block of a chunk is given back, gets another size, or is asked for its own.
 *
 *     steer_free:  (1) the page map finds the chunk, or it is the heap's; (2) a block begins there; (3) it is this thread's: its bit goes, count
 *                  down; (4) nothing lives there: the chunk is used anew, or goes
 *     another's:   its bit in `remote`, count down by an atomic instruction
 *     misuse:      one line, and the process stops, as the heap says it: E1 freed twice, E3 inside a block
 *
 * Locks: none on the short way.
 */
#include <errno.h>
#include <string.h>

#include "os/os.h"
#include "steer/steer_internal.h"

enum { TIMED_EVERY = 64 };

struct place {
    struct steer_chunk *chunk;
    struct steer_word *word;
    size_t grain;
    uint64_t bit;
};

static ALWAYS_INLINE struct steer_chunk *chunk_of(const void *p)
{
    uintptr_t found = pagemap_find_mappable(p) - OWNER_STEER;
    return likely((found & PAGEMAP_KIND_MASK) == 0) ? (struct steer_chunk *)found : NULL;
}

/* Of a chunk of the page that p lies in; p itself may be any address of it. */
static ALWAYS_INLINE struct place place_of(struct steer_chunk *chunk, const void *p)
{
    size_t offset = (size_t)((uintptr_t)p - (uintptr_t)chunk->base), grain = offset >> STEER_GRAIN_SHIFT;
    if (unlikely(offset % STEER_GRAIN != 0) || unlikely(grain >= chunk->grains))
        heap_refuse(&heap_of_process, HEAP_E3, p);
    return (struct place){chunk, &chunk->word[grain / WORD_BITS], grain, UINT64_C(1) << grain % WORD_BITS};
}

static bool ends_at(const struct steer_chunk *chunk, size_t grain)
{
    return steer_bits(&chunk->word[grain / WORD_BITS].last) >> grain % WORD_BITS & 1;
}

/* A free block, or none at all. */
static COLD __attribute__((noreturn)) void refuse(const struct place *at, const void *p)
{
    bool begins = at->grain == 0 || ends_at(at->chunk, at->grain - 1);
    heap_refuse(&heap_of_process, begins ? HEAP_E1 : HEAP_E3, p);
}

static bool is_freed_by_others(const struct place *at)
{
    return u64_load_relaxed(&at->chunk->balance) != 0 && (u64_load_relaxed(&at->chunk->remote[at->grain / WORD_BITS]) & at->bit) != 0;
}

static bool is_live(const struct place *at)
{
    return (steer_bits(&at->word->live) & at->bit) != 0 && !is_freed_by_others(at);
}

/* Nothing lives in the chunk any more. */
static NOINLINE void owned_dead(struct steer_chunk *chunk)
{
    struct steer_lane *lane = &steer_self->lane[chunk->pool];
    bool is_wanted = !u32_load_relaxed(&steer_plan.pool[chunk->pool].is_sent_back);
    if (likely(lane->chunk == chunk && is_wanted)) {
        steer_chunk_clear(chunk, lane->cursor);
        lane->cursor = chunk->base;
        return;
    }
    int kept = errno;
    steer_lane_drop(lane, chunk);
    steer_chunk_give(chunk);
    errno = kept;
}

static NOINLINE void free_shared(const struct place *at, const void *p)
{
    atomic_u64 *remote = &at->chunk->remote[at->grain / WORD_BITS];
    if (unlikely((steer_bits(&at->word->live) & at->bit) == 0) || unlikely(u64_or_seq_cst(remote, at->bit) & at->bit))
        refuse(at, p);
    if (unlikely(u64_add_seq_cst(&at->chunk->balance, UINT64_MAX) == 1)) { /* release [steer-free] */
        int kept = errno;
        steer_chunk_dead(at->chunk);
        errno = kept;
    }
}

static ALWAYS_INLINE void free_at(struct steer_chunk *chunk, const void *p)
{
    struct place at = place_of(chunk, p);
    if (unlikely(addr_load_relaxed(&chunk->owner) != (uintptr_t)steer_self)) {
        free_shared(&at, p);
        return;
    }
    if (unlikely(!is_live(&at)))
        refuse(&at, p);
    steer_bit_set(&at.word->live, at.word->live & ~at.bit);
    if (unlikely(--chunk->mine == steer_freed_by_others(chunk)))
        owned_dead(chunk);
}

void steer_free(void *p)
{
    owner_t found = pagemap_find_mappable(p);
    struct steer_chunk *chunk = (struct steer_chunk *)(found - OWNER_STEER);
    if (likely(((uintptr_t)chunk & PAGEMAP_KIND_MASK) == 0))
        free_at(chunk, p);
    else
        heap_free_found(found, p);
}

/* ---- what frees cost that a changed program would not make ---- */

void steer_free_timed(void *p)
{
    struct steer_chunk *chunk = chunk_of(p);
    struct steer_thread *self = steer_self;
    if (!chunk || self->frees++ % TIMED_EVERY != 0 || self == &steer_nobody) {
        steer_free(p);
        return;
    }
    uint64_t empty = steer_ticks(), before = steer_ticks();
    steer_free(p);
    uint64_t after = steer_ticks();
    empty = before - empty; /* what looking at the clock costs by itself */
    self->timed_frees++;
    self->timed_ticks += after - before > empty ? after - before - empty : 0;
}

/* ---- sizes ---- */

static size_t bytes_at(const struct place *at)
{
    size_t word = at->grain / WORD_BITS;
    uint64_t ends = steer_bits(&at->chunk->word[word].last) & ~(at->bit - 1);
    while (ends == 0)
        ends = steer_bits(&at->chunk->word[++word].last);
    return (word * WORD_BITS + bits_lowest(ends) - at->grain + 1) << STEER_GRAIN_SHIFT;
}

static struct place live_place(struct steer_chunk *chunk, const void *p)
{
    struct place at = place_of(chunk, p);
    if (unlikely(!is_live(&at)))
        refuse(&at, p);
    return at;
}

size_t steer_usable_bytes(const void *p)
{
    struct steer_chunk *chunk = chunk_of(p);
    if (!chunk)
        return quire_heap_usable_bytes(p);
    struct place at = live_place(chunk, p);
    return bytes_at(&at);
}

/* The last block of this thread's current chunk grows where it is. */
static bool grow_last(const struct place *at, const char *p, size_t had, size_t bytes)
{
    struct steer_lane *lane = &steer_self->lane[at->chunk->pool];
    if (lane->chunk != at->chunk || p + had != lane->cursor || bytes - had > (size_t)(lane->end - lane->cursor))
        return false;
    size_t size = (bytes + STEER_GRAIN - 1) & ~(size_t)(STEER_GRAIN - 1);
    size_t before = at->grain + (had >> STEER_GRAIN_SHIFT) - 1, after = at->grain + (size >> STEER_GRAIN_SHIFT) - 1;
    struct steer_word *word = &at->chunk->word[before / WORD_BITS];
    steer_bit_set(&word->last, word->last & ~(UINT64_C(1) << before % WORD_BITS));
    word = &at->chunk->word[after / WORD_BITS];
    steer_bit_set(&word->last, word->last | UINT64_C(1) << after % WORD_BITS);
    lane->cursor += size - had;
    return true;
}

/* What grows out of its place has a life of its own: it moves to the heap. */
void *steer_realloc(void *p, size_t bytes)
{
    struct steer_chunk *chunk = chunk_of(p);
    if (!chunk)
        return quire_heap_realloc(&heap_of_process, p, bytes);
    struct place at = live_place(chunk, p);
    size_t had = bytes_at(&at);
    if (bytes <= had && (bytes >= had / 2 || had <= 4 * STEER_GRAIN))
        return p;
    if (bytes > had && bytes <= STEER_CHUNK_MAX && grow_last(&at, p, had, bytes))
        return p;
    void *fresh = heap_malloc(bytes);
    if (!fresh)
        return NULL;
    memcpy(fresh, p, had < bytes ? had : bytes);
    steer_free(p);
    return fresh;
}
