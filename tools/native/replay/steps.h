// SPDX-License-Identifier: MIT
/*
 * steps.h - what a thread of the replay does, as lists of small steps in memory that never grows.
 *
 *   pool:     | chunk 0 | chunk 1 | chunk 2 | chunk 3 | ...        taken in order, all given back at once
 *   list 0:     a b c J -----------> d e E                         J: go on in another chunk
 *   list 1:               x y z ...                                E: the list ends
 *
 * Invariants:
 *   P1  a chunk belongs to one list; its last entry is a J or behind the list's end
 *   P2  a STEP_WIDE and the step after it lie in one chunk, side by side
 *
 * Locks: none; written by one thread while no other reads.
 * Not here: which steps (compile.c), carrying them out (carry.c).
 */
#pragma once

#include <stdint.h>

enum step_kind {
    STEP_ALLOC,         // slot, size
    STEP_CALLOC,        // slot, size
    STEP_ALIGNED,       // slot, size, align_log2
    STEP_REALLOC,       // slot, size, old: the size before
    STEP_FREE,          // slot, old
    STEP_ARENA_CREATE,  // arena
    STEP_ARENA_DESTROY, // arena
    STEP_ARENA_RESET,   // arena
    STEP_ARENA_ALLOC,   // slot, size, arena in old
    STEP_ARENA_CALLOC,  // likewise
    STEP_ARENA_ALIGNED, // likewise, align_log2
    STEP_ARENA_RESIZE,  // slot, size, arena in old; a STEP_WIDE before it has the old size
    STEP_SLAB_ALLOC,    // slot, size, slab
    STEP_SLAB_CALLOC,   // likewise
    STEP_SLAB_FREE,     // slot, old, slab
    STEP_SLAB_KEEP,     // slot, size, old: resized to what the element holds as well
    STEP_SLAB_LEAVE,    // slot, size, old, slab: resized to more than that, so it moves to libc
    STEP_HEAP_ALLOC,    // slot, size
    STEP_HEAP_CALLOC,   // likewise
    STEP_HEAP_ALIGNED,  // likewise, align_log2
    STEP_HEAP_REALLOC,  // slot, size, old
    STEP_HEAP_FREE,     // slot, old
    STEP_WIDE,          // for the next step: size = high half of its size, old = its old size
    STEP_SLOT_AWAIT,    // slot, size: the count to await
    STEP_SLOT_POST,     // slot, size: the count to post
    STEP_DEATH_AWAIT,   // arena, size: so many objects died in other threads
    STEP_DEATH_POST,    // arena
    STEP_THREAD_START,  // slot: the thread
    STEP_THREAD_AWAIT,  // slot: the thread whose end is awaited
    STEP_SAMPLE,        // slot: the sample of the timeline
    STEP_JUMP,          // slot: the chunk in which the list goes on
    STEP_END,
};

struct step {
    uint8_t kind;
    union {
        uint8_t align_log2; // of STEP_..._ALIGNED
        uint8_t untouched;  // of all others that fill or resize: so many 256ths, at its end, that the program never touches
    };
    uint16_t slab; // of STEP_SLAB_...
    uint32_t slot; // or the arena, or the thread, or the sample
    uint32_t size;
    uint32_t old; // the object's size so far (UINT32_MAX: that or more), or the arena
};

enum { CHUNK_STEPS = 1024 };

struct step_pool {
    struct step *at;
    uint32_t chunks;
    uint32_t used;
};

/* An all-zero list is empty. */
struct step_list {
    struct step *first;
    struct step *next;
    struct step *end; // of the chunk, the place for its J
};

void step_pool_begin(struct step_pool *pool, uint32_t chunks);

/* The caller has seen that a chunk is left. */
void step_append(struct step_pool *pool, struct step_list *list, struct step step);

/* Ends the list, if it has any steps. */
void step_close(struct step_list *list);

static inline uint32_t step_chunks_left(const struct step_pool *pool) {
    return pool->chunks - pool->used;
}

static inline const struct step *step_chunk(const struct step_pool *pool, uint32_t chunk_idx) {
    return pool->at + (uint64_t)chunk_idx * CHUNK_STEPS;
}
