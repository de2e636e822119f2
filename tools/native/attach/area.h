// SPDX-License-Identifier: MIT
/*
 * area.h - what quire-attach and the recorder inside the target say to each other.
 *
 *   quire-attach                                   target, with libquire-attach.so
 *     calls quire_attach_begin(order) --ptrace-->    patches slots, state = RECORDING
 *     beats += 1, every BEAT_MS       --memory-->    looked at by a hook, every LOOK_MS
 *     stop = 1                        --memory-->    the next hook puts all back, state = ENDED
 *     calls quire_attach_end(order)   --ptrace-->    the same, where nobody allocates
 *
 * No descriptor, no thread, no signal: a recorder whose beats stay away for LEASE_MS ends by itself.
 */
#ifndef QUIRE_ATTACH_AREA_H
#define QUIRE_ATTACH_AREA_H

#include <stdint.h>

#define ATTACH_MAGIC    UINT64_C(0x3148434154544151)  // "QATTACH1"
#define ATTACH_BEAT_MS  200u
#define ATTACH_LOOK_MS  20u
#define ATTACH_LEASE_MS 3000u
#define ATTACH_AREA     "quire_attach_area"
#define ATTACH_BEGIN    "quire_attach_begin"
#define ATTACH_END      "quire_attach_end"

enum attach_state { ATTACH_IDLE = 0, ATTACH_RECORDING = 1, ATTACH_ENDED = 2 };

/* In the target's memory. */
struct attach_area {
    uint64_t magic;
    // the recorder's
    uint32_t state;
    uint32_t pid;       // whose state it is: a forked child inherits the area, not the recording
    uint32_t slots;     // patched now
    uint32_t sessions;  // recordings so far
    uint32_t is_own;    // the process records itself (QUIRE_CONF=record): it needs no beats, and nobody takes it over
    // quire-attach's
    uint32_t beats;
    uint32_t stop;
};

/* What is to be done; lies where the target can read it. */
struct attach_order {
    uint64_t limit_bytes;  // largest trace, 0 for none
    uint64_t duration_ms;  // 0: until it is told to stop
    uint64_t takes_over;   // 1: the one who records now is gone
    char path[];           // of the trace, absolute
};

int quire_attach_begin(const struct attach_order *order);
int quire_attach_end(const struct attach_order *order);

#endif
