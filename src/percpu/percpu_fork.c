// SPDX-License-Identifier: MIT
/*
 * percpu_fork.c - the child of a fork puts its pools in order.
 *
 * Only the thread that forked is left; the others' chunks become home's.  If one of them was inside, or held a lock, every list is made anew from
 * what is always whole: the list of a pool's chunks, and the bits of their maps.
 *
 *     hints, room, class                    from the bits (bitmap_rebuild)
 *     lists, sums                           from the chunks and their owners
 *     inboxes                               as they are: a free is in one, or was never made
 *
 * What such a thread was about to hand out, or to free, is lost to the child: one object for each thread, and those of an inbox that it was emptying, 64
 * at most; one chunk's addresses at most that was coming or going.
 *
 * The thread that forked may itself be inside, by a signal's handler, and goes on when that returns: what it is inside of, a chunk that it has in its hands,
 * sums that it is changing, and an inbox that it is putting into are left as they are.
 *
 * Locks: none: there is one thread.  Not here: the parent, which notices nothing.
 */
#include <string.h>

#include "os/os.h"
#include "pages/source_fork.h"
#include "percpu/percpu_page.h"

/* A page that was being cut or given up has no object: it is nobody's. */
static void pages_repair(struct percpu_chunk *chunk)
{
    chunk->room = 0;
    for (size_t i = 0; i < chunk->pool->room[chunk->grain]; i++) {
        struct percpu_page *page = percpu_page_of(chunk, i);
        uint32_t free = 0;
        page->filled = 0;
        for (unsigned w = 0; w < page->free_words && page->words; w++) {
            free += bits_count(page->free[w]);
            page->filled |= (uint32_t)(page->free[w] != 0) << w;
        }
        page->used = (uint16_t)(page->words ? page->slots - free : 0);
        if (page->used == 0 || bits_test(chunk->free_pages, i)) {
            memset(page->free, 0, page->free_words * sizeof *page->free);
            page->words = 0;
            page->used = 0;
            page->filled = 0;
            bits_set_one(chunk->free_pages, i);
            chunk->room++;
        }
    }
    chunk->class = percpu_class_floor(chunk->room);
}

static void map_repair(struct percpu_chunk *chunk)
{
    size_t bytes;
    bitmap_rebuild(&chunk->map);
    chunk->edge_log2 = chunk->bit_log2;
    chunk->class = percpu_class_floor(bitmap_longest_hint(&chunk->map));
    chunk->room = (uint32_t)chunk->pool->room[chunk->grain];
    for (size_t at = percpu_chunk_next(chunk, 0, &bytes); at != SIZE_MAX; at = percpu_chunk_next(chunk, at + bytes, &bytes))
        chunk->room -= (uint32_t)(bytes >> WORD_LOG2);
}

static void local_empty(struct percpu_local *local)
{
    const size_t from = offsetof(struct percpu_local, filled), to = offsetof(struct percpu_local, objects_peak);
    local->objects_peak -= percpu_objects(local) < local->objects_peak ? percpu_objects(local) : local->objects_peak; /* each chunk brings its own again */
    memset((char *)local + from, 0, to - from);
    local->allocs = local->frees;
    if (local->seen)
        memset(local->seen, 0, PERCPU_SEEN * sizeof(struct percpu_chunk *));
}

/* The locks that this thread holds; NULL: none. */
static const struct lock *my_inbox, *my_pool;

/* 1: this thread is changing the pool, and has not just begun, or ended. */
static uint32_t my_changes(const struct quire_percpu *pool)
{
    return percpu_amid.pool == pool && u32_load_relaxed(&pool->changing) != 0;
}

