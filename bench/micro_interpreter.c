// SPDX-License-Identifier: MIT
/*
 * micro_interpreter.c - an interpreter's objects: 2,600,000 of 1 to 512 bytes, 63 % of them 48, 90 % dying young.
 *
 *   object --- 90 % ---> young[256], the oldest is freed            `sweeps`: only marked as garbage;
 *          \-- 10 % ---> old[100,000], a random one is freed                  every 100,000 objects all garbage is freed, in the order of birth
 *
 * An object is written where an interpreter writes: its first 16 bytes.
 */
#include <string.h>

#include "micro_driver.h"

enum { OBJECTS = 2600000, YOUNG = 256, OLD = 100000, SWEEP = 100000, SIZES = 4096, OLD_SHARE = 410 /* of 4096 */ };

static uint16_t object_bytes[SIZES];

static size_t draw_bytes(uint64_t random)
{
    uint32_t share = (uint32_t)random % 1000, fine = (uint32_t)(random >> 32);
    if (share < 630)
        return 48;
    if (share < 750)
        return 1 + fine % 32;
    if (share < 880)
        return 33 + fine % 64;
    return share < 960 ? 97 + fine % 128 : 225 + fine % 288;
}

size_t micro_object_bytes(uint64_t random)
{
    if (!object_bytes[0]) {
        uint64_t state = 2463534242;
        for (size_t i = 0; i < SIZES; i++)
            object_bytes[i] = (uint16_t)draw_bytes(bench_random(&state));
    }
    return object_bytes[random % SIZES];
}

static void *object(uint64_t random)
{
    size_t bytes = micro_object_bytes(random);
    char *p = malloc(bytes);
    if (!p)
        bench_die("out of memory");
    memset(p, (int)random, bytes < 16 ? bytes : 16);
    return p;
}

void micro_interpreter(const struct micro_config *config)
{
    void **old = bench_scratch(OLD, sizeof *old), *young[YOUNG] = {0};
    uint64_t state = 88172645463325252u;
    size_t count = micro_count(config, OBJECTS);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        uint64_t random = bench_random(&state);
        void **place = (random >> 16) % 4096 < OLD_SHARE ? &old[bench_below(random, OLD)] : &young[i % YOUNG];
        free(*place);
        *place = object(random);
    }
    for (size_t i = 0; i < OLD; i++)
        free(old[i]);
    for (size_t i = 0; i < YOUNG; i++)
        free(young[i]);
    micro_row(config, count);
}

void micro_sweeps(const struct micro_config *config)
{
    void **old = bench_scratch(OLD, sizeof *old), **garbage = bench_scratch(SWEEP, sizeof *garbage);
    uint64_t state = 88172645463325252u;
    size_t count = micro_count(config, OBJECTS), dead = 0;
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        uint64_t random = bench_random(&state);
        void *born = object(random);
        if ((random >> 16) % 4096 < OLD_SHARE) {
            void **place = &old[bench_below(random, OLD)], *last = *place;
            *place = born;
            born = last;
        }
        garbage[dead++] = born;
        if (dead < SWEEP)
            continue;
        for (size_t j = 0; j < dead; j++)
            free(garbage[j]);
        dead = 0;
    }
    for (size_t j = 0; j < dead; j++)
        free(garbage[j]);
    for (size_t i = 0; i < OLD; i++)
        free(old[i]);
    micro_row(config, count);
}
