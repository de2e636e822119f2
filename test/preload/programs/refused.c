// SPDX-License-Identifier: MIT
/* Threads that ask at the same moment for more than there can be: the last way to memory is libc's own allocator, which nobody has asked before. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "must.h"

enum { THREADS = 8, ROUNDS = 20 };
static pthread_barrier_t barrier;

static void *ask(void *arg)
{
    volatile size_t too_much = PTRDIFF_MAX / 2;
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < ROUNDS; i++) {
        errno = 0;
        MUST(malloc(too_much) == NULL && errno == ENOMEM, "errno is %d", errno);
        free(malloc(100));
    }
    return arg;
}

int main(void)
{
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, ask, NULL) != 0)
            return 2;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return must_end();
}
