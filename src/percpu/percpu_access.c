// SPDX-License-Identifier: MIT
/*
 * percpu_access.c - this CPU's copy, one CPU's, all copies.
 *
 *     the thread's CPU has a copy, and sequences work     a restartable sequence (quire/percpu_inline.h, os/os_rseq.h); here: the first write, once
 *     it has none (id too high, no area registered)       the shared copy, by atomic instructions
 *     sequences do not work in this process               this CPU's copy, by atomic instructions; the id may be old, the result is the same
 *
 * In one copy all write by sequences or all by atomic instructions: the shared copy is the only one that both kinds of thread could meet in, and
 * there no sequence goes.
 *
 * By atomic instructions: adding is one; pushing one compare-and-swap; popping and cmpxchg take a lock beside that, so that nobody takes the head
 * off and puts it on again while another reads its link.
 *
 * Locks: list_lock, a word, for some ten instructions; whoever finds it taken gives its CPU away.
 */
#define QUIRE_PERCPU_INLINE 0 /* here is the function itself */
#include "base/fail.h"
#include "os/os.h"
#include "os/os_rseq.h"
#include "os/sanitize.h"
#include "percpu/percpu_internal.h"

static inline bool unit_touched(const struct quire_percpu *pool, uintptr_t bits, uint32_t unit)
{
    const char *base = (const char *)(bits & pool->window.unit_mask) + ((size_t)unit << pool->window.unit_shift);
    return __atomic_load_n(base, __ATOMIC_ACQUIRE) != 0; /* what touched it comes before what is written there */
}

/* The first write of a CPU into a chunk. */
static COLD void touch_slow(const struct quire_percpu *pool, uintptr_t bits, uint32_t unit)
{
    percpu_chunk_touch(percpu_chunk_verify(pool, bits), unit, true);
}

/* The CPU in the thread's area: not a CPU's id where none is registered. */
static inline uint32_t area_cpu(const struct quire_percpu *pool)
{
    const char *area = os_thread_pointer() + pool->window.rseq_offset;
    return __atomic_load_n((const uint32_t *)(const void *)(area + 4), __ATOMIC_RELAXED);
}

/* Where atomic instructions do it; NULL: a sequence does, now that the unit is known as written. */
static inline atomic_addr *word_for_atomics(const struct quire_percpu *pool, uintptr_t bits)
{
    uint32_t cpu = likely(!pool->rseq) ? os_cpu_id_roughly() : area_cpu(pool);
    uint32_t unit = cpu < pool->window.cpus ? cpu : pool->window.cpus;
    if (unlikely(!unit_touched(pool, bits, unit)))
        touch_slow(pool, bits, unit);
    if (pool->rseq && unit != pool->window.cpus)
        return NULL;
    atomic_addr *word = (atomic_addr *)(bits + ((size_t)unit << pool->window.unit_shift));
    if (unlikely(pool->watched))
        sanitize_read_word(word);
    return word;
}

void quire_percpu_add(struct quire_percpu *pool, struct quire_percpu_ref ref, intptr_t value)
{
    for (;;) {
        if (pool->rseq && likely(quire_percpu_add_try(&pool->window, ref.bits, value)))
            return;
        atomic_addr *word = word_for_atomics(pool, ref.bits);
        if (word) {
            addr_add_relaxed(word, (uintptr_t)value);
            return;
        }
    }
}

/* ---- lists, and cmpxchg, which may be used on them ---- */

static atomic_u32 *list_lock(struct quire_percpu *pool, const atomic_addr *word)
{
    uintptr_t unit = (uintptr_t)word >> pool->window.unit_shift;
    return &pool->list_lock[unit % PERCPU_LIST_LOCKS].word;
}

static void list_lock_take(atomic_u32 *lock)
{
    uint32_t expected = 0;
    while (!u32_cas_acquire(lock, &expected, 1)) { /* acquire [percpu-list] */
        expected = 0;
        os_yield();
    }
}

static void list_lock_drop(atomic_u32 *lock)
{
    u32_store_release(lock, 0); /* release [percpu-list] */
}

