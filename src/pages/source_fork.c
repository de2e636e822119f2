// SPDX-License-Identifier: MIT
/*
 * source_fork.c - counting forks, and letting one thread of the child repair a source.
 *
 * Locks: fork_lock, while a source is repaired; a repair takes no lock.  The child starts with it free.
 * Not here: what a repair is (source_file.c, source_fixed.c).
 */
#include "pages/source_fork.h"

#include "base/lock.h"

atomic_u32 source_fork_now, source_fork_lost;
static struct lock fork_lock = LOCK_INIT(LOCK_FILE);

void source_fork_after_fork(void)
{
    (void)lock_reset_others(&fork_lock);
    u32_add_relaxed(&source_fork_now, 1);
}

void source_fork_lose(void)
{
    u32_add_relaxed(&source_fork_lost, 1);
}

void source_fork_repair_slow(struct source_fork *fork, void (*repair)(void *source), void *source)
{
    lock_take(&fork_lock);
    uint32_t now = u32_load_relaxed(&source_fork_now);
    if (u32_load_relaxed(&fork->seen) != now) {
        repair(source);
        u32_store_release(&fork->seen, now); /* release [fork-repair] */
    }
    lock_drop(&fork_lock);
}
