// SPDX-License-Identifier: MIT
/*
 * pressure.h - is memory short?  Then what is idle goes back at once.
 */
#ifndef QUIRE_PAGES_PRESSURE_H
#define QUIRE_PAGES_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/atomic.h"

C_DECLARATIONS_BEGIN

enum { PRESSURE_PERCENT_DEFAULT = 10 };
#define PRESSURE_LOOK_NS UINT64_C(1000000000) /* how often it is looked at, where ticks are rarer */

/* From now on the clock looks; before main.  0: it does not. */
void pressure_watch(uint32_t percent);
bool pressure_is_watched(void);
/* Tasks have waited for memory for more than that part of the time since it was asked last.  For the clock's thread, or whoever ticks in its place. */
bool pressure_is_high(uint64_t now_ns);

/* What one who looks has seen last; all zero: nothing yet. */
struct pressure_seen {
    atomic_u64 stalled_us_plus_1, looked_ns, hits_plus_1;
};
/* Tasks have waited for more than that part of the time since he looked last. */
bool pressure_stalls(struct pressure_seen *seen, uint64_t now_ns, uint32_t percent);
/* A cgroup has been over its limit since then, or at it and wanted more. */
bool pressure_hits_limit(struct pressure_seen *seen);
/* Pure: of two readings. */
bool pressure_exceeds(uint64_t stalled_us, uint64_t passed_ns, uint32_t percent);

C_DECLARATIONS_END
#endif
