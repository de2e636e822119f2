// SPDX-License-Identifier: MIT
/*
 * reaper.h - the clock of the default source: one thread, started when there is idle memory worth giving back, asleep when there is none.
 */
#ifndef QUIRE_PAGES_REAPER_H
#define QUIRE_PAGES_REAPER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* Idle memory up to this is not worth waking anybody. */
#define REAPER_FLOOR_BYTES ((size_t)64 << 10)
#define REAPER_DECAY_NS_MAX (UINT64_C(3600) * 1000000000u)

/*
 * An allocator that keeps idle pages of its own has them looked after by the same clock.  Join before main only.
 *   used     0: it has made nothing yet.  Then nothing of it is called, so that none of its code and data becomes memory of who uses another
 *   pending  is there anything to do at a tick?
 *   tick     one step of ageing; bytes given back to their sources
 *   trim     all that is idle goes back to its source now; bytes
 */
struct reaper_guest {
    const atomic_u32 *used, *pending;
    size_t (*tick)(void);
    size_t (*trim)(void);
};
void reaper_join(const struct reaper_guest *guest);
size_t reaper_guests_trim(void);
/* True where nobody ticks: no thread can be had, or nothing is to be kept. */
bool reaper_keeps_nothing(void);

/* There is idle memory.  One load while the thread is ticking.  Hold no lock: it may start a thread. */
void reaper_wake(void);
/* On callers' slow paths: where no thread can be had they tick, and where it is late they help. */
void reaper_tick_if_late(void);
/*
 * For a library whose allocators serve malloc: starting a thread allocates.  From now on reaper_wake() starts none; reaper_start_due(), called
 * where nothing is held, does: for a process of one thread when there is idle memory, for others before that.
 */
void reaper_defer(size_t floor_bytes); /* idle memory up to floor_bytes is not worth a thread */
bool reaper_is_due(void); /* reaper_wake() was called, and nobody has started one since.  A load */
void reaper_start_due(bool after_free); /* a free may come from where libc holds the locks that a new thread needs */
void reaper_set_decay(uint64_t decay_ns);
bool reaper_decay_is_0(void); /* nothing stays idle */
/* The calling thread is about to end: where it is the last of the program's, the clock's has to go, too, or libc would wait for it for ever. */
void reaper_thread_ends(void);
void reaper_after_fork(void);

C_DECLARATIONS_END
#endif
