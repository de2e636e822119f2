// SPDX-License-Identifier: MIT
/*
 * slab_burst.c - the workload `burst`: very many elements at once, the first time and again.
 *
 *   memory held
 *     |      ____            ____        ____
 *     |     /    \          /    \      /    \
 *     |____/      \________/      \____/      \________________________
 *         cold            warm 1      warm 2      all freed, then trimmed
 *
 * The first word of each element is written.  With --allocator touch fresh memory is mapped and written instead: the floor of `cold`.
 * As much memory is touched and given back before the clock starts: otherwise the first process pays a host that hands it out slowly.
 */
#include <string.h>
#include <sys/mman.h>

#include "slab_driver.h"

enum { ELEMENTS = 1000000, ELEMENT_BYTES = 1024, WARM_ROUNDS = 5, THREADS_MAX = 64 };

struct burst {
    void **elements;
    char *fresh; /* of KIND_NONE */
    uint64_t cold_ns, free_ns, warm_ns[WARM_ROUNDS];
};

static pthread_barrier_t threads_line; /* the threads without main */

static void meet(struct slab_worker *w)
{
    pthread_barrier_wait(w->line);
}

static void meet_threads(void)
{
    pthread_barrier_wait(&threads_line);
}

/* CPU time of allocating all and writing their first words. */
ALWAYS_INLINE uint64_t allocate(enum slab_kind kind, bool batched, struct slab_worker *w)
{
    struct burst *b = w->result;
    uint64_t began = bench_thread_ns();
    if (kind == KIND_NONE && !b->fresh) {
        b->fresh = mmap(NULL, w->count * w->element_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->fresh == MAP_FAILED)
            bench_die("out of memory");
    }
    for (size_t i = 0; i < w->count;) {
        size_t left = w->count - i, batch = batched && w->config->batch < left ? w->config->batch : batched ? left : 1;
        if (kind == KIND_NONE)
            b->elements[i] = b->fresh + i * w->element_bytes;
        else
            slab_take_many(kind, batched, w, b->elements + i, batch);
        for (size_t end = i + batch; i < end; i++)
            *(uint64_t *)b->elements[i] = i;
    }
    return bench_thread_ns() - began;
}

ALWAYS_INLINE uint64_t release(enum slab_kind kind, bool batched, struct slab_worker *w)
{
    struct burst *b = w->result;
    for (size_t i = 0; i < w->count; i++)
        if (*(uint64_t *)b->elements[i] != i)
            bench_die("an element does not hold what was written into it");
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; kind != KIND_NONE && i < w->count;) {
        size_t left = w->count - i, batch = batched && w->config->batch < left ? w->config->batch : batched ? left : 1;
        slab_give_many(kind, batched, w, b->elements + i, batch);
        i += batch;
    }
    return bench_thread_ns() - began;
}

ALWAYS_INLINE void *burst_thread(enum slab_kind kind, bool batched, struct slab_worker *w)
{
    struct burst *b = w->result = (struct burst *)w->result + w->idx;
    b->elements = bench_scratch(w->count, sizeof(void *));
    meet(w); /* ready: main looks, and makes the slab */
    meet(w);
    b->cold_ns = allocate(kind, batched, w);
    meet(w); /* full: main looks */
    meet(w);
    b->free_ns = release(kind, batched, w);
    for (int r = 0; r < WARM_ROUNDS; r++) {
        meet_threads();
        b->warm_ns[r] = allocate(kind, batched, w);
        meet_threads();
        release(kind, batched, w);
    }
    if (b->fresh)
        munmap(b->fresh, w->count * w->element_bytes);
    meet(w); /* all is free: main looks */
    meet(w);
    return NULL;
}

static void *burst_slab(void *worker)
{
    return burst_thread(KIND_SLAB, false, worker);
}

static void *burst_slab_batched(void *worker)
{
    return burst_thread(KIND_SLAB, true, worker);
}

static void *burst_malloc(void *worker)
{
    return burst_thread(KIND_MALLOC, false, worker);
}

static void *burst_touch(void *worker)
{
    return burst_thread(KIND_NONE, false, worker);
}

/* Until the system hands out pages that the host has given it already: such a page takes about 1 us, another 10. */
static void host_warm(size_t bytes)
{
    enum { PASSES_MAX = 8, FAST_PASSES = 2, PAGE_NS_MAX = 3000 };
    for (int pass = 0, fast = 0; pass < PASSES_MAX && fast < FAST_PASSES; pass++) {
        uint64_t began = bench_thread_ns();
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            bench_die("this machine has not enough memory; less with --count 100000");
        for (size_t at = 0; at < bytes; at += 4096)
            ((volatile char *)memory)[at] = 1;
        uint64_t took_ns = bench_thread_ns() - began;
        munmap(memory, bytes);
        fast = took_ns < bytes / 4096 * PAGE_NS_MAX ? fast + 1 : 0;
    }
}

