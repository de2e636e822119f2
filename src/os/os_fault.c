// SPDX-License-Identifier: MIT
/*
 * os_fault.c - the seam where a test makes the nth call of a kind fail.
 *
 *     armed ----- 0: one load, no counting        nth[kind]: fail when calls[kind] reaches it
 *
 * Locks: none.  Counters are shared and relaxed: which thread's call is the nth is not promised.
 */
#include "os/os.h"

#define LOAD(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define STORE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

static struct {
    uint32_t armed;
    struct {
        uint64_t calls, nth, failed;
        uint32_t onwards;
    } kind[OS_CALL_COUNT];
} fault;

uint64_t os_fault_set(enum os_call kind, uint64_t nth, bool onwards)
{
    uint64_t calls = LOAD(fault.kind[kind].calls);
    STORE(fault.kind[kind].calls, 0);
    STORE(fault.kind[kind].onwards, onwards);
    STORE(fault.kind[kind].nth, nth);
    uint32_t armed = 0;
    for (int i = 0; i < OS_CALL_COUNT; i++)
        armed |= LOAD(fault.kind[i].nth) != 0;
    STORE(fault.armed, armed);
    return calls;
}

bool os_fault(enum os_call kind)
{
    if (__builtin_expect(LOAD(fault.armed) == 0, 1))
        return false;
    uint64_t nth = LOAD(fault.kind[kind].nth);
    uint64_t call = __atomic_add_fetch(&fault.kind[kind].calls, 1, __ATOMIC_RELAXED);
    bool fails = nth != 0 && (call == nth || (call > nth && LOAD(fault.kind[kind].onwards)));
    if (fails)
        (void)__atomic_add_fetch(&fault.kind[kind].failed, 1, __ATOMIC_RELAXED);
    return fails;
}

uint64_t os_fault_failed(enum os_call kind)
{
    return __atomic_exchange_n(&fault.kind[kind].failed, 0, __ATOMIC_RELAXED);
}
