// SPDX-License-Identifier: MIT
/*
 * steer_chunk.c - one span of blocks: taken, shared, given back.
 *
 *     owned: used, left; balance = - grains freed by others --share--> shared: balance = live grains --0--> given back
 *                  '--left + balance == 0, found by the owner--> cleared (it is current), or given back
 *
 * The header and the tags stand at the front, a little further in each chunk than in the last, so that those of many chunks do not fall into one set
 * of the cache.
 *
 * Locks: a pool's, for its shared chunks.  Not here: blocks (steer_alloc.c, steer_free.c).
 */
#include <string.h>

#include "heap/heap_internal.h"
#include "os/os.h"
#include "steer/steer_internal.h"

enum { COLOURS = 8 };

/* A tag for each grain of the span; those of the blocks begin at chunk->tags. */
static void layout(struct steer_chunk *chunk, const struct quire_span *span)
{
    uint8_t *all = (uint8_t *)(chunk + 1);
    size_t front, grains = span->bytes >> STEER_GRAIN_SHIFT;
    chunk->span = *span;
    chunk->base = (char *)align_up((uintptr_t)all + grains, CACHE_LINE_BYTES);
    front = (size_t)(chunk->base - (char *)span->start) >> STEER_GRAIN_SHIFT;
    chunk->tags = all + front;
    chunk->bias = (uintptr_t)all - ((uintptr_t)span->start >> STEER_GRAIN_SHIFT);
    chunk->grains = (uint32_t)(grains - front);
}

/* What comes back from others' hands is not zero; of a fresh span nothing has to be written. */
static struct steer_chunk *chunk_begin(const struct quire_span *span)
{
    static atomic_u32 turn;
    struct steer_chunk *chunk = (struct steer_chunk *)(void *)((char *)span->start + u32_add_relaxed(&turn, 1) % COLOURS * (size_t)CACHE_LINE_BYTES);
    if ((span->flags & QUIRE_SPAN_ZERO) == 0)
        memset(chunk, TAG_NONE, sizeof *chunk + (span->bytes >> STEER_GRAIN_SHIFT));
    layout(chunk, span);
    return chunk;
}

struct steer_chunk *steer_chunk_take(unsigned pool_idx, struct steer_thread *owner)
{
    struct steer_pool *pool = &steer_plan.pool[pool_idx];
    struct quire_source *source = quire_source_default();
    struct quire_span span;
    size_t align_bytes = os_page_bytes() > STEER_CHUNK_MIN ? os_page_bytes() : STEER_CHUNK_MIN;
    if (source->verbs->take(source, pool->chunk_bytes, align_bytes, &span) != 0)
        return NULL;
    struct steer_chunk *chunk = chunk_begin(&span);
    chunk->pool = pool_idx;
    addr_store_relaxed(&chunk->owner, (uintptr_t)owner);
    if (pagemap_set(span.start, span.bytes, owner_make(chunk, OWNER_STEER)) != 0) {
        source->verbs->give(source, &span);
        return NULL;
    }
    size_max_relaxed(&pool->held_peak_bytes, size_add_relaxed(&pool->held_bytes, span.bytes) + span.bytes);
    return chunk;
}

/* Another thread still looks at it?  Nobody has a live block in it, and who has none has no business here. */
void steer_chunk_give(struct steer_chunk *chunk)
{
    struct quire_source *source = quire_source_default();
    struct quire_span span = chunk->span;
    steer_thread_forget(chunk);
    size_sub_relaxed(&steer_plan.pool[chunk->pool].held_bytes, span.bytes);
    pagemap_clear(span.start, span.bytes);
    source->verbs->give(source, &span);
}

void steer_chunk_clear(struct steer_chunk *chunk, size_t used)
{
    memset(chunk->tags, TAG_NONE, used);
    if (u64_load_relaxed(&chunk->balance) != 0)
        u64_store_relaxed(&chunk->balance, 0);
    chunk->left = 0;
    chunk->used = 0;
}

