// SPDX-License-Identifier: MIT
/*
 * apart - threads that allocate and free blocks of their own; how often they wrote to a word that all of them know.
 *
 *     apart OFFSET free|delete      of the word in the library; frees, or as C++ deletes, with the size; prints the number, or "unknown" where the processor does not watch it for us
 */
#include <dlfcn.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void (*delete_sized)(void *p, size_t bytes); /* NULL: they free */

enum { THREADS = 4, PAIRS = 10000, KEPT = 64, BYTES_MAX = 500 };

static int watch(void *word)
{
    struct perf_event_attr attributes = {.type = PERF_TYPE_BREAKPOINT, .size = sizeof attributes, .bp_type = HW_BREAKPOINT_W, .exclude_kernel = 1, .exclude_hv = 1, .inherit = 1};
    attributes.bp_addr = (uintptr_t)word;
    attributes.bp_len = HW_BREAKPOINT_LEN_4;
    return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
}

static void *work(void *unused)
{
    void *kept[KEPT] = {NULL};
    for (unsigned i = 0; i < PAIRS + KEPT; i++) {
        if (kept[i % KEPT] && delete_sized)
            delete_sized(kept[i % KEPT], 1 + (i - KEPT) * 7 % BYTES_MAX);
        else if (kept[i % KEPT])
            free(kept[i % KEPT]);
        kept[i % KEPT] = i < PAIRS ? malloc(1 + i * 7 % BYTES_MAX) : NULL;
    }
    return NULL;
}

int main(int count, char **words)
{
    Dl_info library;
    if (count != 3 || !dladdr(dlsym(RTLD_DEFAULT, "malloc"), &library))
        return 2;
    if (words[2][0] == 'd' && !(*(void **)&delete_sized = dlsym(RTLD_DEFAULT, "_ZdlPvm")))
        return 3;
    int fd = watch((char *)library.dli_fbase + strtoul(words[1], NULL, 0));
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t writes = 0;
    if (fd < 0 || read(fd, &writes, sizeof writes) != sizeof writes)
        puts("unknown");
    else
        printf("%llu\n", (unsigned long long)writes);
    return 0;
}
