// SPDX-License-Identifier: MIT
/*
 * slab_thread.c - each thread's record and caches, and how another gets at them.
 *
 *     thread T                                       visitor (trim, the clock, a doubt, a check)
 *     active = 1                                     close the gates of every thread
 *     the gate's cache: none? the long way, locked   os_barrier(): each has seen its gates closed, or is seen active
 *     ... at its own cache, no atomic instruction    for each T: take T's lock; wait until active is 0
 *     active = 0                                     ... at T's caches
 *                                                    open the gates; drop T's lock
 *
 * Slabs whose ids are small have a gate each, in the thread's own storage; the others share the record's `active` and `limit`.
 *
 * A lock that favours its thread: the thread pays two stores, the visitor a system call for all threads together.  Where the system has no such
 * barrier, and when a sanitizer watches, no thread has caches and every operation takes the slab's lock.
 *
 * A thread's record outlives it and serves a later thread (owner/record.h); its caches do not: they go back when it ends, and when it has not used them for a while.
 * Threads that cannot have a record (no memory, no pthread key) or have none any more (they are in their last destructors) share one without caches.
 *
 * Invariants:
 *   T1  a thread inside an operation holds no lock, and waits for none
 *   T2  caches are changed by their thread, inside or with its record locked, or by a visitor
 *
 * Locks: registry (slab_registry.c) < a thread's < a slab's < records.  Not here: what is in a cache.
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "base/layout.h"
#include "base/panic.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "slab/slab_gate.h"
#include "slab/slab_internal.h"

enum { PATIENCE_SPINS = 100, NAP_NS = 50000 };

static struct slab_thread thread_none;
static struct slab_thread thread_shared = {.record.thread = {RECORD_SHARED}, .lock = LOCK_INIT(LOCK_THREAD)};
THREAD_LOCAL struct slab_thread *slab_thread_self __attribute__((tls_model("initial-exec"))) = &thread_none;

/* Nothing can be had from it, and it has room for nothing. */
static const atomic_u64 *const below_none = &slots_nothing;
struct slab_cache slab_cache_none = {.slots.top = {(uintptr_t)(&below_none + 1)}};
#define CLOSED_4 {{(uintptr_t)&slab_cache_none}, {0}}, {{(uintptr_t)&slab_cache_none}, {0}}, {{(uintptr_t)&slab_cache_none}, {0}}, {{(uintptr_t)&slab_cache_none}, {0}}
#define CLOSED_16 CLOSED_4, CLOSED_4, CLOSED_4, CLOSED_4
STATIC_ASSERT(SLAB_GATES == 32, "as many as are named here");
THREAD_LOCAL struct slab_gate slab_gates[SLAB_GATES] __attribute__((tls_model("initial-exec"))) = {CLOSED_16, CLOSED_16};

static void record_begin(void *thread);
static void thread_end(void *thread);
static struct records records = {.lock = LOCK_INIT(LOCK_RECORDS), .all = {(uintptr_t)&thread_shared}, .bytes = sizeof(struct slab_thread), .begin = record_begin, .end = thread_end};

/* What this thread has locked, for slab_refuse(): a record, its own or a visited one, and a slab. */
static THREAD_LOCAL struct slab_thread *holding __attribute__((tls_model("initial-exec")));
static THREAD_LOCAL struct quire_slab *locking __attribute__((tls_model("initial-exec")));

/* Every thread's record, the shared one last. */
static struct slab_thread *threads_first(void)
{
    return records_first(&records);
}

static void record_begin(void *thread)
{
    ((struct slab_thread *)thread)->lock.rank = LOCK_THREAD;
}

/* ---- a thread's record ---- */

static struct slab_cache *cache_at(const struct slab_thread *thread, uint32_t id)
{
    return (struct slab_cache *)(void *)thread->caches + id;
}

void slab_gate_set(struct quire_slab *slab)
{
    uint32_t number = slab->offset != SLAB_OFFSET_NONE && slab->id < SLAB_GATES ? slab->id : 0;
    ptrdiff_t gate = (char *)&slab_gates[number] - os_thread_pointer();
    __atomic_store_n(&slab->gate, (uintptr_t)gate, __ATOMIC_RELAXED);
}

