// SPDX-License-Identifier: MIT
/*
 * region_idle.c - which idle pages go back to the system, and when.
 *
 *     given back       tick           tick
 *     ----|--------------|--------------|----->
 *        idle           aged        discarded         so after more than one tick and at most two
 *
 * And sooner, where a large span or block would make the process larger than it ever was: idle memory that does not fit it makes way.  For small ones that
 * would not pay: what is idle is wanted again by the next of them.  Nor does it in a process that does not grow (region_turns_over_locked()).
 *
 * What is about to be filled comes with its memory, and with that of pages behind it, a 128th of the peak: one call of the system, where a page fault for
 * each page would be.  Until somebody has these they are idle, and zero.
 *
 * Two sets of bits instead of a time for each span: aged becomes a copy of idle at each tick, and a page that is taken leaves both.
 *
 * Locks: regions.lock, let go between two runs of at most discard_pages_max() pages: a taker waits some tens of microseconds at most.
 * Not here: who ticks (reaper.c).
 */
#include <errno.h>

#include "base/align.h"
#include "os/os.h"
#include "pages/lost.h"
#include "pages/pagemap.h"
#include "pages/reaper.h"
#include "pages/region_internal.h"

enum { DISCARD_PAGES_MAX = 64, FORGET_AT_ONCE = 16, HELP_RUNS = 32, ALL_RUNS = 1 << 30, IDLE_PARTS = 64, TURNING_PARTS = 3, LESS_PARTS = 2, WAY_PARTS = 32, HIGHEST_PART = 64, LEVEL_PART = 16, WAY_BYTES = 256 << 10, AHEAD_PARTS = 128, AHEAD_BYTES = 256 << 10 };

static atomic_u32 keep_all; /* 1: as much as the peak */
static atomic_u32 has_aged;  /* 1: who helped has let idle memory age since the last tick, which is not to be another */

void region_keep_all(void)
{
    u32_store_relaxed(&keep_all, 1);
}

/* A quarter of the peak (all of it under a malloc) and 8 MiB for the process; the CPUs' caches are part of it, and their contents may have raised the peak. */
size_t region_idle_bytes_max(size_t peak_bytes, size_t cached_bytes_max)
{
    size_t all = peak_bytes / (u32_load_relaxed(&keep_all) ? 1 : 4) + 8 * MIB, cached = cached_bytes_max + cached_bytes_max / 4;
    return all > cached ? all - cached : 0;
}

/* How many pages are discarded at most while the lock is held: huge ones go back a few microseconds each, small ones a quarter of one. */
static size_t discard_pages_max(const struct region *region)
{
    return region->kind == REGION_HUGE ? 4 * (os_huge_bytes() >> os_page_shift()) : DISCARD_PAGES_MAX;
}

void region_forgets_locked(struct region *region, size_t first, size_t stop)
{
    bool is_first = region->forget_to == 0;
    region->forget_from = is_first || first < region->forget_from ? first : region->forget_from;
    region->forget_to = stop > region->forget_to ? stop : region->forget_to;
}

static void forget_some_locked(struct region *region)
{
    size_t stretch = pagemap_stretch_pages(), before = (uintptr_t)region->start >> os_page_shift() & (stretch - 1);
    size_t stop = region->forget_to, end = align_up(before + region->forget_from + 1, stretch) - before;
    for (int i = 0; i < FORGET_AT_ONCE && end < stop + stretch && end <= region->pages; i++, end += stretch)
        if (end >= stretch && bits_find(region->map.taken, end - stretch, end, true) == end && bits_find(region->idle, end - stretch, end, true) == end)
            pagemap_forget(region->start + ((end - stretch) << os_page_shift()));
    bool is_more = end < stop + stretch && end <= region->pages;
    region->forget_from = end - stretch;
    region->forget_to = is_more ? stop : 0;
}

