// SPDX-License-Identifier: MIT
/*
 * at_fork - a library that has itself called in the child of every fork, and allocates there; linked with or preloaded, its constructor may run
 * before any other's.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void in_child(void)
{
    for (size_t n = 1; n < 300000; n = n * 2 + 1) {
        char *p = calloc(3, n);
        memset(p, 1, 3 * n);
        free(realloc(p, n));
    }
}

static __attribute__((constructor)) void at_load(void)
{
    pthread_atfork(NULL, NULL, in_child);
}
