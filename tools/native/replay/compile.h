// SPDX-License-Identifier: MIT
/*
 * compile.h - a recorded program and a plan become steps: nothing is left to decide.
 *
 *   ops in their global order:  | window 1         | window 2         | window 3 |
 *                                 steps of thread 0
 *                                 steps of thread 1 ...      one window in memory at a time
 *
 * Everything that costs time and is not allocation (arenas' generations, which op must wait for
 * which) is worked out here, while the clock does not run.
 * Not here: carrying steps out (carry.c), lanes (outlook.c).
 */
#pragma once

#include "replay/outlook.h"
#include "replay/steps.h"
#include "replay/timeline.h"

struct compile_opts {
    struct timeline *timeline; // its samples get their ops and live bytes
    uint64_t window_ops;       // 0: as many as WINDOW_CHUNKS hold
};

struct compiled {
    struct outlook ahead;
    struct step_pool pool;
    struct step_list *lists; // by thread: its steps of this window
    uint64_t position;       // of the window's last op in the global order
    bool more;               // another window follows
    bool all_start;          // no global order is known: all threads start at once
    uint32_t threads;
    uint32_t slabs; // length of element_bytes
    size_t slots;
    const uint32_t *element_bytes; // the plan's
    uint64_t peak_live_bytes;
    // Final after the last window.
    uint64_t windows;
    uint64_t ops;
    uint64_t ops_on_slabs;
    uint64_t ops_on_heap;
    uint64_t ops_dropped;     // ops that made no sense: free of nothing, alloc over a live object
    uint64_t frees_elsewhere; // by another thread than the one that allocated
    uint64_t arena_generations; // of all arenas
    struct compiler *compiler;
};

// 256 MiB of steps: some ten million operations, and then the next window.
enum { WINDOW_CHUNKS = 16384 };

/* All that is needed before the first window, and that window.  NULL, or why not (static text). */
const char *compile_begin(struct compiled *out, const struct stream *stream,
                          const struct plan *plan, const struct compile_opts *opts);

/* The next window in the place of the one before.  NULL, or why not (static text). */
const char *compile_window(struct compiled *compiled);
