// SPDX-License-Identifier: MIT
/*
 * large_tls.c - a program with more thread-local storage than a small stack holds: idle memory goes back all the same, without another call.
 * Prints how many KiB more than at the start are resident after an arena of 6 MiB is gone: two decays later, or when they are few, half a minute
 * later at the latest: the thread that gives them back may have to wait for a CPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <quire/arena.h>

static _Thread_local char large[200 << 10];

static long rss_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long size = 0, resident = 0;
    if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2)
        exit(2);
    fclose(file);
    return resident * 4;
}

int main(void)
{
    memset(large, 1, sizeof large);
    if (quire_source_set_decay(quire_source_default(), 600000000) != 0)
        return 1;
    long start = rss_kib();
    struct quire_arena *arena = quire_arena_create(NULL);
    memset(quire_arena_alloc(arena, 3 << 20), 1, 3 << 20);
    memset(quire_arena_alloc(arena, 3 << 20), 1, 3 << 20);
    quire_arena_destroy(arena);
    struct timespec two_decays = {1, 200000000};
    for (int waits = 0; waits < 25 && (waits == 0 || rss_kib() - start >= 2048); waits++)
        nanosleep(&two_decays, NULL);
    printf("%ld\n", rss_kib() - start);
    return 0;
}
