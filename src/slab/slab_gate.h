// SPDX-License-Identifier: MIT
/*
 * slab_gate.h - into an operation of a slab the short way, and out again.
 *
 *     slab->gate + thread pointer ---> gate of this thread ---> its cache, or one that has nothing and takes nothing
 *
 * The same, for programs that have it compiled in: quire/slab_inline.h, which has no step at which tests could let others in (atomic_noise()).  Not here: who opens and closes gates (slab_thread.c), what is done inside (slab.c, slab_free.c).
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

/* What programs have compiled in (quire/slab_inline.h). */
#define SAME_PLACE(inner, field, window, seen) STATIC_ASSERT(offsetof(struct inner, field) == offsetof(struct window, seen), "read by programs")
SAME_PLACE(slab_gate, cache, quire_slab_gate_window, magazine);
SAME_PLACE(slab_gate, active, quire_slab_gate_window, active);
SAME_PLACE(slab_cache, slots.top, quire_slab_magazine_window, top);
SAME_PLACE(slab_cache, slots.key, quire_slab_magazine_window, key);
SAME_PLACE(slab_cache, slots.end, quire_slab_magazine_window, end);
SAME_PLACE(slab_page, slots, quire_slab_page_window, slots);
SAME_PLACE(slab_page, carved, quire_slab_page_window, carved);
SAME_PLACE(slab_table, mask, quire_slab_table_window, mask);
STATIC_ASSERT(offsetof(struct slab_table, entry) == sizeof(struct quire_slab_table_window), "behind it");
SAME_PLACE(quire_slab, gate, quire_slab_window, gate);
SAME_PLACE(quire_slab, divide, quire_slab_window, divide);
SAME_PLACE(quire_slab, table, quire_slab_window, table);
SAME_PLACE(quire_slab, shift, quire_slab_window, shift);

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
