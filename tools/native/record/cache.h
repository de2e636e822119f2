// SPDX-License-Identifier: MIT
/*
 * cache.h - a thread's cache of call stacks: which number has the stack that this call came by?
 *
 *   (return address, sp) -> set of four entries { ip sp | id n hint | low 32 bits of each address | slot offsets }
 *
 * When every slot still holds its address the stack is the same one: a load and a compare a frame. The slot that last told this stack
 * from another one is looked at first: stacks that come by the same call in turn mostly differ in one place.
 *
 * Invariants:
 *   C1  slots of an entry lie above its sp and within the thread's own stack: always readable by that thread
 *
 * Locks: none, the cache is the thread's own.  Not here: who fills it (stack.c).
 */
#ifndef QUIRE_RECORD_CACHE_H
#define QUIRE_RECORD_CACHE_H

#include "record.h"

#define SETS_LOG2  9
#define SETS       (1u << SETS_LOG2)
#define WAYS       4u
#define STEPS_MAX  64u   // further than a stack is kept, so that the next walks have something to meet
#define WALK_MAX   256u  // frames that are remembered

struct cache_entry {
    uintptr_t ip, sp;
    uint32_t id;
    uint16_t count;  // slots: frames but the innermost
    uint16_t hint;   // the slot that differed last time
    uint32_t low_bits[QTR_FRAMES_MAX];
    uint16_t offset[QTR_FRAMES_MAX];  // of a slot from sp, in words
};

struct cache_set {
    struct cache_entry entry[WAYS];
    uint64_t newest;  // the way that was right or filled last: looked at first
};

/* One frame: its return address and where that lay (0: in no slot), sp and bp in it. */
struct walked {
    uintptr_t ip, slot, sp, bp;
};

/* `sum` of a frame: of the addresses from the outermost to it, so that those of any run of frames are two of them. */
struct rec_stack_cache {
    struct cache_set set[SETS];
    struct walked step[STEPS_MAX];  // innermost first: this walk's, until they are put behind the last one's
    struct walked last[WALK_MAX];
    uint64_t sum[WALK_MAX];
    unsigned count;  // frames of the last walk; 0: there is none
    bool is_rooted;  // its first frame is the thread's outermost
};

static REC_INLINE struct cache_set *cache_set_of(struct rec_stack_cache *cache, uintptr_t ip, uintptr_t sp) {
    uint64_t mixed = (ip ^ sp << 20 ^ sp >> 4) * 0x9e3779b97f4a7c15u;
    return &cache->set[mixed >> (64 - SETS_LOG2)];
}

static REC_INLINE bool cache_holds(struct cache_entry *entry, uintptr_t ip, uintptr_t sp) {
    const uintptr_t *base = (const uintptr_t *)sp;
    if (entry->ip != ip || entry->sp != sp || (uint32_t)base[entry->offset[entry->hint]] != entry->low_bits[entry->hint]) {
        return false;
    }
    for (uint32_t i = 0; i < entry->count; i++) {
        if ((uint32_t)base[entry->offset[i]] != entry->low_bits[i]) {
            entry->hint = (uint16_t)i;
            return false;
        }
    }
    return true;
}

/* The number of the stack that leads to this frame; 0: not known. */
static REC_INLINE uint32_t rec_stack(struct rec_thread *thread, const struct rec_frame frame) {
    struct cache_set *set = cache_set_of(thread->cache, frame.ip, frame.sp);
    struct cache_entry *entry = &set->entry[set->newest];
    if (REC_LIKELY(cache_holds(entry, frame.ip, frame.sp))) {
        return entry->id;
    }
    struct rec_frame copy = frame;  // only here does the frame have to be in memory
    return rec_stack_slow(thread, &copy);
}

#endif
