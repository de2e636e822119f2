// SPDX-License-Identifier: MIT
/*
 * micro_cross.c - blocks that another thread frees, by ways that the well-known benchmarks have.
 *
 *   relay     main allocates 5,000 blocks for each chain, in a random order; a thread replaces 300,000 of them at random, then starts its successor and ends
 *   backlog   threads / 2 allocate 4,096 blocks of 64 bytes and push them on one stack, at most 100 such crates; as many pop and free: the newest first
 *   cross     1,000 blocks a thread of 8 to 16,000 bytes, cleared or aligned; 15 to 50 freed, 30 to 99 replaced by turns; each second turn another
 *             30 to 99 are handed to the next thread, which frees them before it goes on
 *   swap      each thread allocates, half of it for long, frees random ones and swaps random ones with a board of 1,000 places that all threads share;
 *             thread 2 does twice as much as thread 1; sizes double from 8 to 512 bytes, one in a hundred is 100 to 10,000 times as large
 *   spawn     10 threads at a time; each leaves one zeroed block of 128 bytes in a random place and frees what was there
 *
 * Known elsewhere as larson, xmalloc-test, rptest, mstress and mleak; written anew from what those do.
 */
#include <malloc.h>
#include <stdatomic.h>
#include <string.h>

#include "micro_driver.h"

enum { RELAY_LIVE = 5000, RELAY_STEPS = 300000, RELAY_LEGS = 3, RELAY_BYTES_MIN = 8, RELAY_BYTES_MAX = 1000 };
enum { CRATE = 4096, CRATES_MAX = 100, BACKLOG_CRATES = 800, BACKLOG_BYTES = 64, BOARD = 1000 };
enum { CROSS_TURNS = 8000, CROSS_LIVE = 1000, CROSS_SIZES = 2048, CROSS_BYTES_MIN = 8, CROSS_BYTES_MAX = 16000, SWAP_ROUNDS = 100, SWAP_STEPS = 2000 };
enum { SPAWN_ROUNDS = 600, SPAWN_WORDS = 16 };

/* ---- relay ---- */

struct chain {
    void **blocks;
    uint64_t state;
    size_t legs, steps;
    atomic_bool ended;
};

static size_t relay_bytes(uint64_t random)
{
    return RELAY_BYTES_MIN + (random & 0xffffff) % (RELAY_BYTES_MAX - RELAY_BYTES_MIN);
}

static void relay_replace(void **blocks, size_t count, uint64_t *state)
{
    uint64_t random = bench_random(state);
    void **block = &blocks[bench_below(random, count)];
    free(*block);
    *block = micro_block(relay_bytes(random));
}

static void *relay_leg(void *arg)
{
    struct chain *chain = arg;
    pthread_t next;
    uint64_t state = chain->state; /* not in a line that others write */
    for (size_t i = 0; i < chain->steps; i++)
        relay_replace(chain->blocks, RELAY_LIVE, &state);
    chain->state = state;
    if (--chain->legs == 0) {
        atomic_store_explicit(&chain->ended, true, memory_order_release);
    } else {
        micro_thread(&next, relay_leg, chain);
        pthread_detach(next);
    }
    return NULL;
}

void micro_relay(const struct micro_config *config)
{
    size_t count = RELAY_LIVE * config->threads, steps = micro_count(config, RELAY_STEPS);
    struct chain *chains = bench_scratch(config->threads, sizeof *chains);
    void **blocks = bench_scratch(count, sizeof *blocks);
    uint64_t state = 88172645463325252u;
    micro_begin();
    for (size_t i = 0; i < count; i++)
        blocks[i] = micro_block(relay_bytes(bench_random(&state)));
    for (size_t i = 0; i < 4 * count; i++)
        relay_replace(blocks, count, &state);
    for (size_t i = 0; i < config->threads; i++) {
        pthread_t first;
        chains[i].blocks = blocks + i * RELAY_LIVE;
        chains[i].state = bench_random(&state);
        chains[i].legs = RELAY_LEGS;
        chains[i].steps = steps;
        micro_thread(&first, relay_leg, &chains[i]);
        pthread_detach(first);
    }
    for (size_t i = 0; i < config->threads; i++)
        while (!atomic_load_explicit(&chains[i].ended, memory_order_acquire))
            bench_sleep_ms(1);
    micro_row(config, steps * config->threads * RELAY_LEGS);
}

/* ---- backlog ---- */

struct crate {
    struct crate *below;
    void *blocks[CRATE];
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t pushed, popped;
    struct crate *top;
    size_t crates, fillers;
} stack = {.lock = PTHREAD_MUTEX_INITIALIZER, .pushed = PTHREAD_COND_INITIALIZER, .popped = PTHREAD_COND_INITIALIZER};

