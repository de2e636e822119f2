// SPDX-License-Identifier: MIT
/*
 * micro_interpreter.c - an interpreter's objects: 2,600,000 of 1 to 512 bytes, 63 % of them 48, 90 % dying young.
 *
 *   object --- 90 % ---> young[16384], the oldest is freed: within a request, which makes some 26,000 objects
 *          \-- 10 % ---> old[100,000], a random one is freed
 *
 * `sweeps`: the same, but what dies is only marked; every 100,000 objects all garbage is freed, in the order of its death.
 * What to do is drawn before the clock starts, so that the loop costs little beside the calls.
 *
 * An object is written where an interpreter writes: its first 16 bytes, by two stores.
 */
#include "micro_driver.h"

enum { OBJECTS = 2600000, YOUNG = 16384, OLD = 100000, SWEEP = 100000, SIZES = 4096, SIZE_BITS = 10, OLD_SHARE = 410 /* of 4096 */ };

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

/* What to do, drawn before the clock starts: the place an object takes, and its size in the lower SIZE_BITS.  Places from OLD up are young ones. */
static uint32_t *schedule(size_t count)
{
    uint32_t *steps = bench_scratch(count, sizeof *steps);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < count; i++) {
        uint64_t random = bench_random(&state);
        size_t place = (random >> 16) % 4096 < OLD_SHARE ? bench_below(random, OLD) : OLD + i % YOUNG;
        steps[i] = (uint32_t)(place << SIZE_BITS | micro_object_bytes(random));
    }
    return steps;
}

static void *object(size_t bytes)
{
    char *p = malloc(bytes);
    if (!p)
        bench_die("out of memory");
    if (bytes >= 16) {
        uint64_t head[2] = {bytes, bytes};
        __builtin_memcpy(p, head, sizeof head);
    } else {
        *p = 1;
    }
    return p;
}

void micro_interpreter(const struct micro_config *config)
{
    size_t count = micro_count(config, OBJECTS);
    void **places = bench_scratch(OLD + YOUNG, sizeof *places);
    const uint32_t *steps = schedule(count);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        void **place = &places[steps[i] >> SIZE_BITS];
        free(*place);
        *place = object(steps[i] & ((1u << SIZE_BITS) - 1));
    }
    for (size_t i = 0; i < OLD + YOUNG; i++)
        free(places[i]);
    micro_row(config, count);
}

void micro_sweeps(const struct micro_config *config)
{
    size_t count = micro_count(config, OBJECTS), dead = 0;
    void **places = bench_scratch(OLD + YOUNG, sizeof *places), **garbage = bench_scratch(SWEEP, sizeof *garbage);
    const uint32_t *steps = schedule(count);
    micro_begin();
    for (size_t i = 0; i < count; i++) {
        void **place = &places[steps[i] >> SIZE_BITS];
        garbage[dead++] = *place;
        *place = object(steps[i] & ((1u << SIZE_BITS) - 1));
        if (dead < SWEEP)
            continue;
        for (size_t j = 0; j < dead; j++)
            free(garbage[j]);
        dead = 0;
    }
    for (size_t j = 0; j < dead; j++)
        free(garbage[j]);
    for (size_t i = 0; i < OLD + YOUNG; i++)
        free(places[i]);
    micro_row(config, count);
}
