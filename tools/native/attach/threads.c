// SPDX-License-Identifier: MIT
/*
 * threads.c - the target's threads: all of them stopped for a moment, then let go as they were.
 *
 *   seize, interrupt --> stopped (in a system call, or between two instructions) --> detached
 *
 * PTRACE_O_EXITKILL is never set: the kernel detaches what a dead tracer held, and it goes on.
 *
 * A system call that an interruption ends with EINTR (epoll_wait is one) is marked like those that the kernel begins anew where no handler of a
 * signal runs: so it is begun anew whoever lets the thread go, we or the kernel after our end.
 * A thread that does not stop in time (it waits for the child of a vfork) cannot be let go before it does: it stays in the list, and is waited for
 * first the next time.
 * Not here: which thread is borrowed (safe.c).
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

#include "attach.h"

#define STOP_MS 300u  // all of them; those that stand already wait so long
#define POLL_US 50u

static struct thread *thread_of(struct threads *threads, pid_t tid) {
    for (unsigned i = 0; i < threads->count; i++) {
        if (threads->thread[i].tid == tid) {
            return &threads->thread[i];
        }
    }
    return NULL;
}

/* Seizes those that are not yet ours; how many came. */
static unsigned seize_new(struct threads *threads, pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    unsigned came = 0;
    for (struct dirent *entry = folder == NULL ? NULL : readdir(folder); entry != NULL; entry = readdir(folder)) {
        pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (tid <= 0 || thread_of(threads, tid) != NULL) {
            continue;
        }
        if (ptrace(PTRACE_SEIZE, tid, NULL, (void *)(uintptr_t)PTRACE_O_TRACESYSGOOD) != 0) {
            if (errno == EPERM && threads->count == 0) {
                int code = errno;
                closedir(folder);
                errno = code;
                return 0;
            }
            continue;  // it ended
        }
        struct thread *grown = realloc(threads->thread, (threads->count + 1) * sizeof *grown);
        if (grown == NULL) {
            break;
        }
        threads->thread = grown;
        threads->thread[threads->count++] = (struct thread){.tid = tid};
        ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
        came++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    errno = 0;
    return came;
}

bool thread_wait(pid_t tid, int *status, unsigned timeout_ms) {
    for (uint64_t until = now_ms() + timeout_ms; ; ) {
        pid_t got = waitpid(tid, status, __WALL | WNOHANG);
        if (got == tid) {
            return true;
        }
        if (got < 0 && errno == ECHILD) {
            return false;
        }
        if (now_ms() >= until) {
            errno = ETIMEDOUT;
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_US * 1000}, NULL);
    }
}

static void mark_cut_short(struct thread *thread) {
    if ((long)thread->regs.orig_rax >= 0 && (long)thread->regs.rax == -EINTR && thread->regs.orig_rax != SYS_close) {
        thread->regs.rax = (unsigned long long)-ERESTARTNOHAND;
        ptrace(PTRACE_SETREGS, thread->tid, NULL, &thread->regs);
    }
}

/* Until it stands, or has ended; or takes too long. */
static void settle(struct thread *thread, uint64_t until) {
    int status = 0;
    thread->is_late = false;
    for (uint64_t now = now_ms(); thread_wait(thread->tid, &status, until > now ? (unsigned)(until - now) : 0); now = now_ms()) {
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            return;
        }
        if (status >> 16 == PTRACE_EVENT_STOP) {
            thread->is_stopped = ptrace(PTRACE_GETREGS, thread->tid, NULL, &thread->regs) == 0;
            mark_cut_short(thread);
            return;
        }
        ptrace(PTRACE_CONT, thread->tid, NULL, (void *)(uintptr_t)WSTOPSIG(status));  // a signal of the program's, on its way
    }
    thread->is_late = errno != ECHILD;
}

bool threads_stop(struct threads *threads, pid_t pid) {
    bool is_late = false;
    unsigned settled = 0;
    uint64_t until = now_ms() + STOP_MS;
    do {
        for (; settled < threads->count; settled++) {
            settle(&threads->thread[settled], until);
            is_late |= threads->thread[settled].is_late;
        }
    } while (!is_late && seize_new(threads, pid) > 0);
    return threads->count > 0 && !is_late;
}

void thread_release(struct thread *thread) {
    ptrace(PTRACE_DETACH, thread->tid, NULL, NULL);
    thread->is_stopped = false;
}

void threads_release(struct threads *threads, const struct thread *but) {
    unsigned kept = 0;
    for (unsigned i = 0; i < threads->count; i++) {
        if (threads->thread[i].is_late) {
            threads->thread[kept++] = threads->thread[i];
        } else if (&threads->thread[i] != but) {
            thread_release(&threads->thread[i]);
        }
    }
    if (but == NULL) {
        threads->count = kept;
    }
}