static void push(struct crate *crate)
{
    pthread_mutex_lock(&stack.lock);
    while (stack.crates == CRATES_MAX)
        pthread_cond_wait(&stack.popped, &stack.lock);
    crate->below = stack.top;
    stack.top = crate;
    stack.crates++;
    pthread_cond_signal(&stack.pushed);
    pthread_mutex_unlock(&stack.lock);
}

/* NULL when nobody fills any more. */
static struct crate *pop(void)
{
    pthread_mutex_lock(&stack.lock);
    while (!stack.top && stack.fillers)
        pthread_cond_wait(&stack.pushed, &stack.lock);
    struct crate *crate = stack.top;
    if (crate) {
        stack.top = crate->below;
        stack.crates--;
        pthread_cond_signal(&stack.popped);
    }
    pthread_mutex_unlock(&stack.lock);
    return crate;
}

static void fill_crates(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct crate *crate = micro_block(sizeof *crate);
        for (size_t j = 0; j < CRATE; j++)
            crate->blocks[j] = memset(micro_block(BACKLOG_BYTES), (int)j, BACKLOG_BYTES);
        push(crate);
    }
    pthread_mutex_lock(&stack.lock);
    stack.fillers--;
    pthread_cond_broadcast(&stack.pushed);
    pthread_mutex_unlock(&stack.lock);
}

static void *backlog_thread(void *arg)
{
    const struct micro_part *part = arg;
    struct crate *crate;
    if (part->idx % 2)
        fill_crates(part->count * 2);
    else
        while ((crate = pop())) {
            for (size_t i = 0; i < CRATE; i++)
                free(crate->blocks[i]);
            free(crate);
        }
    return NULL;
}

void micro_backlog(const struct micro_config *config)
{
    if (config->threads % 2)
        bench_usage("half of its threads allocate, half free", "--threads 4");
    stack.fillers = config->threads / 2;
    micro_begin();
    micro_row(config, micro_parts(config, BACKLOG_CRATES, backlog_thread) * CRATE);
}

/* ---- cross ---- */

struct parcel {
    struct parcel *next;
    size_t count;
    void **blocks;
};

static struct desk {
    _Alignas(64) _Atomic(struct parcel *) in;
} *desks;

static uint16_t cross_bytes[CROSS_SIZES];
static atomic_size_t cross_busy;

/* Large ones are rare: the product of three. */
static void cross_draw(void)
{
    uint64_t state = 2463534242;
    for (size_t i = 0; i < CROSS_SIZES; i++) {
        double range = CROSS_BYTES_MAX - CROSS_BYTES_MIN;
        for (int j = 0; j < 3; j++)
            range *= (double)(bench_random(&state) >> 40) / (double)(1 << 24);
        cross_bytes[i] = (uint16_t)(CROSS_BYTES_MIN + range);
    }
}

/* Cleared, or of an alignment and written whole, by turns. */
static void *cross_take(size_t at)
{
    size_t bytes = cross_bytes[at % CROSS_SIZES];
    void *block = bytes >= 4096 || at % 3 == 0 ? calloc(1, bytes) : memalign(at % 3 == 1 ? 8 : 16, bytes);
    if (!block)
        bench_die("out of memory");
    if (bytes < 4096 && at % 3)
        memset(block, 0xcd, bytes);
    for (size_t page = 0; page < bytes; page += 4096)
        ((char *)block)[page] = 1;
    return block;
}

static void receive(struct desk *desk)
{
    struct parcel *parcel = atomic_exchange_explicit(&desk->in, NULL, memory_order_acquire);
    while (parcel) {
        struct parcel *next = parcel->next;
        for (size_t i = 0; i < parcel->count; i++)
            free(parcel->blocks[i]);
        free(parcel->blocks);
        free(parcel);
        parcel = next;
    }
}

static void send(struct desk *desk, size_t count, size_t *size_at)
{
    struct parcel *parcel = micro_block(sizeof *parcel);
    parcel->count = count;
    parcel->blocks = micro_block(count * sizeof *parcel->blocks);
    for (size_t i = 0; i < count; i++)
        parcel->blocks[i] = cross_take((*size_at)++);
    parcel->next = atomic_load_explicit(&desk->in, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&desk->in, &parcel->next, parcel, memory_order_release, memory_order_relaxed)) {
    }
}

