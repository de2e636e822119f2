// SPDX-License-Identifier: MIT
/*
 * count.c - what is counted of samples, for each stack and for all of them.
 *
 *     token     { points, site }: what a sampled block bears, in its header (large) or beside its address (small.c); 0: none
 *     born      all += points, live += points           gone     live -= points           resized     as many points, another number of blocks
 *
 * A block of b bytes with p points stands for p * every bytes, and p * every / b blocks.
 *
 * Locks: LOCK_PROF.  Not here: which blocks are sampled (prof.c), stacks (table.c).
 */
#include <string.h>

#include "look/live.h"
#include "prof/prof_internal.h"

enum { SITE_BITS = 24 };
#define POINTS_MAX ((UINT64_C(1) << (64 - SITE_BITS)) - 1)

struct prof_opts prof_opts;
struct lock prof_lock = LOCK_INIT(LOCK_PROF);
static struct {
    uint64_t samples, lost, live_points;
    uint64_t due_points; /* of live ones, when prof_due() is true next */
} sums; /* with the lock */
static atomic_u32 is_due;

/* ---- counting ---- */

uint64_t prof_blocks16(uint64_t point_count, uint64_t every_bytes, uint64_t bytes)
{
    uint64_t of_bytes;
    if (likely(!__builtin_mul_overflow(point_count, every_bytes, &of_bytes) && of_bytes >> 48 == 0)) /* a tenth of the other division's time */
        return (of_bytes << 16) / (bytes ? bytes : 1);
    return (uint64_t)(((unsigned __int128)point_count * every_bytes << 16) / (bytes ? bytes : 1));
}

static void watch_threshold(void)
{
    uint64_t step = prof_opts.at_bytes / prof_opts.every_bytes;
    if (prof_opts.at_bytes == 0 || sums.live_points < sums.due_points)
        return;
    sums.due_points = sums.live_points + (step ? step : 1);
    u32_store_relaxed(&is_due, 1);
    live_want();
}

uint64_t prof_token(const uintptr_t *ips, unsigned count, uint64_t point_count)
{
    lock_take(&prof_lock);
    uint32_t number = prof_site_locked(ips, count);
    sums.samples += number == 0;
    sums.lost += number == 0;
    lock_drop(&prof_lock);
    return number ? (point_count < POINTS_MAX ? point_count : POINTS_MAX) << SITE_BITS | number : 0;
}

static struct prof_site *site_of(uint64_t token)
{
    return prof_site_at((uint32_t)(token & ((UINT64_C(1) << SITE_BITS) - 1)));
}

static uint64_t blocks16_of(uint64_t token, size_t bytes)
{
    return prof_blocks16(token >> SITE_BITS, prof_opts.every_bytes, bytes);
}

/* Never more than there are: who resizes past malloc's names makes it another number. */
static uint64_t live16_of(uint64_t token, size_t bytes)
{
    uint64_t blocks16 = blocks16_of(token, bytes), live16 = site_of(token)->live_blocks16;
    return blocks16 < live16 ? blocks16 : live16;
}

uint64_t prof_weight(uint64_t token)
{
    return (token >> SITE_BITS) * prof_opts.every_bytes;
}

void prof_count(uint64_t token, size_t bytes, bool is_live)
{
    uint64_t point_count = token >> SITE_BITS, blocks16 = blocks16_of(token, bytes);
    struct prof_site *site = site_of(token);
    lock_take(&prof_lock);
    sums.samples++;
    site->all_points += point_count;
    site->all_blocks16 += blocks16;
    if (is_live) {
        site->live_points += point_count;
        site->live_blocks16 += blocks16;
        sums.live_points += point_count;
        watch_threshold();
    }
    lock_drop(&prof_lock);
    live_start_due();
}

void prof_take_back(uint64_t token, size_t bytes)
{
    uint64_t point_count = token >> SITE_BITS;
    struct prof_site *site = site_of(token);
    lock_take(&prof_lock);
    site->live_points -= point_count;
    site->live_blocks16 -= live16_of(token, bytes);
    sums.live_points -= point_count;
    lock_drop(&prof_lock);
}

void prof_resized(uint64_t token, size_t had, size_t bytes)
{
    struct prof_site *site = site_of(token);
    lock_take(&prof_lock);
    uint64_t more16 = blocks16_of(token, bytes) - live16_of(token, had);
    site->live_blocks16 += more16;
    site->all_blocks16 += more16; /* PR1 */
    lock_drop(&prof_lock);
}

/* ---- looking ---- */

bool prof_due(void)
{
    return u32_load_relaxed(&is_due) != 0 && u32_exchange_acquire(&is_due, 0) != 0;
}

bool prof_has_samples(void)
{
    lock_take(&prof_lock);
    bool has_any = sums.samples != 0;
    lock_drop(&prof_lock);
    return has_any;
}

void prof_stats(struct prof_stats *out)
{
    uint64_t live_blocks16 = 0, all_blocks16 = 0, all_points = 0, live_points = 0;
    lock_take(&prof_lock);
    for (uint32_t i = 1; i <= prof_sites(); i++) {
        const struct prof_site *site = prof_site_at(i);
        live_points += site->live_points;
        all_points += site->all_points;
        live_blocks16 += site->live_blocks16;
        all_blocks16 += site->all_blocks16;
    }
    *out = (struct prof_stats){
        .every_bytes = prof_opts.every_bytes,
        .live_bytes = live_points * prof_opts.every_bytes,
        .all_bytes = all_points * prof_opts.every_bytes,
        .live_blocks = live_blocks16 >> 16,
        .all_blocks = all_blocks16 >> 16,
        .samples = sums.samples,
        .lost = sums.lost,
        .stacks = prof_sites(),
        .held_bytes = prof_table_bytes() + prof_small_table_bytes(),
    };
    lock_drop(&prof_lock);
}

const char *prof_check(void)
{
    lock_take(&prof_lock);
    const char *broken = prof_table_check();
    broken = broken ? broken : prof_small_check();
    lock_drop(&prof_lock);
    return broken;
}

void prof_count_start(const struct prof_opts *opts)
{
    memset(&sums, 0, sizeof sums);
    u32_store_relaxed(&is_due, 0);
    prof_opts = *opts;
    sums.due_points = opts->at_bytes && opts->every_bytes ? opts->at_bytes / opts->every_bytes : 0;
}
