// SPDX-License-Identifier: MIT
/*
 * quire/counter.h - a number that many threads add to.
 *
 * Use it for what is counted often and looked at now and then: requests, bytes, errors, things in flight.  Adding is one quire_percpu_add(): no
 * atomic instruction, and no line that moves between CPUs, however many threads count.  The price is reading, which visits the CPUs' copies.
 *
 *     static struct quire_counter hits;
 *     struct quire_percpu *pool = quire_percpu_create(NULL);          // one for all counters of a program
 *     if (quire_counter_init(&hits, pool) != 0) ...
 *     quire_counter_add(&hits, 1);                                    // from any thread
 *     printf("%ld hits\n", (long)quire_counter_sum(&hits));
 *     quire_counter_fini(&hits);
 *
 * Which reading?  quire_counter_sum() to report: exact when nobody adds.  quire_counter_read() to decide again and again, "are we over the limit?":
 * at most a millisecond old, and cheap however many CPUs there are.
 *
 * Threads: add, sum and read may be called from any thread at any time.
 * Signals and fork: add, sum and read may be called from a signal handler; init and fini not.  A child goes on with a count of its own, which
 * begins at the parent's (but see quire/percpu.h on file and memfd sources).
 */
#ifndef QUIRE_COUNTER_H
#define QUIRE_COUNTER_H

#include <quire/percpu.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Yours to place, 32 bytes; all zero: not yet made, or ended.  The fields are public so that adding is inline; do not use them otherwise. */
struct quire_counter {
    struct quire_percpu *pool;
    struct quire_percpu_ref ref;
    uint64_t read_ns; /* when quire_counter_read() last added up, odd while somebody writes it down */
    uintptr_t read_sum;
};

/*
 * Begin a counter at 0, in a pool that must outlive it.  Returns 0, or -1 with errno: ENOMEM (as quire_percpu_alloc()), EINVAL (pool NULL); the counter
 * is then all zero.  Cost: one quire_percpu_alloc() of 8 bytes.  MT-Unsafe race:counter.
 */
QUIRE_API int quire_counter_init(struct quire_counter *counter, struct quire_percpu *pool);

/*
 * End a counter; nobody may be using it.  NULL, and one that is all zero, is left alone; errno is kept.  Cost: one quire_percpu_free().
 * MT-Unsafe race:counter.
 */
QUIRE_API void quire_counter_fini(struct quire_counter *counter);

/* Add `value`, which may be negative; the count wraps around.  Nothing is ever lost or counted twice.  Cost: as quire_percpu_add().  MT-Safe. */
QUIRE_API void quire_counter_add(struct quire_counter *counter, intptr_t value);

#if QUIRE_PERCPU_INLINE
extern inline __attribute__((__gnu_inline__, __always_inline__)) void quire_counter_add(struct quire_counter *counter, intptr_t value)
{
    quire_percpu_add(counter->pool, counter->ref, value);
}
#endif

/*
 * The count: exact when nobody adds meanwhile, else some value it had between.  Of a counter that only grows, a later sum is never less.  Cost: a load
 * for each CPU that ever wrote near it, each of which then fetches its line again.  MT-Safe.
 */
QUIRE_API intptr_t quire_counter_sum(const struct quire_counter *counter);

/*
 * The count as quire_counter_sum() gave it to some thread at most a millisecond ago, or gives it now.  So what was added more than a millisecond ago is
 * always in it; what this thread has just added may not be, and of two reads the later may give the older sum.  Cost: one reading of the clock, and a
 * sum each millisecond however many threads read; in a pool of at most 16 copies always a sum, which is as cheap there.  MT-Safe.
 */
QUIRE_API intptr_t quire_counter_read(struct quire_counter *counter);

#ifdef __cplusplus
}
#endif
#endif