/* With no lock, while the thread may be opening them: see visit().  Its operations have ended after a barrier, and wait_inactive(). */
static void gates_close(struct slab_thread *thread)
{
    u32_store_relaxed(&thread->closed, 1);
    u32_store_relaxed(&thread->limit, 0);
    for (uint32_t i = 1; thread->gates && i < SLAB_GATES; i++)
        addr_store_relaxed(&thread->gates[i].cache, (uintptr_t)&slab_cache_none);
}

static void thread_lock(struct slab_thread *thread)
{
    lock_take(&thread->lock);
    holding = thread;
}

static bool is_open(const struct slab_thread *thread)
{
    bool open = u32_load_relaxed(&thread->limit) != 0;
    for (uint32_t i = 1; thread->gates && i < SLAB_GATES; i++)
        open |= addr_load_relaxed(&thread->gates[i].cache) != (uintptr_t)&slab_cache_none;
    return open;
}

static void gates_open(struct slab_thread *thread)
{
    uint32_t count = bias_works() ? thread->count : 0;
    u32_store_relaxed(&thread->closed, 0);
    u32_store_release(&thread->limit, count * (uint32_t)sizeof(struct slab_cache)); /* release [slab-limit] */
    for (uint32_t i = 1; thread->gates && i < count && i < SLAB_GATES; i++)
        addr_store_release(&thread->gates[i].cache, (uintptr_t)(cache_at(thread, i)->slab ? cache_at(thread, i) : &slab_cache_none));
}

/* Also the end of a visit. */
static void thread_unlock(struct slab_thread *thread)
{
    holding = NULL;
    if (u32_load_relaxed(&thread->closed))
        gates_open(thread);
    lock_drop(&thread->lock);
}

static size_t caches_bytes(uint32_t count)
{
    return align_up(count * sizeof(struct slab_cache), os_page_bytes());
}

void slab_thread_detach(struct slab_thread *thread)
{
    uint32_t count = thread->count;
    thread->count = 0;
    atomic_fence_signal(); /* the child of a fork looks at so many */
    if (count)
        os_unmap(thread->caches, caches_bytes(count));
}

/* Moved, with the small magazines in them; the keys go along, and so do the marks. */
static void caches_move(struct slab_cache *to, struct slab_cache *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ptrdiff_t moved = (char *)&to[i] - (char *)&from[i];
        memcpy(&to[i], &from[i], sizeof to[i]);
        if (to[i].slots.cur != &from[i].small)
            continue;
        to[i].slots.cur = &to[i].small;
        to[i].slots.end = (atomic_addr *)(void *)((char *)to[i].slots.end + moved);
        addr_store_relaxed(&to[i].slots.top, addr_load_relaxed(&to[i].slots.top) + (uintptr_t)moved);
    }
}

/* The record's caches reach to `id`; under its lock.  False: no memory. */
static bool caches_grow(struct slab_thread *thread, uint32_t id)
{
    void *memory;
    if (id < thread->count)
        return true;
    size_t bytes = caches_bytes(id + 1);
    if (bytes < 2 * caches_bytes(thread->count))
        bytes = 2 * caches_bytes(thread->count);
    if (os_map(bytes, os_page_bytes(), &memory) != 0)
        return false;
    struct slab_cache *caches = memory;
    uint32_t count = (uint32_t)(bytes / sizeof *caches);
    caches_move(caches, (struct slab_cache *)(void *)thread->caches, thread->count);
    for (uint32_t i = thread->count; i < count; i++)
        slab_cache_init(&caches[i], NULL);
    slab_thread_detach(thread);
    thread->caches = memory;
    atomic_fence_signal();
    thread->count = count;
    u32_store_relaxed(&thread->closed, 1); /* all gates lead elsewhere now */
    return true;
}

/* The thread ends; what its later destructors do goes through the shared record. */
static void thread_end(void *record)
{
    struct slab_thread *thread = record;
    slab_thread_self = &thread_shared;
    slab_list_lock(); /* no slab is destroyed meanwhile */
    thread_lock(thread);
    gates_close(thread);
    thread->gates = NULL;
    for (uint32_t id = 0; id < thread->count; id++)
        if (cache_at(thread, id)->slab) {
            slab_cache_flush(cache_at(thread, id), true);
            slab_cache_init(cache_at(thread, id), NULL); /* for the next thread that has this record; a tick takes it */
        }
    thread->holds++;
    thread_unlock(thread);
    registry_unlock(&slab_registry);
    record_delete(&records, thread);
    reaper_thread_ends();
}

