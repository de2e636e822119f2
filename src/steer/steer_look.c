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

static struct steer_count count_of(unsigned site)
{
    struct steer_count sum = {0};
    for (const struct steer_thread *record = steer_threads(); record; record = record->next) {
        sum.blocks += steer_bits(&record->count[site].blocks);
        sum.bytes += steer_bits(&record->count[site].bytes);
        sum.fallbacks += steer_bits(&record->count[site].fallbacks);
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

/* By their bits, which other threads may be changing. */
static uint64_t live_of_lane(const struct steer_lane *lane)
{
    uint64_t live = 0;
    for (const struct steer_chunk *chunk = lane->chunks; chunk; chunk = chunk->next)
        live += chunk->mine - steer_freed_by_others(chunk);
    return live;
}

static uint64_t live_of_shared(struct steer_pool *pool)
{
    uint64_t live = 0;
    lock_take(&pool->lock);
    for (const struct steer_chunk *chunk = pool->shared; chunk; chunk = chunk->next)
        live += u64_load_relaxed(&chunk->balance);
    lock_drop(&pool->lock);
    return live;
}

static void pool_stats(unsigned pool_idx, struct steer_stats *out, uint64_t *arena_live)
{
    struct steer_pool *pool = &steer_plan.pool[pool_idx];
    uint64_t live = live_of_shared(pool);
    for (const struct steer_thread *record = steer_threads(); record; record = record->next)
        live += live_of_lane(&record->lane[pool_idx]);
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
    for (const struct steer_thread *record = steer_threads(); record; record = record->next) {
        out->timed_frees += record->timed_frees;
        ticks += record->timed_ticks;
    }
    out->timed_ns = ticks ? (uint64_t)((double)ticks / ticks_per_ns()) : 0;
}

/* ---- check ---- */

static bool begins_and_ends(const struct steer_chunk *chunk, size_t grains)
{
    for (size_t grain = 0; grain < chunk->grains; grain++) {
        const struct steer_word *word = &chunk->word[grain / WORD_BITS];
        uint64_t bit = UINT64_C(1) << grain % WORD_BITS;
        if (grain >= grains && ((word->live | word->last) & bit) != 0)
            return false;
        bool begins = grain == 0 || (chunk->word[(grain - 1) / WORD_BITS].last >> (grain - 1) % WORD_BITS & 1) != 0;
        if ((word->live & bit) != 0 && !begins)
            return false;
    }
    return true;
}

static const char *lane_check(const struct steer_lane *lane)
{
    for (const struct steer_chunk *chunk = lane->chunks; chunk; chunk = chunk->next) {
        size_t grains = chunk == lane->chunk ? (size_t)(lane->cursor - chunk->base) >> STEER_GRAIN_SHIFT : chunk->grains;
        if (chunk->mine - steer_freed_by_others(chunk) != steer_chunk_live(chunk))
            return "steer S1";
        if (!begins_and_ends(chunk, chunk->grains))
            return "steer S2";
        if (!begins_and_ends(chunk, grains))
            return "steer S3";
    }
    return NULL;
}

static const char *shared_check(struct steer_pool *pool)
{
    const char *broken = NULL;
    lock_take(&pool->lock);
    for (const struct steer_chunk *chunk = pool->shared; chunk && !broken; chunk = chunk->next)
        broken = u64_load_relaxed(&chunk->balance) != steer_chunk_live(chunk) ? "steer S1" : !begins_and_ends(chunk, chunk->grains) ? "steer S2" : NULL;
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
