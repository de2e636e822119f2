// SPDX-License-Identifier: MIT
/*
 * source.c - the default page source: speed of warm spans at 1, 2 and 8 threads, and what it holds and when it lets go.
 *
 *     source           the table
 *     source --json
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <quire/source.h>

#include "bench.h"

enum { RUNS = 9, PAIRS = 200000, SPAN_BYTES = 64 << 10, THREADS_MAX = 8 };
static bool json;

static void row(const char *name, double value, const char *unit)
{
    printf(json ? "{\"row\":\"%s\",\"value\":%.2f,\"unit\":\"%s\"}\n" : "%-58s %10.2f %s\n", name, value, unit);
    fflush(stdout);
}

static void *pairs_main(void *out)
{
    struct quire_source *source = quire_source_default();
    struct quire_span span;
    uint64_t began = bench_thread_ns();
    for (int i = 0; i < PAIRS; i++) {
        if (source->verbs->take(source, SPAN_BYTES, 4096, &span) != 0)
            abort();
        bench_use(span.start);
        source->verbs->give(source, &span);
    }
    *(uint64_t *)out = bench_thread_ns() - began;
    return NULL;
}

/* CPU ns of one take + give of a warm 64 KiB span, over all threads. */
static double pairs(size_t threads)
{
    pthread_t thread[THREADS_MAX];
    uint64_t took[THREADS_MAX], sum = 0;
    for (size_t i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, pairs_main, &took[i]);
    for (size_t i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        sum += took[i];
    }
    return (double)sum / (double)(threads * PAIRS);
}

static void speed(void)
{
    static const size_t counts[] = {1, 2, 8};
    double ns[3][RUNS];
    for (int run = 0; run < RUNS; run++) /* interleaved: a change of the machine's load meets all three */
        for (int i = 0; i < 3; i++)
            ns[i][run] = pairs(counts[i]);
    double one = bench_median(ns[0], RUNS), two = bench_median(ns[1], RUNS), eight = bench_median(ns[2], RUNS);
    row("take + give of a warm 64 KiB span, 1 thread", one, "ns CPU");
    row("the same, 2 threads", two, "ns CPU");
    row("the same, 8 threads", eight, "ns CPU");
    row("throughput per CPU-second at 2 threads, relative to 1", one / two, "x");
    row("throughput per CPU-second at 8 threads, relative to 1", one / eight, "x");
}

/* Take 1 GiB as 64 KiB spans, touch all, give all back: what is held at once, after two decays, and in how many VMAs. */
static void memory(void)
{
    enum { COUNT = (1 << 30) / SPAN_BYTES };
    struct quire_source *source = quire_source_default();
    struct quire_span *spans = calloc(COUNT, sizeof *spans);
    size_t vmas = bench_vma_count(), rss = bench_rss_bytes();
    for (int i = 0; i < COUNT; i++) {
        if (source->verbs->take(source, SPAN_BYTES, 4096, &spans[i]) != 0)
            abort();
        for (int at = 0; at < SPAN_BYTES; at += 4096)
            ((char *)spans[i].start)[at] = 1;
    }
    row("VMAs for 1 GiB of 64 KiB spans", (double)(bench_vma_count() - vmas), "");
    row("source's own bookkeeping for it", (double)(bench_rss_bytes() - rss - (1u << 30)) / 1048576, "MiB");
    for (int i = 0; i < COUNT; i++)
        source->verbs->give(source, &spans[i]);
    row("held right after all was given back (bar: 256 + 8)", (double)(bench_rss_bytes() - rss) / 1048576, "MiB");
    struct timespec two_decays = {2, 0};
    nanosleep(&two_decays, NULL);
    row("held two decays later", ((double)bench_rss_bytes() - (double)rss) / 1048576, "MiB");
    free(spans);
}

int main(int argc, char **argv)
{
    json = bench_flag(argc, argv, "--json");
    speed();
    memory();
    return 0;
}
