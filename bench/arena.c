// SPDX-License-Identifier: MIT
/*
 * arena.c - the arena's calls one by one: ns of CPU each, medians of 15 runs.
 *
 *     arena            every row
 *     arena --json
 *
 * The loop that calls is part of each figure; `empty loop` says how much that is.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <quire/arena.h>

#include "bench.h"

enum { RUNS = 15, BLOCKS = 4096 };

struct row {
    const char *name;
    double (*run)(size_t argument);
    size_t argument;
};

static double alloc_loop(size_t bytes)
{
    struct quire_arena *arena = quire_arena_create(&(struct quire_arena_opts){.size_hint_bytes = 2 << 20});
    uint64_t best = UINT64_MAX;
    for (int repeat = 0; repeat < 50; repeat++) {
        uint64_t began = bench_thread_ns();
        for (int i = 0; i < BLOCKS; i++)
            bench_use(quire_arena_alloc(arena, bytes));
        uint64_t took = bench_thread_ns() - began;
        best = took < best ? took : best;
        quire_arena_reset(arena);
    }
    quire_arena_destroy(arena);
    return (double)best / BLOCKS;
}

static double empty_loop(size_t unused)
{
    (void)unused;
    uint64_t best = UINT64_MAX;
    for (int repeat = 0; repeat < 50; repeat++) {
        uint64_t began = bench_thread_ns();
        for (size_t i = 0; i < BLOCKS; i++)
            bench_use((const void *)i);
        uint64_t took = bench_thread_ns() - began;
        best = took < best ? took : best;
    }
    return (double)best / BLOCKS;
}

static double create_destroy(size_t hint_bytes)
{
    enum { PAIRS = 20000 };
    struct quire_arena_opts opts = {.size_hint_bytes = hint_bytes};
    uint64_t began = bench_thread_ns();
    for (int i = 0; i < PAIRS; i++)
        quire_arena_destroy(quire_arena_create(&opts));
    return (double)(bench_thread_ns() - began) / PAIRS;
}

/* A reset after `blocks` blocks of 64 bytes: the reset alone. */
static double reset_after(size_t blocks)
{
    enum { RESETS = 20 };
    struct quire_arena *arena = quire_arena_create(NULL);
    double took[RESETS];
    for (int i = -2; i < RESETS; i++) {
        for (size_t b = 0; b < blocks; b++)
            bench_use(quire_arena_alloc(arena, 64));
        uint64_t began = bench_thread_ns();
        quire_arena_reset(arena);
        if (i >= 0)
            took[i] = (double)(bench_thread_ns() - began);
    }
    quire_arena_destroy(arena);
    return bench_median(took, RESETS);
}

static double mark_rewind(size_t bytes)
{
    enum { PAIRS = 20000 };
    struct quire_arena *arena = quire_arena_create(NULL);
    uint64_t began = bench_thread_ns();
    for (int i = 0; i < PAIRS; i++) {
        struct quire_arena_mark mark = quire_arena_mark(arena);
        bench_use(quire_arena_alloc(arena, bytes));
        quire_arena_rewind(arena, mark);
    }
    uint64_t took = bench_thread_ns() - began;
    quire_arena_destroy(arena);
    return (double)took / PAIRS;
}

static const struct row rows[] = {{"empty loop", empty_loop, 0},
                                  {"alloc 16", alloc_loop, 16},
                                  {"alloc 64", alloc_loop, 64},
                                  {"alloc 256", alloc_loop, 256},
                                  {"create + destroy", create_destroy, 0},
                                  {"create + destroy, 64 KiB", create_destroy, 64 << 10},
                                  {"reset after 10 blocks", reset_after, 10},
                                  {"reset after 1000 blocks", reset_after, 1000},
                                  {"reset after 1000000 blocks", reset_after, 1000000},
                                  {"mark, alloc 64, rewind", mark_rewind, 64}};

int main(int argc, char **argv)
{
    bool json = bench_flag(argc, argv, "--json");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double runs[RUNS];
        size_t count = rows[r].run == reset_after ? 3 : RUNS;
        for (size_t i = 0; i < count; i++)
            runs[i] = rows[r].run(rows[r].argument);
        double median = bench_median(runs, count);
        printf(json ? "{\"row\":\"%s\",\"cpu_ns\":%.2f}\n" : "%-28s %8.2f ns\n", rows[r].name, median);
    }
    return 0;
}
