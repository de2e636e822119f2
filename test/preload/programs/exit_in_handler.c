// SPDX-License-Identifier: MIT
/* A handler calls exit(3), while the program allocates; the argument says after how many microseconds. */
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

static void on_alarm(int number)
{
    (void)number;
    exit(3);
}

int main(int argc, char **argv)
{
    struct itimerval soon = {{0, 0}, {0, argc > 1 ? atoi(argv[1]) : 20000}};
    void *live[64] = {0};
    unsigned seed = 1;
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &soon, NULL);
    for (;;) {
        seed = seed * 1103515245 + 12345;
        unsigned i = seed >> 16 & 63;
        free(live[i]);
        live[i] = malloc((seed >> 8 & 0x3ffff) >> (seed >> 28 & 15));
    }
}
