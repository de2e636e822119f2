// SPDX-License-Identifier: MIT
/*
 * region_look.c - sums and checks of the regions, their repair in the child of a fork, and addresses that are let go.
 *
 * Locks: regions.lock, one region at a time.
 */
#include "os/os.h"
#include "pages/pagemap.h"
#include "pages/region_internal.h"

void region_stats(struct region_stats *out)
{
    lock_take(&regions.lock);
    *out = regions.sums;
    lock_drop(&regions.lock);
}

/* Without the lock: what this thread has made idle it sees, others' a little later. */
NO_SANITIZE size_t region_idle_bytes_roughly(void)
{
    return __atomic_load_n(&regions.sums.idle_bytes, __ATOMIC_RELAXED);
}

NO_SANITIZE size_t region_peak_bytes(void)
{
    return __atomic_load_n(&regions.sums.out_bytes_peak, __ATOMIC_RELAXED);
}

/* Where region number i is, and how much of it may be written; 0: there is none. */
static size_t region_extent(uint32_t i, char **start)
{
    size_t bytes = 0;
    lock_take(&regions.lock);
    if (i < regions.count) {
        *start = region_by_id[i]->start;
        bytes = region_by_id[i]->committed_pages << os_page_shift();
    }
    lock_drop(&regions.lock);
    return bytes;
}

size_t region_resident_bytes(void)
{
    size_t resident = 0, bytes;
    char *start;
    for (uint32_t i = 0; (bytes = region_extent(i, &start)) != 0; i++)
        resident += os_resident_bytes(start, bytes);
    return resident;
}

bool region_holds(const void *address)
{
    size_t bytes;
    char *start;
    for (uint32_t i = 0; (bytes = region_extent(i, &start)) != 0; i++)
        if ((uintptr_t)address - (uintptr_t)start < bytes)
            return true;
    return false;
}

/* S2 for one region: every idle page is free and committed, every aged one idle. */
static const char *region_check_locked(const struct region *region, size_t *idle_pages)
{
    const char *error = bitmap_check(&region->map);
    if (error)
        return error;
    for (size_t w = 0; w * 64 < region->pages; w++)
        if (region->aged[w] & ~region->idle[w])
            return "source S2 aged pages are idle";
    size_t run;
    for (size_t at = bitmap_next_taken(&region->map, 0, &run); at != BITMAP_NONE; at = bitmap_next_taken(&region->map, at + run, &run))
        if (bits_count_in(region->idle, at, at + run))
            return "source S2 idle pages are free";
    if (bits_count_in(region->idle, region->committed_pages, region->pages))
        return "source S2 idle pages are committed";
    *idle_pages += bits_count_in(region->idle, 0, region->pages);
    return NULL;
}

const char *region_check(void)
{
    const char *error = NULL;
    size_t idle_pages = 0;
    lock_take(&regions.lock);
    for (uint32_t i = 0; i < regions.count && !error; i++)
        error = region_check_locked(region_by_id[i], &idle_pages);
    /* A giver that is discarding outside the lock has counted its warm part already: more may be counted than is set, never less. */
    if (!error && idle_pages << os_page_shift() > regions.sums.idle_bytes)
        error = "source S4 sums are what the maps say";
    lock_drop(&regions.lock);
    return error;
}

/* Idle sets and sums of one region, derived from its taken pages. */
static void region_rederive(struct region *region)
{
    size_t run, taken = 0;
    for (size_t at = bitmap_next_taken(&region->map, 0, &run); at != BITMAP_NONE; at = bitmap_next_taken(&region->map, at + run, &run)) {
        bits_clear(region->idle, at, at + run);
        taken += at < region->pages ? run : 0; /* the others were let go */
    }
    region->idle_end = region->pages;
    region->filled_from = region->filled_to = region->filled_used = region->zero_from = 0;
    for (size_t w = 0; w * 64 < region->pages; w++)
        region->aged[w] &= region->idle[w];
    regions.sums.idle_bytes += bits_count_in(region->idle, 0, region->pages) << os_page_shift();
    regions.sums.out_bytes += taken << os_page_shift();
}

