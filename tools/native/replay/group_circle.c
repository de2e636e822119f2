// SPDX-License-Identifier: MIT
/*
 * group_circle.c - finds sites that come and go together.
 *
 *   1. those alive for longest come first: what lives within a request is held against the request
 *   2. each joins the first circle that it keeps time with, else it is a circle of its own
 *   3. circles that keep time with each other become one: two kinds of request may meet in what they share
 *   4. those with enough objects are walked through exactly: spans may be a sample
 *
 * Invariants:
 *   C1  the generations of a circle, and those that each of its sites opens, have at least
 *       generation_objects_min objects on average
 *   C2  a circle holds at most (1 + waste) times its peak of live bytes, and the slack
 *
 * Locks: none; one thread.
 * Not here: who rides along later (group.c).
 */
#include "replay/group_circle.h"

#include <stdlib.h>
#include <string.h>

// Sites are put out of a circle so often; then the circle is given up.
enum { WALKS_MAX = 4 };

struct circle {
    struct phases phases;
    uint64_t live_bytes; // sum of its sites' own peaks
    uint32_t sites_count;
};

struct finder {
    const struct circle_search *search;
    const struct facts *facts;
    int32_t *of_site; // by site: the circle or PLAN_STAYS
    struct circle at[CIRCLES_MAX];
    uint32_t count;
};

static uint64_t allowed_bytes(const struct finder *f, uint64_t live_bytes) {
    return live_bytes + live_bytes / 100 * f->search->waste_percent + f->search->slack_bytes;
}

static bool has_enough(const struct finder *f, uint64_t objects, uint64_t generations) {
    return objects >= generations * f->search->generation_objects_min;
}

static uint64_t length_of(const struct site_facts *site) {
    uint64_t length = 0;
    for (uint32_t t = 0; t < site->threads; t++)
        length += site->spans[t].length;
    return length;
}

static const struct facts *sorting; // qsort has no argument for it

static int by_length(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint64_t long_x = length_of(&sorting->sites[x]), long_y = length_of(&sorting->sites[y]);
    return long_x < long_y ? 1 : long_x > long_y ? -1 : x < y ? -1 : x > y;
}

/* Becomes part of the circle if it fits. */
static bool try_join(const struct finder *f, struct circle *circle, const struct phases *phases,
                     uint64_t live_bytes) {
    if (!phases_keep_time(&circle->phases, phases))
        return false;
    struct phases merged = phases_merge(&circle->phases, phases, true);
    if (merged.held_bytes > allowed_bytes(f, circle->live_bytes + live_bytes)) {
        phases_give(&merged);
        return false;
    }
    phases_give(&circle->phases);
    circle->phases = merged;
    circle->live_bytes += live_bytes;
    return true;
}

static void place(struct finder *f, uint32_t site_idx) {
    const struct site_facts *site = &f->facts->sites[site_idx];
    struct phases own = phases_of_site(site);
    uint32_t at = 0;
    while (at < f->count && !try_join(f, &f->at[at], &own, site->peak_slot_bytes))
        at++;
    if (at == CIRCLES_MAX)
        return;
    if (at == f->count)
        f->at[f->count++] = (struct circle){.phases = own, .live_bytes = site->peak_slot_bytes};
    f->at[at].sites_count++;
    f->of_site[site_idx] = (int32_t)at;
}

static void move_sites(struct finder *f, int32_t from, int32_t to) {
    for (uint32_t s = 0; s < f->facts->sites_count; s++)
        if (f->of_site[s] == from)
            f->of_site[s] = to;
}

static void give_up(struct finder *f, uint32_t at) {
    move_sites(f, (int32_t)at, PLAN_STAYS);
    phases_give(&f->at[at].phases);
    f->at[at] = (struct circle){0};
}

