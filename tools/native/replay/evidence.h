// SPDX-License-Identifier: MIT
/*
 * evidence.h - what speaks for and against "these die together", as objects and generations of the recorded run.
 *
 *   subject   an arena of the plan, or a busy site that no arena serves
 *
 * Allocations are the clock: "born at 17, died at 20" means that three more were made meanwhile, anywhere in the program.
 * Not here: choosing (group.c), words (the quire tool).
 */
#pragma once

#include "replay/generations.h"

enum { EVIDENCE_SHOWN = 3, EVIDENCE_SITES_MAX = 32 };

struct evidence_object {
    uint64_t bytes;
    uint64_t born; // allocation number, from 1
    uint64_t died; // how many allocations there had been
    uint32_t site;
    uint32_t thread; // that allocated it
    uint32_t killer; // thread
};

struct evidence_generation {
    uint64_t number; // of its subject, from 1
    uint64_t begin;  // allocation number
    uint64_t end;    // how many allocations there had been
    uint64_t objects;
    uint64_t peak_live;
    uint64_t held_bytes; // by an arena that serves it
    uint64_t peak_live_bytes; // each object rounded up, as in held_bytes
    uint64_t few_since; // 0: there never were but few left; else how many allocations there had been
    uint64_t few;       // how many were left then
    uint64_t deaths;
    struct evidence_object first; // that died
    struct evidence_object last[EVIDENCE_SHOWN]; // that died; a ring by `deaths`
    uint32_t thread;
    bool ended; // before the program did
};

struct evidence {
    uint32_t site; // of a subject that is a site
    uint64_t objects;
    uint64_t generations;
    uint64_t late_generations; // in which a few objects lived on for a tenth of its time or more
    uint64_t late_objects;     // these objects
    struct evidence_generation worst[EVIDENCE_SHOWN]; // worst first; objects 0: none
};

struct evidence_all {
    struct evidence *subjects; // arenas of the plan, then sites
    uint32_t arenas;
    uint32_t count;
};

/* One walk.  The sites are the busiest that no arena serves. */
void evidence_gather(struct evidence_all *out, const struct stream *stream,
                     const struct plan *plan, const struct facts *facts);

/* One subject as members of a JSON object, without its braces, on stdout (evidence_print.c). */
void evidence_print(const struct evidence *subject);
