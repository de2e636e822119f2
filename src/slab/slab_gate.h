// SPDX-License-Identifier: MIT
/*
 * slab_gate.h - into an operation of a slab the short way, and out again.
 *
 *     slab->gate + thread pointer ---> gate of this thread ---> its cache, or one that has nothing and takes nothing
 *
 * Not here: who opens and closes gates (slab_thread.c), what is done inside (slab.c, slab_free.c).
 */
#ifndef QUIRE_SLAB_GATE_H
#define QUIRE_SLAB_GATE_H

#include "slab/slab_internal.h"

/*
 * The way to a thread's cache of a slab with a small id, in the thread's own storage at the same distance from its thread pointer in every thread: so
 * nothing has to be looked up.  Others close it by putting a cache that has nothing, and takes nothing, in its place.
 */
struct slab_gate {
    atomic_addr cache; /* struct slab_cache * */
    atomic_u32 active; /* the thread is inside */
};
enum { SLAB_GATES = 32 }; /* the first is never open */

extern THREAD_LOCAL struct slab_gate slab_gates[SLAB_GATES] __attribute__((tls_model("initial-exec")));
extern struct slab_cache slab_cache_none;

/* Begin and end an operation of this thread: no instruction of it moves out, and no other thread is inside meanwhile. */
static ALWAYS_INLINE uintptr_t slab_enter(const struct quire_slab *slab)
{
    uintptr_t gate = __atomic_load_n(&slab->gate, __ATOMIC_RELAXED);
    atomic_noise();
    THREAD_AT(uint32_t, gate + offsetof(struct slab_gate, active)) = 1;
    atomic_fence_signal(); /* visitors: os_barrier() */
    return gate;
}

static ALWAYS_INLINE void slab_leave(uintptr_t gate)
{
    if (CPU_X86_64)
        atomic_fence_signal(); /* its stores are in order: release [slab-active] */
    else
        atomic_fence_release(); /* release [slab-active] */
    atomic_noise();
    THREAD_AT(uint32_t, gate + offsetof(struct slab_gate, active)) = 0;
}

/* What the gate leads to: a cache, or &slab_cache_none. */
static ALWAYS_INLINE struct slab_cache *slab_gate_cache(uintptr_t gate)
{
    atomic_noise();
    return (struct slab_cache *)THREAD_AT(uintptr_t, gate + offsetof(struct slab_gate, cache));
}

/* The same for a slab without a gate.  NULL: the thread is not inside, and has to go the long way. */
static ALWAYS_INLINE struct slab_cache *slab_enter_far(const struct quire_slab *slab, struct slab_thread *thread)
{
    uint32_t offset = __atomic_load_n(&slab->offset, __ATOMIC_RELAXED);
    u32_store_relaxed(&thread->active, 1);
    atomic_fence_signal();
    if (likely(offset < u32_load_acquire(&thread->limit))) /* acquire [slab-limit] */
        return (struct slab_cache *)(void *)(thread->caches + offset);
    u32_store_release(&thread->active, 0); /* release [slab-active] */
    return NULL;
}

static ALWAYS_INLINE void slab_leave_far(struct slab_thread *thread)
{
    u32_store_release(&thread->active, 0); /* release [slab-active] */
}

#endif