bool quire_percpu_cmpxchg(struct quire_percpu *pool, struct quire_percpu_ref ref, intptr_t *expected, intptr_t desired)
{
    const intptr_t change[2] = {*expected, desired}; /* what a sequence that starts anew compares with */
    for (;;) {
        bool differs = false;
        if (pool->rseq && likely(os_rseq_cmpxchg(&pool->window, ref.bits, change, expected, &differs)))
            return !differs;
        atomic_addr *word = word_for_atomics(pool, ref.bits);
        if (!word)
            continue;
        atomic_u32 *lock = list_lock(pool, word);
        uintptr_t seen = (uintptr_t)change[0];
        list_lock_take(lock);
        bool done = addr_cas_acquire(word, &seen, (uintptr_t)desired); /* acquire [percpu-node] */
        list_lock_drop(lock);
        *expected = (intptr_t)seen;
        return done;
    }
}

static NOINLINE void push_slow(struct quire_percpu *pool, uintptr_t list, void *node)
{
    for (;;) {
        if (pool->rseq && os_rseq_push(&pool->window, list, node))
            return;
        atomic_addr *word = word_for_atomics(pool, list);
        if (!word)
            continue;
        uintptr_t head = addr_load_relaxed(word);
        do
            *(uintptr_t *)node = head;
        while (!addr_cas_release(word, &head, (uintptr_t)node)); /* release [percpu-node] */
        return;
    }
}

void quire_percpu_push(struct quire_percpu *pool, struct quire_percpu_ref list, void *node)
{
    if (unlikely(!os_rseq_push(&pool->window, list.bits, node)))
        push_slow(pool, list.bits, node);
}

static NOINLINE void *pop_slow(struct quire_percpu *pool, uintptr_t list)
{
    for (;;) {
        void *node = NULL;
        if (pool->rseq && os_rseq_pop(&pool->window, list, &node))
            return node;
        atomic_addr *word = word_for_atomics(pool, list);
        if (!word)
            continue;
        atomic_u32 *lock = list_lock(pool, word);
        list_lock_take(lock);
        uintptr_t head = addr_load_acquire(word), seen = head; /* acquire [percpu-node] */
        while (head && !addr_cas_acquire(word, &seen, *(uintptr_t *)head)) /* acquire [percpu-node] */
            seen = head = addr_load_acquire(word); /* acquire [percpu-node] */
        list_lock_drop(lock);
        return (void *)head;
    }
}

void *quire_percpu_pop(struct quire_percpu *pool, struct quire_percpu_ref list)
{
    void *node;
    return likely(os_rseq_pop(&pool->window, list.bits, &node)) ? node : pop_slow(pool, list.bits);
}

/* ---- one copy, all copies ---- */

unsigned quire_percpu_cpus(const struct quire_percpu *pool)
{
    return pool->window.cpus;
}

void *quire_percpu_at(const struct quire_percpu *pool, struct quire_percpu_ref ref, unsigned cpu)
{
    struct percpu_chunk *chunk = percpu_chunk_verify(pool, ref.bits);
    if (unlikely(cpu >= pool->window.cpus))
        return fail_null(EINVAL);
    percpu_chunk_touch(chunk, cpu, false);
    return (void *)(ref.bits + ((size_t)cpu << pool->window.unit_shift));
}

intptr_t quire_percpu_sum(const struct quire_percpu *pool, struct quire_percpu_ref ref)
{
    const struct percpu_chunk *chunk = percpu_chunk_verify(pool, ref.bits);
    uintptr_t sum = 0;
    for (uint32_t w = 0; w * 64 < pool->units; w++)
        for (uint64_t units = u64_load_relaxed(&chunk->written[w]); units; units &= units - 1) {
            const atomic_addr *word = (const atomic_addr *)(ref.bits + ((size_t)(w * 64 + bits_lowest(units)) << pool->window.unit_shift));
            if (unlikely(pool->watched))
                sanitize_read_word(word);
            sum += addr_load_relaxed(word);
        }
    return (intptr_t)sum;
}
