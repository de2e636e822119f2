// SPDX-License-Identifier: MIT
/*
 * slab_thread.c - which thread has which pages, and how another gets at them.
 *
 *     thread T                                       visitor (trim, statistics, walk, the clock)
 *     active = 1                                     take T's lock
 *     id < limit ?  no: the long way, with the lock  limit = 0
 *     ... at its own pages, no atomic instruction    os_barrier(): T has seen limit 0, or is seen active
 *     active = 0                                     wait until active is 0; the same once more for the cache of pages
 *                                                    ... at T's pages
 *                                                    limit = as before; drop T's lock
 *
 * A lock that favours its thread: the thread pays two stores, the visitor a system call.  Where the system has no such barrier, and when a
 * sanitizer watches, the limit is 0 for good and every operation takes the thread's lock.
 *
 * A thread's record outlives it and serves a later thread.  A thread that has ended leaves its locals to the next that comes to the slab; until
 * then they are nobody's, and whoever wants in takes the local's own lock.  Threads that cannot have a record (no memory, or they are in their
 * last destructors) share one, under its lock.
 *
 * Invariants:
 *   T1  a local is one thread's, or nobody's
 *   T2  local->thread changes only under the thread's lock and the local's
 *   T3  a thread inside an operation holds no lock of rank LOCK_THREAD or lower, and waits for none
 *
 * Locks: registry (slab_registry.c) < a thread's < a local's < a slab's < records.  Not here: what is done inside.
 */
#include <errno.h>

#include "base/align.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"

enum { PATIENCE_SPINS = 100, NAP_NS = 50000 };

/* Not yet known, and known no longer. */
#define NONE_4 &slab_page_none, &slab_page_none, &slab_page_none, &slab_page_none
#define NONE_16 NONE_4, NONE_4, NONE_4, NONE_4
#define NONE_32 NONE_16, NONE_16
#define NONE_128 {NONE_32, NONE_32, NONE_32, NONE_32}
STATIC_ASSERT(SLAB_CACHE == 128, "as many as NONE_128 names");
struct slab_page slab_page_none;
struct slab_local slab_local_none;
static struct slab_thread thread_none = {.cache = NONE_128};
static union {
    struct slab_thread record;
    char memory[SLAB_RECORD_BYTES];
} shared = {.record = {.cache = NONE_128}};
#define thread_shared (shared.record)
THREAD_LOCAL struct slab_thread *slab_thread_self __attribute__((tls_model("initial-exec"))) = &thread_none;


static struct {
    struct lock lock;
    atomic_addr all; /* struct slab_thread *: only grows */
    struct slab_thread *unused;
    atomic_u32 ready; /* 0 not asked, 1 barriers work, 2 they do not */
} records = {.lock = LOCK_INIT(LOCK_RECORDS)};

/* What this thread is inside of, for slab_refuse(): the record that it has locked for an operation of its own, and its visits. */
static THREAD_LOCAL struct slab_thread *holding __attribute__((tls_model("initial-exec")));
static THREAD_LOCAL struct slab_visit *visiting __attribute__((tls_model("initial-exec")));

static struct slab_thread *records_first(void)
{
    return (struct slab_thread *)addr_load_acquire(&records.all); /* acquire [slab-records] */
}

static void record_publish_locked(struct slab_thread *thread)
{
    thread->lock.rank = LOCK_THREAD;
    thread->next = records_first();
    addr_store_release(&records.all, (uintptr_t)thread); /* release [slab-records] */
}

void slab_threads_setup(void)
{
    lock_take(&records.lock);
    if (u32_load_relaxed(&records.ready) == 0) {
        bool barriers = os_barrier_init() == 0 && !sanitize_watched() && !sanitize_race_watched();
        record_publish_locked(&thread_shared);
        u32_store_release(&records.ready, barriers ? 1 : 2); /* release [slab-ready] */
    }
    lock_drop(&records.lock);
}

static bool barriers_work(void)
{
    return u32_load_acquire(&records.ready) == 1; /* acquire [slab-ready] */
}

/* Wait until the thread is outside; false: not within our patience. */
static bool wait_inactive(const struct slab_thread *thread, bool patient)
{
    if (thread == &thread_shared)
        return true; /* it works under its lock only */
    for (int i = 0; u32_load_acquire(&thread->active) != 0; i++) { /* acquire [slab-active] */
        if (i < PATIENCE_SPINS)
            cpu_pause();
        else if (patient)
            os_sleep_ns(NAP_NS);
        else
            return false; /* it waits for a CPU: a nap may cost us a time slice, and there are other threads to see */
    }
    return true;
}

/* The thread has seen what we wrote, and what it was doing has ended. */
static bool barrier_with(const struct slab_thread *thread, bool patient)
{
    if (thread == slab_thread_self)
        return true;
    if (barriers_work())
        os_barrier();
    return wait_inactive(thread, patient);
}

