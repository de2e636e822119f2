// SPDX-License-Identifier: MIT
/*
 * lateness - threads allocate a gigabyte, free it and end; how much of it the process still has a given number of seconds later.
 *
 *     lateness BYTES-OF-A-BLOCK SECONDS      prints the kilobytes of memory before, at the most, and at the end
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 8, ALL_BYTES = 1 << 30 };

static size_t block_bytes;
static pthread_barrier_t all_have;

static long resident_kb(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        abort();
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void *give_back(void *unused)
{
    void **list = NULL;
    for (size_t i = 0; i < ALL_BYTES / THREADS / block_bytes; i++) {
        void **p = malloc(block_bytes);
        if (!p)
            abort();
        memset(p, 1, block_bytes);
        *p = list;
        list = p;
    }
    pthread_barrier_wait(&all_have);
    pthread_barrier_wait(&all_have);
    while (list) {
        void **next = *list;
        free(list);
        list = next;
    }
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    struct timespec wait = {argc > 2 ? atoi(argv[2]) : 4, 0};
    block_bytes = argc > 1 ? (size_t)atol(argv[1]) : 1000;
    long before = resident_kb();
    pthread_barrier_init(&all_have, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, give_back, NULL) != 0)
            abort();
    pthread_barrier_wait(&all_have);
    long most = resident_kb();
    pthread_barrier_wait(&all_have);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    nanosleep(&wait, NULL);
    printf("%ld %ld %ld\n", before, most, resident_kb());
    return 0;
}