/* Discard the first run of `which` at or after `from`; returns where to go on, or the number of committed pages at the end. */
static size_t discard_run_locked(struct region *region, const uint64_t *which, size_t from, size_t *freed_bytes)
{
    unsigned shift = os_page_shift();
    size_t end = region->committed_pages;
    size_t first = bits_find(which, from, end, true);
    if (first == end)
        return end;
    size_t stop = first + discard_pages_max(region);
    stop = bits_find(which, first, stop < end ? stop : end, false);
    size_t bytes = (stop - first) << shift;
    if (os_discard(region->start + (first << shift), bytes) == 0) {
        bits_clear(region->idle, first, stop);
        bits_clear(region->aged, first, stop);
        regions.sums.idle_bytes -= bytes;
        *freed_bytes += bytes;
        region_forgets_locked(region, first, stop);
    }
    return stop;
}

/* Between two runs: whoever waits for the lock has it. */
static void let_others(void)
{
    lock_drop(&regions.lock);
    lock_take(&regions.lock);
}

static size_t discard_runs(struct region *region, bool only_aged, int runs)
{
    size_t freed = 0;
    for (size_t at = 0; at < region->committed_pages && runs > 0; runs--) {
        at = discard_run_locked(region, only_aged ? region->aged : region->idle, at, &freed);
        let_others();
    }
    return freed;
}

static void region_age(struct region *region)
{
    for (size_t w = 0; w * 64 < region->committed_pages; w++)
        region->aged[w] = region->idle[w];
    let_others();
}

/* ---- making way ---- */

/*
 * Who grows uses more than ever when idle memory makes way, and each page does so once, or twice.  Who does not has the room, but in pieces: large blocks of
 * all sizes come and go, and what made way is faulted in again at once.  So what makes way is counted: where less is used than half of what once was whole,
 * where less is than was a 16th of it, else a 64th.  Where that is a 32nd of all, a third of all may stay idle.
 */
bool region_turns_over_locked(void)
{
    return regions.way_bytes > regions.most_bytes / WAY_PARTS;
}

size_t region_over_locked(size_t wanted_bytes)
{
    size_t idle = regions.sums.idle_bytes, used = regions.sums.out_bytes + regions.alone_bytes, all = used + idle;
    size_t most = regions.used_bytes_most, part = used > most ? HIGHEST_PART : used > most - most / LESS_PARTS ? LEVEL_PART : 1;
    if (used > most)
        regions.used_bytes_most = used;
    if (all <= regions.most_bytes)
        return 0;
    size_t kept = regions.most_bytes / (region_turns_over_locked() ? TURNING_PARTS : IDLE_PARTS);
    size_t over = all - regions.most_bytes, spare = idle > kept && wanted_bytes >= WAY_BYTES ? idle - kept : 0;
    over = over < spare ? over : spare;
    regions.most_bytes = all - over;
    regions.way_bytes += over / part;
    return over;
}

/* The last run of idle pages, so much of it: the lowest are taken first.  Returns its bytes; 0: there is none, or the system keeps it. */
static size_t discard_last_locked(struct region *region, size_t bytes)
{
    size_t unit = region->kind == REGION_HUGE ? os_huge_bytes() >> os_page_shift() : 1, most = discard_pages_max(region), freed = 0;
    size_t pages = align_up((bytes + os_page_bytes() - 1) >> os_page_shift(), unit), end = region->idle_end;
    end = region->idle_end = bits_find_last(region->idle, 0, end, true);
    pages = pages < most ? pages : most;
    size_t first = bits_find_last(region->idle, end > pages ? end - pages : 0, end, false);
    if (first < end)
        (void)discard_run_locked(region, region->idle, first, &freed);
    return freed;
}

void region_unlock(size_t over_bytes)
{
    size_t left = over_bytes;
    for (uint32_t i = regions.count; i-- > 0 && left > 0;)
        for (size_t freed = 1; freed > 0 && left > 0; left -= freed < left ? freed : left) {
            freed = discard_last_locked(region_by_id[i], left);
            let_others();
        }
    regions.most_bytes += left; /* so much could not go: it is not tried each time */
    lock_drop(&regions.lock);
}

void region_alone(ptrdiff_t change_bytes)
{
    lock_take(&regions.lock);
    regions.alone_bytes += (size_t)change_bytes;
    region_unlock(change_bytes > 0 ? region_over_locked((size_t)change_bytes) : 0);
}

/* ---- filled ahead ---- */

/*
 * So many pages from `end` on, for whole spans of `each`, that nobody has and that are not in memory, but are taken next: twice as many as the last time,
 * if half of those were filled; none, if others took them, who touch little of what they take; and then as for one span.
 */
