// SPDX-License-Identifier: MIT
/*
 * plan.h - which call sites leave libc, and for which arena, slab or heap.
 *
 *   quire-plan 1          the file: one line a site, the rest of the sites stay where they are
 *   site 17 arena 0
 *   site 4 arena 0        two sites may share one arena
 *   arena 0 kept 1        its generations are small: it stays, and is reset after each of them
 *   slab 0 bytes 64       before the sites that it serves
 *   site 5 slab 0         many objects of nearly one size
 *   site 9 slot 0         one object at a time, in each thread: an element that is used again
 *   site 7 heap 0         any size, any time: the default heap, the only one
 *
 * Not here: choosing (group.c, slabs.c), what an arena's life is (compile.c).
 */
#pragma once

#include <stdint.h>

enum { PLAN_STAYS = -1, PLAN_ARENAS_MAX = 4096, PLAN_SLABS_MAX = 4096 };

/* What serves the objects of a site best; PLAN_LEFT: leave it alone, with libc. */
enum plan_class { PLAN_LEFT, PLAN_ARENA, PLAN_SLAB, PLAN_SLOT, PLAN_HEAP };

/* Why a site has no arena; words for each in plan_main.c. */
enum plan_refusal {
    REFUSED_NOT,     // it has one, or arenas were not asked about
    REFUSED_RARE,    // allocates too seldom to be looked at
    REFUSED_RESIZED, // another thread resizes its objects
    REFUSED_FEW,     // its generations have few objects
    REFUSED_WASTE,   // its generations hold much that is dead
    REFUSED_OPENER,  // it would open arenas for few objects
    REFUSED_BUDGET,  // it wastes most of those that together waste too much
    REFUSED_CROWD,   // there are as many arenas as can be
};

struct plan {
    int32_t *arena_of_site;  // by site: an arena or PLAN_STAYS
    int32_t *slab_of_site;   // by site: a slab or PLAN_STAYS
    uint8_t *class_of_site;  // by site: enum plan_class
    uint32_t *element_bytes; // by slab, PLAN_SLABS_MAX entries; 0: no such slab
    uint8_t *class_of_slab;  // by slab: PLAN_SLAB or PLAN_SLOT; only in a plan that is being made
    uint8_t *kept_of_arena;  // by arena, PLAN_ARENAS_MAX entries: reset, not destroyed
    uint8_t *refusal_of_site; // enum plan_refusal; only in a plan that is being made
    uint32_t sites;
    uint32_t arenas;
    uint32_t slabs;
};

/* A plan in which every site stays. */
void plan_begin(struct plan *plan, uint32_t sites);

/* Reads a plan file over it.  NULL when sound, else why not (static text). */
const char *plan_read(struct plan *plan, const char *path);

void plan_end(struct plan *plan);
