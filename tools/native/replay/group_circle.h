// SPDX-License-Identifier: MIT
/*
 * group_circle.h - sites that together make enough objects for an arena, and none of them alone.
 *
 *   request   [---------------]   one object        ten sites, ten objects, one generation:
 *   header      [-----------]     one object        a circle
 *   ...             [-----]       one object
 *
 * Not here: sites that are enough alone, and temporaries that ride along (group.c).
 */
#pragma once

#include "replay/group_phases.h"

enum { CIRCLES_MAX = 160 };

struct circle_search {
    const struct stream *stream;
    const struct facts *facts;
    const uint32_t *sites; // to look among
    uint32_t sites_count;
    uint32_t waste_percent; // a circle may hold that much more than its peak of live bytes
    uint64_t slack_bytes;   // ... plus this
    uint32_t generation_objects_min;
};

/*
 * Finds the circles, and walks through the program to see whether they are as they look.
 * `circle_of_site`: below the result, or PLAN_STAYS; a circle that was given up has no sites.
 */
uint32_t circles_find(int32_t *circle_of_site, const struct circle_search *search);
