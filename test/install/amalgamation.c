// SPDX-License-Identifier: MIT
/*
 * amalgamation.c - a program that uses every allocator of quire.h that it is told of, C and C++ alike: exit 0 when all work, and its statistics as JSON.
 *
 *     -DUSES_ARENA=1 ... -DUSES_STATS=1     what QUIRE_NO_... did not leave out; always 0 or 1
 *
 * It has a panic() and a list of its own, which must not meet the library's.
 */
#include "quire.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 20000, KEPT = 64 };

static int failures;

int panic(int n); /* a program may have one */
int panic(int n)
{
    return n + 1;
}

static void must(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        failures++;
    }
}

static void in_threads(void *(*fn)(void *), void *arg)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, fn, arg) == 0, "a thread begins");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

#if USES_ARENA
static void arena(void)
{
    struct quire_arena *arena = quire_arena_create(NULL);
    for (int i = 0; i < ROUNDS; i++)
        memset(quire_arena_alloc(arena, (size_t)i % 300), i, (size_t)i % 300);
    char *word = quire_arena_strdup(arena, "arena");
    must(strcmp(word, "arena") == 0 && quire_arena_owns(arena, word), "a string is the arena's");
    must(quire_arena_check(arena) == NULL, "the arena is sound");
    quire_arena_reset(arena);
    must(!quire_arena_owns(arena, word), "after a reset it is not");
    quire_arena_destroy(arena);
}
#endif

#if USES_SLAB
static void *slab_user(void *slab)
{
    void *kept[KEPT] = {NULL};
    for (int i = 0; i < ROUNDS; i++) {
        quire_slab_free((struct quire_slab *)slab, kept[i % KEPT]);
        kept[i % KEPT] = memset(quire_slab_alloc((struct quire_slab *)slab), i, 48);
    }
    quire_slab_free_batch((struct quire_slab *)slab, kept, KEPT);
    return NULL;
}

static void slab(void)
{
    struct quire_slab *slab = quire_slab_create(48, NULL);
    in_threads(slab_user, slab);
    void *element = quire_slab_alloc(slab);
    must(quire_slab_owns(slab, element), "an element is the slab's");
    quire_slab_free(slab, element);
    must(quire_slab_check(slab) == NULL, "the slab is sound");
    quire_slab_destroy(slab);
}
#endif

#if USES_HEAP
static void *heap_user(void *heap)
{
    void *kept[KEPT] = {NULL};
    for (int i = 0; i < ROUNDS; i++) {
        size_t bytes = (size_t)(i * 37) % 2000 + 1;
        quire_heap_free((struct quire_heap *)heap, kept[i % KEPT]);
        kept[i % KEPT] = memset(quire_heap_alloc((struct quire_heap *)heap, bytes), i, bytes);
    }
    for (int i = 0; i < KEPT; i++)
        quire_heap_free((struct quire_heap *)heap, kept[i]);
    return NULL;
}

static void heap(void)
{
    struct quire_heap *heap = quire_heap_create(NULL);
    in_threads(heap_user, heap);
    char *block = (char *)quire_heap_alloc(heap, 10);
    strcpy(block, "heap");
    block = (char *)quire_heap_realloc(heap, block, 100000);
    must(strcmp(block, "heap") == 0 && quire_heap_of(block) == heap, "a block grows and stays the heap's");
    quire_heap_free(heap, block);
    must(quire_heap_check(heap) == NULL, "the heap is sound");
    quire_heap_destroy(heap);
}
#endif

#if USES_PERCPU
static struct quire_percpu *pool;
static struct quire_percpu_ref hits;

static void *adder(void *unused)
{
    for (int i = 0; i < ROUNDS; i++)
        quire_percpu_add(pool, hits, 1);
    return unused;
}

static void percpu(void)
{
    pool = quire_percpu_create(NULL);
    hits = quire_percpu_alloc(pool, sizeof(intptr_t), 0);
    in_threads(adder, NULL);
    must(quire_percpu_sum(pool, hits) == THREADS * ROUNDS, "nothing added is lost");
    quire_percpu_free(pool, hits);
    must(quire_percpu_check(pool) == NULL, "the pool is sound");
    quire_percpu_destroy(pool);
}
#endif

#if USES_COUNTERS
static struct quire_counter counter;
static struct quire_histogram histogram;

static void *counting(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        quire_counter_add(&counter, 2);
        quire_histogram_record(&histogram, (uint64_t)(i % 100));
    }
    return unused;
}

static void counters(void)
{
    struct quire_percpu *both = quire_percpu_create(NULL);
    must(quire_counter_init(&counter, both) == 0 && quire_histogram_init(&histogram, both, 7) == 0, "a counter and a histogram begin");
    in_threads(counting, NULL);
    must(quire_counter_sum(&counter) == 2 * THREADS * ROUNDS, "the counter has all");
    struct quire_histogram_snapshot *seen = quire_histogram_snapshot_create(7);
    must(quire_histogram_snapshot_take(seen, &histogram) == 0, "a snapshot is taken");
    must(quire_histogram_snapshot_percentile(seen, 50) == 49, "half of all values are 49 or less");
    quire_histogram_snapshot_destroy(seen);
    quire_histogram_fini(&histogram);
    quire_counter_fini(&counter);
    quire_percpu_destroy(both);
}
#endif

int main(void)
{
#if USES_ARENA
    arena();
#endif
#if USES_SLAB
    slab();
#endif
#if USES_HEAP
    heap();
#endif
#if USES_PERCPU
    percpu();
#endif
#if USES_COUNTERS
    counters();
#endif
#if USES_STATS
    must(quire_stats_write(1, QUIRE_STATS_JSON) == 0, "statistics are written");
#endif
    must(quire_source_check(quire_source_default()) == NULL, "the source is sound");
    must(quire_version()[0] != '\0' && panic(1) == 2, "names do not meet");
    return failures != 0;
}