static double above_mib(size_t now_bytes, size_t before_bytes)
{
    return ((double)now_bytes - (double)before_bytes) / 1048576;
}

static void burst_row(const struct slab_config *config, const struct burst *bursts, const struct slab_worker *like)
{
    double cold_ms = 0, free_ms = 0, warm_ms[WARM_ROUNDS] = {0};
    for (size_t t = 0; t < config->threads; t++) {
        cold_ms += (double)bursts[t].cold_ns / 1e6;
        free_ms += (double)bursts[t].free_ns / 1e6;
        for (int r = 0; r < WARM_ROUNDS; r++)
            warm_ms[r] += (double)bursts[t].warm_ns[r] / 1e6;
    }
    slab_row_open(config, like->element_bytes);
    bench_row_count("batch", config->single_calls ? 1 : config->batch);
    bench_row_count("count", like->count * config->threads);
    bench_row_number("cold_cpu_ms", cold_ms);
    bench_row_number("warm_cpu_ms", bench_median(warm_ms, WARM_ROUNDS));
    bench_row_number("free_cpu_ms", free_ms); /* the first time */
}

/* Follows the threads through their meetings; main looks at the process between two of them.  Prints the rest of the row. */
static void burst_watch(struct slab_worker *workers, const struct burst *bursts, const struct slab_worker *like)
{
    const struct slab_config *config = like->config;
    meet(workers);
    size_t start_bytes = bench_rss_bytes();
    uint64_t process_ns = bench_process_ns();
    struct quire_slab *slab = slab_make(config, like->element_bytes, 0);
    for (size_t t = 0; t < config->threads; t++)
        workers[t].slab = slab;
    meet(workers);
    meet(workers);
    double full_mib = above_mib(bench_rss_bytes(), start_bytes);
    slab_sound(slab, like->count * config->threads);
    meet(workers);
    meet(workers);
    process_ns = bench_process_ns() - process_ns;
    double freed_mib = above_mib(bench_rss_bytes(), start_bytes);
    if (config->decay)
        bench_sleep_ms(TWO_DECAYS_MS);
    double decayed_mib = above_mib(bench_rss_bytes(), start_bytes);
    slab_give_back(config->kind, slab);
    double trimmed_mib = above_mib(bench_rss_bytes(), start_bytes);
    slab_sound(slab, 0);
    burst_row(config, bursts, like);
    bench_row_number("process_cpu_ms", (double)process_ns / 1e6); /* of all rounds, threads of the allocator's own included */
    bench_row_number("held_full_mib", full_mib);
    bench_row_number("held_freed_mib", freed_mib);
    if (config->decay)
        bench_row_number("held_decayed_mib", decayed_mib);
    bench_row_number("held_trimmed_mib", trimmed_mib);
    bench_row_close();
    meet(workers);
    slab_workers_end(workers, config->threads);
    quire_slab_destroy(slab);
}

void slab_burst(const struct slab_config *config)
{
    static struct slab_worker workers[THREADS_MAX];
    static struct burst bursts[THREADS_MAX];
    bool batched = config->batch > 1 && !config->single_calls;
    struct slab_worker like = {.config = config, .element_bytes = config->element_bytes ? config->element_bytes : ELEMENT_BYTES};
    if (config->threads > THREADS_MAX)
        bench_usage("more than 64 threads", "--threads 2");
    if (like.element_bytes < sizeof(uint64_t))
        bench_usage("this workload writes a word into each element", "--element 1024");
    like.count = (config->count ? config->count : ELEMENTS) / config->threads;
    if (like.count == 0)
        bench_usage("fewer elements than threads", "--count 1000");
    like.result = bursts;
    bench_rss_bytes(); /* what reading it allocates is not part of a difference */
    host_warm(like.count * config->threads * like.element_bytes);
    pthread_barrier_init(&threads_line, NULL, (unsigned)config->threads);
    slab_workers_start(workers, config->threads, like,
                       config->kind == KIND_NONE     ? burst_touch
                       : config->kind == KIND_MALLOC ? burst_malloc
                       : batched                     ? burst_slab_batched
                                                     : burst_slab);
    burst_watch(workers, bursts, &like);
}
