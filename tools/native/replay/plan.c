// SPDX-License-Identifier: MIT
/*
 * plan.c - reads a plan file.
 *
 *   text line  ->  arena_of_site[site] = arena
 *
 * Invariants:
 *   L1  arena_of_site[s] is PLAN_STAYS or below arenas, for every s below sites
 *
 * Locks: none; read only once read.
 * Not here: writing plans (plan_main.c).
 */
#include "replay/plan.h"
#include "replay/stream.h"

#include <stdio.h>

void plan_begin(struct plan *plan, uint32_t sites) {
    plan->sites = sites;
    plan->arenas = 0;
    plan->arena_of_site = stream_memory(sites, sizeof *plan->arena_of_site);
    for (uint32_t s = 0; s < sites; s++)
        plan->arena_of_site[s] = PLAN_STAYS;
}

const char *plan_read(struct plan *plan, const char *path) {
    FILE *file = fopen(path, "re");
    if (!file)
        return "cannot be opened";
    unsigned version = 0;
    const char *wrong = NULL;
    if (fscanf(file, "quire-plan %u", &version) != 1 || version != 1)
        wrong = "is not a plan of version 1";
    while (!wrong) {
        uint32_t site, arena;
        int got = fscanf(file, " site %u arena %u", &site, &arena);
        if (got == EOF)
            break;
        if (got != 2)
            wrong = "has a line that is not `site N arena K`";
        else if (site >= plan->sites)
            wrong = "names a site that the program does not have";
        else if (arena >= PLAN_ARENAS_MAX)
            wrong = "names more arenas than can be";
        else {
            plan->arena_of_site[site] = (int32_t)arena;
            plan->arenas = arena + 1 > plan->arenas ? arena + 1 : plan->arenas;
        }
    }
    fclose(file);
    return wrong;
}

void plan_end(struct plan *plan) {
    stream_memory_give(plan->arena_of_site, plan->sites, sizeof *plan->arena_of_site);
}
