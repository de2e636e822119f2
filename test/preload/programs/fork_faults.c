// SPDX-License-Identifier: MIT
/* fork_faults.c - how many pages a child has copied when fork returns: the fewest of 20 children.  With an argument of a process that has another thread, too. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 4000, SIZES = 500 };
static pthread_barrier_t is_there;

/* Much of what it has freed is kept for it. */
static void *lives(void *unused)
{
    static char *block[BLOCKS];
    for (int turn = 0; turn < 4; turn++) {
        for (size_t i = 0; i < BLOCKS; i++)
            if ((block[i] = malloc(16 + i % SIZES)))
                *block[i] = 1;
        for (size_t i = 0; i < BLOCKS; i++)
            free(block[i]);
    }
    pthread_barrier_wait(&is_there);
    pause();
    return unused;
}

int main(int argc, char **argv)
{
    (void)argv;
    pthread_t other;
    pthread_barrier_init(&is_there, NULL, 2);
    if (argc > 1 && pthread_create(&other, NULL, lives, NULL) == 0)
        pthread_barrier_wait(&is_there);
    int fewest = 255;
    for (size_t i = 0; i < 1000; i++)
        if (!malloc(16 + i))
            return 1;
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct rusage used;
            getrusage(RUSAGE_SELF, &used);
            _exit(used.ru_minflt < 255 ? (int)used.ru_minflt : 255);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
            return 1;
        if (WEXITSTATUS(status) < fewest)
            fewest = WEXITSTATUS(status);
    }
    printf("%d\n", fewest);
    return 0;
}
