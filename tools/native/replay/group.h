// SPDX-License-Identifier: MIT
/*
 * group.h - which sites an arena can serve, and which of them share one.
 *
 * Not here: gathering what is judged (generations.c), printing it (plan_main.c).
 */
#pragma once

#include "replay/generations.h"

struct group_rules {
    uint32_t waste_percent;     // arenas may hold that much more than their sites' peak live bytes
    uint64_t waste_slack_bytes; // ... plus this, which no program notices
    uint32_t generation_objects_min;
};

/* Gives sites to arenas; every site stays where none fits.  `out`: what the plan will need. */
void group_sites(struct plan *plan, struct forecast *out, const struct stream *stream,
                 const struct facts *facts, const struct group_rules *rules);

/* Which arenas stay between their generations, from the forecast of the whole plan. */
void group_keep_arenas(struct plan *plan, const struct forecast *walked);
