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
 *   V3  slots hold at most `waste` of the program's peak of live bytes, and the slack
 *
 * Locks: none; one thread.
 * Not here: whether the plan is faster; the replay says that.
 */
#include "replay/slabs.h"

// A slab whose elements are no larger has its first ones on the page that it lies on.
enum { PAGE_BYTES = 4096, SMALL_ELEMENT_BYTES = 512 };

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
        return PLAN_LEFT;
    if (is_one_at_a_time(site))
        return varies_little(site, rules) ? PLAN_SLOT : PLAN_LEFT;
    if (site->peak_live >= rules->live_min && is_nearly_one_size(site, rules))
        return PLAN_SLAB;
    return PLAN_LEFT;
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

/* What a slab holds for one element, roughly: its page, and its bookkeeping where it needs more. */
static uint64_t idle_bytes(const struct plan *plan, uint32_t slab) {
    uint64_t element_bytes = plan->element_bytes[slab];
    if (element_bytes <= SMALL_ELEMENT_BYTES)
        return PAGE_BYTES;
    return (element_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES + 2 * PAGE_BYTES;
}

/* The slab of slots that holds most for each object that it serves; PLAN_STAYS when none is left. */
static int32_t most_idle(const struct plan *plan, const uint64_t *objects) {
    int32_t worst = PLAN_STAYS;
    double worst_bytes = 0;
    for (uint32_t slab = 0; slab < plan->slabs; slab++) {
        if (plan->class_of_slab[slab] != PLAN_SLOT || objects[slab] == 0)
            continue;
        double bytes = (double)idle_bytes(plan, slab) / (double)objects[slab];
        if (bytes > worst_bytes) {
            worst = (int32_t)slab;
            worst_bytes = bytes;
        }
    }
    return worst;
}

static void give_up(struct plan *plan, int32_t slab) {
    for (uint32_t s = 0; s < plan->sites; s++) {
        if (plan->slab_of_site[s] != slab)
            continue;
        plan->slab_of_site[s] = PLAN_STAYS;
        plan->class_of_site[s] = PLAN_LEFT;
    }
}

/* A slot holds its page when nothing lives in it, too: many of them must not cost what they save. */
static void limit_idle(struct plan *plan, const struct facts *facts,
                       const struct slab_rules *rules) {
    uint64_t *objects = stream_memory(PLAN_SLABS_MAX, sizeof *objects);
    uint64_t allowed_bytes =
        facts->peak_live_bytes / 100 * rules->waste_percent + rules->idle_slack_bytes;
    uint64_t held_bytes = 0;
    for (uint32_t s = 0; s < plan->sites; s++)
        if (plan->slab_of_site[s] != PLAN_STAYS)
            objects[plan->slab_of_site[s]] += facts->sites[s].allocs;
    for (uint32_t slab = 0; slab < plan->slabs; slab++)
        held_bytes += plan->class_of_slab[slab] == PLAN_SLOT ? idle_bytes(plan, slab) : 0;
    while (held_bytes > allowed_bytes) {
        int32_t slab = most_idle(plan, objects);
        if (slab == PLAN_STAYS)
            break;
        held_bytes -= idle_bytes(plan, (uint32_t)slab);
        objects[slab] = 0;
        give_up(plan, slab);
    }
    stream_memory_give(objects, PLAN_SLABS_MAX, sizeof *objects);
}

void slab_sites(struct plan *plan, const struct facts *facts, const struct slab_rules *rules) {
    for (uint32_t s = 0; s < facts->sites_count; s++) {
        const struct site_facts *site = &facts->sites[s];
        if (plan->arena_of_site[s] != PLAN_STAYS)
            continue;
        enum plan_class class = class_of(site, rules);
        if (class == PLAN_LEFT)
            continue;
        int32_t slab = slab_for(plan, (uint32_t)slot_bytes(site->largest_bytes), class);
        if (slab == PLAN_STAYS)
            continue;
        plan->slab_of_site[s] = slab;
        plan->class_of_site[s] = (uint8_t)class;
    }
    limit_idle(plan, facts, rules);
}
