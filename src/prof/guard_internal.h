// SPDX-License-Identifier: MIT
/*
 * guard_internal.h - what guard.c and guard_report.c know of each other.
 */
#ifndef QUIRE_PROF_GUARD_INTERNAL_H
#define QUIRE_PROF_GUARD_INTERNAL_H

#include "prof/guard.h"
#include "prof/prof_internal.h"

enum guard_state { GUARD_UNUSED, GUARD_LIVE, GUARD_DEAD };
enum { GUARD_PATTERN_BYTES = 64 }; /* on each side */

#define GUARD_G1 "G1 a freed block is read"
#define GUARD_G1_WRITE "G1 a freed block is written to"
#define GUARD_G2 "G2 read past the end of the block"
#define GUARD_G2_WRITE "G2 written past the end of the block"
#define GUARD_G3 "G3 read before the block"
#define GUARD_G3_WRITE "G3 written before the block"
#define GUARD_G4 "G4 was written before the block"

struct guard_slot {
    atomic_u32 state;
    bool is_sealed; /* its page was closed, or opened, by mappings */
    bool is_open;   /* dead, and its page could not be closed */
    uint16_t birth_count, death_count;
    uintptr_t start;
    size_t bytes;
    uint64_t sample, birth_thread, death_thread;
    uintptr_t birth[GUARD_FRAMES_MAX], death[GUARD_FRAMES_MAX];
};
extern struct guard_slot *guard_slots;
char *guard_page_of(const struct guard_slot *slot);

/* ---- guard_report.c ---- */
/* One line with the block's size, birth and death, then the process stops.  slot: NULL where there is none. */
__attribute__((noreturn, cold)) void guard_refuse(const struct guard_slot *slot, const char *what, const void *address);

#endif
