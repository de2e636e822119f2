// SPDX-License-Identifier: MIT
/*
 * shortage - malloc when there is no more memory, and what becomes of memory that is not needed any more.
 *
 *     address_space MIB  limit  refused  give_back
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "churn.h"
#include "must.h"

static void refused_then_fine(void)
{
    enum { BLOCKS = 100000 };
    static char *blocks[BLOCKS];
    int had = 0;
    errno = 0;
    for (; had < BLOCKS && (blocks[had] = malloc(10000)) != NULL; had++)
        blocks[had][0] = 1;
    MUST(had < BLOCKS && errno == ENOMEM, "%d blocks, errno %d", had, errno);
    for (size_t n = 16; n < ((size_t)1 << 40); n *= 4) {
        char *p = malloc(n);
        free(realloc(p, n * 2) ? NULL : p);
        errno = 0;
        MUST(calloc(n, 1 << 20) == NULL || n < 1 << 10, "calloc(%zu)", n);
    }
    for (int i = 0; i < had; i++)
        free(blocks[i]);
    char *p = malloc(100000);
    MUST(p, "after freeing %d blocks", had);
    free(p);
}

static void *thread_without_memory(void *out)
{
    *(bool *)out = malloc(64) != NULL || errno == ENOMEM;
    return NULL;
}

static void address_space(int mib)
{
    struct rlimit limit = {(rlim_t)mib << 20, (rlim_t)mib << 20};
    setrlimit(RLIMIT_AS, &limit);
    pthread_t thread;
    bool is_fine = true;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    if (pthread_create(&thread, &small, thread_without_memory, &is_fine) == 0)
        pthread_join(thread, NULL);
    MUST(is_fine, "a thread's first malloc");
    refused_then_fine();
}

static void limit(int unused)
{
    (void)unused;
    refused_then_fine();
}

/* The kernel refuses now and then (a tracer does): a block or NULL, never harm. */
static void refused(int unused)
{
    (void)unused;
    churn(11, 1000);
    char *p = NULL, *behind[16] = {NULL};
    size_t count = 0;
    for (size_t n = 1000; n < 8 << 20; n *= 2) {
        char *q = realloc(p, n);
        p = q ? q : p;
        if (q)
            memset(q, 1, n);
        behind[count++] = malloc(n); /* so that it has to move */
    }
    free(p);
    while (count > 0)
        free(behind[--count]);
    (void)malloc_trim(0);
    churn(12, 1000);
}

static void give_back(int unused)
{
    (void)unused;
    enum { BLOCKS = 300000 };
    char **blocks = malloc(BLOCKS * sizeof *blocks);
    long before = resident_kib();
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(400), 1, 400);
    long peak = resident_kib();
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    for (int waited = 0; waited < 300 && resident_kib() > before + 10 * 1024; waited++)
        sleep_ms(100);
    MUST(peak > before + 100 * 1024, "peak %ld KiB", peak);
    MUST(resident_kib() <= before + 10 * 1024, "%ld KiB after %ld, peak %ld", resident_kib(), before, peak);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(int number);
    } groups[] = {{"address_space", address_space}, {"limit", limit}, {"refused", refused}, {"give_back", give_back}};
    for (size_t i = 0; count >= 2 && i < sizeof groups / sizeof groups[0]; i++) {
        if (strcmp(words[1], groups[i].name) == 0) {
            groups[i].run(count > 2 ? atoi(words[2]) : 0);
            return must_end();
        }
    }
    return 2;
}
