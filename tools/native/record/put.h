// SPDX-License-Identifier: MIT
/*
 * put.h - a call that was seen becomes an event: of the calling thread, with its stack and its time.
 *
 * Not here: which calls those are (hooks.c, new.c, own.c), how an event is laid out (event.h).
 */
#ifndef QUIRE_RECORD_PUT_H
#define QUIRE_RECORD_PUT_H

#include "cache.h"
#include "event.h"

/* What the caller of the function in which this stands looks like; needs that function's frame pointer. */
#define CALLER_FRAME()                                                                                                 \
    (struct rec_frame) {                                                                                               \
        .ip = rec_address((uintptr_t)__builtin_return_address(0)), .sp = (uintptr_t)__builtin_dwarf_cfa(),             \
        .bp = *(const uintptr_t *)__builtin_frame_address(0)                                                           \
    }

/* Is this call of the program's own to be recorded? */
static inline bool put_wanted(void) {
    return (rec_busy == 0 || REC_UNLIKELY(rec_own_left())) && atomic_load_explicit(&rec_on, memory_order_relaxed);
}

static REC_INLINE void look_when_due(uint64_t tick) {
    if (REC_UNLIKELY(tick >= atomic_load_explicit(&rec_look_tick, memory_order_relaxed))) {
        rec_look();
    }
}

static REC_INLINE void put_alloc(struct rec_event event, const struct rec_frame frame) {
    struct rec_thread *thread = rec_thread_get();
    if (REC_LIKELY(thread != NULL)) {
        event.stack = rec_stack(thread, frame);
        event.tick = rec_tick_of(thread);
        rec_event_put(thread, event);
        if (REC_UNLIKELY(event.size >= QTR_LARGE_BYTES && event.address >> 48 == 0)) {
            *rec_large_of(thread, event.address) = (struct rec_large){.address = event.address, .bytes = event.size};
        }
        look_when_due(event.tick);
    }
}

/* `tick` 0: now. */
static REC_INLINE void put_release(unsigned kind, const void *p, uint64_t tick) {
    struct rec_thread *thread = rec_thread_get();
    if (REC_LIKELY(thread != NULL)) {
        tick = tick != 0 ? tick : rec_tick_of(thread);
        rec_event_put(thread, (struct rec_event){.kind = kind, .address = (uintptr_t)p, .tick = tick});
        look_when_due(tick);
    }
}

/* Before a block goes, or gets another size: how much of a large one was used. */
static REC_INLINE void put_look(const void *p) {
    struct rec_thread *thread = rec_thread_get();
    struct rec_large *block = thread != NULL ? rec_large_of(thread, (uintptr_t)p) : NULL;
    if (REC_UNLIKELY(block != NULL && block->address == (uintptr_t)p)) {
        rec_large_look(thread, block);
    }
}

static REC_INLINE void put_free(const void *p) {
    put_look(p);
    put_release(QTR_FREE, p, 0);
}

static inline void put_aligned(void *p, size_t align_bytes, size_t bytes, struct rec_frame frame) {
    unsigned align_log2 = align_bytes > 1 ? 63u - (unsigned)__builtin_clzll(align_bytes) : 0u;
    put_alloc((struct rec_event){.kind = QTR_ALIGNED, .align_log2 = align_log2 & 31u, .address = (uintptr_t)p,
                                 .size = bytes}, frame);
}

#endif
