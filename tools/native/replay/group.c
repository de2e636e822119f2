// SPDX-License-Identifier: MIT
/*
 * group.c - the advice rule for arenas.
 *
 *   site A   [-----------------------]        A and B live through the same phases: one
 *   site B     [-------------------]          arena. C's objects die at once, but few bytes
 *   site C     . . . . . . . . .  .           pass through it: it may ride along.
 *
 * Steps:  1. sites whose own generations fit an arena (many objects, little waste) found arenas;
 *            a site whose phases coincide with a known arena's joins it; sites whose own generations
 *            have few objects found one together where their phases coincide (group_circle.c)
 *         2. the others join the arena that they make least heavier, within the budget
 *         3. a site that opens arenas for a few objects leaves; while the forecast of the whole
 *            plan is over the budget, the most wasteful site leaves
 *
 * Invariants:
 *   R1  the result's arena_peak_bytes <= arena_live_peak_bytes * (1 + waste) + slack
 *   R2  the generations that a site opens have at least generation_objects_min objects on average
 *
 * Locks: none; one thread.
 * Not here: whether the plan is faster; the replay says that.
 */
#include "replay/group.h"
#include "replay/group_circle.h"

#include <stdlib.h>

enum { GROUPS_MAX = 48, PHASE_SLACK_BYTES = 64 << 10 };

// An arena that is kept between its generations: in one thread, in all of them, and how often it must be used again.
enum { KEPT_BYTES_MAX = 128 << 10, KEPT_ALL_BYTES_MAX = 1 << 20, KEPT_GENERATIONS_MIN = 8 };

struct chooser {
    struct plan *plan;
    const struct facts *facts;
    const struct group_rules *rules;
    struct phases groups[GROUPS_MAX]; // of the sites that share an arena
    uint32_t groups_count;
    uint32_t *busy; // candidates in the order of the step
    uint32_t busy_count;
    uint64_t held_bytes;
    uint64_t live_bytes; // sum of the sites' own peaks
};

static void give_to(struct plan *plan, uint32_t site_idx, int32_t arena) {
    plan->arena_of_site[site_idx] = arena;
    plan->class_of_site[site_idx] = PLAN_ARENA;
    plan->refusal_of_site[site_idx] = REFUSED_NOT;
}

static void refuse(struct plan *plan, uint32_t site_idx, enum plan_refusal why) {
    plan->arena_of_site[site_idx] = PLAN_STAYS;
    plan->class_of_site[site_idx] = PLAN_LEFT;
    plan->refusal_of_site[site_idx] = (uint8_t)why;
}

static bool worth_creating(const struct chooser *c, uint64_t objects, uint64_t generations) {
    return objects >= generations * c->rules->generation_objects_min;
}

static uint64_t budget(const struct chooser *c, uint64_t live_bytes) {
    return live_bytes + live_bytes / 100 * c->rules->waste_percent + c->rules->waste_slack_bytes;
}

/* Step 1: does the site fit an arena by itself? */
static bool fits_alone(const struct chooser *c, const struct site_facts *site,
                       const struct phases *own) {
    uint64_t allowed =
        site->peak_slot_bytes + site->peak_slot_bytes / 100 * c->rules->waste_percent;
    return worth_creating(c, site->allocs, site->generations) &&
           own->held_bytes <= allowed + PHASE_SLACK_BYTES;
}

/*
 * Same phases: together they begin and end no more often, and hold no more, than apart.  What one adds
 * is a small part of the fewer: one generation has no part in two thousand that are over before it.
 */
static bool coincide(const struct phases *a, const struct phases *b, const struct phases *merged) {
    uint64_t more = a->generations > b->generations ? a->generations : b->generations;
    uint64_t fewer = a->generations + b->generations - more;
    uint64_t apart_bytes = a->held_bytes + b->held_bytes;
    return merged->generations <= more + fewer / 20 &&
           merged->held_bytes <= apart_bytes + apart_bytes / 20 + PHASE_SLACK_BYTES;
}

static void join(struct chooser *c, uint32_t site_idx, uint32_t group_idx,
                 const struct phases *own) {
    struct phases *group = &c->groups[group_idx];
    struct phases merged = phases_merge(group, own, true);
    c->held_bytes += merged.held_bytes - group->held_bytes;
    c->live_bytes += c->facts->sites[site_idx].peak_slot_bytes;
    phases_give(group);
    *group = merged;
    give_to(c->plan, site_idx, (int32_t)group_idx);
}

static void found(struct chooser *c, uint32_t site_idx, const struct phases *own) {
    c->held_bytes += own->held_bytes;
    c->live_bytes += c->facts->sites[site_idx].peak_slot_bytes;
    give_to(c->plan, site_idx, (int32_t)c->groups_count);
    c->groups[c->groups_count++] = *own;
}

