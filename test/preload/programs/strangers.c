// SPDX-License-Identifier: MIT
/*
 * strangers.c - a library (strangers_plugin.c) is bound past the preloaded malloc and hands out libc's blocks: the program resizes and frees them.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "must.h"

static void *(*alloc)(size_t), *(*aligned)(size_t);

static void *use(void *unused)
{
    static const size_t sizes[] = {1, 24, 100, 5000, 120000, 300000, 5000000};
    for (unsigned i = 0; i < 3 * sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i / 3];
        char *p = i % 3 == 1 ? aligned(bytes) : alloc(bytes);
        MUST(malloc_usable_size(p) >= bytes && malloc_usable_size(p) < bytes + 2 * 4096, "%zu bytes are %zu", bytes, malloc_usable_size(p));
        if (i % 3 == 2) {
            p = realloc(p, 2 * bytes);
            MUST(p && p[0] == 7 && p[bytes - 1] == 7, "%zu bytes", bytes);
            memset(p, 1, 2 * bytes);
            p = realloc(p, bytes);
        }
        free(p);
        char *ours = malloc(bytes);
        memset(ours, 2, bytes);
        free(ours);
    }
    return unused;
}

/* libc's malloc, not used yet, will find that brk() fails. */
static void take_heap_away(void)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *behind = (void *)(((uintptr_t)sbrk(0) + page - 1) & -page);
    MUST(mmap(behind, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == behind, "%p is taken", behind);
    MUST(sbrk((intptr_t)page) == (void *)-1, "there is a heap");
}

static void take_descriptors_away(void)
{
    struct rlimit few = {64, 64};
    MUST(setrlimit(RLIMIT_NOFILE, &few) == 0, "no limit");
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
}

/* The process's own place in /proc is empty once its first thread has ended. */
static void *use_without_the_first(void *unused)
{
    usleep(50000);
    use(unused);
    exit(must_end());
}

int main(int count, char **words)
{
    const char *without = count > 2 ? words[1] : "";
    if (strcmp(without, "brk") == 0)
        take_heap_away();
    void *plugin = dlopen(words[count - 1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    MUST(plugin, "%s", dlerror());
    alloc = (void *(*)(size_t))dlsym(plugin, "plugin_alloc");
    aligned = (void *(*)(size_t))dlsym(plugin, "plugin_aligned");
    MUST(((void *(*)(void))dlsym(plugin, "plugin_malloc"))() != (void *)malloc, "nothing here is strange");
    if (strcmp(without, "descriptors") == 0)
        take_descriptors_away();
    if (strcmp(without, "first thread") == 0) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, use_without_the_first, NULL) == 0, "no thread");
        pthread_exit(NULL);
    }
    use(NULL);
    for (int i = 0; i < 4; i++) {
        pthread_t thread; /* with an arena of its own */
        int status = pthread_create(&thread, NULL, use, NULL);
        MUST(status == 0 && pthread_join(thread, NULL) == 0, "thread %d", i);
    }
    return must_end();
}
