// SPDX-License-Identifier: MIT
/*
 * carry.h - carries out one thread's steps of a window: the part that is measured.
 *
 * Not here: threads, windows and the clock (play.c), deciding anything about steps (compile.c).
 */
#pragma once

#include "replay/compile.h"
#include "replay/gate.h"
#include "replay/play.h"

#include <pthread.h>

// PLAY_NULL: each lane's ring stays in the first-level cache; larger objects share one warm region, each lane on lines of its own.
enum { RING_BYTES = 32 << 10, REGION_BYTES_MAX = 64 << 20, LINE_BYTES = 64, REGION_SHIFTS = 64 };

struct player {
    struct compiled *compiled;
    const struct play_opts *opts;
    void **objects;              // by slot
    struct quire_arena **arenas; // by instance
    struct quire_slab **slabs;   // by slab; only those that have objects
    struct gate *slot_gates;     // by slot, only when slots are shared
    struct gate *death_gates;    // by instance
    struct gate *start_gates;    // by recorded thread
    struct gate *end_gates;      // by recorded thread
    bool *ended;                 // by recorded thread; written by its lane
    struct gate go;              // counts windows
    struct gate done;            // counts lanes, in each window
    bool over;                   // no window follows
    unsigned char *region;
};

/* What one lane writes, on lines of its own. */
struct lane {
    struct player *player;
    uint64_t failures;
    uint64_t corrupt;
    uint32_t ring_cursor;
    uint32_t idx;
    pthread_t handle;
    unsigned char *ring;
} __attribute__((aligned(LINE_BYTES)));

/* As the player's options say: with the allocators, or on addresses that cost nothing. */
void carry_out(struct lane *lane, const struct step *first);
