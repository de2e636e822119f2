// SPDX-License-Identifier: MIT
/*
 * micro_pairs.c - blocks that the thread which allocated them frees: in runs, by skewed sizes, by skewed places, and one large block again and again.
 *
 *   simple    16, 32, 64 bytes; 25, 100, 400, 1,600 blocks allocated and written whole, then freed in the same order; main, a thread, main again
 *   skewed    1,024 blocks a thread, a random one replaced and written whole; sizes of 4 bytes to 32 KiB by an inverse square: half are under 8 bytes
 *   pareto    262,144 places over all threads, half of them full; a place is drawn, four fifths of the time from a fifth, six times over: a full one is
 *             read whole and emptied, an empty one filled with a block of 5 bytes to 1 KiB, each doubling of the size half as often
 *   again     2 MiB allocated, written whole, freed: kept or given back?
 *
 * Known elsewhere as glibc's malloc-simple and malloc-thread, alloc-test and malloc-large; written anew from what those do.
 */
#include <string.h>

#include "micro_driver.h"

enum { SIMPLE_BLOCKS = 1600000, SIMPLE_RUN_MAX = 1600, SKEWED_COUNT = 4000000, SKEWED_LIVE = 1024, SKEWED_SIZES = 8192, SKEWED_MIN = 4 };
enum { PARETO_COUNT = 3000000, PARETO_PLACES = 1 << 18, PARETO_LEVELS = 6, PARETO_DRAWS = 4096, PARETO_SIZE_BITS = 7, AGAIN_COUNT = 4000, AGAIN_BYTES = 2 << 20 };

/* ---- simple ---- */

struct runs {
    size_t blocks; /* of each length of run */
    uint32_t **run;
};

static void *run_all(void *arg)
{
    const struct runs *runs = arg;
    static const size_t lengths[] = {25, 100, 400, SIMPLE_RUN_MAX};
    for (size_t bytes = 16; bytes <= 64; bytes *= 2)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
            for (size_t done = 0; done < runs->blocks; done += lengths[l]) {
                for (size_t i = 0; i < lengths[l]; i++) {
                    uint32_t *block = runs->run[i] = malloc(bytes); /* no micro_block(): a call costs as much as half a pair */
                    if (!block)
                        bench_die("out of memory");
                    for (uint32_t word = 0; word < bytes / sizeof *block; word++)
                        block[word] = word;
                }
                for (size_t i = 0; i < lengths[l]; i++)
                    free(runs->run[i]);
            }
    return NULL;
}

void micro_simple(const struct micro_config *config)
{
    struct runs runs = {.blocks = micro_count(config, SIMPLE_BLOCKS) / 4, .run = bench_scratch(SIMPLE_RUN_MAX, sizeof(uint32_t *))};
    pthread_t other;
    micro_begin();
    run_all(&runs); /* the process has one thread */
    micro_thread(&other, run_all, &runs);
    pthread_join(other, NULL);
    run_all(&runs); /* it has had two */
    micro_row(config, runs.blocks * 4 * 3 * 3);
}

/* ---- skewed ---- */

static uint32_t skewed_bytes[SKEWED_SIZES];

/* Share x of the sizes is at most SKEWED_MIN / (1 - x). */
static void skewed_draw(void)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < SKEWED_SIZES; i++)
        skewed_bytes[i] = (uint32_t)(SKEWED_MIN * SKEWED_SIZES / (1 + bench_below(bench_random(&state), SKEWED_SIZES)));
}

static void *skewed_thread(void *arg)
{
    const struct micro_part *part = arg;
    uint64_t state = 88172645463325252u + part->idx;
    char **live = bench_scratch(SKEWED_LIVE, sizeof *live);
    for (size_t i = 0; i < part->count; i++) {
        uint64_t random = bench_random(&state);
        char **block = &live[bench_below(random, SKEWED_LIVE)];
        size_t bytes = skewed_bytes[i % SKEWED_SIZES];
        free(*block);
        *block = memset(micro_block(bytes), (int)i, bytes);
    }
    for (size_t i = 0; i < SKEWED_LIVE; i++)
        free(live[i]);
    return NULL;
}

void micro_skewed(const struct micro_config *config)
{
    skewed_draw();
    micro_begin();
    micro_row(config, micro_parts(config, SKEWED_COUNT, skewed_thread));
}

/* ---- pareto ---- */

struct place {
    unsigned char *block;
    size_t bytes;
};

/* A range of places and its share of the draws: of `levels` throws, `hot` fell on the fifth. */
static uint8_t hot_of_draw[PARETO_DRAWS];
static size_t range_end[PARETO_LEVELS + 2]; /* places in the ranges before; the hottest come first */

static double binomial(unsigned hot, double share)
{
    double chance = 1;
    for (unsigned i = 0; i < PARETO_LEVELS; i++)
        chance *= i < hot ? share * (PARETO_LEVELS - i) / (i + 1) : 1 - share;
    return chance;
}

static void pareto_draw(size_t places)
{
    double drawn = 0, placed = 0;
    for (unsigned cold = 0, at = 0; cold <= PARETO_LEVELS; cold++) {
        drawn += binomial(PARETO_LEVELS - cold, 0.8);
        placed += binomial(PARETO_LEVELS - cold, 0.2);
        while (at < PARETO_DRAWS && at < drawn * PARETO_DRAWS)
            hot_of_draw[at++] = (uint8_t)cold;
        range_end[cold + 1] = (size_t)(placed * (double)places + 0.5);
    }
}

static void fill_place(struct place *place, uint64_t random)
{
    int doubling = 2 + __builtin_ctzll((random >> 40) % (1u << PARETO_SIZE_BITS) + 1);
    place->bytes = 1 + ((size_t)1 << doubling) + (random >> 16) % ((size_t)1 << doubling);
    place->block = memset(micro_block(place->bytes), (int)random, place->bytes);
}

static void empty_place(struct place *place)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < place->bytes; i++)
        sum += place->block[i];
    if (sum != (uint64_t)place->block[0] * place->bytes)
        bench_die("a block has another owner");
    free(place->block);
    place->block = NULL;
}

static void *pareto_thread(void *arg)
{
    const struct micro_part *part = arg;
    uint64_t state = 88172645463325252u + part->idx;
    size_t places = PARETO_PLACES / part->parts;
    struct place *all = bench_scratch(places, sizeof *all);
    for (size_t i = 0; i < places; i++)
        if (bench_random(&state) >> 32 & 1)
            fill_place(&all[i], bench_random(&state));
    for (size_t i = 0; i < part->count; i++) {
        uint64_t random = bench_random(&state);
        unsigned cold = hot_of_draw[random % PARETO_DRAWS];
        struct place *place = &all[range_end[cold] + bench_below(random, range_end[cold + 1] - range_end[cold])];
        if (place->block)
            empty_place(place);
        else
            fill_place(place, bench_random(&state));
    }
    for (size_t i = 0; i < places; i++)
        if (all[i].block)
            empty_place(&all[i]);
    return NULL;
}

void micro_pareto(const struct micro_config *config)
{
    pareto_draw(PARETO_PLACES / config->threads);
    micro_begin();
    micro_row(config, micro_parts(config, PARETO_COUNT, pareto_thread));
}

/* ---- again ---- */

void micro_again(const struct micro_config *config)
{
    size_t count = micro_count(config, AGAIN_COUNT);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        void *block = memset(micro_block(AGAIN_BYTES), (int)i, AGAIN_BYTES);
        bench_use(block);
        free(block);
    }
    micro_row(config, count);
}
