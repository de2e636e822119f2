// SPDX-License-Identifier: MIT
/*
 * plan.c - reads a plan file.
 *
 *   text line  ->  arena_of_site[site] = arena, or slab_of_site[site] = slab
 *
 * Invariants:
 *   L1  arena_of_site[s] is PLAN_STAYS or below arenas, for every s below sites
 *   L2  slab_of_site[s] is PLAN_STAYS or a slab below slabs that has element_bytes
 *   L3  no site has both
 *
 * Locks: none; read only once read.
 * Not here: writing plans (plan_main.c).
 */
#include "replay/plan.h"
#include "replay/stream.h"

#include <stdio.h>
#include <string.h>

// Larger elements are no slab's business; and they would not fit the element's 32 bits.
enum { ELEMENT_BYTES_MAX = 1 << 30 };

void plan_begin(struct plan *plan, uint32_t sites) {
    *plan = (struct plan){.sites = sites};
    plan->arena_of_site = stream_memory(sites, sizeof *plan->arena_of_site);
    plan->slab_of_site = stream_memory(sites, sizeof *plan->slab_of_site);
    plan->class_of_site = stream_memory(sites, sizeof *plan->class_of_site);
    plan->element_bytes = stream_memory(PLAN_SLABS_MAX, sizeof *plan->element_bytes);
    plan->class_of_slab = stream_memory(PLAN_SLABS_MAX, sizeof *plan->class_of_slab);
    plan->kept_of_arena = stream_memory(PLAN_ARENAS_MAX, sizeof *plan->kept_of_arena);
    plan->refusal_of_site = stream_memory(sites, sizeof *plan->refusal_of_site);
    for (uint32_t s = 0; s < sites; s++)
        plan->arena_of_site[s] = plan->slab_of_site[s] = PLAN_STAYS;
}

/* `slab K bytes E` */
static const char *define_slab(struct plan *plan, uint32_t slab, uint32_t element_bytes) {
    if (slab >= PLAN_SLABS_MAX)
        return "names more slabs than can be";
    if (element_bytes == 0 || element_bytes > ELEMENT_BYTES_MAX)
        return "has a slab whose elements no slab can have";
    plan->element_bytes[slab] = element_bytes;
    plan->slabs = slab + 1 > plan->slabs ? slab + 1 : plan->slabs;
    return NULL;
}

/* `arena K kept 1` */
static const char *keep_arena(struct plan *plan, uint32_t arena, uint32_t kept) {
    if (arena >= PLAN_ARENAS_MAX)
        return "names more arenas than can be";
    plan->kept_of_arena[arena] = kept != 0;
    return NULL;
}

/* `site N arena K`, `site N slab K`, `site N slot K`, `site N heap 0` */
static const char *place_site(struct plan *plan, uint32_t site, const char *word, uint32_t where) {
    if (site >= plan->sites)
        return "names a site that the program does not have";
    if (plan->class_of_site[site] != PLAN_LEFT)
        return "places a site twice";
    if (strcmp(word, "arena") == 0) {
        if (where >= PLAN_ARENAS_MAX)
            return "names more arenas than can be";
        plan->arena_of_site[site] = (int32_t)where;
        plan->arenas = where + 1 > plan->arenas ? where + 1 : plan->arenas;
        plan->class_of_site[site] = PLAN_ARENA;
        return NULL;
    }
    if (strcmp(word, "heap") == 0) {
        plan->class_of_site[site] = PLAN_HEAP;
        return where == 0 ? NULL : "names a second heap";
    }
    if (where >= plan->slabs || plan->element_bytes[where] == 0)
        return "names a slab before it says how large its elements are";
    plan->slab_of_site[site] = (int32_t)where;
    plan->class_of_site[site] = strcmp(word, "slab") == 0 ? PLAN_SLAB : PLAN_SLOT;
    return NULL;
}

static const char *take_line(struct plan *plan, FILE *file, bool *ended) {
    char what[6] = "", word[6] = "";
    uint32_t number, value;
    int got = fscanf(file, " %5s %u %5s %u", what, &number, word, &value);
    *ended = got == EOF;
    if (*ended)
        return NULL;
    if (got == 4 && strcmp(what, "slab") == 0 && strcmp(word, "bytes") == 0)
        return define_slab(plan, number, value);
    if (got == 4 && strcmp(what, "arena") == 0 && strcmp(word, "kept") == 0)
        return keep_arena(plan, number, value);
    bool placed = strcmp(word, "arena") == 0 || strcmp(word, "slab") == 0 ||
                  strcmp(word, "slot") == 0 || strcmp(word, "heap") == 0;
    if (got != 4 || strcmp(what, "site") != 0 || !placed)
        return "has a line that is none of `site N arena|slab|slot|heap K`, `slab K bytes E`, `arena K kept 1`";
    return place_site(plan, number, word, value);
}

const char *plan_read(struct plan *plan, const char *path) {
    FILE *file = fopen(path, "re");
    if (!file)
        return "cannot be opened";
    unsigned version = 0;
    const char *wrong = NULL;
    bool ended = false;
    if (fscanf(file, "quire-plan %u", &version) != 1 || version != 1)
        wrong = "is not a plan of version 1";
    while (!wrong && !ended)
        wrong = take_line(plan, file, &ended);
    fclose(file);
    return wrong;
}

void plan_end(struct plan *plan) {
    stream_memory_give(plan->arena_of_site, plan->sites, sizeof *plan->arena_of_site);
    stream_memory_give(plan->slab_of_site, plan->sites, sizeof *plan->slab_of_site);
    stream_memory_give(plan->class_of_site, plan->sites, sizeof *plan->class_of_site);
    stream_memory_give(plan->element_bytes, PLAN_SLABS_MAX, sizeof *plan->element_bytes);
    stream_memory_give(plan->kept_of_arena, PLAN_ARENAS_MAX, sizeof *plan->kept_of_arena);
    stream_memory_give(plan->refusal_of_site, plan->sites, sizeof *plan->refusal_of_site);
    stream_memory_give(plan->class_of_slab, PLAN_SLABS_MAX, sizeof *plan->class_of_slab);
}
