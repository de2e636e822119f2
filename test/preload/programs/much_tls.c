// SPDX-License-Identifier: MIT
/*
 * much_tls.c - a program with TLS_BYTES of thread-local storage, which libc puts on the stack of each thread: the clock's thread has room all the same,
 * also for libc's own signal of setuid().
 */
#include <pthread.h>
#include <string.h>

#include "churn.h"

_Thread_local char much[TLS_BYTES];

static void *use(void *arg)
{
    much[0] = 1;
    return arg;
}

int main(void)
{
    enum { BLOCKS = 1000, BYTES = 20000 };
    static char *blocks[BLOCKS];
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 20);
    MUST(pthread_create(&thread, &attributes, use, NULL) == 0, "a thread");
    pthread_join(thread, NULL);
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(BYTES), 1, BYTES);
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    for (int i = 0; i < 15; i++) {
        sleep_ms(30);
        MUST(setuid(getuid()) == 0, "setuid");
    }
    return must_end();
}
