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
}

void registry_leave_to(const struct registry *registry, bool woke)
{
    uint64_t until_ns = woke ? os_time_ns() + COURTESY_NS : 0;
    while (woke && !lock_held(&registry->lock) && os_time_ns() < until_ns)
        os_yield();
}

void registry_unlock(struct registry *registry)
{
    registry_leave_to(registry, lock_drop(&registry->lock));
}

void registry_let_go(struct registry *registry)
{
    if (lock_is_mine(&registry->lock))
        registry_unlock(registry);
}

uint32_t registry_id_new(struct registry *registry)
{
    uint32_t id = (uint32_t)bits_find(registry->ids, registry->ids_from, registry->ids_max, false);
    if (id == registry->ids_max)
        return REGISTRY_FULL;
    bits_set_one(registry->ids, id);
    registry->ids_from = id + 1;
    return id;
}

void registry_id_delete(struct registry *registry, uint32_t id)
{
    bits_clear_one(registry->ids, id);
    if (id < registry->ids_from)
        registry->ids_from = id;
}
