// SPDX-License-Identifier: MIT
/*
 * steer_thread.c - which thread has which record.
 *
 *     steer_self ---> steer_nobody (empty lanes: every block goes the long way) ---> a record, at the first block of a steered site
 *
 * A thread that ends shares its chunks and leaves its record, with what it counted, to a later one.  In the child of a fork the other threads'
 * chunks are shared, too, counted anew by their tags: what such a thread was about to hand out is lost to the child, one block a thread.
 * The forking thread's own are not, since a handler may have forked in the middle of its work: where another was just freeing one of its blocks, that
 * chunk is lost to the child.
 *
 * Invariant: a lane's list is whole when it is followed forwards, at any moment, so that a fork may come between any two instructions.
 *
 * Locks: steer threads, for the list of records.
 */
#include <string.h>

#include "os/os.h"
#include "steer/steer_internal.h"

struct steer_thread steer_nobody; /* steer_start() fills it in */
THREAD_LOCAL struct steer_thread *steer_self __attribute__((tls_model("initial-exec"))) = &steer_nobody;
static THREAD_LOCAL uint32_t steer_state __attribute__((tls_model("initial-exec")));
enum { STATE_NEW, STATE_REGISTERING, STATE_REGISTERED, STATE_ENDED };

static struct lock threads_lock = LOCK_INIT(LOCK_STEER_THREADS);
static atomic_addr threads;
static struct steer_thread *idle;

struct steer_thread *steer_threads(void)
{
    return (struct steer_thread *)addr_load_acquire(&threads); /* acquire [steer-threads] */
}

static void lane_leave(struct steer_pool *pool, struct steer_lane *lane)
{
    steer_waste_leave(pool, lane);
    while (lane->chunks) {
        struct steer_chunk *chunk = lane->chunks;
        if (chunk == lane->chunk)
            steer_chunk_count(chunk, steer_lane_used(lane));
        steer_chunk_share(lane, chunk);
    }
    memset(lane, 0, sizeof *lane);
}

static void thread_end(void *unused)
{
    (void)unused;
    struct steer_thread *self = steer_self;
    steer_state = STATE_ENDED;
    steer_self = &steer_nobody;
    if (self == &steer_nobody)
        return;
    self->hot_part = STEER_NO_PART;
    for (uint32_t i = 1; i <= steer_plan.pools; i++)
        lane_leave(&steer_plan.pool[i], &self->lane[i]);
    lock_take(&threads_lock);
    self->idle_next = idle;
    idle = self;
    lock_drop(&threads_lock);
}

static struct steer_thread *record_new(void)
{
    void *memory;
    size_t bytes = sizeof(struct steer_thread) + (TARGET_SITE + steer_plan.sites) * sizeof(struct steer_count);
    if (os_map(align_up(bytes, os_page_bytes()), os_page_bytes(), &memory) != 0)
        return NULL;
    struct steer_thread *record = memory;
    record->hot_part = STEER_NO_PART;
    lock_take(&threads_lock);
    record->next = (struct steer_thread *)addr_load_relaxed(&threads);
    addr_store_release(&threads, (uintptr_t)record); /* release [steer-threads] */
    lock_drop(&threads_lock);
    return record;
}

static struct steer_thread *record_take_over(void)
{
    lock_take(&threads_lock);
    struct steer_thread *record = idle;
    if (record)
        idle = record->idle_next;
    lock_drop(&threads_lock);
    return record;
}

/* Registering may allocate: that block is the heap's. */
struct steer_thread *steer_thread_get(void)
{
    if (likely(steer_self != &steer_nobody))
        return steer_self;
    if (steer_state == STATE_NEW) {
        steer_state = STATE_REGISTERING;
        steer_state = os_at_thread_exit(thread_end, &steer_state) == 0 ? STATE_REGISTERED : STATE_NEW;
    }
    if (steer_state != STATE_REGISTERED)
        return NULL;
    struct steer_thread *record = record_take_over();
    if (!record)
        record = record_new();
    if (record)
        steer_self = record;
    return record;
}

static void lane_after_fork(struct steer_pool *pool, struct steer_lane *lane)
{
    steer_waste_leave(pool, lane);
    for (struct steer_chunk *chunk = lane->chunks, *next; chunk; chunk = next) {
        uint64_t blocks;
        next = chunk->next;
        chunk->epoch = 0;
        u64_store_relaxed(&chunk->balance, steer_chunk_live(chunk, &blocks));
        addr_store_relaxed(&chunk->owner, 0);
    }
    memset(lane, 0, sizeof *lane);
}

/* An empty chunk among them stays lost: the sources may not be in order yet. */
void steer_threads_after_fork(void)
{
    lock_reset(&threads_lock);
    idle = NULL;
    for (struct steer_thread *record = steer_threads(); record; record = record->next) {
        if (record == steer_self)
            continue;
        for (uint32_t i = 1; i <= steer_plan.pools; i++)
            lane_after_fork(&steer_plan.pool[i], &record->lane[i]);
        record->hot_part = STEER_NO_PART;
        record->idle_next = idle;
        idle = record;
    }
}
