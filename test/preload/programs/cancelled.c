// SPDX-License-Identifier: MIT
/*
 * cancelled.c - a thread that was cancelled gets a signal that we answer, or ends the process, before it comes to a point of cancellation.
 *
 *     cancelled term        SIGTERM, which the drop-in has taken for its report
 *     cancelled exit        exit(3), with a profile that fits in no file
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void *end_the_process(void *by_signal)
{
    pthread_cancel(pthread_self());
    if (by_signal)
        pthread_kill(pthread_self(), SIGTERM);
    else
        exit(3);
    return NULL;
}

int main(int count, char **words)
{
    int by_signal = count == 2 && strcmp(words[1], "term") == 0;
    struct rlimit none = {0, 0};
    pthread_t thread;
    for (int i = 0; i < 2000; i++)
        *(volatile char *)malloc(4096) = 1;
    if (!by_signal)
        setrlimit(RLIMIT_FSIZE, &none);
    pthread_create(&thread, NULL, end_the_process, by_signal ? &thread : NULL);
    pthread_join(thread, NULL);
    puts("the process goes on");
    return 1;
}
