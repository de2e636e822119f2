// SPDX-License-Identifier: MIT
/*
 * compile.h - a recorded program and a plan become steps: nothing is left to decide.
 *
 *   ops of thread 0   ->   steps of thread 0   ->   lane 0 (the main thread)
 *   ops of thread 1   ->   steps of thread 1  \
 *   ops of thread 2   ->   steps of thread 2  /->   lane 1: thread 2 began after thread 1 had ended
 *
 * A lane is a real thread of the replay.  Everything that costs time and is not allocation (arenas'
 * generations, which op must wait for which) is worked out here, before the clock starts.
 * Not here: carrying steps out (play.c).
 */
#pragma once

#include "replay/plan.h"
#include "replay/stream.h"
#include "replay/timeline.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum step_kind {
    STEP_ALLOC,         // slot, size
    STEP_CALLOC,        // slot, size
    STEP_ALIGNED,       // slot, size, align_log2
    STEP_REALLOC,       // slot, size, old: the size before
    STEP_FREE,          // slot, old
    STEP_ARENA_CREATE,  // arena
    STEP_ARENA_DESTROY, // arena
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
};

struct step {
    uint8_t kind;
    uint8_t align_log2;
    uint16_t slab; // of STEP_SLAB_...
    uint32_t slot; // or the arena, or the thread
    uint32_t size;
    uint32_t old; // the object's size so far (UINT32_MAX: that or more), or the arena
};

struct steps {
    struct step *at;
    size_t count;
    size_t room;
};

struct compiled {
    struct steps *steps; // by recorded thread
    uint32_t *lane;      // by recorded thread
    uint32_t *turn;      // threads by their first op; a lane runs its own in this order
    uint32_t threads;
    uint32_t turns; // threads with at least one op: the length of `turn`
    bool all_start; // no global order is known: all threads start at once
    size_t slots;
    uint32_t lanes;
    uint32_t arenas; // instances: one for each arena and each thread that allocates in it
    uint32_t slabs;  // length of element_bytes
    const uint32_t *element_bytes; // the plan's; used slabs are those that slab_objects counts in
    uint64_t *slab_objects;        // by slab
    bool slots_shared;
    uint64_t ops;
    uint64_t ops_on_slabs;
    uint64_t ops_on_heap;
    uint64_t ops_dropped;   // ops that made no sense: free of nothing, alloc over a live object
    uint64_t arena_creates; // generations of all arenas
    uint64_t largest_bytes;
    uint64_t peak_live_bytes;
};

enum { LANES_MAX = 512, LANES_GUESSED_MAX = 64 };

/*
 * NULL when done, else why it cannot be replayed (static text).  The timeline's samples get their
 * ops and live bytes; there are fewer of them where the program has fewer ops.
 */
const char *compile(struct compiled *out, const struct stream *stream, const struct plan *plan,
                    struct timeline *timeline);
