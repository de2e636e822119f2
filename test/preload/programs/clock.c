// SPDX-License-Identifier: MIT
/*
 * clock.c - a thread's last call of malloc begins a page of sampled blocks, and it sleeps from then on; what another thread has freed must go back to the
 * system all the same.  With decay:10ms.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "must.h"

enum { BLOCKS = 30, BYTES = 30000 };
static char *blocks[BLOCKS];
static int to_sleeper[2], from_sleeper[2];

static size_t rss_bytes(void)
{
    unsigned long all = 0, resident = 0;
    char text[100] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fgets(text, sizeof text, file) && sscanf(text, "%lu %lu", &all, &resident) == 2, "%s", text);
    fclose(file);
    return resident * 4096;
}

static void *allocate(void *unused)
{
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(BYTES), 1, BYTES);
    return unused;
}

static void *sleeper(void *unused)
{
    char byte;
    MUST(read(to_sleeper[0], &byte, 1) == 1, "%s", "the pipe");
    char *volatile p = malloc(700);
    *p = 1;
    MUST(write(from_sleeper[1], &byte, 1) == 1, "%s", "the pipe");
    MUST(read(to_sleeper[0], &byte, 1) == 1, "%s", "the pipe");
    free(p);
    return unused;
}

int main(void)
{
    pthread_t one, other;
    char byte = 0;
    MUST(pipe(to_sleeper) == 0 && pipe(from_sleeper) == 0, "%s", "no pipe");
    pthread_create(&other, NULL, sleeper, NULL);
    pthread_create(&one, NULL, allocate, NULL);
    pthread_join(one, NULL);
    char *large = malloc(8 << 20); /* enough for a clock of its own */
    memset(large, 1, 8 << 20);
    (void)rss_bytes();
    usleep(500000); /* it is asleep again */
    MUST(write(to_sleeper[1], &byte, 1) == 1 && read(from_sleeper[0], &byte, 1) == 1, "%s", "the pipe");
    size_t before = rss_bytes(), after = before;
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    for (int i = 0; i < 500 && after + BLOCKS * BYTES / 2 > before; i++) {
        usleep(10000);
        after = rss_bytes();
    }
    MUST(after + BLOCKS * BYTES / 2 <= before, "%zu bytes were %zu", after, before);
    MUST(write(to_sleeper[1], &byte, 1) == 1, "%s", "the pipe");
    pthread_join(other, NULL);
    free(large);
    return must_end();
}
