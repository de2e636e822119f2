// SPDX-License-Identifier: MIT
/*
 * rss.c - what the process's resident memory is made of.
 *
 *     by the books   | live        | rounding | page slack | cached | metadata |
 *     in memory      |######  ####   ### ######## ##    ###########|###########| not ours (text, stacks, other mappings) |
 *                          ^^ untouched: on the books, not in memory
 *
 *     live + rounding + page slack + cached + metadata - untouched + not ours = RSS
 *
 * What of the heap's own pages is in memory is asked of the kernel; bookkeeping is taken to be in memory as a whole.
 *
 * Locks: those of statistics and of a walk, one after the other.  Not here: how it is shown (report.c).
 */
#include <string.h>

#include <quire/heap.h>
#include <quire/source.h>

#include "base/align.h"
#include "os/os.h"
#include "pages/pagemap.h"
#include "pages/region.h"
#include "preload/preload.h"

enum { STATUS_BYTES = 4096 };

/* "VmRSS:     1234 kB" as bytes; 0: no such line. */
static size_t status_bytes(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    size_t kib = 0;
    if (!at)
        return 0;
    for (at += strlen(name); *at == ' ' || *at == '\t'; at++)
        ;
    for (; *at >= '0' && *at <= '9'; at++)
        kib = kib * 10 + (size_t)(*at - '0');
    return kib * 1024;
}

/* The kernel's words, not getrusage's: that one's peak is handed on by exec. */
static void rss_read(struct rss *out)
{
    char status[STATUS_BYTES], path[REPORT_PATH_BYTES] = "/proc/thread-self/status";
    if (os_is_copy()) /* whose memory is the same, but for files of which it has touched less */
        (void)report_path("/proc/%p/status", UINT64_MAX, path);
    (void)os_read_text(path, status, sizeof status);
    out->rss_bytes = status_bytes(status, "VmRSS:");
    out->rss_peak_bytes = status_bytes(status, "VmHWM:");
}

/* Blocks with a mapping of their own. */
static int add_resident(void *p, size_t bytes, void *arg)
{
    size_t page_bytes = os_page_bytes();
    if ((bytes < page_bytes && (uintptr_t)p % page_bytes != 0) || region_holds(p)) /* a sampled block has whole pages, whatever its size */
        return 0;
    size_t first = align_down((uintptr_t)p, page_bytes), end = align_up((uintptr_t)p + bytes, page_bytes);
    *(size_t *)arg += os_resident_bytes((void *)first, end - first);
    return 0;
}

/* The page map books whole tables; in memory are the pages whose entries were written: a page for each 2 MiB. */
static size_t pagemap_touched(size_t taken_bytes)
{
    size_t covered_bytes = os_page_bytes() / sizeof(owner_t) * os_page_bytes();
    return (taken_bytes / covered_bytes + 2) * os_page_bytes();
}

static size_t less(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

void rss_explain(struct rss *out, const struct steer_stats *plan)
{
    struct quire_heap_stats heap = {.struct_bytes = sizeof heap};
    struct quire_source_stats source = {.struct_bytes = sizeof source};
    memset(out, 0, sizeof *out);
    rss_read(out);
    quire_heap_stats(quire_heap_default(), &heap);
    quire_source_stats(quire_source_default(), &source);
    size_t resident = region_resident_bytes();
    (void)quire_heap_walk(quire_heap_default(), add_resident, &resident);

    out->rounding_bytes = heap.rounding_bytes;
    out->live_bytes = less(heap.live_bytes, heap.rounding_bytes) + plan->live_bytes;
    out->page_slack_bytes = heap.free_bytes + less(plan->held_bytes, plan->live_bytes);
    out->cached_bytes = source.idle_bytes;
    out->metadata_bytes = heap.meta_bytes + less(source.meta_bytes, pagemap_meta_bytes()) + pagemap_touched(source.taken_bytes + source.idle_bytes);
    size_t booked = out->live_bytes + out->rounding_bytes + out->page_slack_bytes + out->cached_bytes;
    out->untouched_bytes = less(booked, resident);
    size_t ours = booked - out->untouched_bytes + out->metadata_bytes;
    if (ours > out->rss_bytes) { /* bookkeeping that was never written is not in memory either */
        out->untouched_bytes += ours - out->rss_bytes;
        ours = out->rss_bytes;
    }
    out->not_ours_bytes = out->rss_bytes - ours;
}
