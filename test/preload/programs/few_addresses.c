// SPDX-License-Identifier: MIT
/*
 * few_addresses.c - a running process gives itself few addresses, or locks all that it has: `few_addresses as BYTES`, `few_addresses lock`.
 * `tight BYTES`: three quarters of the few can be had.  `lock all`: with all that it has locked, idle memory goes back.
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
#include <unistd.h>

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

static void tight(size_t bytes)
{
    size_t had = 0, each = 10000;
    struct rlimit limit = {bytes, bytes};
    free(malloc(each));
    MUST(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit %d", errno);
    for (char *p; had < bytes && (p = malloc(each)) != NULL; had += each)
        memset(p, 1, each);
    MUST(had > bytes / 4 * 3, "%zu of %zu bytes", had, bytes);
}

static void lock_all(void)
{
    enum { MANY = 2000, EACH = 20000 };
    static char *many[MANY];
    char *page = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    enum { DONTNEED_LOCKED = 24 };
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0 || madvise(page, 1 << 16, DONTNEED_LOCKED) != 0) {
        printf("not here\n"); /* not allowed, or before Linux 5.18 */
        exit(0);
    }
    for (int i = 0; i < MANY; i++)
        if ((many[i] = malloc(EACH)) != NULL)
            memset(many[i], 1, EACH);
    size_t full = status_kb("VmRSS:"), left = full;
    for (int i = 0; i < MANY; i++)
        free(many[i]);
    for (int i = 0; i < 100 && left > full - (30 << 10); i++, left = status_kb("VmRSS:"))
        usleep(20000);
    MUST(left <= full - (30 << 10), "%zu kB of %zu are left", left, full);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc > 2 && strcmp(argv[1], "as") != 0) {
        strcmp(argv[1], "tight") == 0 ? tight(strtoul(argv[2], NULL, 10)) : lock_all();
        return must_end();
    }
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
