// SPDX-License-Identifier: MIT
/*
 * counter.c - a number that every CPU has a part of, and the last sum of the parts.
 *
 *     struct quire_counter                    the pool's copies
 *     +------+-----+                          CPU 0   CPU 1   CPU 2   ...
 *     | pool | ref | -----------------------> [ 12 ]  [  0 ]  [ -3 ]         add: this CPU's; sum: all of them
 *     +------+-----+
 *     | read_ns    |  when the last sum began: even; odd while one reader writes the next
 *     | read_sum   |  what it was
 *     +------------+
 *
 * Invariants:
 *   C1  read_sum was begun at or after read_ns, when that is even: who sees the time sees this sum, or a later one
 *   C2  one thread at a time, the one that made read_ns odd, writes read_sum and the next time; times only rise
 *
 * Locks: none, and nobody waits: who finds read_ns odd, or loses it to another, adds up for himself.  A reader that a fork cut off in the middle leaves
 * read_ns odd in the child, where every read is a sum from then on: right, and only dearer.
 * Not here: the copies, and how one is added to (percpu.h).
 */
#define QUIRE_PERCPU_INLINE 0 /* here is the function itself */
#include <quire/counter.h>

#include "base/atomic.h"
#include "base/fail.h"
#include "os/os.h"
#include "percpu/counter_policy.h"

STATIC_ASSERT(sizeof(struct quire_counter) == 32, "counter.h promises 32 bytes");

static atomic_u64 *read_ns_of(struct quire_counter *counter)
{
    return (atomic_u64 *)(void *)&counter->read_ns;
}

static atomic_addr *read_sum_of(struct quire_counter *counter)
{
    return (atomic_addr *)(void *)&counter->read_sum;
}

int quire_counter_init(struct quire_counter *counter, struct quire_percpu *pool)
{
    *counter = (struct quire_counter){0};
    if (!pool)
        return fail_int(EINVAL);
    struct quire_percpu_ref ref = quire_percpu_alloc(pool, sizeof(intptr_t), 0);
    if (!ref.bits)
        return -1;
    counter->pool = pool;
    counter->ref = ref;
    return 0;
}

void quire_counter_fini(struct quire_counter *counter)
{
    if (!counter || !counter->pool)
        return;
    quire_percpu_free(counter->pool, counter->ref);
    *counter = (struct quire_counter){0};
}

void quire_counter_add(struct quire_counter *counter, intptr_t value)
{
    quire_percpu_add(counter->pool, counter->ref, value);
}

intptr_t quire_counter_sum(const struct quire_counter *counter)
{
    return quire_percpu_sum(counter->pool, counter->ref);
}

/* Add up, and leave the sum for the others unless somebody is leaving his. */
static intptr_t read_slow(struct quire_counter *counter, uint64_t seen_ns, uint64_t now_ns)
{
    intptr_t sum = quire_counter_sum(counter); /* begun after now_ns was read: C1 */
    if (!counter_read_is_fresh(seen_ns, now_ns) && !(seen_ns & COUNTER_READ_BUSY) &&
        u64_cas_acquire(read_ns_of(counter), &seen_ns, seen_ns | COUNTER_READ_BUSY)) { /* acquire [counter-read]: C2 */
        addr_store_relaxed(read_sum_of(counter), (uintptr_t)sum);
        u64_store_release(read_ns_of(counter), now_ns & ~COUNTER_READ_BUSY); /* release [counter-read] */
    }
    return sum;
}

intptr_t quire_counter_read(struct quire_counter *counter)
{
    if (counter_sum_is_cheap(quire_percpu_cpus(counter->pool)))
        return quire_counter_sum(counter);
    uint64_t now_ns = os_time_ns();
    uint64_t seen_ns = u64_load_acquire(read_ns_of(counter)); /* acquire [counter-read] */
    if (likely(counter_read_is_fresh(seen_ns, now_ns)))
        return (intptr_t)addr_load_relaxed(read_sum_of(counter)); /* C1 */
    return read_slow(counter, seen_ns, now_ns);
}