/* ---- a thread's record ---- */

static uint32_t limit_of(const struct slab_thread *thread)
{
    return barriers_work() && thread != &thread_shared ? thread->count : 0;
}

/* Both ends of a locked operation or visit. */
static void thread_lock(struct slab_thread *thread)
{
    lock_take(&thread->lock);
}

static void thread_unlock(struct slab_thread *thread)
{
    u32_store_release(&thread->limit, limit_of(thread)); /* release [slab-limit] */
    lock_drop(&thread->lock);
}

static void cache_clear(struct slab_thread *thread)
{
    for (int i = 0; i < SLAB_CACHE; i++)
        thread->cache[i] = &slab_page_none;
}

static struct slab_thread *record_new(void)
{
    struct slab_thread *thread = NULL;
    void *memory;
    lock_take(&records.lock);
    if (records.unused) {
        thread = records.unused;
        records.unused = thread->free_next;
    } else if (os_map(align_up(SLAB_RECORD_BYTES, os_page_bytes()), os_page_bytes(), &memory) == 0) {
        thread = memory; /* address space: the table is touched as far as it is used */
        cache_clear(thread);
        record_publish_locked(thread);
    }
    lock_drop(&records.lock);
    return thread;
}

static void record_delete(struct slab_thread *thread)
{
    lock_take(&records.lock);
    thread->free_next = records.unused;
    records.unused = thread;
    lock_drop(&records.lock);
}

/* The thread gives a local up, with all in it, for the next that comes. */
static void unbind(struct slab_thread *thread, uint32_t id)
{
    struct slab_local *local = thread->table[id];
    struct quire_slab *slab = local->slab;
    slab_drain(local);
    for (unsigned lane = 0; lane < SLAB_LANES; lane++)
        slab_lane_detach(local, lane);
    bool left = local->empties != 0;
    lock_take(&local->lock);
    local->cache = NULL;
    thread->table[id] = &slab_local_none;
    thread->bound--;
    addr_store_relaxed(&local->thread, 0);
    lock_drop(&local->lock);
    local->unbound_next = NULL;
    slab_unbound_push(slab, local);
    if (left)
        slab_wake(slab);
}

/* The thread ends; what its later destructors do goes through the shared record. */
static void thread_end(void *record)
{
    struct slab_thread *thread = record;
    slab_thread_self = &thread_shared;
    slab_registry_lock(); /* no slab is destroyed meanwhile */
    thread_lock(thread);
    holding = thread;
    u32_store_relaxed(&thread->limit, 0);
    cache_clear(thread);
    for (uint32_t id = 0; id < thread->count && thread->bound != 0; id++)
        if (thread->table[id] != &slab_local_none)
            unbind(thread, id);
    slab_drop(&(struct slab_hold){thread});
    slab_registry_unlock();
    record_delete(thread);
}

/* This thread's record, made if it has none yet. */
static struct slab_thread *thread_get(void)
{
    struct slab_thread *thread = slab_thread_self;
    if (likely(thread != &thread_none))
        return thread;
    thread = record_new();
    if (!thread)
        return &thread_shared;
    if (os_at_thread_exit(thread_end, thread) != 0) {
        record_delete(thread);
        return &thread_shared;
    }
    return slab_thread_self = thread;
}

/* The table is set as far as `id`; under the thread's lock. */
static void table_grow(struct slab_thread *thread, uint32_t id)
{
    while (thread->count <= id)
        thread->table[thread->count++] = &slab_local_none;
}

/* A local for the thread: one that an ended thread left, or a new one. */
static struct slab_local *bind(struct quire_slab *slab, struct slab_thread *thread)
{
    struct slab_local *local = slab_unbound_pop(slab);
    if (!local)
        local = slab_local_new(slab);
    if (!local)
        return NULL;
    lock_take(&local->lock); /* a visitor may be inside still */
    addr_store_release(&local->thread, (uintptr_t)thread); /* release [slab-bound] */
    lock_drop(&local->lock);
    local->cache = thread->cache;
    thread->table[slab->id] = local;
    thread->bound++;
    return local;
}

/* ---- operations the long way ---- */

struct slab_local *slab_hold(struct quire_slab *slab, struct slab_hold *hold, bool bound)
{
    slab_verify(slab);
    struct slab_thread *thread = hold->thread = thread_get();
    thread_lock(thread);
    holding = thread;
    table_grow(thread, slab->id); /* also for a thread that only frees: then it takes the short way from now on */
    struct slab_local *local = thread->table[slab->id];
    if (local == &slab_local_none && bound)
        local = bind(slab, thread);
    return local;
}

void slab_drop(struct slab_hold *hold)
{
    holding = NULL;
    thread_unlock(hold->thread);
}

