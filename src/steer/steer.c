// SPDX-License-Identifier: MIT
/*
 * steer.c - a plan comes into force; the child of a fork.
 *
 * Locks: none.
 */
#include "steer/steer.h"

#include <string.h>

#include "os/os.h"
#include "pages/region.h"
#include "steer/steer_internal.h"

static void after_fork(void)
{
    steer_sites_after_fork();
    steer_pools_after_fork();
    steer_threads_after_fork();
}

bool steer_start(const char *path, const struct steer_opts *opts, char why[STEER_WHY_BYTES])
{
    if (!steer_plan_read(path, why))
        return false;
    if (steer_plan.program && !steer_module_is_program(steer_plan.program - 1)) {
        strcpy(why, STEER_OTHER_PROGRAM);
        steer_plan.sites = 0;
        return false;
    }
    for (uint32_t i = 0; i <= steer_plan.pools; i++) {
        steer_plan.pool[i].lock = (struct lock)LOCK_INIT(LOCK_STEER_POOL);
        steer_plan.pool[i].lanes_lock = (struct lock)LOCK_INIT(LOCK_STEER_POOL);
        steer_plan.pool[i].epoch = 1;
    }
    for (uint32_t i = 0; i < steer_plan.sites; i++)
        steer_pool_of[TARGET_SITE + i] = opts->control ? 0 : (uint8_t)steer_plan.pool_first[i];
    steer_threads_start();
    steer_nobody.hot_part = STEER_NO_PART;
    steer_plan.control = opts->control;
    steer_plan.counts = opts->counts;
    steer_quick_max = opts->counts ? 0 : STEER_BLOCK_MAX;
    steer_plan.start_ns = os_time_ns();
    steer_plan.start_ticks = steer_ticks();
    if (!opts->control)
        region_expect(steer_plan.memory_bytes);
    (void)os_after_fork_in_child(after_fork);
    return true;
}

bool steer_has_sites(void)
{
    return steer_plan.sites != 0;
}
