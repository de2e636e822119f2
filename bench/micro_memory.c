// SPDX-License-Identifier: MIT
/*
 * micro_memory.c - what stays resident: of a thread that allocated once, after everything was freed, and while sizes drift for a long time.
 *
 *   once    `threads` threads wait; each allocates 100 bytes; the growth divided by them
 *   freed   some 114 MB of small blocks, freed at random; held then, and 2.2 s later (two decays of Quire's default; nothing is called meanwhile)
 *   idle    1,000,000 blocks of 400 bytes, freed; held 3 s later
 *   drift   48 MB live, random blocks replaced, their sizes wander between 16 bytes and 8 KiB; resident memory by quarters of the time
 *
 * `drift` is bounded by work and not by the clock: each of its 400 ticks replaces as many bytes, whoever allocates.
 */
#include <math.h>

#include "micro_driver.h"

enum { FREED_BLOCKS = 1000000, FREED_WAIT_MS = 2200, IDLE_BLOCKS = 1000000, IDLE_BYTES = 400, IDLE_WAIT_MS = 3000, ONCE_BYTES = 100, STACK_BYTES = 65536 };
enum { DRIFT_SLOTS = 1 << 20, DRIFT_LIVE_BYTES = 48 << 20, DRIFT_TICKS = 400, DRIFT_TICK_BYTES = 6 << 20 };

static pthread_barrier_t line;

/* Some depth of stack is touched before, that it is no part of the difference. */
static __attribute__((noinline)) void touch_stack(void)
{
    char depth[8192];
    for (size_t i = 0; i < sizeof depth; i += 512)
        ((volatile char *)depth)[i] = 0;
}

static void *allocate_once(void *arg)
{
    touch_stack();
    pthread_barrier_wait(&line);
    pthread_barrier_wait(&line);
    *(void **)arg = micro_block(ONCE_BYTES);
    pthread_barrier_wait(&line);
    pthread_barrier_wait(&line);
    return NULL;
}

void micro_once(const struct micro_config *config)
{
    pthread_t *threads = bench_scratch(config->threads, sizeof *threads);
    void **blocks = bench_scratch(config->threads, sizeof *blocks);
    pthread_attr_t small;
    if (pthread_barrier_init(&line, NULL, (unsigned)config->threads + 1) != 0 || pthread_attr_init(&small) != 0 ||
        pthread_attr_setstacksize(&small, STACK_BYTES) != 0)
        bench_die("no barrier, or no small stack");
    micro_begin();
    for (size_t i = 0; i < config->threads; i++)
        if (pthread_create(&threads[i], &small, allocate_once, &blocks[i]) != 0)
            bench_die("no thread: out of memory, or over the limit of `ulimit -u`");
    pthread_barrier_wait(&line);
    size_t before_bytes = bench_rss_bytes();
    pthread_barrier_wait(&line);
    pthread_barrier_wait(&line);
    size_t after_bytes = bench_rss_bytes();
    pthread_barrier_wait(&line);
    for (size_t i = 0; i < config->threads; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < config->threads; i++)
        free(blocks[i]);
    micro_row(config, config->threads);
    bench_row_count("thread_bytes", (after_bytes - before_bytes) / config->threads);
}

static size_t above(size_t start_bytes)
{
    size_t now_bytes = bench_rss_bytes();
    return now_bytes > start_bytes ? now_bytes - start_bytes : 0;
}

static void fill(void **blocks, size_t count, size_t bytes)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < count; i++)
        blocks[i] = micro_block(bytes ? bytes : micro_object_bytes(bench_random(&state)) + 32);
}

/* Frees in an order that the blocks' addresses do not know. */
static void free_scattered(void **blocks, size_t count)
{
    uint64_t state = 362436069;
    for (size_t i = count - 1; i > 0; i--) {
        size_t j = bench_random(&state) % (i + 1);
        void *swap = blocks[i];
        blocks[i] = blocks[j];
        blocks[j] = swap;
    }
    for (size_t i = 0; i < count; i++)
        free(blocks[i]);
}

static void held(const struct micro_config *config, size_t count, size_t bytes, uint64_t wait_ms)
{
    void **blocks = bench_scratch(count, sizeof *blocks);
    free(micro_block(bytes ? bytes : 100));
    size_t start_bytes = bench_rss_bytes();
    micro_begin();
    fill(blocks, count, bytes);
    size_t full_bytes = above(start_bytes);
    free_scattered(blocks, count);
    size_t freed_bytes = above(start_bytes);
    bench_sleep_ms(wait_ms);
    size_t held_bytes = above(start_bytes);
    micro_row(config, count);
    bench_row_count("full_bytes", full_bytes);
    bench_row_count("freed_bytes", freed_bytes);
    bench_row_count("held_bytes", held_bytes);
}

void micro_freed(const struct micro_config *config)
{
    held(config, micro_count(config, FREED_BLOCKS), 0, FREED_WAIT_MS);
}

void micro_idle(const struct micro_config *config)
{
    held(config, micro_count(config, IDLE_BLOCKS), IDLE_BYTES, IDLE_WAIT_MS);
}

struct drifting {
    struct {
        void *block;
        size_t bytes;
    } *slots;
    size_t live_bytes;
    uint64_t state;
};

/* One tick: DRIFT_TICK_BYTES of new blocks near `centre_bytes`; blocks at random make room. */
static size_t drift_tick(struct drifting *drift, double centre_bytes)
{
    size_t ops = 0;
    for (size_t made_bytes = 0; made_bytes < DRIFT_TICK_BYTES; ops++) {
        uint64_t random = bench_random(&drift->state);
        size_t bytes = (size_t)(centre_bytes * (0.5 + (double)(random >> 40) / (1 << 24)));
        size_t at = random % DRIFT_SLOTS;
        while (drift->live_bytes + bytes > DRIFT_LIVE_BYTES || drift->slots[at].block) {
            free(drift->slots[at].block);
            drift->live_bytes -= drift->slots[at].bytes;
            drift->slots[at].block = NULL;
            drift->slots[at].bytes = 0;
            if (drift->live_bytes + bytes <= DRIFT_LIVE_BYTES)
                break;
            at = bench_random(&drift->state) % DRIFT_SLOTS;
        }
        drift->slots[at].block = micro_block(bytes);
        drift->slots[at].bytes = bytes;
        drift->live_bytes += bytes;
        made_bytes += bytes;
    }
    return ops;
}

void micro_drift(const struct micro_config *config)
{
    struct drifting drift = {.state = 88172645463325252u};
    drift.slots = bench_scratch(DRIFT_SLOTS, sizeof *drift.slots);
    size_t start_bytes = bench_rss_bytes(), ops = 0, ticks = config->seconds * DRIFT_TICKS / 8;
    double quarter_bytes[4] = {0};
    micro_begin();
    for (size_t tick = 0; tick < ticks; tick++) {
        double phase = 6.283185307179586 * 4 * (double)tick / (double)ticks; /* a whole wave in each quarter: quarters compare */
        ops += drift_tick(&drift, 360 * exp(2.8 * sin(phase)));
        quarter_bytes[tick * 4 / ticks] += (double)above(start_bytes) / ((double)ticks / 4);
    }
    micro_row(config, ops);
    static const char *const names[] = {"quarter_1_bytes", "quarter_2_bytes", "quarter_3_bytes", "quarter_4_bytes"};
    for (size_t i = 0; i < 4; i++)
        bench_row_number(names[i], quarter_bytes[i]);
    bench_row_number("last_to_second", quarter_bytes[3] / quarter_bytes[1]);
}
