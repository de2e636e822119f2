// SPDX-License-Identifier: MIT
/*
 * outlook.h - what must be known of a whole program before its first step: threads, lanes, arenas.
 *
 *   thread 0   |---------------------------|      lane 0
 *   thread 1      |------|                        lane 1
 *   thread 2                 |--------|           lane 1: thread 1 has ended
 *
 * Not here: the steps themselves (compile.c).
 */
#pragma once

#include "replay/plan.h"
#include "replay/stream.h"

#include <stdbool.h>
#include <stdint.h>

enum { LANES_MAX = 512, LANES_GUESSED_MAX = 64 };

struct outlook {
    uint64_t *first; // by thread: position of its first op, 0: none
    uint64_t *last;  // by thread: position of its last op
    uint32_t *lane;  // by thread
    uint32_t *turn;  // threads by their first op; a lane runs its own in this order
    uint32_t turns;  // threads with at least one op: the length of `turn`
    uint32_t lanes;
    uint8_t *posts;         // by position, a bit: the slot is touched next by another thread
    uint32_t *instance_of;  // by arena * threads + thread: instance + 1; 0: allocates nothing there
    uint32_t *owner;        // by instance: the thread that allocates in it
    uint32_t instances;     // one for each arena and each thread that allocates in it
    uint64_t *slab_objects; // by slab
    uint64_t largest_bytes;
    bool slots_shared;
};

/* NULL, or why the program cannot be replayed (static text). */
const char *outlook(struct outlook *out, const struct stream *stream, const struct plan *plan);

// A slab's elements are aligned to 16 bytes, as malloc's blocks are.
enum { SLAB_ALIGN_LOG2 = 4 };

/* The slab + 1 for a new object of the site; 0: none, or its elements are too small for it. */
static inline uint32_t slab_for(const struct plan *plan, const struct stream_op *op) {
    int32_t slab = plan->slab_of_site[op->op->site];
    if (slab == PLAN_STAYS || op->size_bytes > plan->element_bytes[slab] ||
        op->op->align_log2 > SLAB_ALIGN_LOG2)
        return 0;
    return (uint32_t)slab + 1;
}
