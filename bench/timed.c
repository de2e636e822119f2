// SPDX-License-Identifier: MIT
/*
 * timed.c - runs one program and says what it cost: `timed [--preload LIB] [--out FILE] -- PROGRAM ARGS`.
 *
 *   timed --fork--> LD_PRELOAD=LIB, exec PROGRAM --wait4--> {"cpu_ns":..,"wall_ns":..,"peak_rss_bytes":..,"status":..}  on FILE, else stderr
 *
 * Small on purpose: a child's peak memory begins with that of whoever forks it, and Python would be the largest of many a program measured here.  CPU time
 * and peak include the program's own children that it waited for; the peak is that of the largest process.
 *
 * Exit: 0 when the program could be started and waited for, whatever its status; 125 when not.
 * Not here: several rounds, medians (tools/quire/bench/apps.py).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t time_ns(struct timeval time)
{
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_usec * 1000u;
}

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "timed: %s: %s\n", what, strerror(errno));
    exit(125);
}

int main(int argc, char **argv)
{
    const char *preload = NULL, *out = NULL;
    int at = 1;
    for (; at + 1 < argc && strcmp(argv[at], "--") != 0; at += 2) {
        if (strcmp(argv[at], "--preload") == 0)
            preload = argv[at + 1];
        else if (strcmp(argv[at], "--out") == 0)
            out = argv[at + 1];
        else
            break;
    }
    if (at + 1 >= argc || strcmp(argv[at], "--") != 0) {
        fputs("usage: timed [--preload LIB] [--out FILE] -- PROGRAM ARGS\n", stderr);
        return 2;
    }
    int fd = out ? open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : 2;
    if (fd < 0)
        fail(out);
    uint64_t begin_ns = wall_ns();
    pid_t child = fork();
    if (child == 0) {
        if (preload)
            setenv("LD_PRELOAD", preload, 1);
        execvp(argv[at + 1], argv + at + 1);
        fail(argv[at + 1]);
    }
    int status;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child)
        fail("cannot run it");
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    dprintf(fd, "{\"cpu_ns\":%lu,\"system_ns\":%lu,\"wall_ns\":%lu,\"peak_rss_bytes\":%lu,\"status\":%d}\n",
            (unsigned long)(time_ns(usage.ru_utime) + time_ns(usage.ru_stime)), (unsigned long)time_ns(usage.ru_stime), (unsigned long)(wall_ns() - begin_ns),
            (unsigned long)usage.ru_maxrss * 1024, code);
    return 0;
}
