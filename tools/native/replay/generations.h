// SPDX-License-Identifier: MIT
/*
 * generations.h - for each call site: what it asks for, and when all of its objects are dead.
 *
 *   site 4, thread 0:     [-----------]   [---]      [--------]   a generation: from the first
 *                         live 0 -> n -> 0                        birth until none is alive
 *
 * Not here: what to make of it (group.c).
 */
#pragma once

#include "replay/plan.h"
#include "replay/stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One generation, in ops of the thread that allocates: that it had to wait while others ran does not
 * make a generation longer.
 */
struct span {
    uint64_t start;
    uint64_t end;
    uint64_t bytes;         // all that was allocated in it: what an arena would hold
    uint64_t skipped_bytes; // the same of the generations after it that were not kept
};

/* The generations of one site, or of several together, in one thread; a sample of them where they are very many. */
struct spans {
    uint32_t thread;
    uint16_t window_log2;    // whether a generation is kept is decided for 2^so many ops
    uint16_t thinned_log2;   // of 2^so many windows one was kept
    uint64_t until;          // ops of the thread in all
    uint64_t heaviest_bytes; // of all generations, kept or not
    uint64_t length;         // of all generations together
    struct span *at;
    size_t count;
};

struct site_facts {
    uint64_t allocs;
    uint64_t frees;
    uint64_t resizes;
    uint64_t frees_elsewhere; // by another thread than the one that allocated
    uint64_t bytes;           // of all sizes asked for, at birth and by resizing
    uint64_t slot_bytes;      // the same, each rounded up as arenas and slabs do
    uint64_t largest_bytes;
    uint64_t live;
    uint64_t live_bytes;
    uint64_t live_slot_bytes;
    uint64_t peak_live;
    uint64_t peak_live_bytes;
    uint64_t peak_slot_bytes;
    uint64_t generations;   // over all threads that allocate, each for itself
    uint32_t threads;       // that allocate; only of candidates
    bool resized_elsewhere; // a thread resizes what another allocated: no arena can serve that
    bool over_aligned;      // more than a slot is aligned
    bool candidate;
    struct spans *spans; // one for each thread that allocates; only of candidates
};

struct facts {
    struct site_facts *sites;
    uint32_t sites_count;
    uint64_t allocs;
    uint64_t frees;
    uint64_t resizes;
    uint64_t peak_live_bytes;
};

void facts_gather(struct facts *facts, const struct stream *stream);

struct forecast_arena {
    uint64_t objects;
    uint64_t generations;
    uint64_t peak_bytes;      // of one instance
    uint64_t held_bytes;      // by all instances, when the program ends
    uint64_t held_peak_bytes; // by all instances at once
    uint64_t live_bytes;      // of their objects, each rounded up, when the program ends
    uint64_t live_peak_bytes;
    uint32_t instances;
};

/* Generations whose first object came from one site. */
struct forecast_opener {
    uint64_t generations;
    uint64_t objects; // in these generations, of whatever site
};

struct forecast_slab {
    uint64_t objects;
    uint64_t live;
    uint64_t peak_live;
};

/* What a plan would do to memory: the same walk, arenas only grow until they are empty. */
struct forecast {
    uint64_t peak_live_bytes;        // of the program as recorded
    uint64_t peak_planned_bytes;     // of the program as planned
    uint64_t arena_peak_bytes;       // held by all arenas at once
    uint64_t arena_live_peak_bytes;  // live objects of the same sites at once, each rounded up
    struct forecast_arena *arenas;   // the caller's, PLAN_ARENAS_MAX entries
    struct forecast_opener *openers; // by site; the caller's
    struct forecast_slab *slabs;     // the caller's, PLAN_SLABS_MAX entries; NULL for a plan without
};

void forecast(struct forecast *out, const struct stream *stream, const struct plan *plan);

enum { SLOT_ALIGN_LOG2 = 4 };

/* What an arena or a slab takes for an object of that size. */
static inline uint64_t slot_bytes(uint64_t bytes) {
    return bytes ? (bytes + 15) & ~15ull : 16;
}

static inline void raise_to(uint64_t *peak, uint64_t now) {
    if (now > *peak)
        *peak = now;
}
