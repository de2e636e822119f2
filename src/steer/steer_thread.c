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
THREAD_LOCAL const struct steer_chunk *steer_counting __attribute__((tls_model("initial-exec")));
static THREAD_LOCAL bool steer_asks_no_more __attribute__((tls_model("initial-exec"))); /* for a record: it has one, is getting one, or had one */

static void record_begin(void *record);
static void thread_end(void *record);
static struct records records = {.lock = LOCK_INIT(LOCK_STEER_THREADS), .begin = record_begin, .end = thread_end};

struct steer_thread *steer_threads(void)
{
    return records_first(&records);
}

static void record_begin(void *record)
{
    ((struct steer_thread *)record)->hot_part = STEER_NO_PART;
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

static void thread_end(void *record)
{
    struct steer_thread *self = record;
    steer_self = &steer_nobody;
    self->hot_part = STEER_NO_PART;
    for (uint32_t i = 1; i <= steer_plan.pools; i++)
        lane_leave(&steer_plan.pool[i], &self->lane[i]);
    record_delete(&records, self);
}

/* Registering may allocate: that block is the heap's. */
struct steer_thread *steer_thread_get(void)
{
    if (likely(steer_self != &steer_nobody))
        return steer_self;
    if (steer_asks_no_more)
        return NULL;
    steer_asks_no_more = true;
    struct steer_thread *record = record_new(&records);
    steer_asks_no_more = record != NULL;
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
        uint64_t live = steer_chunk_live(chunk, &blocks);
        u64_store_relaxed(&chunk->balance, chunk == steer_counting ? live + TAG_MAX + 1 : live); /* this thread may count a block once more: it never comes to 0 */
        addr_store_relaxed(&chunk->owner, 0);
    }
    memset(lane, 0, sizeof *lane);
}

/* An empty chunk among them stays lost: the sources may not be in order yet. */
void steer_threads_after_fork(void)
{
    (void)records_after_fork(&records);
    for (struct steer_thread *thread = steer_threads(); thread; thread = thread->record.next) {
        if (record_is_used(&thread->record))
            continue;
        for (uint32_t i = 1; i <= steer_plan.pools; i++)
            lane_after_fork(&steer_plan.pool[i], &thread->lane[i]);
        thread->hot_part = STEER_NO_PART;
    }
}

void steer_threads_start(void)
{
    records.bytes = align_up(sizeof(struct steer_thread) + (TARGET_SITE + steer_plan.sites) * sizeof(struct steer_count), CACHE_LINE_BYTES);
}
