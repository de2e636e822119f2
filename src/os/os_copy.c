// SPDX-License-Identifier: MIT
/*
 * os_copy.c - a copy of the process, made in a signal's handler, in which what a handler may not do is done.
 *
 *     any thread, anywhere   |  the copy: this thread alone, on a stack of its own
 *     clone() without        |  signals that end a program end it, SIGALRM among them; no core
 *     flags or signal -----> |  fn: first os_repair(), after which whatever lock was held, by whomever, is free
 *     wait4() <------------- |  _exit
 *
 * fork() would run the program's own handlers of a fork, and wait for locks of libc's.  A child that sends no signal at its end is found by nobody who
 * does not ask for such by __WALL.
 *
 * Locks: none.  Two handlers at once: the second gets -EBUSY; in the child of a fork the first one is not there, and its number is another's.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/os.h"
#include "os/os_call.h"

enum { STACK_BYTES = 128 << 10, STACK_ALIGN_BYTES = 64 };

struct task {
    void (*fn)(void);
    uint64_t process;
    unsigned seconds_max;
};
static uint64_t copied; /* in a copy: whose it is */
static char stack[STACK_BYTES] __attribute__((aligned(STACK_ALIGN_BYTES))); /* not in memory until it is used */

static int copy_main(void *arg)
{
    static const int ending[] = {SIGALRM, SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGTRAP, SIGFPE, SIGSYS, SIGPIPE};
    const struct task *task = arg;
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    const struct rlimit no_core = {0, 0};
    sigset_t none;
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        (void)sigaction(ending[i], &plain, NULL);
    (void)setrlimit(RLIMIT_CORE, &no_core);
    sigfillset(&none);
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++)
        (void)sigdelset(&none, ending[i]);
    (void)sigprocmask(SIG_SETMASK, &none, NULL); /* the program's other handlers are not for here */
    alarm(task->seconds_max);
    copied = task->process;
    task->fn();
    syscall(SYS_exit_group, 0);
    return 0;
}

int os_in_copy(void (*fn)(void), unsigned seconds_max)
{
    static uint64_t busy; /* the process that is at it; 0: none */
    int kept = errno, status = 0, error = 0;
    struct task task = {fn, os_process_id(), seconds_max};
    if (__atomic_exchange_n(&busy, task.process, __ATOMIC_ACQUIRE) == task.process) /* acquire [copy-busy] */
        return -EBUSY;
    errno = EAGAIN;
    int child = os_fault(OS_COPY) ? -1 : clone(copy_main, stack + STACK_BYTES, 0, &task);
    if (child < 0)
        error = -errno;
    while (child > 0 && call_wait4(child, &status, __WALL) < 0 && errno == EINTR)
        ;
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE); /* release [copy-busy] */
    errno = kept;
    return error ? error : WIFEXITED(status) ? 0 : -EIO;
}

bool os_is_copy(void)
{
    return copied != 0;
}

uint64_t os_process_id(void)
{
    return copied ? copied : (uint64_t)getpid();
}