/* Step 3, for one of them. */
static void unite_with_later(struct finder *f, uint32_t into) {
    for (uint32_t from = into + 1; from < f->count; from++) {
        struct circle *circle = &f->at[from];
        if (circle->sites_count == 0 ||
            !try_join(f, &f->at[into], &circle->phases, circle->live_bytes))
            continue;
        f->at[into].sites_count += circle->sites_count;
        move_sites(f, (int32_t)from, (int32_t)into);
        give_up(f, from);
    }
}

/* C1 and C2 of one circle, after a walk. */
static bool is_sound(const struct finder *f, const struct forecast_arena *arena) {
    return has_enough(f, arena->objects, arena->generations) &&
           arena->held_peak_bytes <= allowed_bytes(f, arena->live_peak_bytes);
}

/* Sites that open generations of few objects leave; true if there were any. */
static bool put_out(struct finder *f, const struct forecast *walked, bool last_walk) {
    bool changed = false;
    for (uint32_t s = 0; s < f->facts->sites_count; s++) {
        int32_t at = f->of_site[s];
        if (at == PLAN_STAYS ||
            has_enough(f, walked->openers[s].objects, walked->openers[s].generations))
            continue;
        f->of_site[s] = PLAN_STAYS;
        if (--f->at[at].sites_count == 0 || last_walk)
            give_up(f, (uint32_t)at);
        changed = true;
    }
    return changed;
}

/* Step 4. */
static void walk_through(struct finder *f) {
    struct plan plan;
    struct forecast walked = {
        .arenas = stream_memory(CIRCLES_MAX, sizeof *walked.arenas),
        .openers = stream_memory(f->facts->sites_count, sizeof *walked.openers)};
    plan_begin(&plan, f->facts->sites_count);
    plan.arenas = f->count;
    uint32_t walks = 0;
    do {
        memcpy(plan.arena_of_site, f->of_site, plan.sites * sizeof *plan.arena_of_site);
        forecast(&walked, f->search->stream, &plan);
    } while (put_out(f, &walked, ++walks == WALKS_MAX) && walks < WALKS_MAX);
    for (uint32_t at = 0; at < f->count; at++)
        if (f->at[at].sites_count && !is_sound(f, &walked.arenas[at]))
            give_up(f, at);
    plan_end(&plan);
    stream_memory_give(walked.arenas, CIRCLES_MAX, sizeof *walked.arenas);
    stream_memory_give(walked.openers, f->facts->sites_count, sizeof *walked.openers);
}

/*
 * Before the walk: circles that look as if they had enough objects; whether there are any.  Where
 * generations were estimated, one with just enough might look as if it had a few less.
 */
static bool keep_promising(struct finder *f) {
    bool any = false;
    for (uint32_t at = 0; at < f->count; at++) {
        const struct phases *phases = &f->at[at].phases;
        bool enough = has_enough(f, phases->objects, phases->generations / 4 * 3);
        if (f->at[at].sites_count && enough)
            any = true;
        else
            give_up(f, at);
    }
    return any;
}

uint32_t circles_find(int32_t *circle_of_site, const struct circle_search *search) {
    uint32_t *order = stream_memory(search->sites_count, sizeof *order);
    struct finder *f = stream_memory(1, sizeof *f);
    *f = (struct finder){.search = search, .facts = search->facts, .of_site = circle_of_site};
    for (uint32_t s = 0; s < f->facts->sites_count; s++)
        circle_of_site[s] = PLAN_STAYS;
    for (uint32_t i = 0; i < search->sites_count; i++)
        order[i] = search->sites[i];
    sorting = f->facts;
    qsort(order, search->sites_count, sizeof *order, by_length);
    for (uint32_t i = 0; i < search->sites_count; i++)
        place(f, order[i]);
    for (uint32_t at = 0; at < f->count; at++)
        if (f->at[at].sites_count)
            unite_with_later(f, at);
    if (keep_promising(f))
        walk_through(f);
    uint32_t count = f->count;
    stream_memory_give(order, search->sites_count, sizeof *order);
    stream_memory_give(f, 1, sizeof *f);
    return count;
}
