// SPDX-License-Identifier: MIT
/*
 * A program in a container: what it does until somebody ends it.
 *
 *     contained busy N        N threads allocate and free without end     contained idle BYTES    has freed that much, and waits
 *     contained handler       has a handler of SIGTERM of its own         contained fork          a child, and waits for it
 *     contained children      whether wait() finds children that it has not made
 * Each says "ready" when it is.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void ready(void)
{
    puts("ready");
    fflush(stdout);
}

/* Blocks of all sizes, most of them by the long ways: magazines are emptied, pages come and go. */
static void *busy(void *arg)
{
    unsigned long n = (unsigned long)arg;
    static _Thread_local void *kept[4096];
    for (unsigned long rounds = 0;; rounds++) {
        n = n * 6364136223846793005u + 1442695040888963407u;
        size_t i = n >> 52, bytes = (n >> 36 & 0xffff) >> (n >> 32 & 7);
        free(kept[i]);
        kept[i] = n >> 28 & 7 ? malloc(bytes) : realloc(malloc(bytes), 4 * bytes + 100);
        if (rounds == 10000 && !arg)
            ready();
    }
}

static void on_term(int number)
{
    (void)number;
    _exit(5);
}

static void on_child(int number)
{
    (void)number;
    static const char said[] = "a child that nobody made\n";
    (void)!write(1, said, sizeof said - 1);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    size_t n = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    pthread_t thread;
    if (strcmp(what, "busy") == 0)
        for (size_t i = 1; i < n; i++)
            pthread_create(&thread, NULL, busy, (void *)i);
    if (strcmp(what, "idle") == 0) {
        void **blocks = malloc(n / 1000 * sizeof *blocks);
        for (size_t i = 0; i < n / 1000; i++)
            blocks[i] = memset(malloc(1000), 1, 1000);
        for (size_t i = 0; i < n / 1000; i++)
            free(blocks[i]);
    }
    if (strcmp(what, "handler") == 0)
        signal(SIGTERM, on_term);
    if (strcmp(what, "fork") == 0 && fork() > 0) {
        wait(NULL);
        return 0;
    }
    if (strcmp(what, "children") == 0)
        signal(SIGCHLD, on_child);
    if (strcmp(what, "busy") == 0)
        busy(NULL);
    ready();
    if (strcmp(what, "children") == 0)
        for (;;)
            if (wait(NULL) > 0)
                on_child(0);
    for (;;)
        pause();
}
