// SPDX-License-Identifier: MIT
/*
 * main_ends.c - main() ends by pthread_exit(); libc ends the process with its last thread, for which threads of a library count, too.
 *
 *     main_ends alone|worker|child      main has idle memory, or a worker that ends later; or so has a forked child
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 64 << 20, FRAME_BYTES = 1 << 20 };

static void *work(void *unused)
{
    char *p = malloc(BYTES);
    memset(p, 1, BYTES);
    free(p);
    usleep(50000);
    return unused;
}

/* With the stack and the signals that functions for the end of a process have elsewhere. */
static void at_end(void)
{
    volatile char frame[FRAME_BYTES];
    sigset_t blocked;
    memset((void *)frame, 1, sizeof frame);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    puts(sigismember(&blocked, SIGTERM) ? "no signal would come" : "ended");
    fflush(stdout);
}

static void begin(int is_worker)
{
    pthread_t thread;
    if (!is_worker)
        work(NULL);
    else if (pthread_create(&thread, NULL, work, NULL) == 0)
        pthread_detach(thread);
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "child") == 0) {
        work(NULL); /* so that there is a thread of the library's which the child has not */
        pid_t child = fork();
        int status = 0;
        if (child == 0) {
            atexit(at_end);
            begin(1);
        }
        return waitpid(child, &status, 0) != child || status != 0;
    }
    atexit(at_end);
    begin(strcmp(how, "worker") == 0);
}
