// SPDX-License-Identifier: MIT
/*
 * churn.h - what several of these programs do with memory, and how they look at it from outside.
 */
#ifndef TEST_PRELOAD_CHURN_H
#define TEST_PRELOAD_CHURN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

static volatile bool stop;

/* Allocates, verifies and frees blocks of many sizes; live ones are kept in a ring. */
static inline void churn(unsigned seed, int steps)
{
    enum { RING = 64 };
    unsigned char *ring[RING] = {NULL};
    size_t bytes[RING] = {0};
    uint32_t random = seed * 2654435761u + 1;
    for (int i = 0; i < steps && !stop; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned at = random >> 26;
        if (ring[at] && (ring[at][0] != (unsigned char)at || ring[at][bytes[at] - 1] != (unsigned char)at))
            MUST(false, "a block of %zu bytes was written to by somebody else", bytes[at]);
        free(ring[at]);
        bytes[at] = (random >> 8) % ((random & 127) == 0 ? 100000 : 600) + 1;
        ring[at] = malloc(bytes[at]);
        if (!ring[at])
            continue;
        ring[at][0] = ring[at][bytes[at] - 1] = (unsigned char)at;
    }
    for (int at = 0; at < RING; at++)
        free(ring[at]);
}

static inline long resident_kib(void)
{
    long pages = 0, rss = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &pages, &rss) != 2)
        return 0;
    fclose(file);
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

static inline void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0)
        ;
}

#endif
