// SPDX-License-Identifier: MIT
/*
 * source_fork.h - sources that have something to repair in the child of a fork find out by themselves.
 *
 *     parent   generation 1 ----------------------------->
 *     child            \ fork: generation 2, first use of each source: repair
 *
 * Nothing is done before a fork, and no list of sources is kept: each compares its own generation with
 * the process's whenever it is used.
 */
#ifndef QUIRE_PAGES_SOURCE_FORK_H
#define QUIRE_PAGES_SOURCE_FORK_H

#include "base/atomic.h"

extern atomic_u32 source_fork_now;  /* how many forks lie between the first process and this one */
extern atomic_u32 source_fork_lost; /* grows with each of them that ended a thread which may have held a span in its hands */

struct source_fork {
    atomic_u32 seen;
};

void source_fork_after_fork(void); /* source_default.c calls it */
/* An allocator's handler found such a thread: it was inside, taking a span or giving one back. */
void source_fork_lose(void);
void source_fork_repair_slow(struct source_fork *fork, void (*repair)(void *source), void *source);

/* Remember in which process a source was made. */
static inline void source_fork_init(struct source_fork *fork)
{
    u32_store_relaxed(&fork->seen, u32_load_relaxed(&source_fork_now));
}

/* Call `repair` once in each process that inherited the source, before anybody uses it there. */
static inline void source_fork_repair(struct source_fork *fork, void (*repair)(void *source), void *source)
{
    /* acquire [fork-repair] */
    if (unlikely(u32_load_acquire(&fork->seen) != u32_load_relaxed(&source_fork_now)))
        source_fork_repair_slow(fork, repair, source);
}

#endif
