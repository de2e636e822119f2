// SPDX-License-Identifier: MIT
/*
 * reaper.h - the clock of the default source: one thread, started when there is idle memory worth giving back, asleep when there is none.
 */
#ifndef QUIRE_PAGES_REAPER_H
#define QUIRE_PAGES_REAPER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Idle memory up to this is not worth waking anybody. */
#define REAPER_FLOOR_BYTES ((size_t)64 << 10)
#define REAPER_DECAY_NS_MAX (UINT64_C(3600) * 1000000000u)

/* There is idle memory.  One load while the thread is ticking.  Hold no lock: it may start a thread. */
void reaper_wake(void);
/* Where no thread can be had, callers tick on their slow paths. */
void reaper_tick_if_alone(void);
void reaper_set_decay(uint64_t decay_ns);
void reaper_after_fork(void);

#ifdef __cplusplus
}
#endif
#endif
