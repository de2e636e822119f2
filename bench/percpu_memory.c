// SPDX-License-Identifier: MIT
/*
 * percpu_memory.c - what copies cost and what comes back: the workload `memory`.
 *
 *   resident    100,000 objects of 64 bytes for 64 CPUs, written on 2 of them; bookkeeping in relation to a unit; mappings a chunk
 *   returned    objects of 64 bytes to 4 KiB, written on 2 CPUs; a random 90 % freed, then a trim.  Pages that came back, in relation to those that
 *               would if the living tenth were packed together ("ideal"), and to those on which nothing lives: objects never move, so that of
 *               pages with 64 objects one in a thousand is empty then ("possible")
 *
 * Resident memory is that of the process above what it was before the pool.
 */
#include <string.h>

#include "percpu_driver.h"

enum { OBJECTS = 100000, OBJECT_BYTES = 64, CPUS = 64, WRITTEN = 2, FREED_PERCENT = 90, RETURNED_BYTES = 16 << 20, OS_PAGE_BYTES = 4096 };

struct filled {
    struct percpu_place place;
    uintptr_t *bits;
    size_t count, object_bytes, written;
    size_t start_bytes, start_vmas;
};

static struct filled fill(const struct percpu_config *config, size_t object_bytes, size_t count)
{
    struct percpu_config one = *config;
    one.cpus = config->cpus ? config->cpus : CPUS;
    struct filled f = {.count = count, .object_bytes = object_bytes, .written = config->written ? config->written : WRITTEN};
    f.written = f.written < one.cpus ? f.written : one.cpus;
    f.bits = bench_scratch(count, sizeof *f.bits);
    bench_rss_bytes(); /* what reading it allocates is not part of a difference */
    f.start_vmas = bench_vma_count();
    f.start_bytes = bench_rss_bytes();
    f.place = percpu_place_open(&one, KIND_PERCPU, object_bytes, count);
    for (size_t i = 0; i < count; i++)
        f.bits[i] = percpu_take(KIND_PERCPU, &f.place, object_bytes, percpu_align_bytes(object_bytes));
    for (size_t i = 0; i < count; i++)
        for (unsigned cpu = 0; cpu < f.written; cpu++)
            memset(quire_percpu_at(f.place.pool, (struct quire_percpu_ref){f.bits[i]}, cpu), 0x5a, object_bytes);
    return f;
}

static void empty(struct filled *f, size_t live)
{
    while (live > 0)
        percpu_give(KIND_PERCPU, &f->place, f->bits[--live]);
    percpu_place_close(&f->place, 0);
    bench_scratch_free(f->bits, f->count, sizeof *f->bits);
}

static size_t above_bytes(const struct filled *f)
{
    size_t now_bytes = bench_rss_bytes();
    return now_bytes > f->start_bytes ? now_bytes - f->start_bytes : 0;
}

static void resident(const struct percpu_config *config)
{
    struct filled f = fill(config, config->object_bytes ? config->object_bytes : OBJECT_BYTES, config->count ? config->count : OBJECTS);
    size_t held_bytes = above_bytes(&f), vmas = bench_vma_count() - f.start_vmas;
    struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
    percpu_place_sound(&f.place, f.count);
    quire_percpu_stats(f.place.pool, &stats);
    percpu_row_open(config, KIND_PERCPU);
    bench_row_text("what", "resident");
    bench_row_count("object_bytes", f.object_bytes);
    bench_row_count("count", f.count);
    bench_row_count("cpus", stats.cpus);
    bench_row_count("written", f.written);
    bench_row_number("resident_mib", (double)held_bytes / (1 << 20));
    bench_row_number("payload_mib", (double)(f.count * f.object_bytes * f.written) / (1 << 20));
    bench_row_count("chunks", stats.chunks);
    bench_row_count("copies_written", stats.copies_written);
    bench_row_count("meta_bytes", stats.meta_bytes);
    bench_row_number("meta_percent_of_unit", 100 * (double)stats.meta_bytes / ((double)stats.chunks * (double)stats.unit_bytes));
    bench_row_number("vmas_per_chunk", (double)vmas / (double)stats.chunks);
    size_t live = f.count;
    while (live > 0)
        percpu_give(KIND_PERCPU, &f.place, f.bits[--live]);
    quire_percpu_stats(f.place.pool, &stats);
    bench_row_count("chunks_all_freed", stats.chunks);
    bench_row_number("resident_all_freed_mib", (double)above_bytes(&f) / (1 << 20));
    bench_row_close();
    empty(&f, 0);
}

static int by_page(const void *a, const void *b)
{
    uintptr_t x = *(const uintptr_t *)a / OS_PAGE_BYTES, y = *(const uintptr_t *)b / OS_PAGE_BYTES;
    return (x > y) - (x < y);
}

/* Pages of one copy on which the first `live` objects lie.  Sorts them. */
static size_t live_pages(struct filled *f, size_t live)
{
    size_t pages = 0;
    uintptr_t last = 0;
    qsort(f->bits, live, sizeof *f->bits, by_page);
    for (size_t i = 0; i < live; i++)
        for (uintptr_t page = f->bits[i] / OS_PAGE_BYTES; page <= (f->bits[i] + f->object_bytes - 1) / OS_PAGE_BYTES; page++)
            if (page > last) {
                pages++;
                last = page;
            }
    return pages;
}

static void returned(const struct percpu_config *config, size_t object_bytes)
{
    struct filled f = fill(config, object_bytes, config->count ? config->count : RETURNED_BYTES / object_bytes);
    uint64_t state = 88172645463325252u;
    size_t full_bytes = above_bytes(&f), live = f.count - f.count * FREED_PERCENT / 100;
    double full_pages = (double)(live_pages(&f, f.count) * f.written);
    percpu_shuffle(f.bits, f.count, &state);
    for (size_t i = f.count; i > live; i--)
        percpu_give(KIND_PERCPU, &f.place, f.bits[i - 1]);
    size_t freed_bytes = above_bytes(&f), told_bytes = quire_percpu_trim(f.place.pool), trimmed_bytes = above_bytes(&f);
    double packed_pages = (double)((live * object_bytes + OS_PAGE_BYTES - 1) / OS_PAGE_BYTES * f.written);
    double returned_pages = ((double)full_bytes - (double)trimmed_bytes) / OS_PAGE_BYTES, lived_pages = (double)(live_pages(&f, live) * f.written);
    percpu_place_sound(&f.place, live);
    percpu_row_open(config, KIND_PERCPU);
    bench_row_text("what", "returned");
    bench_row_count("object_bytes", object_bytes);
    bench_row_count("count", f.count);
    bench_row_count("written", f.written);
    bench_row_number("resident_mib", (double)full_bytes / (1 << 20));
    bench_row_number("freed_mib", (double)freed_bytes / (1 << 20));
    bench_row_number("trimmed_mib", (double)trimmed_bytes / (1 << 20));
    bench_row_number("trim_told_mib", (double)told_bytes / (1 << 20));
    bench_row_number("returned_of_ideal", returned_pages / (full_pages - packed_pages));
    bench_row_number("returned_of_possible", full_pages > lived_pages ? returned_pages / (full_pages - lived_pages) : 1); /* each page may have one that lives */
    bench_row_close();
    empty(&f, live);
}

void percpu_memory(const struct percpu_config *config)
{
    static const size_t sizes[] = {64, 256, 1024, 4096};
    resident(config);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        if (!config->object_bytes || config->object_bytes == sizes[s])
            returned(config, sizes[s]);
}