static size_t ahead_locked(const struct region *region, size_t end, size_t each)
{
    size_t had = region->filled_to - region->filled_from, wanted = had == 0 ? each : region->filled_used >= had / 2 ? 2 * had : 0;
    size_t most = regions.most_bytes / AHEAD_PARTS, pages = (most < AHEAD_BYTES ? most : AHEAD_BYTES) >> os_page_shift();
    size_t stop = end + (wanted < pages ? wanted : pages);
    stop = stop < region->committed_pages ? stop : region->committed_pages;
    size_t ahead = bits_find(region->idle, end, bits_find(region->map.taken, end, stop, true), true) - end;
    return ahead - ahead % each;
}

/* They are in memory now, most of them.  Some may have been taken meanwhile, or are idle since. */
static void filled_locked(struct region *region, size_t first, size_t stop)
{
    region->filled_from = region->zero_from = first;
    region->filled_to = stop;
    region->filled_used = 0;
    for (size_t idx = first; idx < stop; idx++) {
        if (bits_test(region->map.taken, idx) || bits_test(region->idle, idx)) {
            region->zero_from = idx + 1;
            continue;
        }
        bits_set_one(region->idle, idx);
        regions.sums.idle_bytes += os_page_bytes();
        region->idle_end = idx < region->idle_end ? region->idle_end : idx + 1;
    }
}

/* With what is ahead; and if that is refused, perhaps for a page there that another has taken and protected meanwhile, alone. */
static int fill_from(struct region *region, const struct quire_span *span, size_t end, size_t ahead)
{
    int error = os_populate(span->start, span->bytes + (ahead << os_page_shift()));
    if (error && ahead != 0)
        error = os_populate(span->start, span->bytes);
    if (error == -EINVAL)
        return error;
    lock_take(&regions.lock);
    filled_locked(region, end, end + ahead);
    lock_drop(&regions.lock);
    if (unlikely(reaper_decay_is_0())) /* said meanwhile, and what was idle then is gone */
        (void)region_drain(true);
    return error;
}

int region_fill(const struct quire_span *span)
{
    if (span_origin(span) != SPAN_REGION || u32_load_relaxed(&regions.scatters) != 0 || reaper_decay_is_0())
        return os_populate(span->start, span->bytes);
    struct region *region = region_by_id[span->cookie >> ORIGIN_BITS];
    size_t pages = span->bytes >> os_page_shift(), end = ((size_t)((char *)span->start - region->start) >> os_page_shift()) + pages;
    lock_take(&regions.lock);
    bool is_there = end - pages >= region->filled_from && end <= region->filled_to;
    region->filled_used += is_there ? pages : 0;
    size_t ahead = is_there ? 0 : ahead_locked(region, end, pages);
    lock_drop(&regions.lock);
    return is_there ? 0 : fill_from(region, span, end, ahead);
}

/* ---- the clock ---- */

size_t region_drain(bool all)
{
    size_t freed = 0;
    lost_retry();
    bool is_done = u32_load_relaxed(&has_aged) != 0 && !all;
    u32_store_relaxed(&has_aged, 0);
    lock_take(&regions.lock);
    for (uint32_t i = 0; i < regions.count && !is_done; i++) {
        struct region *region = region_by_id[i];
        freed += discard_runs(region, !all, ALL_RUNS);
        if (!all)
            region_age(region);
        for (; region->forget_to != 0; let_others()) /* only now: what comes and goes would fault the page map in each time */
            forget_some_locked(region);
    }
    lock_drop(&regions.lock);
    return freed;
}

bool region_help(void)
{
    size_t freed = 0;
    lock_take(&regions.lock);
    for (uint32_t i = 0; i < regions.count && freed == 0; i++)
        freed = discard_runs(region_by_id[i], true, HELP_RUNS);
    for (uint32_t i = 0; i < regions.count && freed == 0; i++)
        region_age(region_by_id[i]);
    lock_drop(&regions.lock);
    if (freed == 0)
        u32_store_relaxed(&has_aged, 1);
    return freed == 0;
}

void region_set_cached_max(size_t cached_bytes_max)
{
    size_store_relaxed(&regions.cached_bytes_max, cached_bytes_max);
}
