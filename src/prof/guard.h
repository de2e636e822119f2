// SPDX-License-Identifier: MIT
/*
 * guard.h - some blocks on a page of their own between pages that nobody may touch: misuse of them is a fault at the very place, and one line tells whose
 * they are.
 *
 * Threads: every function may be called by any number of threads, but guard_start().  Fork: the child goes on with what it has.
 */
#ifndef QUIRE_PROF_GUARD_H
#define QUIRE_PROF_GUARD_H

#include "prof/prof.h"

C_DECLARATIONS_BEGIN

enum { GUARD_SLOTS = 256, GUARD_FRAMES_MAX = 16 };
#define GUARD_EVERY_DEFAULT 5000
#define GUARD_EVERY_MAX UINT64_C(1000000000)

/* The pool, and the handler of faults.  0 or -errno: no block is guarded. */
int guard_start(void);
void guard_after_fork(void);

extern uintptr_t guard_pool_start, guard_pool_bytes; /* fixed by guard_start() */
static ALWAYS_INLINE bool guard_has(const void *p)
{
    return unlikely((uintptr_t)p - guard_pool_start < guard_pool_bytes);
}

/* NULL: it is too large, or all places are taken.  `sample`: what heap_watch is told when it goes; 0: nothing. */
void *guard_alloc(size_t bytes, size_t align_bytes, uint64_t sample, struct prof_call call);
/* Of addresses that guard_has(); what is no live block there stops the process. */
void guard_free(void *p, struct prof_call call);
size_t guard_bytes(const void *p);
/* Live blocks; not 0 from fn ends it. */
int guard_walk(int (*fn)(void *p, size_t bytes, void *arg), void *arg);

C_DECLARATIONS_END
#endif
