// SPDX-License-Identifier: MIT
/*
 * timeline.c - takes samples of memory while a program is replayed, and prints them.
 *
 *   timeline_begin    descriptors and functions are looked up, before the clock and the base
 *   timeline_take     one pread of /proc/self/statm; at a new most of live bytes also
 *                       malloc is libc's            mallinfo2()
 *                       malloc is libquire-malloc   its quire_stats_write() into a nameless file
 *                       arenas and slabs by a plan  the replayer's own quire_stats_write()
 *
 * Invariant: T1  between begin and print nothing is taken from the malloc under test
 *
 * Locks: look_lock, tried and never awaited: who loses leaves the closer look to the other.
 * Not here: which op a sample comes after (compile.c).
 */
#include "replay/timeline.h"

#include "replay/stream.h"

#include <quire/stats.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NONE_TAKEN UINT32_MAX // the sample that is none

static uint64_t rss_bytes(const struct timeline *timeline) {
    char text[128];
    ssize_t got = pread(timeline->statm_fd, text, sizeof text - 1, 0);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    const char *resident = strchr(text, ' '); // "size resident shared ...", in pages
    return resident ? strtoull(resident, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static bool is_libc(const char *library) {
    const char *slash = strrchr(library, '/');
    const char *name = slash ? slash + 1 : library;
    return strncmp(name, "libc.", 5) == 0 || strncmp(name, "libc-", 5) == 0;
}

/* Which function tells of the allocator's memory, if any. */
static void find_tellers(struct timeline *timeline, const char *library, bool with_plan) {
    if (is_libc(library))
        *(void **)&timeline->malloc_info = dlsym(RTLD_DEFAULT, "mallinfo2");
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (handle && !is_libc(library))
        *(void **)&timeline->stats_write = dlsym(handle, "quire_stats_write");
    if (timeline->stats_write == NULL && with_plan)
        timeline->stats_write = quire_stats_write;
    if (timeline->stats_write)
        timeline->stats_fd = memfd_create("quire-stats", MFD_CLOEXEC);
}

static void look_closely(struct timeline *timeline) {
    if (timeline->malloc_info)
        timeline->info = timeline->malloc_info();
    if (timeline->stats_fd < 0)
        return;
    // A look that cannot be written whole leaves nothing, rather than half a document.
    if (ftruncate(timeline->stats_fd, 0) != 0 || lseek(timeline->stats_fd, 0, SEEK_SET) != 0 ||
        timeline->stats_write(timeline->stats_fd, QUIRE_STATS_JSON) != 0) {
        close(timeline->stats_fd);
        timeline->stats_fd = -1;
    }
}

void timeline_begin(struct timeline *timeline, uint32_t count, const char *library,
                    bool with_plan) {
    *timeline = (struct timeline){.count = count, .taken_idx = NONE_TAKEN, .stats_fd = -1};
    if (count == 0)
        return;
    timeline->samples = stream_memory(count, sizeof *timeline->samples);
    memset(timeline->samples, 0, count * sizeof *timeline->samples); // resident before the base
    timeline->statm_fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    find_tellers(timeline, library, with_plan);
    look_closely(timeline); // what a look needs itself is resident before the base, too
}

void timeline_base(struct timeline *timeline) {
    if (timeline->samples)
        timeline->base_rss_bytes = rss_bytes(timeline);
}

void timeline_take(struct timeline *timeline, uint32_t sample_idx) {
    struct sample *sample = &timeline->samples[sample_idx];
    uint64_t now_bytes = rss_bytes(timeline);
    sample->rss_bytes =
        now_bytes > timeline->base_rss_bytes ? now_bytes - timeline->base_rss_bytes : 0;
    if (__atomic_exchange_n(&timeline->look_lock, 1, __ATOMIC_ACQUIRE) != 0)
        return;
    uint32_t before_idx = timeline->taken_idx;
    if (before_idx == NONE_TAKEN ||
        sample->live_bytes > timeline->samples[before_idx].live_bytes) {
        look_closely(timeline);
        timeline->taken_idx = sample_idx;
    }
    __atomic_store_n(&timeline->look_lock, 0, __ATOMIC_RELEASE);
}

static void print_sample(const struct sample *sample, FILE *to) {
    fprintf(to, "[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", sample->ops, sample->live_bytes,
            sample->rss_bytes);
}

static void print_stats(const struct timeline *timeline, FILE *to) {
    char text[4096];
    ssize_t got;
    if (timeline->stats_fd < 0 || lseek(timeline->stats_fd, 0, SEEK_SET) != 0)
        return;
    bool any = false;
    while ((got = read(timeline->stats_fd, text, sizeof text)) > 0) {
        if (!any)
            fputs(",\"stats\":", to);
        any = true;
        fwrite(text, 1, (size_t)got, to);
    }
}

void timeline_print(const struct timeline *timeline, FILE *to) {
    if (timeline->samples == NULL)
        return;
    fputs(",\"timeline\":[", to);
    for (uint32_t i = 0; i < timeline->count; i++) {
        if (i > 0)
            fputc(',', to);
        print_sample(&timeline->samples[i], to);
    }
    fputc(']', to);
    if (timeline->taken_idx == NONE_TAKEN)
        return;
    fputs(",\"largest\":", to);
    print_sample(&timeline->samples[timeline->taken_idx], to);
    if (timeline->malloc_info) {
        const struct malloc_info *info = &timeline->info;
        fprintf(to,
                ",\"mallinfo\":{\"heap_bytes\":%zu,\"used_bytes\":%zu,\"free_bytes\":%zu,"
                "\"mapped_bytes\":%zu,\"top_bytes\":%zu,\"free_chunks\":%zu}",
                info->heap_bytes, info->used_bytes, info->free_bytes, info->mapped_bytes,
                info->top_bytes, info->free_chunks);
    }
    print_stats(timeline, to);
}
