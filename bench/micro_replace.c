// SPDX-License-Identifier: MIT
/*
 * micro_replace.c - threads that each replace random ones of their own blocks: what a pair costs over how many live and over how many threads.
 *
 *   each thread: --live blocks, all there and written --[ barrier ]--> a random one is freed, a new one takes its place, again and again
 *
 * Only the replacing is timed: by its thread's clock, so that a peer's threads of its own are not part of it.  The number of pairs is that of all
 * threads together.
 */
#include "micro_driver.h"

enum { PAIRS = 10000000, BLOCK_BYTES = 64, THREADS_MAX = 512 };

struct replacer {
    pthread_t thread;
    pthread_barrier_t *line;
    size_t idx, live, pairs;
    uint64_t cpu_ns;
};

static void *replace(void *arg)
{
    struct replacer *r = arg;
    void **blocks = bench_scratch(r->live, sizeof *blocks);
    uint64_t state = 88172645463325252u + r->idx * 1000003u;
    for (size_t i = 0; i < r->live; i++)
        blocks[i] = micro_block(BLOCK_BYTES);
    pthread_barrier_wait(r->line);
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < r->pairs; i++) {
        void **block = &blocks[bench_below(bench_random(&state), r->live)];
        free(*block);
        *block = micro_block(BLOCK_BYTES);
    }
    r->cpu_ns = bench_thread_ns() - began;
    for (size_t i = 0; i < r->live; i++)
        free(blocks[i]);
    bench_scratch_free(blocks, r->live, sizeof *blocks);
    return NULL;
}

void micro_replace(const struct micro_config *config)
{
    static struct replacer all[THREADS_MAX];
    pthread_barrier_t line;
    uint64_t cpu_ns = 0, pairs = 0;
    if (config->threads > THREADS_MAX)
        bench_usage("more than 512 threads", "--threads 16");
    pthread_barrier_init(&line, NULL, (unsigned)config->threads);
    micro_begin();
    for (size_t i = 0; i < config->threads; i++) {
        all[i] = (struct replacer){.line = &line, .idx = i, .live = config->live, .pairs = micro_count(config, PAIRS) / config->threads + 1};
        micro_thread(&all[i].thread, replace, &all[i]);
    }
    for (size_t i = 0; i < config->threads; i++) {
        pthread_join(all[i].thread, NULL);
        cpu_ns += all[i].cpu_ns;
        pairs += all[i].pairs;
    }
    micro_row(config, pairs);
    bench_row_count("live", config->live);
    bench_row_number("ns_per_pair", (double)cpu_ns / (double)pairs);
}
