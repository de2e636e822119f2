// SPDX-License-Identifier: MIT
/*
 * heap_door.h - into a thread's local by the short way, without asking whether that is open.
 *
 *     the thread                                         a visitor, with the lock
 *     active = 1                                         below = 0, noted = 0, open = 0
 *     malloc: is the request's size below `below`?       os_barrier(): it has seen these, or is seen active
 *     free: is the OS page's number below `noted`?       wait until active is 0
 *     ... inside                                         ... inside
 *     active = 0                                         all as they were; drop the lock
 *
 * Either has to be compared anyway, for its bin to be ready and for a note to be there (heap_note.h): so what says that the way is closed costs nothing,
 * where a bias' `open` is three instructions of thirty.
 *
 * Invariant D1: where a door is open its bias is.
 *
 * Locks: base/bias.h.  Not here: who visits (heap_thread.c), what is done inside (heap_quick.h).
 */
#ifndef QUIRE_HEAP_HEAP_DOOR_H
#define QUIRE_HEAP_HEAP_DOOR_H

#include "base/bias.h"
#include "heap/heap_size.h"
#include "pages/pagemap.h"

C_DECLARATIONS_BEGIN

struct heap_door {
    struct bias bias;
    uint64_t nothing; /* 0: heap_note.h */
    atomic_size below;     /* above the request, less one byte: its bin is ready.  0: closed */
    atomic_size noted; /* above the OS page's number: it has a note.  0: closed */
};
#define HEAP_DOOR_INIT(lock_rank_) {BIAS_INIT(lock_rank_), 0, {0}, {0}} /* closed, and nobody is favoured */

enum { HEAP_NEAR = 30 }; /* bins of a local that are ready at once: up to 480 bytes */

/* With the lock, or nobody else there. */
static inline void heap_door_set(struct heap_door *door, bool open)
{
    size_store_release(&door->below, open ? (size_t)HEAP_NEAR * HEAP_SLOT_ALIGN : 0); /* release [heap-door] */
    size_store_release(&door->noted, open ? pagemap_noted() : 0);                     /* release [heap-door] */
}

static inline void heap_door_visit(struct heap_door *door)
{
    bias_take(&door->bias);
    if (u32_load_relaxed(&door->bias.open) != 0) {
        heap_door_set(door, false);
        bias_evict(&door->bias);
    }
}

static inline void heap_door_drop(struct heap_door *door, bool favours)
{
    heap_door_set(door, favours && bias_works());
    bias_drop(&door->bias, favours);
}

static inline bool heap_door_reset(struct heap_door *door)
{
    heap_door_set(door, false);
    return bias_reset(&door->bias);
}

/* ---- by the favoured thread, behind bias_approach(): true, inside ---- */

static ALWAYS_INLINE bool heap_door_admits(const struct heap_door *door, size_t below)
{
    return size_exceeds_acquire(&door->below, below); /* acquire [heap-door] */
}

static ALWAYS_INLINE bool heap_door_admits_free(const struct heap_door *door, uintptr_t page)
{
    return size_exceeds_acquire(&door->noted, page); /* acquire [heap-door] */
}

C_DECLARATIONS_END
#endif
