// SPDX-License-Identifier: MIT
/*
 * micro_hand_over.c - blocks that another thread than the one that allocated them frees, or writes beside.
 *
 *   producer   allocates 4096 --[ crate ]--> frees 4096         threads / 2 such pairs
 *   flood      allocates 2,000,000 --> sleeps while the other frees them all; once more
 *   scratch    main allocates one small block for each thread; each frees it, then allocates, writes 20 times, frees
 *   thrash     the same without main's blocks
 *
 * A crate is handed over under a lock, 4096 blocks at a time, so that waiting costs little beside what is measured.
 */
#include "micro_driver.h"

enum { CRATE = 4096, CRATES = 4, PRODUCER_COUNT = 8000000, FLOOD_COUNT = 2000000, FLOOD_BYTES = 64 };
enum { SMALL_COUNT = 16000000, SMALL_BYTES = 8, SMALL_WRITES = 20 };

struct lane {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    size_t filled, emptied, crates;
    void *blocks[CRATES][CRATE];
};

static size_t lane_wait(struct lane *lane, const size_t *counter, size_t at_least)
{
    pthread_mutex_lock(&lane->lock);
    while (*counter < at_least)
        pthread_cond_wait(&lane->moved, &lane->lock);
    pthread_mutex_unlock(&lane->lock);
    return at_least;
}

static void lane_count(struct lane *lane, size_t *counter)
{
    pthread_mutex_lock(&lane->lock);
    ++*counter;
    pthread_cond_broadcast(&lane->moved);
    pthread_mutex_unlock(&lane->lock);
}

static void *produce(void *arg)
{
    struct lane *lane = arg;
    uint64_t state = 88172645463325252u;
    for (size_t crate = 0; crate < lane->crates; crate++) {
        if (crate >= CRATES)
            lane_wait(lane, &lane->emptied, crate - CRATES + 1);
        for (size_t i = 0; i < CRATE; i++) {
            uint64_t random = bench_random(&state);
            lane->blocks[crate % CRATES][i] = micro_block(8 * (1 + bench_below(random, random & 64 ? 8 : 48)));
        }
        lane_count(lane, &lane->filled);
    }
    return NULL;
}

static void *consume(void *arg)
{
    struct lane *lane = arg;
    for (size_t crate = 0; crate < lane->crates; crate++) {
        lane_wait(lane, &lane->filled, crate + 1);
        for (size_t i = 0; i < CRATE; i++)
            free(lane->blocks[crate % CRATES][i]);
        lane_count(lane, &lane->emptied);
    }
    return NULL;
}

void micro_producer(const struct micro_config *config)
{
    size_t pairs = (config->threads + 1) / 2, crates = micro_count(config, PRODUCER_COUNT) / CRATE / pairs + 1;
    struct lane *lanes = bench_scratch(pairs, sizeof *lanes);
    pthread_t *threads = bench_scratch(pairs * 2, sizeof *threads);
    micro_begin();
    for (size_t i = 0; i < pairs; i++) {
        pthread_mutex_init(&lanes[i].lock, NULL);
        pthread_cond_init(&lanes[i].moved, NULL);
        lanes[i].crates = crates;
        micro_thread(&threads[2 * i], produce, &lanes[i]);
        micro_thread(&threads[2 * i + 1], consume, &lanes[i]);
    }
    for (size_t i = 0; i < pairs * 2; i++)
        pthread_join(threads[i], NULL);
    micro_row(config, crates * CRATE * pairs);
}

struct flood {
    void **blocks;
    size_t count;
};

static void *drain(void *arg)
{
    struct flood *flood = arg;
    for (size_t i = 0; i < flood->count; i++)
        free(flood->blocks[i]);
    return NULL;
}

void micro_flood(const struct micro_config *config)
{
    struct flood flood = {.count = micro_count(config, FLOOD_COUNT)};
    flood.blocks = bench_scratch(flood.count, sizeof *flood.blocks);
    micro_begin();
    for (int wave = 0; wave < 2; wave++) {
        pthread_t other;
        for (size_t i = 0; i < flood.count; i++)
            flood.blocks[i] = micro_block(FLOOD_BYTES);
        micro_thread(&other, drain, &flood);
        pthread_join(other, NULL);
    }
    micro_row(config, flood.count * 2);
}

struct writer {
    pthread_t thread;
    char *first;
    size_t count;
};

static void *write_often(void *arg)
{
    struct writer *writer = arg;
    free(writer->first);
    for (size_t i = 0; i < writer->count; i++) {
        char *block = micro_block(SMALL_BYTES);
        for (int j = 0; j < SMALL_WRITES; j++)
            ((volatile char *)block)[j % SMALL_BYTES]++;
        free(block);
    }
    return NULL;
}

static void small(const struct micro_config *config, bool handed)
{
    struct writer *writers = bench_scratch(config->threads, sizeof *writers);
    size_t count = micro_count(config, SMALL_COUNT) / config->threads;
    micro_begin();
    for (size_t i = 0; i < config->threads; i++)
        writers[i] = (struct writer){.first = handed ? micro_block(SMALL_BYTES) : NULL, .count = count};
    for (size_t i = 0; i < config->threads; i++)
        micro_thread(&writers[i].thread, write_often, &writers[i]);
    for (size_t i = 0; i < config->threads; i++)
        pthread_join(writers[i].thread, NULL);
    micro_row(config, count * config->threads);
}

void micro_scratch(const struct micro_config *config)
{
    small(config, true);
}

void micro_thrash(const struct micro_config *config)
{
    small(config, false);
}
