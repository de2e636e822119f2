// SPDX-License-Identifier: MIT
/*
 * slabs.h - which of the sites that no arena serves a slab can serve, and which of them share one.
 *
 * Not here: gathering what is judged (generations.c), arenas (group.c), printing (plan_main.c).
 */
#pragma once

#include "replay/generations.h"

#include <stdbool.h>

struct slab_rules {
    uint32_t waste_percent;     // elements may take that much more than their objects, rounded up
    uint64_t waste_slack_bytes; // ... plus this, which no program notices
    uint64_t allocs_min;        // below that nothing is worth changing
    uint64_t live_min;          // a slab: so many alive at once
    uint32_t slot_variety_max;  // a recycling slot: largest size over mean size
    uint64_t element_bytes_max; // larger objects are few, and libc maps them by themselves
    uint64_t idle_slack_bytes;  // slots: what they may hold besides waste_percent of the peak
};

/* Gives sites that stay to slabs; those of one class whose elements are of one size share one. */
void slab_sites(struct plan *plan, const struct facts *facts, const struct slab_rules *rules);
