// SPDX-License-Identifier: MIT
/*
 * steer_waste.c - how much of the pools is dead, and when a pool grows no more.
 *
 *     lane: dead = the full chunks' grains, less what lives there --told--> its pool --+
 *     shared chunks of a pool: the same by their balance ----------told--> its pool --+--> all pools of the process
 *
 *     excess = dead - STEER_WASTE_PERCENT of what lives, of a pool or of all
 *     too much, for a lane that wants a chunk:  excess of all > slack,  and  excess of its pool > slack / pools
 *     so        excess of all <= 2 slack + a chunk for each thread and pool
 *
 * A lane tells what it knows when it wants a chunk: what it hands out from the one that it gets is told the next time, thence the last term.  Looking
 * costs a walk over the lane's chunks, so it is done once for each eighth of what lives there.
 *
 * Locks: a pool's, for its shared chunks.
 */
#include "os/os.h"
#include "steer/steer_internal.h"

enum { SLACK_OF_RECORDED = 16 };

struct waste {
    size_t dead, live;
};

size_t steer_waste_slack(void)
{
    return STEER_WASTE_SLACK_BYTES + steer_plan.memory_bytes / SLACK_OF_RECORDED;
}

/* Chunks that went back since they were told are no longer held. */
static struct waste waste_of(const struct steer_pool *pool)
{
    size_t held = size_load_relaxed(&pool->held_bytes), dead = size_load_relaxed(&pool->dead_bytes) + size_load_relaxed(&pool->dead_shared_bytes);
    dead = dead < held ? dead : held;
    return (struct waste){dead, held - dead};
}

static struct waste waste_of_all(void)
{
    struct waste all = {0, 0};
    for (uint32_t i = 1; i <= steer_plan.pools; i++) {
        struct waste one = waste_of(&steer_plan.pool[i]);
        all.dead += one.dead;
        all.live += one.live;
    }
    return all;
}

static bool exceeds(struct waste waste, size_t slack)
{
    return waste.dead > waste.live / 100 * STEER_WASTE_PERCENT + slack;
}

/* Of one thread's full chunks, grains. */
static struct waste look_at_lane(const struct steer_lane *lane)
{
    struct waste sum = {0, 0};
    for (const struct steer_chunk *chunk = lane->chunks; chunk; chunk = chunk->next) {
        size_t dead = chunk->grains - (uint64_t)(int64_t)chunk->left + steer_freed_by_others(chunk);
        sum.dead += dead;
        sum.live += chunk->grains - dead;
    }
    return sum;
}

/* A balance of 0, or below: the chunk is just being given back, or what lives there is not counted yet. */
static struct waste look_at_shared(struct steer_pool *pool)
{
    struct waste sum = {0, 0};
    lock_take(&pool->lock);
    for (const struct steer_chunk *chunk = pool->shared; chunk; chunk = chunk->next) {
        int64_t lives = (int64_t)u64_load_relaxed(&chunk->balance);
        size_t dead = lives > 0 ? chunk->grains - (uint64_t)lives : 0;
        sum.dead += dead;
        sum.live += chunk->grains - dead;
    }
    size_store_relaxed(&pool->dead_shared_bytes, sum.dead << STEER_GRAIN_SHIFT);
    lock_drop(&pool->lock);
    return sum;
}

static void tell(struct steer_pool *pool, struct steer_lane *lane, size_t dead_bytes)
{
    size_add_relaxed(&pool->dead_bytes, dead_bytes - lane->told);
    lane->told = dead_bytes;
}

/* The next look counts them; until then what was told stands. */
void steer_waste_leave(struct steer_pool *pool, struct steer_lane *lane)
{
    size_add_relaxed(&pool->dead_shared_bytes, lane->told);
    tell(pool, lane, 0);
}

static void look(struct steer_pool *pool, struct steer_lane *lane)
{
    struct waste own = look_at_lane(lane), shared = look_at_shared(pool);
    tell(pool, lane, own.dead << STEER_GRAIN_SHIFT);
    lane->due = (uint32_t)(((own.live + shared.live) << STEER_GRAIN_SHIFT) / pool->chunk_bytes / 8) + 1;
}

bool steer_waste_is_too_much(unsigned pool_idx, struct steer_lane *lane)
{
    struct steer_pool *pool = &steer_plan.pool[pool_idx];
    if (lane->due && --lane->due != 0)
        return false;
    look(pool, lane);
    size_t slack = steer_waste_slack();
    return exceeds(waste_of(pool), slack / steer_plan.pools) && exceeds(waste_of_all(), slack);
}