/* This thread's record, made if it has none yet. */
static struct slab_thread *thread_get(void)
{
    struct slab_thread *thread = slab_thread_self;
    if (likely(thread != &thread_none))
        return thread;
    thread = bias_works() ? record_new(&records) : NULL;
    if (!thread)
        return &thread_shared;
    thread->gates = slab_gates;
    return slab_thread_self = thread;
}

/* ---- operations the long way ---- */

struct slab_cache *slab_hold(struct quire_slab *slab)
{
    slab_verify(slab);
    if (unlikely(os_is_unrepaired()))
        os_repair(); /* while nothing is held: a repair begins every slab anew */
    struct slab_thread *thread = thread_get();
    thread_lock(thread);
    if (slab->straight || thread == &thread_shared || !caches_grow(thread, slab->id))
        return NULL;
    thread->holds++;
    struct slab_cache *cache = cache_at(thread, slab->id);
    if (!cache->slab) {
        slab_cache_init(cache, slab);
        u32_store_relaxed(&thread->closed, 1);
    }
    return cache;
}

void slab_drop(void)
{
    thread_unlock(holding);
}

void slab_lock(struct quire_slab *slab)
{
    lock_take(&slab->lock);
    locking = slab;
}

void slab_unlock(struct quire_slab *slab)
{
    bool wakes = slab->wakes;
    locking = NULL;
    slab->wakes = false;
    slab->turns++;
    lock_drop(&slab->lock);
    if (unlikely(wakes))
        slab_wake(slab);
}

void slab_refuse(const struct quire_slab *slab, const char *what, const void *address)
{
    /* The hook may look at other slabs: it must not find this thread inside. */
    u32_store_release(&slab_thread_self->active, 0); /* release [slab-active] */
    for (uint32_t i = 0; i < SLAB_GATES; i++)
        u32_store_release(&slab_gates[i].active, 0); /* release [slab-active] */
    if (locking)
        slab_unlock(locking);
    if (holding)
        slab_drop();
    registry_let_go(&slab_registry);
    panic("slab", slab && slab->name[0] ? slab->name : NULL, what, address);
}

/* ---- visits ---- */

/* gates: the thread's; NULL: it is no more. */
static bool is_inside(const struct slab_thread *thread, const struct slab_gate *gates)
{
    uint32_t active = u32_load_acquire(&thread->active); /* acquire [slab-active] */
    for (uint32_t i = 0; gates && i < SLAB_GATES; i++)
        active |= u32_load_acquire(&gates[i].active); /* acquire [slab-active] */
    return active != 0;
}

/* Wait until the thread is outside; false: not within our patience. */
static bool wait_inactive(const struct slab_thread *thread, bool patient)
{
    if (thread == &thread_shared || thread == slab_thread_self)
        return true; /* one works under its lock only, the other is here */
    for (int i = 0; is_inside(thread, thread->gates); i++) {
        if (i < PATIENCE_SPINS)
            cpu_pause();
        else if (unlikely(os_is_unrepaired()))
            os_repair(); /* it is no more */
        else if (patient)
            os_sleep_ns(NAP_NS);
        else
            return false; /* it waits for a CPU: a nap may cost us a time slice, and there are other threads to see */
    }
    return true;
}

bool slab_visit(struct slab_thread *thread, slab_visit_fn *fn, void *arg, bool patient)
{
    if (patient)
        lock_take(&thread->lock);
    else if (!lock_try(&thread->lock))
        return false;
    holding = thread;
    u32_store_relaxed(&thread->closed, 1); /* it may have taken that back while its gates were being closed: they open again after this */
    if (is_open(thread)) { /* it went the long way since the barrier */
        gates_close(thread);
        if (bias_works())
            os_barrier();
    }
    bool out = wait_inactive(thread, patient);
    if (out && fn)
        fn(thread, arg);
    thread_unlock(thread);
    return out;
}