void slab_refuse(const struct quire_slab *slab, const char *what, const void *address)
{
    /* The hook may look at other slabs: it must not find this thread inside. */
    u32_store_release(&slab_thread_self->active, 0); /* release [slab-active] */
    if (holding)
        slab_drop(&(struct slab_hold){holding});
    while (visiting)
        slab_visit_end(visiting);
    slab_registry_let_go();
    panic("slab", slab && slab->name[0] ? slab->name : NULL, what, address);
}

/* ---- visits ---- */

/* Nobody's, or one whose thread has its lock taken by us; T2 says that it stays so. */
static bool visit_lock(struct slab_visit *visit, bool patient)
{
    for (;;) {
        struct slab_thread *thread = visit->thread = (struct slab_thread *)addr_load_acquire(&visit->local->thread); /* acquire [slab-bound] */
        struct lock *lock = thread ? &thread->lock : &visit->local->lock;
        if (patient)
            lock_take(lock);
        else if (!lock_try(lock))
            return false;
        if ((struct slab_thread *)addr_load_relaxed(&visit->local->thread) == thread)
            return true;
        lock_drop(lock);
    }
}

/* Without a page in its cache the thread frees the long way.  An operation that had seen the old limit may have put one there since: again. */
static bool cache_close(struct slab_thread *thread, bool patient)
{
    uint32_t fills;
    do {
        fills = __atomic_load_n(&thread->fills, __ATOMIC_RELAXED);
        cache_clear(thread);
        if (!barrier_with(thread, patient))
            return false;
    } while (__atomic_load_n(&thread->fills, __ATOMIC_RELAXED) != fills);
    return true;
}

bool slab_visit_try(struct slab_visit *visit, struct slab_local *local, bool patient)
{
    visit->local = local;
    if (!visit_lock(visit, patient))
        return false;
    visit->outer = visiting;
    visiting = visit;
    if (visit->thread && u32_load_relaxed(&visit->thread->limit) != 0) {
        u32_store_relaxed(&visit->thread->limit, 0);
        if (!cache_close(visit->thread, patient)) {
            slab_visit_end(visit);
            return false;
        }
    }
    return true;
}

void slab_visit_begin(struct slab_visit *visit, struct slab_local *local)
{
    (void)slab_visit_try(visit, local, true);
}

void slab_visit_end(struct slab_visit *visit)
{
    visiting = visit->outer;
    if (visit->thread)
        thread_unlock(visit->thread);
    else
        lock_drop(&visit->local->lock);
}

/* Every operation that was going on when this was called has ended. */
static bool all_outside(bool patient)
{
    if (barriers_work())
        os_barrier();
    for (struct slab_thread *thread = records_first(); thread; thread = thread->next) {
        if (patient)
            lock_take(&thread->lock); /* whoever was inside the long way is out */
        else if (!lock_try(&thread->lock))
            return false;
        bool out = wait_inactive(thread, patient);
        lock_drop(&thread->lock);
        if (!out)
            return false;
    }
    return true;
}

bool slab_all_seem_outside(void)
{
    bool outside = true;
    for (struct slab_thread *thread = records_first(); thread && outside; thread = thread->next) {
        if (thread == slab_thread_self)
            continue;
        outside = u32_load_acquire(&thread->active) == 0 && !lock_held(&thread->lock); /* acquire [slab-active] */
    }
    return outside;
}

/* Twice: an operation that found a page while it was in use may remember it (thread->remote) after it is gone; one that began with what was
 * remembered may still look at it. */
bool slab_grace(bool patient)
{
    if (!all_outside(patient))
        return false;
    for (struct slab_thread *thread = records_first(); thread; thread = thread->next)
        addr_store_relaxed(&thread->remote, 0);
    return all_outside(patient);
}

/* ---- the child of a fork ---- */

/* This thread is the only one left: the others' locals are nobody's.  True: one of them was inside an operation. */
bool slab_threads_after_fork(void)
{
    struct slab_thread *self = slab_thread_self;
    bool inside = lock_reset(&records.lock);
    records.unused = NULL;
    if (u32_load_relaxed(&records.ready) == 1 && os_barrier_init() != 0)
        u32_store_relaxed(&records.ready, 2);
    for (struct slab_thread *thread = records_first(); thread; thread = thread->next) {
        inside |= lock_reset(&thread->lock);
        if (thread != self)
            inside |= u32_load_relaxed(&thread->active) != 0;
        u32_store_relaxed(&thread->active, 0);
        u32_store_relaxed(&thread->limit, limit_of(thread));
        cache_clear(thread);
        addr_store_relaxed(&thread->remote, 0);
        if (thread == self || thread == &thread_shared)
            continue;
        for (uint32_t i = 0; i < thread->count; i++)
            thread->table[i] = &slab_local_none;
        thread->bound = 0;
        thread->free_next = records.unused;
        records.unused = thread;
    }
    return inside;
}

bool slab_thread_is_left(const struct slab_thread *thread)
{
    return thread == slab_thread_self || thread == &thread_shared;
}
