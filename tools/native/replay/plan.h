// SPDX-License-Identifier: MIT
/*
 * plan.h - which call sites leave libc, and for which arena.
 *
 *   quire-plan 1          the file: one line a site, the rest of the sites stay where they are
 *   site 17 arena 0
 *   site 4 arena 0        two sites may share one arena
 *
 * Not here: choosing (group.c), what an arena's life is (compile.c).
 */
#pragma once

#include <stdint.h>

enum { PLAN_STAYS = -1, PLAN_ARENAS_MAX = 4096 };

struct plan {
    int32_t *arena_of_site; // by site: an arena or PLAN_STAYS
    uint32_t sites;
    uint32_t arenas;
};

/* A plan in which every site stays. */
void plan_begin(struct plan *plan, uint32_t sites);

/* Reads a plan file over it.  NULL when sound, else why not (static text). */
const char *plan_read(struct plan *plan, const char *path);

void plan_end(struct plan *plan);
