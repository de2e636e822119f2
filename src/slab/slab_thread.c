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
 * Locks: registry (records and slabs) < a thread's < a local's < a slab's.  Not here: what is done inside.
 */
#include <errno.h>

#include "base/align.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"

enum { IDS_MAX = (SLAB_RECORD_BYTES - sizeof(struct slab_thread)) / sizeof(struct slab_local *) / WORD_BITS * WORD_BITS, PATIENCE_SPINS = 100, PATIENCE_NAPS = 20, NAP_NS = 50000 };

/* Not yet known, and known no longer. */
#define NONE_4 &slab_page_none, &slab_page_none, &slab_page_none, &slab_page_none
#define NONE_16 NONE_4, NONE_4, NONE_4, NONE_4
#define NONE_64 {NONE_16, NONE_16, NONE_16, NONE_16}
struct slab_page slab_page_none;
struct slab_local slab_local_none;
static struct slab_thread thread_none = {.cache = NONE_64};
static struct {
    struct slab_thread record;
    struct slab_local *table[SLAB_RECORD_BYTES / sizeof(struct slab_local *)];
} shared = {.record = {.cache = NONE_64}};
#define thread_shared (shared.record)
_Thread_local struct slab_thread *slab_thread_self __attribute__((tls_model("initial-exec"))) = &thread_none;


static struct {
    struct lock lock;
    struct slab_thread *threads, *unused;
    struct quire_slab *slabs;
    uint64_t ids[IDS_MAX / WORD_BITS];
    uint32_t ids_from; /* the first word that may have room */
    atomic_u32 ready;  /* 0 not asked, 1 barriers work, 2 they do not */
} registry = {.lock = LOCK_INIT(LOCK_REGISTRY)};
atomic_u32 slab_pending;

/* A number that no other live thread has, for the price of an address. */
static uintptr_t this_thread(void)
{
    return (uintptr_t)&slab_thread_self;
}

/* ---- the registry ---- */

void slab_registry_lock(void)
{
    lock_take(&registry.lock);
}

void slab_registry_unlock(void)
{
    lock_drop(&registry.lock);
}

struct quire_slab *slab_registry_first(void)
{
    return registry.slabs;
}

static void registry_setup_locked(void)
{
    if (u32_load_relaxed(&registry.ready) != 0)
        return;
    bool barriers = os_barrier_init() == 0 && !sanitize_watched() && !sanitize_race_watched();
    thread_shared.lock.rank = LOCK_THREAD;
    thread_shared.next = registry.threads;
    registry.threads = &thread_shared;
    u32_store_release(&registry.ready, barriers ? 1 : 2); /* release [slab-ready] */
}

static bool barriers_work(void)
{
    return u32_load_acquire(&registry.ready) == 1; /* acquire [slab-ready] */
}

static uint32_t id_new_locked(void)
{
    for (uint32_t w = registry.ids_from; w < IDS_MAX / WORD_BITS; w++) {
        uint64_t free = ~registry.ids[w] & (w == 0 ? ~UINT64_C(1) : ~UINT64_C(0)); /* 0 is what zeroed memory says */
        if (free) {
            registry.ids_from = w;
            registry.ids[w] |= free & -free;
            return w * WORD_BITS + bits_lowest(free);
        }
    }
    return SLAB_ID_NONE;
}

int slab_register(struct quire_slab *slab)
{
    lock_take(&registry.lock);
    registry_setup_locked();
    uint32_t id = id_new_locked();
    bool good = id != SLAB_ID_NONE;
    if (good) {
        slab->id = id;
        slab->prev = NULL;
        slab->next = registry.slabs;
        if (registry.slabs)
            registry.slabs->prev = slab;
        registry.slabs = slab;
    }
    lock_drop(&registry.lock);
    return good ? 0 : -ENOMEM;
}

