// SPDX-License-Identifier: MIT
/*
 * bias.h - a lock that favours one thread: it enters by two plain stores, everybody else pays a system call.
 *
 *     the favoured thread                           a visitor
 *     active = 1                                    take the lock
 *     (the compiler keeps the order)                open = 0
 *     open?  no: active = 0, the lock instead       os_barrier(): it has seen open 0, or is seen active
 *     ... inside, no atomic instruction             wait until active is 0
 *     active = 0                                    ... inside
 *                                                   open = 1; drop the lock
 *
 * Where the system has no such barrier, and when a sanitizer watches, `open` is 0 for good and everybody takes the lock.
 *
 * The favoured thread need not ask `open` where it compares something anyway with a word that the visitor changes too (heap_local's doors).
 *
 * Invariants:
 *   Y1  inside is one thread: the favoured one with active 1 and open 1, or the lock's holder with open 0 or as the favoured one
 *   Y2  a thread that is inside by the short way waits for no lock that somebody may hold who visits
 *
 * Locks: it is one, with the rank of its `lock`.  Idea: biased locking with asymmetric barriers (Dice, Moir, Scherer: "Quickly reacquirable locks").
 */
#ifndef QUIRE_BASE_BIAS_H
#define QUIRE_BASE_BIAS_H

#include "base/lock.h"

C_DECLARATIONS_BEGIN

struct bias {
    atomic_u32 active; /* the favoured thread is inside, by the short way */
    atomic_u32 open;   /* 1: the short way is open */
    struct lock lock;
};

/* Nobody is favoured at first: a plain lock. */
#define BIAS_INIT(lock_rank_) {{0}, {0}, LOCK_INIT(lock_rank_)}

/* True when barriers work in this process; asked once, and once again in the child of a fork. */
bool bias_works(void);
void bias_after_fork(void);

/* By the favoured thread alone: inside, if what it reads next says that the short way is open.  Then bias_leave(), in either case. */
static ALWAYS_INLINE void bias_approach(struct bias *bias)
{
    u32_store_relaxed(&bias->active, 1);
    atomic_fence_signal(); /* visitors: os_barrier() */
}

static ALWAYS_INLINE bool bias_is_open(const struct bias *bias)
{
    return u32_load_acquire(&bias->open) != 0; /* acquire [bias-open] */
}

static ALWAYS_INLINE void bias_leave(struct bias *bias)
{
    u32_store_release(&bias->active, 0); /* release [bias-active] */
}

/* Both steps.  False: take the lock. */
static ALWAYS_INLINE bool bias_enter(struct bias *bias)
{
    bias_approach(bias);
    if (likely(bias_is_open(bias)))
        return true;
    bias_leave(bias);
    return false;
}

/* The lock, by the favoured thread; or by anybody, if nobody is favoured or `open` was found 0 under it. */
static inline void bias_take(struct bias *bias)
{
    lock_take(&bias->lock);
}

/* Under the lock, the short way being open: it is closed, and the favoured thread outside. */
void bias_evict(struct bias *bias);
/* Both. */
void bias_visit(struct bias *bias);

/* After bias_take(), bias_visit().  `favours`: a thread is favoured from now on. */
static inline void bias_drop(struct bias *bias, bool favours)
{
    u32_store_release(&bias->open, favours && bias_works()); /* release [bias-open] */
    lock_drop(&bias->lock);
}

/* The short way for the favoured thread, when nobody else is there at all. */
static inline void bias_open(struct bias *bias)
{
    u32_store_release(&bias->open, bias_works()); /* release [bias-open] */
}

/* In the child of a fork: nobody is inside.  True if somebody was, other than the thread that forked. */
bool bias_reset(struct bias *bias);

C_DECLARATIONS_END
#endif
