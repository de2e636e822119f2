// SPDX-License-Identifier: MIT
/*
 * report.h - one process's report at its end: collected first, then printed.
 */
#ifndef QUIRE_PRELOAD_REPORT_H
#define QUIRE_PRELOAD_REPORT_H

#include <quire/heap.h>
#include <quire/source.h>

#include "look/look_out.h"
#include "preload/preload.h"

enum { REPORT_PROGRAM_BYTES = 256 };

struct report {
    uint64_t time_wall_ns, time_cpu_ns, pid;
    bool passes; /* by libc: of ours there is nothing to say */
    char program[REPORT_PROGRAM_BYTES];
    struct rss rss;
    struct quire_heap_stats heap;
    struct quire_source_stats source;
    struct leaks leaks;
    struct steer_stats plan; /* of a plan, where one was asked for */
};
void report_collect(struct report *report);

/* How RSS adds up: field, sign, words. */
#define REPORT_RSS(X)                                                                                                                      \
    X(live_bytes, "+", "live, as asked for")                                                                                               \
    X(rounding_bytes, "+", "rounding up to sizes")                                                                                         \
    X(page_slack_bytes, "+", "free slots in pages")                                                                                        \
    X(cached_bytes, "+", "idle, kept warm")                                                                                                \
    X(metadata_bytes, "+", "bookkeeping")                                                                                                  \
    X(untouched_bytes, "-", "of these not in memory")                                                                                      \
    X(not_ours_bytes, "+", "not the heap's")

#define REPORT_HEAP(X)                                                                                                                     \
    X(mapped_bytes) X(live_bytes) X(free_bytes) X(meta_bytes) X(rounding_bytes) X(live_blocks) X(large_bytes) X(large_blocks)             \
    X(peak_bytes) X(limit_bytes) X(pages) X(caches)
#define REPORT_SOURCE(X) X(taken_bytes) X(idle_bytes) X(meta_bytes) X(reserved_bytes) X(peak_bytes)
#define REPORT_CLASS(X) X(slot_bytes) X(live_blocks) X(page_bytes) X(peak_bytes) X(rounding_bytes)

#define REPORT_PLAN(X)                                                                                                                     \
    X(blocks) X(bytes) X(fallbacks) X(live_blocks) X(held_bytes) X(peak_bytes) X(needless_frees) X(sent_back) X(learnt) X(timed_frees) X(timed_ns)
#define REPORT_PLAN_SITE(X) X(blocks) X(bytes) X(fallbacks)

/* 0 or -errno, as the writing ended. */
int report_print(const struct report *report, int fd);
int report_print_json(const struct report *report, int fd);
int report_print_prometheus(const struct report *report, int fd);

#endif
