// SPDX-License-Identifier: MIT
/*
 * play.h - carries out compiled steps with real threads, and measures that alone.
 *
 * Not here: which library malloc is (replay_main.c checks), compiling (compile.c).
 */
#pragma once

#include "replay/compile.h"

enum play_backend {
    PLAY_MALLOC, // the process's malloc, and quire's arenas and slabs where the plan says so
    PLAY_NULL,   // no allocator at all: the same steps on addresses from a small warm ring
};

struct play_opts {
    enum play_backend backend;
    bool verify; // write whole objects and check both ends: thorough, and no measurement
    struct timeline *timeline;
};

struct play_result {
    uint64_t cpu_ns;
    uint64_t wall_ns;
    uint64_t base_rss_bytes;
    uint64_t peak_rss_bytes; // above the base
    uint64_t failures;       // allocations that returned NULL
    uint64_t corrupt;        // objects whose stamp was gone
};

/* NULL when it ran, else why it could not (static text). */
const char *play(struct play_result *result, struct compiled *compiled,
                 const struct play_opts *opts);
