// SPDX-License-Identifier: MIT
/*
 * steer_look.c - what steering did, and whether its invariants hold.
 *
 * Figures of other threads are read while they count: each may be a little old.
 *
 * Locks: a pool's.
 */
#include <string.h>

#include "os/os.h"
#include "steer/steer_internal.h"

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static struct steer_count count_of(unsigned site)
{
    struct steer_count sum = {0};
    for (const struct steer_thread *record = steer_threads(); record; record = record->record.next) {
        sum.blocks += load(&record->count[site].blocks);
        sum.bytes += load(&record->count[site].bytes);
        sum.fallbacks += load(&record->count[site].fallbacks);
    }
    return sum;
}

bool steer_site_stats(uint32_t index, struct steer_site_stats *out)
{
    if (index >= steer_plan.sites)
        return false;
    struct steer_count sum = count_of(TARGET_SITE + index);
    *out = (struct steer_site_stats){steer_plan.number[index], steer_pool_of[TARGET_SITE + index], sum.blocks, sum.bytes, sum.fallbacks};
    return true;
}

/* By their tags, which other threads may be changing. */
static uint64_t live_of(const struct steer_chunk *chunk, uint64_t *bytes)
{
    uint64_t live = 0, blocks;
    for (; chunk; chunk = chunk->next) {
        *bytes += steer_chunk_live(chunk, &blocks) << STEER_GRAIN_SHIFT;
        live += blocks;
    }
    return live;
}

static void pool_stats(unsigned pool_idx, struct steer_stats *out, uint64_t *arena_live)
{
    struct steer_pool *pool = &steer_plan.pool[pool_idx];
    lock_take(&pool->lock);
    uint64_t live = live_of(pool->shared, &out->live_bytes);
    lock_drop(&pool->lock);
    lock_take(&pool->lanes_lock); /* a chunk that its owner gives back is another's memory at once */
    for (const struct steer_thread *record = steer_threads(); record; record = record->record.next)
        live += live_of(record->lane[pool_idx].chunks, &out->live_bytes);
    lock_drop(&pool->lanes_lock);
    out->live_blocks += live;
    out->held_bytes += size_load_relaxed(&pool->held_bytes);
    out->peak_bytes += size_load_relaxed(&pool->held_peak_bytes);
    out->sent_back += u32_load_relaxed(&pool->is_sent_back);
    *arena_live += pool->is_slab ? 0 : live;
}

static double ticks_per_ns(void)
{
    uint64_t ticks = steer_ticks() - steer_plan.start_ticks, ns = os_time_ns() - steer_plan.start_ns;
    return ns && ticks ? (double)ticks / (double)ns : 1;
}

void steer_stats(struct steer_stats *out)
{
    uint64_t arena_live = 0, arena_blocks = 0;
    *out = (struct steer_stats){.sites = steer_plan.sites, .learnt = steer_learnt()};
    for (uint32_t i = 0; i < steer_plan.sites; i++) {
        struct steer_count sum = count_of(TARGET_SITE + i);
        out->blocks += sum.blocks;
        out->bytes += sum.bytes;
        out->fallbacks += sum.fallbacks;
        arena_blocks += steer_plan.pool[steer_plan.pool_first[i]].is_slab ? 0 : sum.blocks;
    }
    for (uint32_t i = 1; i <= steer_plan.pools; i++)
        pool_stats(i, out, &arena_live);
    out->needless_frees = arena_blocks > arena_live ? arena_blocks - arena_live : 0;
    uint64_t ticks = 0;
    for (const struct steer_thread *record = steer_threads(); record; record = record->record.next) {
        out->timed_frees += record->timed_frees;
        ticks += record->timed_ticks;
    }
    out->timed_ns = ticks ? (uint64_t)((double)ticks / ticks_per_ns()) : 0;
}

/* ---- check ---- */

static const char *tags_check(const struct steer_chunk *chunk, size_t used, uint64_t live)
{
    uint64_t blocks;
    if (steer_chunk_live(chunk, &blocks) != live)
        return "steer S1";
    for (size_t grain = 0, clear = 0; grain < chunk->grains; grain++) {
        unsigned tag = steer_tag(&chunk->tags[grain]);
        if (tag != TAG_NONE && grain >= used)
            return "steer S3";
        if (tag != TAG_NONE && grain < clear)
            return "steer S2";
        if (tag != TAG_NONE && tag != TAG_FREED)
            clear = grain + tag;
    }
    return NULL;
}

static const char *lane_check(const struct steer_lane *lane)
{
    const char *broken = NULL;
    for (const struct steer_chunk *chunk = lane->chunks; chunk && !broken; chunk = chunk->next) {
        size_t used = chunk == lane->chunk ? steer_lane_used(lane) : chunk->used;
        uint64_t mine = used - chunk->used + (uint64_t)(int64_t)chunk->left;
        broken = tags_check(chunk, used, mine - steer_freed_by_others(chunk));
    }
    return broken;
}

static const char *shared_check(struct steer_pool *pool)
{
    const char *broken = NULL;
    lock_take(&pool->lock);
    for (const struct steer_chunk *chunk = pool->shared; chunk && !broken; chunk = chunk->next)
        broken = tags_check(chunk, chunk->used, u64_load_relaxed(&chunk->balance));
    lock_drop(&pool->lock);
    return broken;
}

const char *steer_check(void)
{
    const char *broken = NULL;
    for (uint32_t i = 1; i <= steer_plan.pools && !broken; i++) {
        broken = shared_check(&steer_plan.pool[i]);
        if (!broken)
            broken = lane_check(&steer_self->lane[i]);
    }
    return broken;
}