static void *cross_thread(void *arg)
{
    const struct micro_part *part = arg;
    uint64_t state = 88172645463325252u + part->idx;
    void **live = bench_scratch(CROSS_LIVE, sizeof *live);
    size_t freed_at = 0, placed_at = 0, size_at = part->idx * 37;
    for (size_t turn = 0; turn < part->count; turn++) {
        uint64_t random = bench_random(&state);
        for (size_t i = 24 + random % 56; i > 0; i--, freed_at = (freed_at + 17) % CROSS_LIVE) {
            free(live[freed_at]);
            live[freed_at] = NULL;
        }
        receive(&desks[part->idx]);
        size_t placed = 30 + bench_below(random, 70);
        for (size_t i = placed; i > 0; i--, placed_at = (placed_at + 7) % CROSS_LIVE) {
            free(live[placed_at]);
            live[placed_at] = cross_take(size_at++);
        }
        if (turn % 2 == 0 && part->parts > 1)
            send(&desks[(part->idx + 1 + turn / 2 % (part->parts - 1)) % part->parts], placed, &size_at);
    }
    cross_busy--;
    for (; cross_busy; bench_sleep_ms(1))
        receive(&desks[part->idx]);
    receive(&desks[part->idx]);
    for (size_t i = 0; i < CROSS_LIVE; i++)
        free(live[i]);
    return NULL;
}

void micro_cross(const struct micro_config *config)
{
    desks = bench_scratch(config->threads, sizeof *desks);
    cross_draw();
    cross_busy = config->threads;
    micro_begin();
    micro_row(config, micro_parts(config, CROSS_TURNS, cross_thread));
}

/* ---- swap, spawn ---- */

static _Atomic(void *) board[BOARD];

static size_t *swap_take(unsigned doublings, uint64_t *state)
{
    uint64_t random = bench_random(state) >> 20;
    size_t words = (size_t)1 << random % doublings, rare = random >> 8;
    if (rare % 100 == 0)
        words *= rare / 100 % 100 == 0 ? 10000 : rare / 100 % 10 == 0 ? 1000 : 100;
    size_t *block = calloc(words, sizeof *block);
    if (!block)
        bench_die("out of memory");
    for (size_t i = 0; i < words; i++)
        block[i] = words - i;
    return block;
}

static void swap_give(size_t *block)
{
    size_t words = block ? block[0] : 0;
    for (size_t i = 0; i < words; i++)
        if (block[i] != words - i)
            bench_die("a block has another owner");
    free(block);
}

static void swap_steps(size_t steps, uint64_t *state)
{
    size_t young = 0, old = 0, **youth = micro_block(steps * sizeof *youth), **age = micro_block(steps * sizeof *age);
    while (young < steps || old < steps / 2) {
        uint64_t random = bench_random(state) >> 20;
        if (old == steps / 2 || (young < steps && random % 2))
            youth[young++] = swap_take(5, state);
        else
            age[old++] = swap_take(7, state);
        if (young && (random >> 1) % 3 != 0) {
            size_t **block = &youth[(random >> 8) % young];
            swap_give(*block);
            *block = NULL;
        }
        if (young && (random >> 4) % 4 == 0) {
            size_t **block = &youth[(random >> 12) % young];
            *block = atomic_exchange_explicit(&board[(random >> 24) % BOARD], *block, memory_order_acq_rel);
        }
    }
    for (size_t i = 0; i < old; i++)
        swap_give(age[i]);
    for (size_t i = 0; i < young; i++)
        swap_give(youth[i]);
    free(youth);
    free(age);
}

static size_t swap_round;

static void *swap_thread(void *arg)
{
    const struct micro_part *part = arg;
    uint64_t state = 88172645463325252u + part->idx + 8 * swap_round;
    swap_steps(SWAP_STEPS * (part->idx % 8 + 1), &state);
    return NULL;
}

void micro_swap(const struct micro_config *config)
{
    size_t rounds = micro_count(config, SWAP_ROUNDS);
    micro_begin();
    for (swap_round = 0; swap_round < rounds; swap_round++) {
        micro_parts(config, 1, swap_thread);
        for (size_t i = swap_round % 2; i < BOARD; i += swap_round + 1 < rounds ? 2 : 1)
            swap_give(atomic_exchange_explicit(&board[i], NULL, memory_order_acquire));
    }
    micro_row(config, rounds * config->threads * SWAP_STEPS);
}

static void *spawn_thread(void *arg)
{
    const struct micro_part *part = arg;
    uint64_t state = 88172645463325252u + part->idx + swap_round * part->parts;
    bench_random(&state);
    void *block = calloc(SPAWN_WORDS, sizeof(void *));
    free(atomic_exchange_explicit(&board[bench_below(bench_random(&state), BOARD)], block, memory_order_acq_rel));
    return NULL;
}

void micro_spawn(const struct micro_config *config)
{
    size_t rounds = micro_count(config, SPAWN_ROUNDS);
    micro_begin();
    for (swap_round = 0; swap_round < rounds; swap_round++)
        micro_parts(config, 1, spawn_thread);
    for (size_t i = 0; i < BOARD; i++)
        free(board[i]);
    micro_row(config, rounds * config->threads);
}