/* Wait until the thread is outside; false: not within our patience. */
static bool wait_inactive(const struct slab_thread *thread, bool patient)
{
    if (thread == &thread_shared)
        return true; /* it works under its lock only */
    for (int i = 0; u32_load_acquire(&thread->active) != 0; i++) { /* acquire [slab-active] */
        if (i < PATIENCE_SPINS)
            cpu_pause();
        else if (patient || i < PATIENCE_SPINS + PATIENCE_NAPS)
            os_sleep_ns(NAP_NS);
        else
            return false;
    }
    return true;
}

/* The thread has seen what we wrote, and what it was doing has ended. */
static void barrier_with(const struct slab_thread *thread)
{
    if (thread == slab_thread_self)
        return;
    os_barrier();
    wait_inactive(thread, true);
}

/* The thread forgets a slab; by contract it is not inside it. */
static void forget(struct slab_local *local, uint32_t id)
{
    struct slab_visit visit;
    slab_visit_begin(&visit, local);
    if (visit.thread) {
        visit.thread->table[id] = &slab_local_none;
        visit.thread->bound--;
        local->cache = NULL;
    }
    slab_visit_end(&visit);
}

/* Threads that freed into its pages last still know one. */
static void forget_remote(const struct quire_slab *slab)
{
    for (struct slab_thread *thread = registry.threads; thread; thread = thread->next) {
        struct slab_page *page = (struct slab_page *)addr_load_relaxed(&thread->remote);
        if (page && page->slab == slab) {
            addr_store_relaxed(&thread->remote, 0);
            barrier_with(thread);
        }
    }
}

void slab_unregister(struct quire_slab *slab)
{
    lock_take(&registry.lock);
    uint32_t id = slab->id;
    slab->id = SLAB_ID_NONE;
    if (id != SLAB_ID_NONE) {
        for (struct slab_local *local = slab_locals(slab); local; local = local->next)
            forget(local, id);
        forget_remote(slab);
        registry.ids[id / WORD_BITS] &= ~(UINT64_C(1) << (id % WORD_BITS));
        if (id / WORD_BITS < registry.ids_from)
            registry.ids_from = id / WORD_BITS;
    }
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        registry.slabs = slab->next;
    if (slab->next)
        slab->next->prev = slab->prev;
    lock_drop(&registry.lock);
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
    lock_take(&registry.lock);
    registry_setup_locked();
    if (registry.unused) {
        thread = registry.unused;
        registry.unused = thread->free_next;
    } else if (os_map(align_up(SLAB_RECORD_BYTES, os_page_bytes()), os_page_bytes(), &memory) == 0) {
        thread = memory; /* address space: the table is touched as far as it is used */
        thread->lock.rank = LOCK_THREAD;
        cache_clear(thread);
        thread->next = registry.threads;
        registry.threads = thread;
    }
    lock_drop(&registry.lock);
    return thread;
}

static void record_delete(struct slab_thread *thread)
{
    lock_take(&registry.lock);
    thread->free_next = registry.unused;
    registry.unused = thread;
    lock_drop(&registry.lock);
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
    lock_take(&slab->lock);
    local->unbound_next = slab->unbound;
    slab->unbound = local;
    u32_add_relaxed(&slab->unbound_count, 1);
    lock_drop(&slab->lock);
    if (left)
        slab_wake(slab);
}

/* The thread ends; what its later destructors do goes through the shared record. */
static void thread_end(void *record)
{
    struct slab_thread *thread = record;
    slab_thread_self = &thread_shared;
    lock_take(&registry.lock); /* no slab is destroyed meanwhile */
    thread_lock(thread);
    u32_store_relaxed(&thread->limit, 0);
    cache_clear(thread);
    for (uint32_t id = 0; id < thread->count && thread->bound != 0; id++)
        if (thread->table[id] != &slab_local_none)
            unbind(thread, id);
    thread_unlock(thread);
    lock_drop(&registry.lock);
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
    lock_take(&slab->lock);
    struct slab_local *local = slab->unbound;
    if (local) {
        slab->unbound = local->unbound_next;
        u32_sub_relaxed(&slab->unbound_count, 1);
    }
    lock_drop(&slab->lock);
    if (!local)
        local = slab_local_new(slab);
    if (!local)
        return NULL;
    lock_take(&local->lock); /* a visitor may be inside still */
    addr_store_relaxed(&local->thread, (uintptr_t)thread);
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
    addr_store_relaxed(&thread->holder, this_thread());
    table_grow(thread, slab->id); /* also for a thread that only frees: then it takes the short way from now on */
    struct slab_local *local = thread->table[slab->id];
    if (local == &slab_local_none && bound)
        local = bind(slab, thread);
    return local;
}

