// SPDX-License-Identifier: MIT
/*
 * timeline.h - what the process holds at evenly spaced points of a replay, and a closer look at its largest.
 *
 *   bytes ^        ___ rss_bytes          each sample: ops done, live bytes that the program asked
 *         |    ___/   \__                 for, resident bytes above what the replayer itself has
 *         |  _/ _/\_     \__ live_bytes
 *         +---|---|---|---|---> ops
 *                 ^ the sample with the most live bytes: what the allocator itself says of its memory
 *
 * Taking a sample costs microseconds: the times of a replay with a timeline mean nothing.
 * Not here: where the points lie and what is live there (compile.c).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct sample {
    uint64_t ops;
    uint64_t live_bytes;
    uint64_t rss_bytes;
};

/* glibc's struct mallinfo2, by its place in the ABI: libc's that have none are found out at run time. */
struct malloc_info {
    size_t heap_bytes;
    size_t free_chunks;
    size_t fast_chunks;
    size_t mapped_chunks;
    size_t mapped_bytes;
    size_t unused;
    size_t fast_bytes;
    size_t used_bytes;
    size_t free_bytes;
    size_t top_bytes;
};

struct timeline {
    struct sample *samples; // filled by the compiler but for rss_bytes; NULL: no timeline wanted
    uint32_t count;
    uint32_t taken_idx; // of the sample that was looked at closely; UINT32_MAX: none yet
    uint64_t base_rss_bytes;
    int statm_fd;
    int stats_fd; // a nameless file with quire_stats_write()'s JSON; -1: nobody writes it
    int (*stats_write)(int fd, uint32_t format);
    struct malloc_info (*malloc_info)(void);
    struct malloc_info info;
    uint32_t look_lock;
};

enum { TIMELINE_SAMPLES_MAX = 100000 };

/* `library`: the file that malloc comes from; `with_plan`: objects of the replayer's own arenas and slabs exist. */
void timeline_begin(struct timeline *timeline, uint32_t count, const char *library, bool with_plan);

/* The current resident set becomes the base. */
void timeline_base(struct timeline *timeline);

/* Any thread, at the sample's point. */
void timeline_take(struct timeline *timeline, uint32_t sample_idx);

/* `"timeline":[...],...` as members of a JSON object, each with a comma before it. */
void timeline_print(const struct timeline *timeline, FILE *to);
