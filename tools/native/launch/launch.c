// SPDX-License-Identifier: MIT
/*
 * launch.c - quire-launch: starts a program that is the tool's child, but does not begin with the tool's peak memory.
 *
 *   tool --fork, exec--> quire-launch --clone(CLONE_PARENT)--> program     the launcher ends as soon as the program is there
 *   tool <-------------------parent of both-------------------'
 *
 * A process that execs keeps its largest resident set so far in ru_maxrss, and what it forked from
 * counts: under Python no program would seem smaller than 15 MB. From here it begins with about 1 MB.
 *
 *   quire-launch FD here|session [--into=LIBRARY] [NAME=VALUE...] -- PATH ARGV0 [ARGS...]
 *
 * FD gets "PID NS\n" from the program's process (CLOCK_MONOTONIC, just before exec), then the errno
 * of an exec that failed. `session`: the program leads a session of its own. The variables are for
 * the program alone: LD_PRELOAD must not load anything in here. `--into`: a static program, with this recorder brought
 * into it before its first step (inject.c); where that fails, FD gets -errno as an exec's errno, and the program is ended.
 *
 * Signals keep their actions: one that comes before there is a program ends the launcher, and counts
 * as the program's end. Where the kernel knows no CLONE_PARENT, this process becomes the program.
 * Not here: waiting, what it used, signals passed on (tools/quire/launch.py).
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>
#include <unistd.h>

#include "inject.h"

enum { STACK_BYTES = 65536, FAILED = 125 };

struct job {
    int fd;
    int own_session;
    char **argv; /* PATH ARGV0 ARGS... */
    pid_t launcher;
    int gate[2]; /* closed when the launcher traces */
};

static void tell(int fd, const char *format, long long first, long long second)
{
    char line[64];
    int bytes = snprintf(line, sizeof line, format, first, second);
    if (write(fd, line, (size_t)bytes) != bytes)
        _exit(FAILED); /* the tool is gone */
}

/* In the program's process; shares this one's memory until it execs. */
static int become(void *argument)
{
    const struct job *job = argument;
    struct timespec now;
    if (job->own_session)
        setsid();
    clock_gettime(CLOCK_MONOTONIC, &now);
    tell(job->fd, "%lld %lld\n", getpid(), now.tv_sec * 1000000000LL + now.tv_nsec);
    execv(job->argv[0], job->argv + 1);
    tell(job->fd, "%lld\n", errno, 0);
    _exit(FAILED);
}

/* As become(), with memory of its own, and not before it is traced. */
static int become_traced(void *argument)
{
    const struct job *job = argument;
    char open_now;
    prctl(PR_SET_PTRACER, job->launcher, 0, 0, 0); /* yama lets none trace but parents; elsewhere this is EINVAL */
    close(job->gate[1]);
    if (read(job->gate[0], &open_now, 1) != 1)
        _exit(FAILED);
    return become(argument);
}

static int launch_with(struct job *job, char *stack_end, const char *library)
{
    long options = PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
    job->launcher = getpid();
    pid_t pid = pipe2(job->gate, O_CLOEXEC) != 0 ? -1 : clone(become_traced, stack_end, CLONE_PARENT | SIGCHLD, job);
    if (pid < 0)
        return FAILED;
    close(job->gate[0]);
    int code = -EPERM;
    if (ptrace(PTRACE_SEIZE, pid, NULL, (void *)options) == 0 && write(job->gate[1], "", 1) == 1)
        code = inject(pid, library);
    if (code < 0) {
        tell(job->fd, "%lld %lld ", pid, 0);
        tell(job->fd, "%lld\n", code, 0);
        kill(pid, SIGKILL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static char stack[STACK_BYTES] __attribute__((aligned(16)));
    struct job job;
    int i = 3;
    const char *library = argc > 3 && strncmp(argv[3], "--into=", 7) == 0 ? argv[i++] + 7 : NULL;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        putenv(argv[i]);
    if (argc < i + 3) {
        fputs("quire-launch: a helper of quire run, record and try\n", stderr);
        return 2;
    }
    job.fd = atoi(argv[1]);
    job.own_session = strcmp(argv[2], "session") == 0;
    job.argv = argv + i + 1;
    fcntl(job.fd, F_SETFD, FD_CLOEXEC);
    if (library)
        return launch_with(&job, stack + STACK_BYTES, library);
    if (clone(become, stack + STACK_BYTES, CLONE_PARENT | CLONE_VM | CLONE_VFORK | SIGCHLD, &job) < 0)
        become(&job);
    return 0;
}
