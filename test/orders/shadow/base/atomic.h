// SPDX-License-Identifier: MIT
/*
 * atomic.h - the names of src/base/atomic.h, for code that the explorer runs: every operation is a step that it decides about (explorer.h).
 */
#ifndef QUIRE_BASE_ATOMIC_H
#define QUIRE_BASE_ATOMIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#ifdef __cplusplus
extern "C" {
#endif

enum orders_kind { ORDERS_LOAD, ORDERS_STORE, ORDERS_EXCHANGE, ORDERS_ADD, ORDERS_CAS, ORDERS_FENCE, ORDERS_BARRIER, ORDERS_PAUSE, ORDERS_WAIT, ORDERS_WAKE, ORDERS_READ, ORDERS_WRITE };
enum orders_order { ORDERS_RELAXED, ORDERS_ACQUIRE, ORDERS_RELEASE, ORDERS_ACQ_REL, ORDERS_SEQ_CST };

/* One step of the calling thread: what was read.  `expected`: of a compare-and-swap; it has succeeded if that was read. */
uint64_t orders_step(enum orders_kind kind, enum orders_order order, const void *word, uint64_t value, uint64_t expected);

static inline void atomic_fence_seq_cst(void) { orders_step(ORDERS_FENCE, ORDERS_SEQ_CST, NULL, 0, 0); }
static inline void atomic_fence_release(void) { orders_step(ORDERS_FENCE, ORDERS_RELEASE, NULL, 0, 0); }
static inline void atomic_fence_signal(void) {} /* a thread's steps are in its program's order here: what a compiler may do is not explored */
static inline void cpu_pause(void) { orders_step(ORDERS_PAUSE, ORDERS_RELAXED, NULL, 0, 0); }

#define ORDERS_WORD(w, type)                                                                                                        \
    typedef struct atomic_##w {                                                                                                     \
        type word;                                                                                                                  \
    } atomic_##w;                                                                                                                   \
    static inline type w##_load_relaxed(const atomic_##w *p) { return (type)orders_step(ORDERS_LOAD, ORDERS_RELAXED, p, 0, 0); }    \
    static inline type w##_load_acquire(const atomic_##w *p) { return (type)orders_step(ORDERS_LOAD, ORDERS_ACQUIRE, p, 0, 0); }    \
    static inline void w##_store_relaxed(atomic_##w *p, type v) { orders_step(ORDERS_STORE, ORDERS_RELAXED, p, v, 0); }             \
    static inline void w##_store_release(atomic_##w *p, type v) { orders_step(ORDERS_STORE, ORDERS_RELEASE, p, v, 0); }             \
    static inline type w##_exchange_acquire(atomic_##w *p, type v)                                                                  \
    {                                                                                                                               \
        return (type)orders_step(ORDERS_EXCHANGE, ORDERS_ACQUIRE, p, v, 0);                                                         \
    }                                                                                                                               \
    static inline type w##_exchange_release(atomic_##w *p, type v)                                                                  \
    {                                                                                                                               \
        return (type)orders_step(ORDERS_EXCHANGE, ORDERS_RELEASE, p, v, 0);                                                         \
    }                                                                                                                               \
    static inline type w##_add_relaxed(atomic_##w *p, type v) { return (type)orders_step(ORDERS_ADD, ORDERS_RELAXED, p, v, 0); }    \
    static inline type w##_sub_release(atomic_##w *p, type v)                                                                       \
    {                                                                                                                               \
        return (type)orders_step(ORDERS_ADD, ORDERS_RELEASE, p, (uint64_t)0 - v, 0);                                                \
    }                                                                                                                               \
    static inline bool orders_cas_##w(atomic_##w *p, type *expected, type v, enum orders_order order)                               \
    {                                                                                                                               \
        type was = (type)orders_step(ORDERS_CAS, order, p, v, *expected);                                                           \
        bool done = was == *expected;                                                                                               \
        *expected = was;                                                                                                            \
        return done;                                                                                                                \
    }                                                                                                                               \
    static inline bool w##_cas_relaxed(atomic_##w *p, type *e, type v) { return orders_cas_##w(p, e, v, ORDERS_RELAXED); }          \
    static inline bool w##_cas_acquire(atomic_##w *p, type *e, type v) { return orders_cas_##w(p, e, v, ORDERS_ACQUIRE); }          \
    static inline bool w##_cas_release(atomic_##w *p, type *e, type v) { return orders_cas_##w(p, e, v, ORDERS_RELEASE); }

ORDERS_WORD(u32, uint32_t)
ORDERS_WORD(u64, uint64_t)
ORDERS_WORD(size, size_t)
ORDERS_WORD(addr, uintptr_t)
#undef ORDERS_WORD
static inline bool size_exceeds_acquire(const atomic_size *p, size_t value) { return size_load_acquire(p) > value; }

#ifdef __cplusplus
}
#endif
#endif
