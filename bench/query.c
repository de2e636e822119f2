// SPDX-License-Identifier: MIT
/*
 * query.c - a context query as netdata's One Way Allocator was measured with: 1000 charts of 100 dimensions.
 *
 * For each dimension two structs, two strings and a zeroed 64-byte array, all touched; then all of it dies.  About 22 MB a query.  The texts
 * that are copied are prepared before the clock starts.  With --allocator malloc every object is freed by itself, in the order of building;
 * with --allocator arena the arena is destroyed.
 *
 *     query --callers 8 --rounds 20 --allocator arena --json
 *
 * --charts N: fewer or more than 1000, for queries of other sizes; beyond 1000 their texts repeat.
 *
 * One process measures one allocator, so that none inherits the other's memory; the caller interleaves processes and takes medians.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire/arena.h>

#include "bench.h"

enum { CHARTS = 1000, DIMENSIONS = 100, CHARTS_MAX = 1000000, TEXTS = CHARTS * DIMENSIONS, TEXT_BYTES = 32, VALUES = 8, WARM_UPS = 4, OBJECTS = 5 };

struct metric {
    uint64_t first_s, last_s, updates;
    double minimum, maximum, sum;
};
struct dimension {
    struct dimension *next;
    struct metric *metric;
    char *id, *name;
    uint64_t *values;
    uint32_t priority, flags;
};

static int dimensions = TEXTS; /* of a query */
static char ids[TEXTS][TEXT_BYTES], names[TEXTS][TEXT_BYTES];

static void texts_prepare(void)
{
    for (int i = 0; i < TEXTS; i++) {
        snprintf(ids[i], TEXT_BYTES, "chart_%04d.dimension_%03d", i / DIMENSIONS, i % DIMENSIONS);
        snprintf(names[i], TEXT_BYTES, "core %d utilisation of %d", i % DIMENSIONS, i / DIMENSIONS);
    }
}

static struct dimension *dimension_fill(struct dimension *d, int i)
{
    *d->metric = (struct metric){.first_s = 1, .last_s = (uint64_t)i, .maximum = i, .sum = i};
    d->values[i % VALUES] = (uint64_t)i;
    d->priority = (uint32_t)i;
    d->flags = 0;
    return d;
}

static struct dimension *build_arena(struct quire_arena *arena)
{
    struct dimension *list = NULL, **tail = &list;
    for (int i = 0; i < dimensions; i++) {
        struct dimension *d = quire_arena_alloc(arena, sizeof *d);
        d->metric = quire_arena_alloc(arena, sizeof *d->metric);
        d->id = quire_arena_strdup(arena, ids[i % TEXTS]);
        d->name = quire_arena_strdup(arena, names[i % TEXTS]);
        d->values = quire_arena_alloc_zero(arena, VALUES, sizeof *d->values);
        d->next = NULL;
        *tail = dimension_fill(d, i);
        tail = &d->next;
    }
    return list;
}

static struct dimension *build_malloc(void)
{
    struct dimension *list = NULL, **tail = &list;
    for (int i = 0; i < dimensions; i++) {
        struct dimension *d = malloc(sizeof *d);
        d->metric = malloc(sizeof *d->metric);
        d->id = strdup(ids[i % TEXTS]);
        d->name = strdup(names[i % TEXTS]);
        d->values = calloc(VALUES, sizeof *d->values);
        d->next = NULL;
        *tail = dimension_fill(d, i);
        tail = &d->next;
    }
    return list;
}

static void free_malloc(struct dimension *list)
{
    while (list) {
        struct dimension *next = list->next;
        free(list->metric);
        free(list->id);
        free(list->name);
        free(list->values);
        free(list);
        list = next;
    }
}

struct caller {
    pthread_t thread;
    bool arena;
    uint64_t rounds, warm_ups, cpu_ns, response_ns_min, response_ns_max, response_ns_sum;
};
static pthread_barrier_t start_line;

static void query(bool with_arena)
{
    if (with_arena) {
        struct quire_arena *arena = quire_arena_create(NULL);
        bench_use(build_arena(arena));
        quire_arena_destroy(arena);
    } else {
        struct dimension *list = build_malloc();
        bench_use(list);
        free_malloc(list);
    }
}

static void *caller_main(void *arg)
{
    struct caller *caller = arg;
    for (uint64_t i = 0; i < caller->warm_ups; i++)
        query(caller->arena); /* not counted: the first faults of a process are the system's, and those of a virtual machine its host's */
    pthread_barrier_wait(&start_line);
    uint64_t cpu = bench_thread_ns();
    caller->response_ns_min = UINT64_MAX;
    for (uint64_t r = 0; r < caller->rounds; r++) {
        uint64_t began = bench_wall_ns();
        query(caller->arena);
        uint64_t took = bench_wall_ns() - began;
        caller->response_ns_sum += took;
        caller->response_ns_min = took < caller->response_ns_min ? took : caller->response_ns_min;
        caller->response_ns_max = took > caller->response_ns_max ? took : caller->response_ns_max;
    }
    caller->cpu_ns = bench_thread_ns() - cpu;
    return NULL;
}

int main(int argc, char **argv)
{
    size_t callers = bench_number(argc, argv, "--callers", 1);
    uint64_t rounds = bench_number(argc, argv, "--rounds", 20);
    bool arena = strcmp(bench_text(argc, argv, "--allocator", "malloc"), "arena") == 0;
    struct caller *all = calloc(callers, sizeof *all);
    uint64_t charts = bench_number(argc, argv, "--charts", CHARTS);
    if (charts > CHARTS_MAX)
        bench_usage("more than a million charts", "--charts 1000");
    dimensions = (int)charts * DIMENSIONS;
    texts_prepare();
    pthread_barrier_init(&start_line, NULL, (unsigned)callers + 1);
    for (size_t i = 0; i < callers; i++) {
        all[i].arena = arena;
        all[i].rounds = rounds;
        all[i].warm_ups = bench_number(argc, argv, "--warm-ups", WARM_UPS);
        pthread_create(&all[i].thread, NULL, caller_main, &all[i]);
    }
    pthread_barrier_wait(&start_line);
    uint64_t wall = bench_wall_ns(), cpu = 0, min = UINT64_MAX, max = 0, sum = 0;
    for (size_t i = 0; i < callers; i++) {
        pthread_join(all[i].thread, NULL);
        cpu += all[i].cpu_ns;
        sum += all[i].response_ns_sum;
        min = all[i].response_ns_min < min ? all[i].response_ns_min : min;
        max = all[i].response_ns_max > max ? all[i].response_ns_max : max;
    }
    wall = bench_wall_ns() - wall;
    uint64_t queries = callers * rounds;
    const char *name = arena ? "quire-arena" : bench_malloc_name();
    if (bench_flag(argc, argv, "--json"))
        printf("{\"allocator\":\"%s\",\"callers\":%zu,\"objects\":%d,\"queries\":%lu,\"cpu_ns_per_query\":%lu,\"wall_ns_per_query\":%lu,\"queries_per_s\":%.1f,"
               "\"response_ns\":{\"min\":%lu,\"avg\":%lu,\"max\":%lu}}\n",
               name, callers, dimensions * OBJECTS, queries, cpu / queries, wall / queries, (double)queries * 1e9 / (double)wall, min, sum / queries, max);
    else
        printf("%-12s %2zu callers  %8.3f ms CPU a query  %7.1f queries/s\n", name, callers, (double)cpu / (double)queries / 1e6,
               (double)queries * 1e9 / (double)wall);
    free(all);
    return 0;
}