static void place_founders(struct chooser *c) {
    for (uint32_t i = 0; i < c->busy_count; i++) {
        const struct site_facts *site = &c->facts->sites[c->busy[i]];
        struct phases own = phases_of_site(site);
        if (!fits_alone(c, site, &own)) {
            bool few = !worth_creating(c, site->allocs, site->generations);
            refuse(c->plan, c->busy[i], few ? REFUSED_FEW : REFUSED_WASTE);
            continue;
        }
        uint32_t at = 0;
        for (; at < c->groups_count; at++) {
            struct phases merged = phases_merge(&c->groups[at], &own, false);
            if (coincide(&c->groups[at], &own, &merged))
                break;
        }
        if (at < c->groups_count)
            join(c, c->busy[i], at, &own);
        else if (c->groups_count < GROUPS_MAX)
            found(c, c->busy[i], &own);
        else
            refuse(c->plan, c->busy[i], REFUSED_CROWD);
    }
}

/* Its objects are few in a generation, and no founder's phases are its own: it would ride there. */
static bool may_join_circle(const struct chooser *c, uint32_t site_idx) {
    if (c->plan->refusal_of_site[site_idx] != REFUSED_FEW)
        return false;
    struct phases own = phases_of_site(&c->facts->sites[site_idx]);
    for (uint32_t at = 0; at < c->groups_count; at++)
        if (phases_keep_time(&c->groups[at], &own))
            return false;
    return true;
}

/* The sites of one circle get an arena. */
static void place_circle(struct chooser *c, const int32_t *circle_of_site, int32_t circle) {
    uint32_t group_idx = c->groups_count;
    for (uint32_t i = 0; i < c->busy_count; i++) {
        uint32_t site_idx = c->busy[i];
        if (circle_of_site[site_idx] != circle)
            continue;
        struct phases own = phases_of_site(&c->facts->sites[site_idx]);
        if (group_idx == GROUPS_MAX)
            refuse(c->plan, site_idx, REFUSED_CROWD);
        else if (group_idx == c->groups_count)
            found(c, site_idx, &own);
        else
            join(c, site_idx, group_idx, &own);
    }
}

static void place_circles(struct chooser *c, const struct stream *stream) {
    uint32_t *sites = stream_memory(c->busy_count, sizeof *sites), count = 0;
    int32_t *circle_of_site = stream_memory(c->facts->sites_count, sizeof *circle_of_site);
    for (uint32_t i = 0; i < c->busy_count; i++)
        if (may_join_circle(c, c->busy[i]))
            sites[count++] = c->busy[i];
    struct circle_search search = {.stream = stream,
                                   .facts = c->facts,
                                   .sites = sites,
                                   .sites_count = count,
                                   .waste_percent = c->rules->waste_percent,
                                   .slack_bytes = PHASE_SLACK_BYTES,
                                   .generation_objects_min = c->rules->generation_objects_min};
    uint32_t circles = circles_find(circle_of_site, &search);
    for (uint32_t circle = 0; circle < circles; circle++)
        place_circle(c, circle_of_site, (int32_t)circle);
    stream_memory_give(sites, c->busy_count, sizeof *sites);
    stream_memory_give(circle_of_site, c->facts->sites_count, sizeof *circle_of_site);
}

/* In an arena that is hardly ever reset the dead lie to the end: a rider may add few of them. */
static bool bears(const struct phases *group, uint64_t live_bytes, const struct phases *merged) {
    uint64_t apart_bytes = group->held_bytes + live_bytes;
    return merged->generations >= KEPT_GENERATIONS_MIN * group->spans_count ||
           merged->held_bytes <= apart_bytes + apart_bytes / 20;
}

static void place_riders(struct chooser *c) {
    for (uint32_t i = 0; i < c->busy_count; i++) {
        const struct site_facts *site = &c->facts->sites[c->busy[i]];
        if (c->plan->arena_of_site[c->busy[i]] != PLAN_STAYS)
            continue;
        struct phases own = phases_of_site(site);
        uint32_t best = GROUPS_MAX;
        uint64_t best_bytes = UINT64_MAX;
        for (uint32_t at = 0; at < c->groups_count; at++) {
            struct phases merged = phases_merge(&c->groups[at], &own, false);
            uint64_t added_bytes = merged.held_bytes - c->groups[at].held_bytes;
            if (added_bytes >= best_bytes || !worth_creating(c, merged.objects, merged.generations))
                continue;
            // A rider must not shatter the arena's phases into many more.
            if (merged.generations >
                c->groups[at].generations + own.objects / c->rules->generation_objects_min)
                continue;
            if (!bears(&c->groups[at], site->peak_slot_bytes, &merged))
                continue;
            best = at;
            best_bytes = added_bytes;
        }
        uint64_t live_bytes = c->live_bytes + site->peak_slot_bytes;
        if (best != GROUPS_MAX && c->held_bytes + best_bytes <= budget(c, live_bytes))
            join(c, c->busy[i], best, &own);
    }
}

