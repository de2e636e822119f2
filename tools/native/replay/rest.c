// SPDX-License-Identifier: MIT
/*
 * rest.c - the advice rule for what is left over.
 *
 *   site A   17 900 33 4000 ...   often, any size      the heap
 *   site B   once, twice                               leave it alone: nothing to gain
 *   site C   200 KB  1 MB  ...                         leave it alone: its cost is its pages
 *
 * Invariants:
 *   H1  a site of the heap's has neither an arena nor a slab
 *
 * Locks: none; one thread.
 * Not here: whether the plan is faster; the replay says that.
 */
#include "replay/rest.h"

static bool can_gain(const struct site_facts *site, const struct rest_rules *rules) {
    uint64_t sizes = site->allocs + site->resizes;
    return site->allocs >= rules->allocs_min && site->bytes / sizes <= rules->mean_bytes_max;
}

void rest_sites(struct plan *plan, const struct facts *facts, const struct rest_rules *rules) {
    for (uint32_t s = 0; s < facts->sites_count; s++)
        if (plan->class_of_site[s] == PLAN_LEFT && facts->sites[s].allocs > 0 &&
            can_gain(&facts->sites[s], rules))
            plan->class_of_site[s] = PLAN_HEAP;
}
