// SPDX-License-Identifier: MIT
/*
 * percpu_thread.c - which thread has which local, and what it is inside of.
 *
 *     percpu_thread_self ---> table[pool id] ---> local      made when the thread has allocated some objects (PERCPU_FEW)
 *
 * A thread that ends gives its chunks to home, where the others find them, and its locals, empty, to later threads.  A thread that cannot have a
 * table (no memory, or it is in its last destructors) works in home.
 *
 * Invariant T1: a local with a thread stands in that thread's table and in no other.
 *
 * Locks: the pools' lock against pools that end; records (owner/record.c), for the list of tables.  Not here: what is done inside.
 */
#include "os/os.h"
#include "pages/reaper.h"
#include "pages/source_internal.h"
#include "percpu/percpu_internal.h"

/* Empty tables, never written: of threads that have none yet, and of threads that have ended but for destructors of others. */
static struct percpu_thread thread_none, thread_ended;
THREAD_LOCAL struct percpu_thread *percpu_thread_self __attribute__((tls_model("initial-exec"))) = &thread_none;

static void thread_end(void *thread);
static struct records records = {.lock = LOCK_INIT(LOCK_PERCPU_RECORDS), .bytes = sizeof(struct percpu_thread), .end = thread_end};

/* What this thread is inside of, for percpu_refuse(): its own local and home at most. */
enum { HELD_MAX = 3 };
static THREAD_LOCAL struct percpu_local *held[HELD_MAX] __attribute__((tls_model("initial-exec")));
static THREAD_LOCAL unsigned held_count __attribute__((tls_model("initial-exec")));
THREAD_LOCAL struct percpu_amid percpu_amid __attribute__((tls_model("initial-exec")));

void percpu_release(struct percpu_local *local)
{
    held_count--;
    bias_drop(&local->bias, percpu_has_thread(local));
}

void percpu_let_go(void)
{
    while (held_count > 0)
        percpu_release(held[held_count - 1]);
}

void percpu_visit(struct percpu_local *local)
{
    if (addr_load_relaxed(&local->thread) == (uintptr_t)percpu_thread_self)
        bias_take(&local->bias); /* the thread that it favours is not inside */
    else
        bias_visit(&local->bias);
    held[held_count++] = local;
}

bool percpu_visit_try(struct percpu_local *local)
{
    if (!lock_try(&local->bias.lock))
        return false;
    held[held_count++] = local; /* for the child of a fork, too */
    return true;
}

struct percpu_local *percpu_visit_next(const struct quire_percpu *pool, struct percpu_local *local)
{
    struct percpu_local *next = local ? local->next : percpu_locals(pool);
    if (local)
        percpu_release(local);
    if (next) {
        percpu_visit(next);
        percpu_inbox_drain(next);
    }
    return next;
}

/* ---- tables ---- */

/* Its chunks are home's from now on; nobody puts anything into its inbox any more. */
static void local_leave(struct percpu_local *local)
{
    struct quire_percpu *pool = local->pool;
    bias_take(&local->bias);
    held[held_count++] = local;
    lock_take(&local->inbox_lock);
    addr_store_relaxed(&local->thread, 0);
    lock_drop(&local->inbox_lock);
    percpu_inbox_drain(local);
    percpu_empties_give(local, NULL);
    percpu_visit(&pool->home);
    percpu_chunks_move(local, &pool->home);
    percpu_release(&pool->home);
    percpu_release(local);
    lock_take(&pool->lock);
    local->unused_next = pool->unused;
    pool->unused = local;
    lock_drop(&pool->lock);
}

/* No handler forks meanwhile: the child would give others what this thread is about to give up. */
static void thread_end(void *record)
{
    struct percpu_thread *thread = record;
    struct os_signals before;
    os_signals_hold(&before);
    percpu_thread_self = &thread_ended;
    registry_lock(&percpu_pools);
    for (struct quire_percpu *pool = percpu_first; pool; pool = pool->next)
        if (thread->table[pool->id]) {
            local_leave(thread->table[pool->id]);
            thread->table[pool->id] = NULL;
        }
    registry_unlock(&percpu_pools);
    record_delete(&records, thread);
    os_signals_let(&before);
    reaper_thread_ends();
}

/* This thread's table; NULL: it cannot have one. */
static struct percpu_thread *thread_get(void)
{
    struct percpu_thread *thread = percpu_thread_self;
    if (likely(thread != &thread_none))
        return thread == &thread_ended ? NULL : thread;
    thread = record_new(&records); /* address space: the table is touched as far as it is used */
    if (thread)
        percpu_thread_self = thread;
    return thread;
}