static const struct facts *sorting; // qsort has no argument for it

static int by_allocs(const void *a, const void *b) {
    const struct site_facts *x = &sorting->sites[*(const uint32_t *)a];
    const struct site_facts *y = &sorting->sites[*(const uint32_t *)b];
    return x->allocs < y->allocs ? 1 : x->allocs > y->allocs ? -1 : 0;
}

/* Dead bytes that an arena would keep for each object of the site, when it is at its fullest. */
static double waste_of(const struct site_facts *site) {
    double dead_bytes = (double)site->slot_bytes - (double)site->peak_slot_bytes;
    return dead_bytes / (double)site->allocs;
}

static int by_waste(const void *a, const void *b) {
    double x = waste_of(&sorting->sites[*(const uint32_t *)a]);
    double y = waste_of(&sorting->sites[*(const uint32_t *)b]);
    return x < y ? -1 : x > y ? 1 : by_allocs(a, b);
}

static void list_candidates(struct chooser *c) {
    for (uint32_t s = 0; s < c->facts->sites_count; s++) {
        const struct site_facts *site = &c->facts->sites[s];
        if (site->candidate && !site->resized_elsewhere)
            c->busy[c->busy_count++] = s;
        else
            refuse(c->plan, s, site->candidate ? REFUSED_RESIZED : REFUSED_RARE);
    }
}

/* Step 3: the site that wastes most goes; false when none is left. */
static bool drop_most_wasteful(struct plan *plan, const struct facts *facts) {
    uint32_t worst = UINT32_MAX;
    double worst_waste = -1;
    for (uint32_t s = 0; s < plan->sites; s++) {
        if (plan->arena_of_site[s] == PLAN_STAYS)
            continue;
        double waste = waste_of(&facts->sites[s]);
        if (waste > worst_waste) {
            worst_waste = waste;
            worst = s;
        }
    }
    if (worst == UINT32_MAX)
        return false;
    refuse(plan, worst, REFUSED_BUDGET);
    return true;
}

static bool over_budget(const struct chooser *c, const struct forecast *forecast) {
    return forecast->arena_peak_bytes > budget(c, forecast->arena_live_peak_bytes);
}

/*
 * Sites that turned out to open arenas for next to nothing go back; true if there were any.  What
 * was known when they joined may have been joined spans, in which their own phases cannot be seen.
 */
static bool drop_idle_openers(const struct chooser *c, const struct forecast *out) {
    bool dropped = false;
    for (uint32_t s = 0; s < c->plan->sites; s++) {
        const struct forecast_opener *opener = &out->openers[s];
        if (c->plan->arena_of_site[s] == PLAN_STAYS ||
            worth_creating(c, opener->objects, opener->generations))
            continue;
        refuse(c->plan, s, REFUSED_OPENER);
        dropped = true;
    }
    return dropped;
}

void group_sites(struct plan *plan, struct forecast *out, const struct stream *stream,
                 const struct facts *facts, const struct group_rules *rules) {
    struct chooser *c = stream_memory(1, sizeof *c);
    *c = (struct chooser){.plan = plan, .facts = facts, .rules = rules};
    c->busy = stream_memory(facts->sites_count, sizeof *c->busy);
    list_candidates(c);
    sorting = facts;
    qsort(c->busy, c->busy_count, sizeof *c->busy, by_allocs);
    place_founders(c);
    place_circles(c, stream);
    qsort(c->busy, c->busy_count, sizeof *c->busy, by_waste);
    place_riders(c);
    plan->arenas = c->groups_count;
    do
        forecast(out, stream, plan);
    while (drop_idle_openers(c, out) ||
           (over_budget(c, out) && drop_most_wasteful(plan, facts)));
    stream_memory_give(c->busy, facts->sites_count, sizeof *c->busy);
    stream_memory_give(c, 1, sizeof *c);
}

/*
 * To create and destroy an arena costs as much as ten small objects do with malloc; to reset it,
 * next to nothing.  But what is reset holds its memory: large arenas, and rare ones, are destroyed.
 */
void group_keep_arenas(struct plan *plan, const struct forecast *walked) {
    for (uint32_t a = 0; a < plan->arenas; a++) {
        const struct forecast_arena *arena = &walked->arenas[a];
        plan->kept_of_arena[a] = arena->instances > 0 && arena->peak_bytes <= KEPT_BYTES_MAX &&
                                 arena->peak_bytes * arena->instances <= KEPT_ALL_BYTES_MAX &&
                                 arena->generations >=
                                     (uint64_t)arena->instances * KEPT_GENERATIONS_MIN;
    }
}
