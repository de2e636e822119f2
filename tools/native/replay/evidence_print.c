// SPDX-License-Identifier: MIT
/*
 * evidence_print.c - evidence as JSON.
 *
 *   "generations":300,"objects":30000,"late_generations":0,"late_objects":0,"counterexamples":[...]
 *
 * Locks: none.
 * Not here: gathering it (evidence.c).
 */
#include "replay/evidence.h"

#include <stdio.h>

typedef unsigned long long u64_print;

static void print_object(const struct evidence_object *object) {
    printf("{\"site\":%u,\"bytes\":%llu,\"born\":%llu,\"died\":%llu,\"thread\":%u,"
           "\"freed_by\":%u}",
           object->site, (u64_print)object->bytes, (u64_print)object->born,
           (u64_print)object->died, object->thread, object->killer);
}

static void print_generation(const struct evidence_generation *generation) {
    printf("{\"generation\":%llu,\"thread\":%u,\"begin\":%llu,\"end\":%llu,\"ended\":%s,",
           (u64_print)generation->number, generation->thread, (u64_print)generation->begin,
           (u64_print)generation->end, generation->ended ? "true" : "false");
    printf("\"objects\":%llu,\"peak_live_objects\":%llu,\"held_bytes\":%llu,"
           "\"peak_live_bytes\":%llu,",
           (u64_print)generation->objects, (u64_print)generation->peak_live,
           (u64_print)generation->held_bytes, (u64_print)generation->peak_live_bytes);
    if (generation->few_since)
        printf("\"few_since\":%llu,\"few_objects\":%llu,", (u64_print)generation->few_since,
               (u64_print)generation->few);
    else
        printf("\"few_since\":null,\"few_objects\":null,");
    printf("\"first_to_die\":");
    if (generation->deaths)
        print_object(&generation->first);
    else
        printf("null");
    printf(",\"last_to_die\":[");
    uint64_t shown = generation->deaths < EVIDENCE_SHOWN ? generation->deaths : EVIDENCE_SHOWN;
    for (uint64_t i = 0; i < shown; i++) {
        printf(i ? "," : "");
        print_object(&generation->last[(generation->deaths - 1 - i) % EVIDENCE_SHOWN]);
    }
    printf("]}");
}

void evidence_print(const struct evidence *subject) {
    printf("\"generations\":%llu,\"objects\":%llu,\"late_generations\":%llu,\"late_objects\":%llu,"
           "\"counterexamples\":[",
           (u64_print)subject->generations, (u64_print)subject->objects,
           (u64_print)subject->late_generations, (u64_print)subject->late_objects);
    for (uint32_t i = 0; i < EVIDENCE_SHOWN && subject->worst[i].objects; i++) {
        printf(i ? ",\n" : "\n");
        print_generation(&subject->worst[i]);
    }
    printf("]");
}