void slab_drop(struct slab_hold *hold)
{
    addr_store_relaxed(&hold->thread->holder, 0);
    thread_unlock(hold->thread);
}

void slab_refuse(const struct quire_slab *slab, const char *what, const void *address)
{
    /* The hook may look at other slabs: it must not find this thread inside. */
    struct slab_thread *of[2] = {slab_thread_self, &thread_shared};
    u32_store_release(&of[0]->active, 0); /* release [slab-active] */
    for (int i = 0; i < 2; i++)
        if (addr_load_relaxed(&of[i]->holder) == this_thread())
            slab_drop(&(struct slab_hold){of[i]});
    panic("slab", slab && slab->name[0] ? slab->name : NULL, what, address);
}

/* ---- visits ---- */

void slab_visit_begin(struct slab_visit *visit, struct slab_local *local)
{
    visit->local = local;
    for (;;) {
        struct slab_thread *thread = visit->thread = (struct slab_thread *)addr_load_relaxed(&local->thread);
        struct lock *lock = thread ? &thread->lock : &local->lock;
        lock_take(lock);
        if ((struct slab_thread *)addr_load_relaxed(&local->thread) == thread)
            break;
        lock_drop(lock);
    }
    if (visit->thread && u32_load_relaxed(&visit->thread->limit) != 0) {
        u32_store_relaxed(&visit->thread->limit, 0);
        barrier_with(visit->thread); /* from here on it fills its cache no more */
        cache_clear(visit->thread);
        barrier_with(visit->thread); /* and from here on it finds nothing in it */
    }
}

void slab_visit_end(struct slab_visit *visit)
{
    if (visit->thread)
        thread_unlock(visit->thread);
    else
        lock_drop(&visit->local->lock);
}

bool slab_grace(bool patient)
{
    for (struct slab_thread *thread = registry.threads; thread; thread = thread->next)
        addr_store_relaxed(&thread->remote, 0); /* it can be set anew only to a page in use */
    if (barriers_work())
        os_barrier();
    for (struct slab_thread *thread = registry.threads; thread; thread = thread->next) {
        lock_take(&thread->lock); /* whoever was inside the long way is out */
        bool out = wait_inactive(thread, patient);
        lock_drop(&thread->lock);
        if (!out)
            return false;
    }
    return true;
}

/* ---- the child of a fork ---- */

/* This thread is the only one left: the others' locals are nobody's.  True: one of them was inside an operation. */
bool slab_threads_after_fork(void)
{
    struct slab_thread *self = slab_thread_self;
    bool inside = lock_reset(&registry.lock);
    registry.unused = NULL;
    if (u32_load_relaxed(&registry.ready) == 1 && os_barrier_init() != 0)
        u32_store_relaxed(&registry.ready, 2);
    for (struct slab_thread *thread = registry.threads; thread; thread = thread->next) {
        inside |= lock_reset(&thread->lock);
        addr_store_relaxed(&thread->holder, 0);
        if (thread != self)
            inside |= u32_load_relaxed(&thread->active) != 0;
        u32_store_relaxed(&thread->active, 0);
        u32_store_relaxed(&thread->limit, limit_of(thread));
        if (thread == self || thread == &thread_shared)
            continue;
        for (uint32_t i = 0; i < thread->count; i++)
            thread->table[i] = &slab_local_none;
        cache_clear(thread);
        addr_store_relaxed(&thread->remote, 0);
        thread->bound = 0;
        thread->free_next = registry.unused;
        registry.unused = thread;
    }
    return inside;
}

bool slab_thread_is_left(const struct slab_thread *thread)
{
    return thread == slab_thread_self || thread == &thread_shared;
}
