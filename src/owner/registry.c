// SPDX-License-Identifier: MIT
/*
 * registry.c - the lock over all objects of a kind, and their ids.
 *
 * Locks: the registry's own.
 */
#include "owner/registry.h"

#include "base/bits.h"
#include "os/os.h"

enum { COURTESY_NS = 100000 };

void registry_lock(struct registry *registry)
{
    if (unlikely(os_is_unrepaired()) && !lock_holds_any())
        os_repair(); /* whoever calls a source with this lock would do it there, in the middle of something */
    lock_take(&registry->lock);
    addr_store_relaxed(&registry->holder, (uintptr_t)os_thread_pointer());
}

bool registry_drop(struct registry *registry)
{
    addr_store_relaxed(&registry->holder, 0);
    return lock_drop(&registry->lock);
}

void registry_leave_to(const struct registry *registry, bool woke)
{
    uint64_t until_ns = woke ? os_time_ns() + COURTESY_NS : 0;
    while (woke && !lock_held(&registry->lock) && os_time_ns() < until_ns)
        os_yield();
}

void registry_unlock(struct registry *registry)
{
    registry_leave_to(registry, registry_drop(registry));
}

bool registry_is_mine(const struct registry *registry)
{
    return addr_load_relaxed(&registry->holder) == (uintptr_t)os_thread_pointer();
}

void registry_let_go(struct registry *registry)
{
    if (registry_is_mine(registry))
        registry_unlock(registry);
}

bool registry_after_fork(struct registry *registry)
{
    bool held = lock_reset_others(&registry->lock);
    if (held)
        addr_store_relaxed(&registry->holder, 0);
    return held;
}

uint32_t registry_id_new(struct registry *registry)
{
    for (uint32_t w = registry->ids_from; w < registry->ids_max / WORD_BITS; w++) {
        uint64_t free = ~registry->ids[w] & ~(uint64_t)(w == 0 && registry->has_no_0);
        if (free) {
            registry->ids_from = w;
            registry->ids[w] |= free & -free;
            return w * WORD_BITS + bits_lowest(free);
        }
    }
    return REGISTRY_FULL;
}

void registry_id_delete(struct registry *registry, uint32_t id)
{
    bits_clear_one(registry->ids, id);
    if (id / WORD_BITS < registry->ids_from)
        registry->ids_from = id / WORD_BITS;
}
