// SPDX-License-Identifier: MIT
/*
 * os_fault.c - the seam where a test makes the nth call of a kind fail.
 *
 *     armed ----- 0: one load, no counting        nth[kind]: fail when calls[kind] reaches it
 *
 * Locks: none.  Counters are shared and relaxed: which thread's call is the nth is not promised.
 */
#include "base/atomic.h"
#include "os/os.h"

static struct {
    atomic_u32 armed;
    struct {
        atomic_u64 calls, nth;
        atomic_u32 onwards;
    } kind[OS_CALL_COUNT];
} fault;

uint64_t os_fault_set(enum os_call kind, uint64_t nth, bool onwards)
{
    uint64_t calls = u64_load_relaxed(&fault.kind[kind].calls);
    u64_store_relaxed(&fault.kind[kind].calls, 0);
    u32_store_relaxed(&fault.kind[kind].onwards, onwards);
    u64_store_relaxed(&fault.kind[kind].nth, nth);
    uint32_t armed = 0;
    for (int i = 0; i < OS_CALL_COUNT; i++)
        armed |= u64_load_relaxed(&fault.kind[i].nth) != 0;
    u32_store_relaxed(&fault.armed, armed);
    return calls;
}

bool os_fault(enum os_call kind)
{
    if (likely(u32_load_relaxed(&fault.armed) == 0))
        return false;
    uint64_t nth = u64_load_relaxed(&fault.kind[kind].nth);
    uint64_t call = u64_add_relaxed(&fault.kind[kind].calls, 1) + 1;
    return nth != 0 && (call == nth || (call > nth && u32_load_relaxed(&fault.kind[kind].onwards)));
}
