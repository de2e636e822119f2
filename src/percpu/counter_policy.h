// SPDX-License-Identifier: MIT
/*
 * counter_policy.h - when a counter's last sum is good enough: pure functions, tested as a table.
 */
#ifndef QUIRE_PERCPU_COUNTER_POLICY_H
#define QUIRE_PERCPU_COUNTER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#define COUNTER_READ_BUSY UINT64_C(1) /* of a time: somebody writes the sum that belongs to the next one */
#define COUNTER_READ_AGE_NS UINT64_C(1000000)
#define COUNTER_CPUS_CHEAP 16U /* adding up so many copies costs no more than reading the clock */

static inline bool counter_sum_is_cheap(unsigned cpus)
{
    return cpus <= COUNTER_CPUS_CHEAP;
}

/*
 * A sum begun at read_ns may be given out at now_ns; one of another thread's that has read the clock since then, too.  One that is far ahead is of a clock
 * that was set back: the child of a fork may have its own (time_namespaces(7)).
 */
static inline bool counter_read_is_fresh(uint64_t read_ns, uint64_t now_ns)
{
    uint64_t apart_ns = read_ns >= now_ns ? read_ns - now_ns : now_ns - read_ns;
    return read_ns != 0 && !(read_ns & COUNTER_READ_BUSY) && apart_ns < COUNTER_READ_AGE_NS;
}

#endif
