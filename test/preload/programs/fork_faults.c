// SPDX-License-Identifier: MIT
/* fork_faults.c - how many pages a child of a process of one thread has copied when fork returns: the fewest of 20 children. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
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