uint64_t steer_chunk_live(const struct steer_chunk *chunk, uint64_t *blocks)
{
    uint64_t live = 0;
    *blocks = 0;
    for (size_t i = 0; i < chunk->grains; i++) {
        unsigned tag = steer_tag(&chunk->tags[i]);
        if (tag != TAG_NONE && tag != TAG_FREED) {
            live += tag;
            ++*blocks;
        }
    }
    return live;
}

/* ---- shared ---- */

static void list_shared(struct steer_pool *pool, struct steer_chunk *chunk)
{
    lock_take(&pool->lock);
    chunk->epoch = pool->epoch;
    chunk->prev = NULL;
    chunk->next = pool->shared;
    if (chunk->next)
        chunk->next->prev = chunk;
    atomic_fence_signal(); /* the child of a fork follows it forwards */
    pool->shared = chunk;
    lock_drop(&pool->lock);
}

/* A chunk that was listed before a fork in the middle of listing is in no list any more. */
static void unlist_shared(struct steer_pool *pool, struct steer_chunk *chunk)
{
    lock_take(&pool->lock);
    if (chunk->epoch == pool->epoch) {
        *(chunk->prev ? &chunk->prev->next : &pool->shared) = chunk->next;
        if (chunk->next)
            chunk->next->prev = chunk->prev;
    }
    lock_drop(&pool->lock);
}

/*
 * By the count nothing lives in it.  Where several threads freed the tags decide: two frees of one block at the same moment may have been counted
 * both, and must not take a living block's memory away.
 */
void steer_chunk_verify(const struct steer_chunk *chunk)
{
    for (size_t i = 0; i < chunk->grains; i++) {
        unsigned tag = steer_tag(&chunk->tags[i]);
        if (unlikely(tag != TAG_NONE && tag != TAG_FREED))
            heap_refuse(&heap_of_process, HEAP_E1, chunk->base + (i << STEER_GRAIN_SHIFT));
    }
}

void steer_chunk_dead(struct steer_chunk *chunk)
{
    steer_chunk_verify(chunk);
    unlist_shared(&steer_plan.pool[chunk->pool], chunk);
    steer_chunk_give(chunk);
}

/* chunk->used is what was handed out. */
void steer_chunk_share(struct steer_lane *lane, struct steer_chunk *chunk)
{
    uint64_t mine = (uint64_t)(int64_t)chunk->left;
    steer_count_begin(chunk);
    addr_store_relaxed(&chunk->owner, 0); /* first: in the child of a fork our record is another thread's, which must not take it for its own */
    atomic_fence_signal();
    steer_lane_drop(lane, chunk);
    steer_thread_forget(chunk);
    list_shared(&steer_plan.pool[chunk->pool], chunk);
    bool dead = u64_add_seq_cst(&chunk->balance, mine) + mine == 0;
    steer_count_end();
    if (dead)
        steer_chunk_dead(chunk);
}

/*
 * A thread that vanished may have been about to share the chunk, or to count what it had freed in it: the tags say what lives.  Where this thread is about
 * to, in a signal's handler, it goes on with that, and what others had not counted stays.
 */
static void shared_after_fork(struct steer_chunk *chunk)
{
    uint64_t blocks;
    if (chunk == steer_counting)
        return;
    addr_store_relaxed(&chunk->owner, 0);
    u64_store_relaxed(&chunk->balance, steer_chunk_live(chunk, &blocks));
}

void steer_pools_after_fork(void)
{
    for (uint32_t i = 1; i <= steer_plan.pools; i++) {
        struct steer_pool *pool = &steer_plan.pool[i];
        (void)lock_reset_others(&pool->lanes_lock);
        if (lock_reset_others(&pool->lock)) {
            pool->shared = NULL;
            pool->epoch++;
        }
        for (struct steer_chunk *chunk = pool->shared; chunk; chunk = chunk->next)
            shared_after_fork(chunk);
    }
}
