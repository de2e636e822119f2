// SPDX-License-Identifier: MIT
/*
 * shown.c - a program with one object of each kind, for those who look at it from outside.
 *
 * Prints `NAME ADDRESS live|free` lines, then "ready", and waits for a line on standard input before it ends.
 * Names hold what a terminal and a markup language would take for theirs.  What is once shown stays: empty pages are not given back meanwhile.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <quire/arena.h>
#include <quire/heap.h>
#include <quire/percpu.h>
#include <quire/slab.h>
#include <quire/source.h>

enum { ELEMENTS = 3000, BLOCKS = 5000, OBJECTS = 400 };

static void *elements[ELEMENTS], *blocks[BLOCKS];
static struct quire_slab *slab;
static struct quire_heap *heap;

/* What the main thread made: some of it on its way home when somebody looks. */
static void *free_others(void *unused)
{
    for (int i = 0; i < ELEMENTS; i += 3)
        quire_slab_free(slab, elements[i]);
    for (int i = 0; i < BLOCKS; i += 5)
        quire_heap_free(heap, blocks[i]);
    return unused;
}

int main(int count, char **words)
{
    pthread_t thread;
    char line[16];
    if (quire_source_set_decay(quire_source_default(), 3600000000000) != 0)
        return 1;
    struct quire_arena *arena = quire_arena_create(&(struct quire_arena_opts){.name = "[red]query[/red] \x1b[31m"});
    struct quire_arena *unnamed = quire_arena_create(NULL);
    slab = quire_slab_create(72, &(struct quire_slab_opts){.name = "nodes"});
    heap = quire_heap_create(&(struct quire_heap_opts){.name = "strings", .flags = count > 1 && strcmp(words[1], "secure") == 0 ? QUIRE_HEAP_SECURE : 0});
    struct quire_percpu *pool = quire_percpu_create(&(struct quire_percpu_opts){.name = "counters"});
    void *in_arena = quire_arena_alloc(arena, 1000), *large = quire_heap_alloc(heap, 300000);
    quire_arena_alloc(arena, 9000);
    quire_arena_alloc(unnamed, 10);
    for (int i = 0; i < ELEMENTS; i++)
        elements[i] = quire_slab_alloc(slab);
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = quire_heap_alloc(heap, (size_t)(i % 40) * 20 + 1);
    for (int i = 0; i < OBJECTS; i++)
        (void)quire_percpu_alloc(pool, 8 + (size_t)(i % 5) * 100, 8);
    pthread_create(&thread, NULL, free_others, NULL);
    pthread_join(thread, NULL);
    printf("arena %p live\nlarge %p live\n", in_arena, large);
    printf("slab %p free\nslab %p live\nheap %p free\nheap %p live\n", elements[3], elements[4], blocks[5], blocks[6]);
    printf("nobody %p free\nready\n", (void *)&line);
    fflush(stdout);
    return fgets(line, sizeof line, stdin) == NULL && count > 2 && strcmp(words[2], "hard") == 0 ? (_exit(0), 0) : 0;
}