/* ---- locals ---- */

static struct percpu_local *local_new(struct quire_percpu *pool)
{
    struct quire_span span;
    size_t bytes = align_up(sizeof(struct percpu_local) + PERCPU_SEEN * sizeof(struct percpu_chunk *), os_page_bytes());
    /* Under a limit a set of chunks without room for a chunk would be no use; and many threads' sets would leave no room for one. */
    size_t chunk_bytes = ((size_t)pool->units << pool->window.unit_shift) + align_up(pool->chunk_meta_bytes[0], os_page_bytes());
    if (!account_charge_leaving(&pool->account, bytes, chunk_bytes, pool))
        return NULL;
    struct percpu_local *local = source_own_take(bytes, &span);
    if (!account_settle(&pool->account, bytes, local != NULL))
        return NULL;
    local->seen = (struct percpu_chunk **)(void *)(local + 1);
    local->span = span;
    size_add_relaxed(&pool->account.meta_bytes, bytes);
    return local;
}

static struct percpu_local *local_get(struct quire_percpu *pool)
{
    lock_take(&pool->lock);
    struct percpu_local *local = pool->unused;
    if (local)
        pool->unused = local->unused_next;
    lock_drop(&pool->lock);
    if (local)
        return local;
    percpu_change_begin(pool);
    local = local_new(pool);
    if (local) {
        lock_take(&pool->lock);
        percpu_local_init_locked(pool, local, LOCK_PERCPU_LOCAL);
        lock_drop(&pool->lock);
    }
    percpu_change_end(pool);
    return local;
}

/* The thread's first call of this pool: its local, or home.  A record, or a local, that nobody can see to be this thread's yet is not for a
 * handler that forks: the child would give it to others. */
static struct percpu_local *newcomer(struct quire_percpu *pool)
{
    struct os_signals before;
    os_signals_hold(&before);
    struct percpu_thread *thread = thread_get();
    struct percpu_local *local = thread ? local_get(pool) : NULL;
    if (local) {
        addr_store_relaxed(&local->thread, (uintptr_t)thread);
        thread->table[pool->id] = local;
    }
    os_signals_let(&before);
    return local ? local : &pool->home;
}

/* Chunks of its own are worth their bookkeeping, some 100 KiB, to a thread that allocates much: until then it works in home. */
uint32_t percpu_few = PERCPU_FEW; /* a variable, for tests */
static bool is_worth_a_local(void)
{
    static THREAD_LOCAL uint32_t asked __attribute__((tls_model("initial-exec")));
    return asked >= percpu_few || ++asked > percpu_few;
}

struct percpu_local *percpu_hold(struct quire_percpu *pool)
{
    struct percpu_local *local = percpu_mine(pool);
    if (unlikely(!local))
        local = is_worth_a_local() ? newcomer(pool) : &pool->home;
    percpu_visit(local);
    return local;
}

void percpu_thread_forget(struct quire_percpu *pool)
{
    for (struct percpu_local *local = percpu_locals(pool); local; local = local->next) {
        struct percpu_thread *thread = (struct percpu_thread *)addr_load_relaxed(&local->thread);
        if (thread)
            thread->table[pool->id] = NULL;
    }
}

/* ---- the child of a fork ---- */

/* A thread that forks inside an operation (from a signal handler) goes on with it in the child. */
bool percpu_is_mine_and_inside(const struct percpu_local *local)
{
    bool is_held = addr_load_relaxed(&local->thread) == (uintptr_t)percpu_thread_self && u32_load_relaxed(&local->bias.active) != 0;
    for (unsigned i = 0; i < held_count; i++)
        is_held |= held[i] == local;
    return is_held && !os_is_copy();
}

/* This thread is the only one left: the others' tables are empty. */
bool percpu_threads_after_fork(void)
{
    bool inside = records_after_fork(&records);
    if (os_is_copy()) { /* nobody goes on with it there */
        held_count = 0;
        percpu_amid = (struct percpu_amid){.pool = NULL};
    }
    for (struct percpu_thread *thread = records_first(&records); thread; thread = thread->record.next) {
        if (record_is_used(&thread->record))
            continue;
        for (struct quire_percpu *pool = percpu_first; pool; pool = pool->next)
            thread->table[pool->id] = NULL;
    }
    return inside;
}
