// SPDX-License-Identifier: MIT
/*
 * witness.c - quire-witness: was a signal meant for the whole process group, or for the tool alone?
 *
 *   kill -INT -GROUP, Ctrl-C  ->  tool, program, witness    the program has it: the tool must not send it again
 *   kill -INT TOOL            ->  tool                      nobody else has it: the tool passes it on
 *
 *   tool --number of a signal--> witness --1: it came here too, 0: it did not--> tool
 *
 * `quire-witness IN OUT` has every signal blocked (from before its exec, else the first could kill
 * it) and takes one only when asked for it. No race with the question: kill() and the terminal hold the
 * kernel's lock of the process tree while they go through a group, and begin with its youngest. Who
 * signals process by process (an init that ends a cgroup) may reach the tool first, therefore
 * PATIENCE_NS.
 *
 * Ends when IN does, however the tool ended.
 * Not here: what is done with the answer (tools/quire/stops.py).
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_NS = 50000000 };

/* 1 when the signal is pending here, or comes within PATIENCE_NS. */
static unsigned char came(int number)
{
    const struct timespec patience = {.tv_nsec = PATIENCE_NS};
    sigset_t wanted;
    int got;
    sigemptyset(&wanted);
    sigaddset(&wanted, number);
    do
        got = sigtimedwait(&wanted, NULL, &patience);
    while (got < 0 && errno == EINTR); /* stopped and continued */
    return got == number;
}

int main(int argc, char **argv)
{
    sigset_t all;
    unsigned char number, answer;
    if (argc != 3)
        return 2;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    int in = atoi(argv[1]), out = atoi(argv[2]);
    while (read(in, &number, 1) == 1) {
        answer = came(number);
        if (write(out, &answer, 1) != 1)
            break;
    }
    return 0;
}
