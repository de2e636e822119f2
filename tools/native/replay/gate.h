// SPDX-License-Identifier: MIT
/*
 * gate.h - one 32-bit word on which a thread waits until a count is reached.
 *
 *   bit 31 ............ 1   0
 *   +---------------------+---+
 *   | count               | w |     w: somebody sleeps, so the next post must wake
 *   +---------------------+---+
 *
 * Invariants:
 *   G1  the count only rises
 *   G2  a sleeper sets w before it sleeps on exactly that word; the poster that wakes clears it
 *
 * Locks: none.  Everything written before a post is seen after the await that it satisfies.
 * Not here: who waits for whom (compile.c).
 */
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

// Short waits are the rule (the other thread is a few operations behind): spin, then sleep.
enum { GATE_SPINS = 64 };

struct gate {
    uint32_t word;
};

static inline void gate_pause(void) {
#if __has_builtin(__builtin_ia32_pause)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

static inline int32_t gate_missing(uint32_t word, uint32_t count) {
    return (int32_t)((count << 1) - (word & ~1u));
}

static inline void gate_await(struct gate *gate, uint32_t count) {
    for (int spin = 0; spin < GATE_SPINS; spin++) {
        // acquire [gate-post]
        if (gate_missing(__atomic_load_n(&gate->word, __ATOMIC_ACQUIRE), count) <= 0)
            return;
        gate_pause();
    }
    for (;;) {
        uint32_t word = __atomic_load_n(&gate->word, __ATOMIC_ACQUIRE);
        if (gate_missing(word, count) <= 0)
            return;
        uint32_t marked = word | 1u;
        if (word != marked && !__atomic_compare_exchange_n(&gate->word, &word, marked, 0,
                                                           __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
            continue;
        syscall(SYS_futex, &gate->word, FUTEX_WAIT_PRIVATE, marked, NULL, NULL, 0);
    }
}

static inline void gate_wake(struct gate *gate) {
    syscall(SYS_futex, &gate->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* The count is now `count`: for gates with one poster at a time. */
static inline void gate_post(struct gate *gate, uint32_t count) {
    // release [gate-post]
    if (__atomic_exchange_n(&gate->word, count << 1, __ATOMIC_ACQ_REL) & 1u)
        gate_wake(gate);
}

/* The count rises by one: for gates with many posters. */
static inline void gate_add(struct gate *gate) {
    if (__atomic_fetch_add(&gate->word, 2u, __ATOMIC_ACQ_REL) & 1u) {
        __atomic_fetch_and(&gate->word, ~1u, __ATOMIC_ACQ_REL);
        gate_wake(gate);
    }
}
