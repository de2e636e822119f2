// SPDX-License-Identifier: MIT
/*
 * group.c - the advice rule for arenas.
 *
 *   site A   [-----------------------]        A and B live through the same phases: one
 *   site B     [-------------------]          arena. C's objects die at once, but few bytes
 *   site C     . . . . . . . . .  .           pass through it: it may ride along.
 *
 * Steps:  1. sites whose own generations fit an arena (many objects, little waste) found arenas;
 *            a site whose phases coincide with a known arena's joins it
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

#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 48, PHASE_SLACK_BYTES = 64 << 10 };

/* Sites that share an arena, as far as it is known. */
struct group {
    struct spans *spans; // by thread that allocates
    size_t spans_count;
    uint64_t held_bytes; // heaviest span, summed over threads
    uint64_t generations;
    uint64_t objects;
    bool owned; // the spans are this group's own memory
};

struct chooser {
    struct plan *plan;
    const struct facts *facts;
    const struct group_rules *rules;
    struct group groups[GROUPS_MAX];
    uint32_t groups_count;
    uint32_t *busy; // candidates in the order of the step
    uint32_t busy_count;
    uint64_t held_bytes;
    uint64_t live_bytes; // sum of the sites' own peaks
};

static uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The union of two lists of spans; those that touch become one.  No `out`: only counted. */
static size_t unite(const struct spans *a, const struct spans *b, struct span *out,
                    uint64_t *heaviest) {
    size_t ia = 0, ib = 0, count = 0;
    struct span now = {0};
    uint64_t heavy = 0;
    while (ia < a->count || ib < b->count) {
        bool from_a = ib == b->count || (ia < a->count && a->at[ia].start <= b->at[ib].start);
        const struct span *next = from_a ? &a->at[ia++] : &b->at[ib++];
        if (count > 0 && next->start <= now.end) {
            now.end = max_u64(now.end, next->end);
            now.bytes += next->bytes;
        } else {
            if (count > 0 && out)
                out[count - 1] = now;
            now = *next;
            count++;
        }
        heavy = max_u64(heavy, now.bytes);
    }
    if (count > 0 && out)
        out[count - 1] = now;
    *heaviest = heavy;
    return count;
}

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

static const struct spans *spans_of(const struct group *group, uint32_t thread) {
    static const struct spans none = {0};
    for (size_t i = 0; i < group->spans_count; i++)
        if (group->spans[i].thread == thread)
            return &group->spans[i];
    return &none;
}

/* What a and b would be as one.  Without `keep` the numbers alone. */
static struct group merge(const struct group *a, const struct group *b, bool keep) {
    struct group merged = {.objects = a->objects + b->objects, .owned = keep};
    if (keep)
        merged.spans = stream_memory(a->spans_count + b->spans_count, sizeof *merged.spans);
    for (size_t i = 0; i < a->spans_count + b->spans_count; i++) {
        bool from_a = i < a->spans_count;
        const struct spans *one = from_a ? &a->spans[i] : &b->spans[i - a->spans_count];
        const struct spans *other = from_a ? spans_of(b, one->thread) : spans_of(a, one->thread);
        if (!from_a && other->count > 0)
            continue; // met already, from a's side
        struct span *at = keep ? stream_memory(one->count + other->count, sizeof *at) : NULL;
        uint64_t heaviest;
        size_t count = unite(one, other, at, &heaviest);
        merged.held_bytes += heaviest;
        merged.generations += count;
        if (keep)
            merged.spans[merged.spans_count++] = (struct spans){one->thread, at, count};
    }
    return merged;
}

static struct group single(const struct site_facts *site) {
    static const struct group nothing = {0};
    struct group own = {.spans = site->spans, .spans_count = site->threads};
    struct group measured = merge(&own, &nothing, false);
    own.held_bytes = measured.held_bytes;
    own.generations = site->generations;
    own.objects = site->allocs;
    return own;
}

