// SPDX-License-Identifier: MIT
/*
 * lock.h - a lock of one word that sleeps in the kernel, with a rank.
 *
 * Ranks rise: a thread that holds a lock may take only locks of a higher rank.  The `check` build stops the process otherwise.
 * There is no handler before a fork: the child repairs what its vanished threads held (lock_reset()), so fork can never wait for us.  A thread notes which
 * locks it holds: one that forks in a signal's handler, in the middle of something, goes on with it in the child, and what it holds stays its own
 * (lock_reset_others()).
 */
#ifndef QUIRE_BASE_LOCK_H
#define QUIRE_BASE_LOCK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/atomic.h"
#include "os/sanitize.h"

C_DECLARATIONS_BEGIN

enum lock_rank {
    LOCK_COMPAT = 1,   /* compat/: the registries of another library's names */
    LOCK_SLAB_SHARED,      /* slab/slab_shared.c: one shared slab for each size */
    LOCK_REGISTRY,     /* slab/slab_registry.c: all slabs */
    LOCK_THREAD,       /* slab/slab_thread.c: one thread's caches, for others than the thread */
    LOCK_SLAB,         /* slab/slab_page.c: one slab's pages and depot */
    LOCK_RECORDS,      /* slab/slab_thread.c: the list of threads' records */
    LOCK_PERCPU_POOLS, /* percpu/percpu_pool.c: all pools */
    LOCK_PERCPU_LOCAL, /* percpu/percpu_thread.c: one thread's chunks of one pool */
    LOCK_PERCPU_HOME,  /* percpu/percpu_thread.c: chunks that ended threads left */
    LOCK_PERCPU_RESERVE, /* percpu/percpu_reserve.c: chunks for those who must not wait */
    LOCK_PERCPU_RECORDS, /* percpu/percpu_thread.c: the list of threads' tables */
    LOCK_PERCPU_POOL,  /* percpu/percpu_pool.c: a pool's chunks and locals */
    LOCK_PERCPU_INBOX, /* percpu/percpu_free.c: frees by other threads */
    LOCK_STEER,        /* steer/steer_site.c: call sites that are met for the first time */
    LOCK_STEER_THREADS, /* steer/steer_thread.c: the list of threads' records */
    LOCK_STEER_POOL,   /* steer/steer_chunk.c: chunks that no thread owns */
    LOCK_HEAPS,        /* heap/heap.c: all heaps */
    LOCK_HEAP_LOCAL,   /* heap/heap_thread.c: one thread's pages of one heap */
    LOCK_HEAP_IDLE,    /* heap/heap_thread.c: those of a thread that ended, and home */
    LOCK_HEAP,         /* heap/heap.c: one heap's headers, large blocks and idle locals */
    LOCK_PROF,         /* prof/prof.c: stacks and their counters; prof/guard.c: the queue of guarded places */
    LOCK_ARENAS,       /* arena/arena_list.c: named arenas, where they are listed */
    LOCK_FILE,         /* pages/source_file.c, source_fixed.c: a source of the user's */
    LOCK_LIMBO,        /* pages/limbo.c: the `check` build's queue */
    LOCK_SHARD,        /* pages/source_default.c: one CPU's warm spans */
    LOCK_REGIONS,      /* pages/source_default.c: the maps of all regions */
    LOCK_PAGEMAP,      /* pages/pagemap.c: growing the table */
    LOCK_LOST,         /* pages/lost.c: addresses that could not be unmapped */
    LOCK_RANK_COUNT
};

struct lock {
    atomic_u32 word; /* 0 free, 1 held, 2 held and somebody sleeps */
    uint32_t rank;
};

enum { LOCK_SLEPT_FOR = 2 };
#define LOCK_INIT(lock_rank_) {{0}, (lock_rank_)}

void lock_slow(struct lock *lock);
bool lock_wake(struct lock *lock);
/* The `check` build's: stop the process if this thread holds another lock of this rank or a higher one; or if it does not hold this one. */
void lock_check_take(const struct lock *lock, uint32_t rank);
void lock_check_drop(const struct lock *lock);

/* Which lock of each rank this thread holds; NULL: none, or it is just getting it, or letting go of it, and nothing is half done. */
extern THREAD_LOCAL const struct lock *lock_mine[LOCK_RANK_COUNT] __attribute__((tls_model("initial-exec")));

static inline bool lock_is_mine(const struct lock *lock)
{
    return lock_mine[lock->rank] == lock;
}

