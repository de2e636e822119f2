// SPDX-License-Identifier: MIT
/*
 * group_phases.h - the generations of one site, or of several that share an arena, laid over each other.
 *
 *   site A   [-----]   [------]      [--]
 *   site B     [------]  [--]                     as one:  [--------] [-----]  [--]
 *
 * Not here: gathering them (generations.c), what is made of them (group.c, group_circle.c).
 */
#pragma once

#include "replay/generations.h"

struct phases {
    struct spans *spans; // by thread that allocates
    size_t spans_count;
    uint64_t held_bytes;  // heaviest span, summed over threads
    uint64_t generations; // estimated where generations were not all kept
    uint64_t kept;        // spans
    uint64_t objects;
    bool owned; // the spans are their own memory
};

/* Those of one site, on its own memory. */
struct phases phases_of_site(const struct site_facts *site);

/* What a and b would be as one.  Without `keep` the numbers alone. */
struct phases phases_merge(const struct phases *a, const struct phases *b, bool keep);

void phases_give(struct phases *phases);

/* Where one has a generation the other has one too, and the same: not half of it, not two.  But for one in twenty. */
bool phases_keep_time(const struct phases *a, const struct phases *b);