/* All lists anew, but for what this thread is inside of.  A chunk that has no owner was about to get its first one. */
static void pool_rebuild(struct quire_percpu *pool)
{
    size_t mapped = pool->span.bytes, meta = pool->span.bytes, chunks = 0;
    for (struct percpu_local *local = percpu_locals(pool); local; local = local->next) {
        if (!percpu_is_mine_and_inside(local))
            local_empty(local);
        mapped += local->span.bytes;
        meta += local->span.bytes;
    }
    if (&pool->lock != my_pool) /* else this thread is putting one on it, or taking one off, and goes on with that */
        percpu_all_mend(pool->all);
    for (struct percpu_chunk *chunk = pool->all; chunk; chunk = chunk->all_next) {
        struct percpu_local *owner = percpu_owner(chunk);
        owner = owner ? owner : &pool->home;
        if (!percpu_is_mine_and_inside(owner) && chunk != percpu_amid.chunk) {
            (percpu_is_paged(chunk->grain) ? pages_repair : map_repair)(chunk);
            percpu_chunk_link(owner, chunk);
        }
        mapped += chunk->span.bytes + chunk->meta.bytes;
        meta += chunk->meta.bytes;
        chunks++;
    }
    if (my_changes(pool) != 0)
        return; /* sums that it has begun to change */
    account_set(&pool->account, meta);
    size_store_relaxed(&pool->account.mapped_bytes, mapped);
    size_store_relaxed(&pool->chunks, chunks);
}

/* A local whose thread is gone: home has its chunks from now on, if it can take them, and it serves a later thread. */
static void local_orphan(struct quire_percpu *pool, struct percpu_local *local)
{
    bool is_mine = percpu_is_mine_and_inside(local) || &local->inbox_lock == my_inbox; /* what it puts there still, its next owner takes out */
    addr_store_relaxed(&local->thread, 0);
    if (!is_mine)
        percpu_inbox_drain(local);
    if (!is_mine && !percpu_is_mine_and_inside(&pool->home))
        percpu_chunks_move(local, &pool->home);
    local->unused_next = pool->unused;
    pool->unused = local;
}

static bool pool_reset(struct quire_percpu *pool)
{
    uint32_t changing = u32_load_relaxed(&pool->changing), mine = my_changes(pool);
    bool inside = (&pool->lock != my_pool && lock_reset(&pool->lock)) || changing != mine;
    if (mine == 0)
        u32_store_relaxed(&pool->changing, 0); /* else what others were changing stays in the sums, and nobody checks these */
    for (struct percpu_local *local = percpu_locals(pool); local; local = local->next) {
        bool is_mine = percpu_is_mine_and_inside(local);
        uint32_t active = u32_load_relaxed(&local->bias.active);
        inside |= bias_reset(&local->bias) && !is_mine;
        u32_store_relaxed(&local->bias.active, is_mine ? active : 0);
        inside |= &local->inbox_lock != my_inbox && lock_reset(&local->inbox_lock);
    }
    for (int i = 0; i < PERCPU_LIST_LOCKS; i++)
        u32_store_relaxed(&pool->list_lock[i].word, 0);
    return inside;
}

static NOINLINE void pools_after_fork(void)
{
    struct lock_notes notes;
    bool lists = lock_is_mine(&percpu_pools.lock), inside = percpu_threads_after_fork();
    lock_set_aside(&notes);
    my_inbox = notes.mine[LOCK_PERCPU_INBOX];
    my_pool = notes.mine[LOCK_PERCPU_POOL];
    bias_after_fork();
    percpu_give_chunks(false);
    inside |= !lists && lock_reset_others(&percpu_pools.lock);
    if (!lists)
        pools_mend(percpu_first);
    bool lost = inside;
    for (struct quire_percpu *pool = percpu_first; pool; pool = pool->next) {
        if (pool_reset(pool) || inside) {
            pool_rebuild(pool);
            lost = true;
        }
        pool->unused = NULL;
        for (struct percpu_local *local = percpu_locals(pool); local; local = local->next) {
            if (addr_load_relaxed(&local->thread) == (uintptr_t)percpu_thread_self)
                bias_open(&local->bias);
            else if (!percpu_is_pools_own(local))
                local_orphan(pool, local);
        }
    }
    percpu_give_chunks(true);
    if (lost)
        source_fork_lose();
    lock_take_up(&notes);
}

/* Where there was no pool, and none was being made, the child copies no page for us. */
static void after_fork(void)
{
    if (percpu_pools.births != 0 || lock_held(&percpu_pools.lock))
        pools_after_fork();
}

static __attribute__((constructor)) void percpu_at_load(void)
{
    (void)os_after_fork_in_child(after_fork);
}