bool slab_visit_all(slab_visit_fn *fn, void *arg, bool patient)
{
    bool all = true;
    for (struct slab_thread *thread = threads_first(); thread; thread = thread->record.next)
        gates_close(thread);
    if (bias_works())
        os_barrier();
    for (struct slab_thread *thread = threads_first(); thread; thread = thread->record.next)
        all &= slab_visit(thread, fn, arg, patient);
    return all;
}

struct slab_cache *slab_visited_cache(const struct slab_thread *thread, const struct quire_slab *slab)
{
    if (slab->straight || slab->id >= thread->count || cache_at(thread, slab->id)->slab != slab)
        return NULL;
    return cache_at(thread, slab->id);
}

size_t slab_caches_count(const struct quire_slab *slab, size_t *caches)
{
    size_t slots = 0;
    for (struct slab_thread *thread = slab->straight ? NULL : threads_first(); thread; thread = thread->record.next) {
        lock_take(&thread->lock);
        const struct slab_cache *cache = slab_visited_cache(thread, slab);
        slots += cache ? slots_count(&cache->slots) : 0;
        *caches += cache != NULL;
        lock_drop(&thread->lock);
    }
    return slots;
}

size_t slab_thread_bytes(void)
{
    size_t bytes = 0;
    for (const struct slab_thread *thread = threads_first(); thread; thread = thread->record.next)
        bytes += caches_bytes(__atomic_load_n(&thread->count, __ATOMIC_RELAXED));
    return bytes;
}

bool slab_grace(bool patient)
{
    return slab_visit_all(NULL, NULL, patient);
}

/* ---- the child of a fork ---- */

/* Also a thread without a record has gates. */
static bool is_in_gate(void)
{
    return is_inside(slab_thread_self, slab_gates);
}

bool slab_thread_is_amid(void)
{
    bool amid = is_in_gate();
    for (int rank = LOCK_REGISTRY; rank <= LOCK_RECORDS; rank++)
        amid |= lock_mine[rank] != NULL;
    return amid && !os_is_copy(); /* nobody goes on with it there */
}

/* What was being done to them is not known: they have nothing, and it comes back with the rest. */
static void caches_begin_anew(const struct slab_thread *thread)
{
    for (uint32_t id = 0; id < thread->count; id++)
        if (cache_at(thread, id)->slab)
            slab_cache_init(cache_at(thread, id), cache_at(thread, id)->slab);
}

struct slab_thread *slab_thread_of(const char *thread_pointer)
{
    struct slab_thread *thread = threads_first();
    while (thread != &thread_shared && !record_is_of(&thread->record, thread_pointer))
        thread = thread->record.next;
    return thread;
}

/* True: a thread that is no more was inside an operation. */
bool slab_threads_after_fork(bool goes_on)
{
    bool inside = records_after_fork(&records);
    bias_after_fork();
    if (!goes_on) {
        holding = NULL;
        locking = NULL;
    }
    for (struct slab_thread *thread = threads_first(); thread; thread = thread->record.next) {
        bool torn = lock_reset_others(&thread->lock);
        if (!record_is_used(&thread->record)) {
            torn |= is_inside(thread, thread->gates); /* its storage is still where it was: no thread has begun since */
            u32_store_relaxed(&thread->active, 0);
            thread->gates = NULL;
        }
        if (torn && !(goes_on && thread == slab_thread_self && is_in_gate())) /* who had the lock was waiting, and changed nothing */
            caches_begin_anew(thread);
        inside |= torn;
    }
    return inside;
}

void slab_threads_adopt(bool anew)
{
    bool without = !bias_works();
    for (struct slab_thread *thread = threads_first(); thread; thread = thread->record.next) {
        bool gone = !record_is_used(&thread->record);
        for (uint32_t id = 0; id < thread->count; id++) {
            struct slab_cache *cache = cache_at(thread, id);
            if (cache->slab && anew)
                slab_cache_init(cache, cache->slab);
            else if (cache->slab && (gone || without))
                slab_cache_flush(cache, false);
            if (without)
                slab_cache_init(cache, NULL); /* its slab may end without asking here */
        }
        if (gone)
            slab_thread_detach(thread);
        if (thread != &thread_shared) { /* which has none */
            gates_close(thread);
            gates_open(thread);
        }
    }
}

static const ANCHORS struct layout_anchor record_anchors[] = {{"records.all", &records.all}};
