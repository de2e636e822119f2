// SPDX-License-Identifier: MIT
/*
 * region_look.c - sums and checks of the regions, and their repair in the child of a fork.
 *
 * Locks: regions.lock, one region at a time.
 */
#include "base/align.h"
#include "os/os.h"
#include "pages/region_internal.h"

void region_stats(struct region_stats *out)
{
    lock_take(&regions.lock);
    *out = regions.sums;
    lock_drop(&regions.lock);
}

size_t region_idle_bytes(void)
{
    struct region_stats stats;
    region_stats(&stats);
    return stats.idle_bytes;
}

size_t region_peak_bytes(void)
{
    struct region_stats stats;
    region_stats(&stats);
    return stats.out_bytes_peak;
}

/* S2 for one region: every idle page is free and committed, every aged one idle. */
static const char *region_check_locked(const struct region *region, size_t *idle_pages)
{
    const char *error = bitmap_check(&region->map);
    if (error)
        return error;
    for (size_t w = 0; w * 64 < region->pages; w++)
        if (region->aged.words[w] & ~region->idle.words[w])
            return "source S2 aged pages are idle";
    size_t run;
    for (size_t at = bitmap_next_taken(&region->map, 0, &run); at != BITMAP_NONE; at = bitmap_next_taken(&region->map, at + run, &run))
        if (pageset_count(region->idle, at, at + run))
            return "source S2 idle pages are free";
    if (pageset_count(region->idle, region->committed_pages, region->pages))
        return "source S2 idle pages are committed";
    *idle_pages += pageset_count(region->idle, 0, region->pages);
    return NULL;
}

const char *region_check(void)
{
    const char *error = NULL;
    size_t idle_pages = 0;
    lock_take(&regions.lock);
    for (uint32_t i = 0; i < regions.count && !error; i++)
        error = region_check_locked(regions.by_id[i], &idle_pages);
    /* A giver that is discarding outside the lock has counted its warm part already: more may be counted than is set, never less. */
    if (!error && idle_pages << os_page_shift() > regions.sums.idle_bytes)
        error = "source S4 sums are what the maps say";
    lock_drop(&regions.lock);
    return error;
}

/*
 * The thread that forked is the only one left.  If another held the lock, an operation was cut in two: the bits of the map are what counts
 * (they are set before a span is handed out and cleared last), so hints and sums are derived anew; at most that one span is lost.
 */
void region_after_fork(void)
{
    if (!lock_reset(&regions.lock))
        return;
    size_t idle_pages = 0;
    for (uint32_t i = 0; i < regions.count; i++) {
        struct region *region = regions.by_id[i];
        bitmap_rebuild(&region->map);
        size_t run;
        for (size_t at = bitmap_next_taken(&region->map, 0, &run); at != BITMAP_NONE; at = bitmap_next_taken(&region->map, at + run, &run))
            pageset_remove(region->idle, at, at + run);
        for (size_t w = 0; w * 64 < region->pages; w++)
            region->aged.words[w] &= region->idle.words[w];
        idle_pages += pageset_count(region->idle, 0, region->pages);
    }
    regions.sums.idle_bytes = idle_pages << os_page_shift();
}