static bool worth_creating(const struct chooser *c, uint64_t objects, uint64_t generations) {
    return objects >= generations * c->rules->generation_objects_min;
}

static uint64_t budget(const struct chooser *c, uint64_t live_bytes) {
    return live_bytes + live_bytes / 100 * c->rules->waste_percent + c->rules->waste_slack_bytes;
}

/* Step 1: does the site fit an arena by itself? */
static bool fits_alone(const struct chooser *c, const struct site_facts *site,
                       const struct group *own) {
    uint64_t allowed =
        site->peak_live_bytes + site->peak_live_bytes / 100 * c->rules->waste_percent;
    return worth_creating(c, own->objects, own->generations) &&
           own->held_bytes <= allowed + PHASE_SLACK_BYTES;
}

/* Same phases: together they begin and end no more often, and hold no more, than apart. */
static bool coincide(const struct group *a, const struct group *b, const struct group *merged) {
    uint64_t more = max_u64(a->generations, b->generations);
    uint64_t apart_bytes = a->held_bytes + b->held_bytes;
    return merged->generations <= more + more / 20 &&
           merged->held_bytes <= apart_bytes + apart_bytes / 20 + PHASE_SLACK_BYTES;
}

static void join(struct chooser *c, uint32_t site_idx, uint32_t group_idx,
                 const struct group *own) {
    struct group *group = &c->groups[group_idx];
    struct group merged = merge(group, own, true);
    c->held_bytes += merged.held_bytes - group->held_bytes;
    c->live_bytes += c->facts->sites[site_idx].peak_live_bytes;
    if (group->owned) {
        for (size_t i = 0; i < group->spans_count; i++)
            stream_memory_give(group->spans[i].at, group->spans[i].count, sizeof(struct span));
    }
    *group = merged;
    give_to(c->plan, site_idx, (int32_t)group_idx);
}

static void found(struct chooser *c, uint32_t site_idx, const struct group *own) {
    c->held_bytes += own->held_bytes;
    c->live_bytes += c->facts->sites[site_idx].peak_live_bytes;
    give_to(c->plan, site_idx, (int32_t)c->groups_count);
    c->groups[c->groups_count++] = *own;
}

static void place_founders(struct chooser *c) {
    for (uint32_t i = 0; i < c->busy_count; i++) {
        const struct site_facts *site = &c->facts->sites[c->busy[i]];
        struct group own = single(site);
        if (!fits_alone(c, site, &own)) {
            bool few = !worth_creating(c, own.objects, own.generations);
            refuse(c->plan, c->busy[i], few ? REFUSED_FEW : REFUSED_WASTE);
            continue;
        }
        uint32_t at = 0;
        for (; at < c->groups_count; at++) {
            struct group merged = merge(&c->groups[at], &own, false);
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

static void place_riders(struct chooser *c) {
    for (uint32_t i = 0; i < c->busy_count; i++) {
        const struct site_facts *site = &c->facts->sites[c->busy[i]];
        if (c->plan->arena_of_site[c->busy[i]] != PLAN_STAYS)
            continue;
        struct group own = single(site);
        uint32_t best = GROUPS_MAX;
        uint64_t best_bytes = UINT64_MAX;
        for (uint32_t at = 0; at < c->groups_count; at++) {
            struct group merged = merge(&c->groups[at], &own, false);
            uint64_t added_bytes = merged.held_bytes - c->groups[at].held_bytes;
            if (added_bytes >= best_bytes || !worth_creating(c, merged.objects, merged.generations))
                continue;
            // A rider must not shatter the arena's phases into many more.
            if (merged.generations >
                c->groups[at].generations + own.objects / c->rules->generation_objects_min)
                continue;
            best = at;
            best_bytes = added_bytes;
        }
        uint64_t live_bytes = c->live_bytes + site->peak_live_bytes;
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
    double dead_bytes = (double)site->bytes - (double)site->peak_live_bytes;
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
