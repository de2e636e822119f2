// SPDX-License-Identifier: MIT
/*
 * rest.h - the sites that neither an arena nor a slab serves: the heap's, or nobody's.
 *
 * Not here: arenas (group.c), slabs (slabs.c).
 */
#pragma once

#include "replay/generations.h"

struct rest_rules {
    uint64_t allocs_min;     // below that nothing is worth changing
    uint64_t mean_bytes_max; // above that a block is pages of the system's, whoever asks for them
};

/* Gives the sites that are left over to the heap, where that can gain. */
void rest_sites(struct plan *plan, const struct facts *facts, const struct rest_rules *rules);
