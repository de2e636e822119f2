// SPDX-License-Identifier: MIT
/*
 * bitmap.c - the bitmap alone: a million runs taken and freed in every order, alignment, holes, churn.
 *
 *     bitmap           the table
 *     bitmap --json
 *
 * CPU nanoseconds of one call, or of one free + alloc pair; medians over RUNS interleaved runs.  The order of freeing is
 * prepared outside the timed part, so a row's cost is the bitmap's, with its cache misses.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bitmap.h"
#include "bench.h"

enum { RUNS = 5, COUNT = 1000000, CHURN_PAIRS = 500000, CHURN_RUN_MAX = 256 };
enum order { IN_ORDER, ALTERNATING, REVERSE, RANDOM, ORDERS };
static const char *const order_names[] = {"in order", "every second first", "in reverse", "at random"};

static bool json;
static uint64_t state;
static struct bitmap map;
static uint64_t *memory;
static size_t taken[COUNT], order[COUNT];

static void row(const char *name, double ns)
{
    printf(json ? "{\"row\":\"%s\",\"value\":%.2f,\"unit\":\"ns CPU\"}\n" : "%-62s %8.2f ns\n", name, ns);
    fflush(stdout);
}

static uint64_t random_next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void fresh(size_t bits)
{
    static size_t had_bytes;
    size_t bytes = bitmap_memory_bytes(bits);
    if (bytes > had_bytes) { /* the same pages for every run of a size */
        free(memory);
        memory = malloc(bytes);
        had_bytes = bytes;
    }
    if (!memory)
        abort();
    memset(memory, 0, bytes); /* touched: no page fault in the timed part */
    bitmap_init(&map, memory, bits);
    state = 88172645463325252u;
}

static double take(size_t run, unsigned align_log2)
{
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < COUNT; i++)
        taken[i] = bitmap_alloc(&map, run, align_log2);
    double ns = (double)(bench_thread_ns() - began) / COUNT;
    if (taken[COUNT - 1] == BITMAP_NONE)
        abort();
    return ns;
}

static double give(enum order how)
{
    for (size_t i = 0; i < COUNT; i++) {
        size_t from = i;
        if (how == ALTERNATING)
            from = i < COUNT / 2 ? 2 * i : 2 * (i - COUNT / 2) + 1;
        if (how == REVERSE)
            from = COUNT - 1 - i;
        order[i] = taken[from];
    }
    for (size_t i = COUNT; how == RANDOM && i-- > 1;) {
        size_t j = random_next() % (i + 1), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < COUNT; i++)
        if (bitmap_free(&map, order[i]) == 0)
            abort();
    return (double)(bench_thread_ns() - began) / COUNT;
}

static void runs_of(size_t run)
{
    double ns[1 + ORDERS][RUNS];
    char name[80];
    for (int r = 0; r < RUNS; r++)
        for (enum order how = 0; how < ORDERS; how++) {
            fresh(COUNT * run);
            ns[0][r] = take(run, 0);
            ns[1 + how][r] = give(how);
        }
    snprintf(name, sizeof name, "1 M runs of %zu, taken", run);
    row(name, bench_median(ns[0], RUNS));
    for (enum order how = 0; how < ORDERS; how++) {
        snprintf(name, sizeof name, "1 M runs of %zu, freed %s", run, order_names[how]);
        row(name, bench_median(ns[1 + how], RUNS));
    }
}

static void alignment(void)
{
    double ns[3][RUNS];
    for (int r = 0; r < RUNS; r++) {
        fresh(2 * COUNT + 2);
        ns[0][r] = take(1, 1);
        fresh(4 * COUNT);
        take(1, 0);
        for (size_t i = 0; i < COUNT; i += 2)
            bitmap_free(&map, taken[i]);
        ns[1][r] = take(2, 0);
        fresh(4 * COUNT);
        take(1, 0);
        for (size_t i = 0; i < COUNT; i += 2)
            bitmap_free(&map, taken[i]);
        ns[2][r] = take(2, 1);
    }
    row("1 M runs of 1 at even places, taken", bench_median(ns[0], RUNS));
    row("1 M runs of 2 past 500,000 holes of 1, taken", bench_median(ns[1], RUNS));
    row("1 M runs of 2 at even places past 500,000 holes of 1, taken", bench_median(ns[2], RUNS));
}

/* One free and one alloc of random length, at random, in a map that stays about `percent` full. */
static double churn_once(size_t bits, size_t percent)
{
    size_t n = 0, used = 0;
    fresh(bits);
    for (size_t want = bits * percent / 100; used < want; n++) {
        size_t run = 1 + random_next() % CHURN_RUN_MAX;
        taken[n] = bitmap_alloc(&map, run, 0);
        if (taken[n] == BITMAP_NONE)
            break;
        used += run;
    }
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < CHURN_PAIRS; i++) {
        size_t j = random_next() % n;
        bitmap_free(&map, taken[j]);
        taken[j] = bitmap_alloc(&map, 1 + random_next() % CHURN_RUN_MAX, 0);
        if (taken[j] == BITMAP_NONE)
            taken[j] = bitmap_alloc(&map, 1, 0);
    }
    return (double)(bench_thread_ns() - began) / CHURN_PAIRS;
}

static void churn(unsigned bits_log2)
{
    static const size_t percent[] = {50, 95};
    double ns[2][RUNS];
    char name[80];
    for (int r = 0; r < RUNS; r++)
        for (int i = 0; i < 2; i++)
            ns[i][r] = churn_once((size_t)1 << bits_log2, percent[i]);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "free + alloc of 1 .. 256 at random, 2^%u bits, %zu %% full", bits_log2, percent[i]);
        row(name, bench_median(ns[i], RUNS));
    }
}

/* A call's cost must not depend on how large the map is. */
static void sizes(void)
{
    for (size_t bits = 1 << 12; bits <= (size_t)1 << 28; bits <<= 4) {
        double ns[RUNS];
        char name[80];
        for (int r = 0; r < RUNS; r++) {
            fresh(bits);
            for (size_t i = 0; i < 1000; i++)
                taken[i] = bitmap_alloc(&map, 4, 0);
            uint64_t began = bench_thread_ns();
            for (size_t i = 0; i < COUNT; i++) {
                bitmap_free(&map, taken[i % 1000]);
                taken[i % 1000] = bitmap_alloc(&map, 4, 0);
            }
            ns[r] = (double)(bench_thread_ns() - began) / COUNT;
        }
        snprintf(name, sizeof name, "free + alloc of 4 in a map of %zu bits, nearly empty", bits);
        row(name, bench_median(ns, RUNS));
    }
}

int main(int argc, char **argv)
{
    static const size_t runs[] = {1, 2, 4, 16, 32, 256};
    json = bench_flag(argc, argv, "--json");
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        runs_of(runs[i]);
    alignment();
    for (unsigned bits_log2 = 18; bits_log2 <= 20; bits_log2++)
        churn(bits_log2);
    sizes();
    free(memory);
    return 0;
}