/*
 * The thread that forked is the only one left.  Where another was at work an operation was cut in two.  The bits of the maps are what counts (set
 * before a span is handed out, cleared last), so hints and sums are derived anew; spans on their way to the system are given back here; and of an
 * operation that held the lock at most its one span stays taken for ever.
 *
 * Where this very thread was at work, in whose signal's handler the fork was, it goes on: what it holds, and its span on the way, are left to it.  If it
 * holds the lock, others' spans on their way stay taken for ever.
 */
static bool is_anothers(const struct region_leaving *leaving)
{
    return leaving->region && leaving->thread != os_thread_pointer();
}

/* A span that another thread was making longer is as it was; true: what it had of more is a run of its own. */
static bool growing_part(void)
{
    struct region_growing *growing = &regions.growing;
    if (!growing->span)
        return false;
    bool grew = bits_test(growing->region->map.taken, growing->end);
    if (grew)
        bits_set(growing->region->map.starts, growing->end, growing->end + 1);
    growing->span->bytes = growing->had_bytes;
    growing->span = NULL;
    return grew;
}

void region_after_fork(void)
{
    bool busy = lock_reset_others(&regions.lock), mine = lock_is_mine(&regions.lock);
    if (regions.random)
        regions.random = 0; /* not the parent's places */
    for (int i = 0; i < REGION_LEAVING_MAX; i++) {
        busy = busy || is_anothers(&regions.leaving[i]);
        if (mine && is_anothers(&regions.leaving[i]))
            regions.leaving[i].region = NULL;
    }
    if (!busy || mine)
        return;
    bool grew = growing_part();
    for (uint32_t i = 0; i < regions.count; i++)
        bitmap_rebuild(&region_by_id[i]->map);
    if (grew)
        (void)bitmap_free(&regions.growing.region->map, regions.growing.end);
    regions.sums.idle_bytes = 0;
    regions.sums.out_bytes = regions.elsewhere_bytes;
    for (int i = 0; i < REGION_LEAVING_MAX; i++) {
        struct region_leaving *leaving = &regions.leaving[i];
        if (is_anothers(leaving)) {
            size_t pages = bitmap_free(&leaving->region->map, leaving->idx);
            bits_set(leaving->region->idle, leaving->idx, leaving->idx + pages);
            leaving->region = NULL;
        }
        regions.sums.idle_bytes += leaving->region ? leaving->warm_bytes : 0;
    }
    for (uint32_t i = 0; i < regions.count; i++)
        region_rederive(region_by_id[i]);
    regions.range_next = regions.range_end = NULL; /* what was left of a range is only addresses */
}

/* ---- few addresses ---- */

/* What lies behind a region's last span leaves it: for the map these pages are taken, for ever. */
static void region_cut_locked(struct region *region)
{
    unsigned shift = os_page_shift();
    size_t used = bits_find_last(region->map.taken, 0, region->pages, true), end = used ? used : 1;
    if (end >= region->pages)
        return;
    regions.sums.idle_bytes -= bits_count_in(region->idle, end, region->pages) << shift;
    bits_clear(region->idle, end, region->pages);
    bits_clear(region->aged, end, region->pages);
    bits_set(region->map.taken, end, region->pages);
    bits_set(region->map.starts, end, end + 1);
    bitmap_rebuild(&region->map);
    if (os_unmap(region->start + (end << shift), (region->pages - end) << shift) == 0)
        regions.sums.reserved_bytes -= (region->pages - end) << shift;
    region->pages = end;
    region->committed_pages = region->committed_pages < end ? region->committed_pages : end;
    region->idle_end = region->idle_end < end ? region->idle_end : end;
}

void region_let_go(void)
{
    lock_take(&regions.lock);
    regions.few = true;
    for (uint32_t i = 0; i < regions.count; i++)
        region_cut_locked(region_by_id[i]);
    size_t rest = (size_t)(regions.range_end - regions.range_next);
    if (rest && os_unmap(regions.range_next, rest) == 0) {
        regions.range_end = regions.range_next;
        regions.sums.reserved_bytes -= rest;
        if (os_is_single_threaded()) /* nobody is just looking there */
            pagemap_expect_less(regions.range_next);
    }
    lock_drop(&regions.lock);
}
