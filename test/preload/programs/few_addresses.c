// SPDX-License-Identifier: MIT
/*
 * few_addresses.c - a running process gives itself few addresses, or locks all that it has: `few_addresses as BYTES`, `few_addresses lock`.
 *
 * Blocks of all sizes before, some of them freed, so that there is something to let go of; afterwards mappings, a thread, and blocks still work, and what
 * was there before is as it was.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "must.h"

enum { BLOCKS = 3000, KINDS = 5 };
static const size_t sizes[KINDS] = {24, 400, 9000, 70000, 2 << 20};
static char *block[BLOCKS];

static size_t bytes_of(int i) { return i % 300 ? sizes[i % (KINDS - 1)] : sizes[KINDS - 1]; }

static void fill(int i)
{
    block[i] = malloc(bytes_of(i));
    MUST(block[i] != NULL, "block %d", i);
    if (block[i])
        memset(block[i], i % 100, bytes_of(i));
}

static void verify(int i)
{
    size_t last = bytes_of(i) - 1;
    MUST(!block[i] || (block[i][0] == i % 100 && block[i][last / 2] == i % 100 && block[i][last] == i % 100), "block %d", i);
    free(block[i]);
    block[i] = NULL;
}

static size_t status_kb(const char *key)
{
    char line[200];
    size_t kb = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kb = strtoul(line + strlen(key) + 1, NULL, 10);
    if (file)
        fclose(file);
    return kb;
}

static void *work(void *arg)
{
    for (int i = 0; i < 1000; i++)
        free(malloc(sizes[i % KINDS]));
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    for (int i = 0; i < BLOCKS; i++)
        fill(i);
    for (int i = 0; i < BLOCKS; i += 2)
        verify(i);
    if (argc > 2) {
        struct rlimit limit = {strtoul(argv[2], NULL, 10), RLIM_INFINITY}, old;
        MUST(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit %d", errno);
        MUST(prlimit(0, RLIMIT_AS, NULL, &old) == 0 && old.rlim_cur == limit.rlim_cur, "prlimit %d", errno);
        MUST(status_kb("VmSize:") < limit.rlim_cur >> 10, "%zu kB of addresses", status_kb("VmSize:"));
    } else {
        int locked = mlockall(MCL_CURRENT | MCL_FUTURE);
        MUST(locked == 0 || errno == ENOMEM || errno == EPERM, "mlockall %d", errno);
    }
    for (int i = 0; i < BLOCKS; i += 2)
        fill(i);
    void *map = mmap(NULL, 50 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(map != MAP_FAILED, "mmap %d", errno);
    memset(map, 1, 50 << 20);
    MUST(pthread_create(&thread, NULL, work, NULL) == 0, "a thread");
    pthread_join(thread, NULL);
    munmap(map, 50 << 20);
    for (int i = 0; i < BLOCKS; i++)
        verify(i);
    MUST(status_kb("VmLck:") < 1 << 20, "%zu kB locked", status_kb("VmLck:"));
    return must_end();
}
