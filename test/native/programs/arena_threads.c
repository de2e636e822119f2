// SPDX-License-Identifier: MIT
/*
 * arena_threads.c - threads whose arenas hand their memory round through the default source, and a global arena that alone points at a block of
 * malloc's: nothing here is a race or a leak.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <quire/arena.h>

static struct quire_arena *kept;

static void *work(void *unused)
{
    (void)unused;
    for (int round = 0; round < 500; round++) {
        struct quire_arena *arena = quire_arena_create(NULL);
        for (int i = 0; i < 60; i++)
            *(int *)quire_arena_alloc(arena, 200) = i;
        if (round % 50 == 0)
            *(int *)quire_arena_alloc(arena, 6 << 20) = round;
        quire_arena_destroy(arena);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[4];
    kept = quire_arena_create(NULL);
    void **slot = quire_arena_alloc(kept, sizeof *slot);
    *slot = malloc(100);
    slot = NULL;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    return 0;
}
