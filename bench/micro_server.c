// SPDX-License-Identifier: MIT
/*
 * micro_server.c - threads that end and leave live blocks to others.
 *
 *   server    each of `threads` chains:  thread --[1000 live blocks]--> thread --> ... 50 generations; each replaces 40,000 blocks at random
 *   threads   10,000 threads, `threads` at a time: each allocates 64 blocks, frees half of them and those that a thread before it left; what they leave in the end
 *             is freed by main.  Memory then, above that of the beginning, is what 10,000 threads leaked.
 */
#include <string.h>

#include "micro_driver.h"

enum { LIVE = 1000, GENERATIONS = 50, REPLACED = 40000, LIFETIMES = 10000, LEFT = 32, ALLOCATED = 64 };

struct chain {
    pthread_t thread;
    void *blocks[LIVE];
    uint64_t state;
    size_t replaced;
};

static size_t request_bytes(uint64_t random)
{
    return random % 16 == 0 ? 512 + random / 16 % 1024 : 8 + random / 16 % 256;
}

static void *serve(void *arg)
{
    struct chain *chain = arg;
    for (size_t i = 0; i < chain->replaced; i++) {
        uint64_t random = bench_random(&chain->state);
        void **block = &chain->blocks[bench_below(random, LIVE)];
        free(*block);
        *block = micro_block(request_bytes(random));
    }
    return NULL;
}

void micro_server(const struct micro_config *config)
{
    struct chain *chains = bench_scratch(config->threads, sizeof *chains);
    size_t replaced = micro_count(config, REPLACED);
    micro_begin();
    for (size_t generation = 0; generation < GENERATIONS; generation++) {
        for (size_t i = 0; i < config->threads; i++) {
            chains[i].replaced = replaced;
            chains[i].state = 88172645463325252u + i + generation * 7919;
            micro_thread(&chains[i].thread, serve, &chains[i]);
        }
        for (size_t i = 0; i < config->threads; i++)
            pthread_join(chains[i].thread, NULL);
    }
    for (size_t i = 0; i < config->threads; i++)
        for (size_t j = 0; j < LIVE; j++)
            free(chains[i].blocks[j]);
    micro_row(config, replaced * config->threads * GENERATIONS);
}

struct lifetime {
    pthread_t thread;
    uint64_t state;
    void *left[LEFT];
};

static void *live_once(void *arg)
{
    struct lifetime *life = arg;
    void *blocks[ALLOCATED];
    for (size_t i = 0; i < ALLOCATED; i++)
        blocks[i] = micro_block(request_bytes(bench_random(&life->state)));
    for (size_t i = 0; i < LEFT; i++) {
        free(life->left[i]);
        life->left[i] = blocks[2 * i];
        free(blocks[2 * i + 1]);
    }
    return NULL;
}

void micro_threads(const struct micro_config *config)
{
    struct lifetime *lives = bench_scratch(config->threads, sizeof *lives);
    size_t count = micro_count(config, LIFETIMES) / config->threads * config->threads, early_bytes = 0;
    micro_begin();
    for (size_t born = 0; born < count; born += config->threads) {
        for (size_t i = 0; i < config->threads; i++) {
            lives[i].state = 88172645463325252u + born + i;
            micro_thread(&lives[i].thread, live_once, &lives[i]);
        }
        for (size_t i = 0; i < config->threads; i++)
            pthread_join(lives[i].thread, NULL);
        if (born == 0 || (early_bytes == 0 && born >= count / 20))
            early_bytes = born ? bench_rss_bytes() : 0;
    }
    for (size_t i = 0; i < config->threads; i++)
        for (size_t j = 0; j < LEFT; j++)
            free(lives[i].left[j]);
    size_t late_bytes = bench_rss_bytes();
    micro_row(config, count);
    bench_row_count("leaked_bytes", late_bytes > early_bytes ? late_bytes - early_bytes : 0);
}