/* The calling thread is in the middle of something, in which a signal's handler has interrupted it. */
bool lock_holds_any(void);

/* Set at load when ThreadSanitizer watches a program whose Quire was built without it: it then has to be told of our locks. */
extern bool lock_watched;

static ALWAYS_INLINE void lock_taken(const struct lock *lock)
{
    if (QUIRE_CHECK)
        lock_check_take(lock, lock->rank);
    lock_mine[lock->rank] = lock;
    atomic_fence_signal(); /* before anything is half done */
    if (unlikely(lock_watched))
        sanitize_begin_of_use(lock);
}

static ALWAYS_INLINE bool lock_seize(struct lock *lock)
{
    uint32_t expected = 0;
    return u32_load_relaxed(&lock->word) == 0 && u32_cas_acquire(&lock->word, &expected, 1); /* acquire [lock] */
}

static ALWAYS_INLINE bool lock_try(struct lock *lock)
{
    if (!lock_seize(lock))
        return false;
    lock_taken(lock);
    return true;
}

/* The same for a lock in zeroed memory, which gets its rank here: until then nobody writes it, and its page stays untouched. */
static ALWAYS_INLINE bool lock_try_fresh(struct lock *lock, uint32_t rank)
{
    if (!lock_seize(lock))
        return false;
    __atomic_store_n(&lock->rank, rank, __ATOMIC_RELAXED);
    lock_taken(lock);
    return true;
}

/* Whether such a lock was ever taken. */
static inline bool lock_is_ranked(const struct lock *lock)
{
    return __atomic_load_n(&lock->rank, __ATOMIC_RELAXED) != 0;
}

/* The same for a lock whose rank may change: false also if it has another rank by now. */
static inline bool lock_try_if(struct lock *lock, uint32_t rank)
{
    if (!lock_seize(lock))
        return false;
    if (unlikely(lock->rank != rank)) {
        if (unlikely(u32_exchange_release(&lock->word, 0) == LOCK_SLEPT_FOR)) /* release [lock] */
            lock_wake(lock);
        return false;
    }
    lock_taken(lock);
    return true;
}

static ALWAYS_INLINE void lock_take(struct lock *lock)
{
    uint32_t expected = 0;
    if (unlikely(!u32_cas_acquire(&lock->word, &expected, 1))) /* acquire [lock] */
        lock_slow(lock);
    lock_taken(lock);
}

/* True: somebody slept for it, and was woken. */
static ALWAYS_INLINE bool lock_drop(struct lock *lock)
{
    if (QUIRE_CHECK)
        lock_check_drop(lock);
    atomic_fence_signal();
    lock_mine[lock->rank] = NULL;
    if (unlikely(lock_watched))
        sanitize_end_of_use(lock);
    return unlikely(u32_exchange_release(&lock->word, 0) == LOCK_SLEPT_FOR) && lock_wake(lock); /* release [lock] */
}

/* The lock, held, has another rank from now on. */
static inline void lock_rerank(struct lock *lock, uint32_t rank)
{
    uint32_t before = lock->rank;
    if (QUIRE_CHECK) {
        lock_check_drop(lock);
        lock_check_take(lock, rank);
    }
    lock_mine[rank] = lock;
    atomic_fence_signal(); /* at no moment it is not this thread's */
    lock->rank = rank;
    atomic_fence_signal();
    lock_mine[before] = NULL;
}

static inline bool lock_held(const struct lock *lock)
{
    return u32_load_relaxed(&lock->word) != 0;
}

/* In a copy of the process that goes on from a signal's handler: whatever this thread held is no longer its own. */
void lock_forget_all(void);

/* What this thread holds, set aside while a handler of a fork's child takes locks itself: it may have forked in the middle of anything. */
struct lock_notes {
    const struct lock *mine[LOCK_RANK_COUNT];
};
void lock_set_aside(struct lock_notes *notes);
void lock_take_up(const struct lock_notes *notes);

/* In the child of a fork: nobody holds it now.  True if somebody did when the process forked. */
static inline bool lock_reset(struct lock *lock)
{
    bool held = lock_held(lock);
    if (held) /* what a child does not write it need not copy */
        u32_store_relaxed(&lock->word, 0);
    return held;
}

/* The same, but what this thread holds stays as it is: it forked in the middle of that, in a signal's handler.  True if another held it. */
static inline bool lock_reset_others(struct lock *lock)
{
    return !lock_is_mine(lock) && lock_reset(lock);
}

C_DECLARATIONS_END
#endif
