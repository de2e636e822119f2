// SPDX-License-Identifier: MIT
/*
 * slabs.c - the advice rule for slabs and recycling slots.
 *
 *   site A   48 48 48 48 ...  many alive        elements of 48 bytes: A and B share a slab,
 *   site B   48 40 48 48 ...  many alive        B wastes 8 bytes now and then
 *   site C   30 17 44 . . .   one at a time     an element as large as the largest, used again, of
 *   site D   48 48 . .  . .   one at a time     48 bytes too: C and D share one apart from A and B,
 *                                               whose long-lived elements would scatter theirs
 *
 * A site goes as a whole or not at all: a program that must look at an object to know where it
 * came from is harder to change than one that knows by its type.  So an element is as large as the
 * site's largest object, whatever it was resized to, and no object ever leaves its slab.
 *
 * Invariants:
 *   V1  every object of a site fits the elements of the site's slab, in size and alignment
 *   V2  a slab's elements take at most (1 + waste) times what its objects do, rounded up
 *
 * Locks: none; one thread.
 * Not here: whether the plan is faster; the replay says that.
 */
#include "replay/slabs.h"

/* Were all elements of the largest size, they would waste no more than allowed. */
static bool is_nearly_one_size(const struct site_facts *site, const struct slab_rules *rules) {
    uint64_t element_bytes = slot_bytes(site->largest_bytes);
    uint64_t sizes = site->allocs + site->resizes;
    double allowed = 1 + rules->waste_percent / 100.0;
    bool always = (double)sizes * (double)element_bytes <= allowed * (double)site->slot_bytes;
    bool at_peak =
        (double)site->peak_live * (double)element_bytes <=
        allowed * (double)site->peak_slot_bytes + (double)rules->waste_slack_bytes;
    return always && at_peak;
}

static bool is_one_at_a_time(const struct site_facts *site) {
    uint64_t threads = site->threads > 1 ? site->threads : 1;
    return site->peak_live <= threads && site->allocs > site->peak_live;
}

/* Sizes that vary widely would vary more in the next run: no element is surely large enough. */
static bool varies_little(const struct site_facts *site, const struct slab_rules *rules) {
    double mean_bytes = (double)site->slot_bytes / (double)(site->allocs + site->resizes);
    return (double)slot_bytes(site->largest_bytes) <= rules->slot_variety_max * mean_bytes;
}

static enum plan_class class_of(const struct site_facts *site, const struct slab_rules *rules) {
    if (site->allocs < rules->allocs_min || site->over_aligned ||
        site->largest_bytes > rules->element_bytes_max)
        return PLAN_HEAP;
    if (is_one_at_a_time(site))
        return varies_little(site, rules) ? PLAN_SLOT : PLAN_HEAP;
    if (site->peak_live >= rules->live_min && is_nearly_one_size(site, rules))
        return PLAN_SLAB;
    return PLAN_HEAP;
}

/* The slab for such elements, a new one if need be; PLAN_STAYS when there are too many. */
static int32_t slab_for(struct plan *plan, uint32_t element_bytes, enum plan_class class) {
    for (uint32_t slab = 0; slab < plan->slabs; slab++)
        if (plan->element_bytes[slab] == element_bytes && plan->class_of_slab[slab] == class)
            return (int32_t)slab;
    if (plan->slabs == PLAN_SLABS_MAX)
        return PLAN_STAYS;
    plan->element_bytes[plan->slabs] = element_bytes;
    plan->class_of_slab[plan->slabs] = (uint8_t)class;
    return (int32_t)plan->slabs++;
}

void slab_sites(struct plan *plan, const struct facts *facts, const struct slab_rules *rules) {
    for (uint32_t s = 0; s < facts->sites_count; s++) {
        const struct site_facts *site = &facts->sites[s];
        if (plan->arena_of_site[s] != PLAN_STAYS)
            continue;
        enum plan_class class = class_of(site, rules);
        if (class == PLAN_HEAP)
            continue;
        int32_t slab = slab_for(plan, (uint32_t)slot_bytes(site->largest_bytes), class);
        if (slab == PLAN_STAYS)
            continue;
        plan->slab_of_site[s] = slab;
        plan->class_of_site[s] = (uint8_t)class;
    }
}
