// SPDX-License-Identifier: MIT
/*
 * process.c - when recording starts, who may write the trace, fork and exit.
 *
 *   ld.so -> first malloc of anybody -> rec_start -> events ... -> exit mark -> (late frees) -> end
 *                                          fork child: first event -> a trace of its own, PATH.PID
 *
 * Invariants:
 *   G1  the program behaves as without us: no message but at start, no signal, errno kept, no descriptor below 800
 *   G2  the lock is never waited for longer than LOCK_WAIT_MS: the program's own locks cannot deadlock with it
 *   G3  a forked child writes nothing to its parent's trace: its thread states are wiped by the kernel
 *       (MADV_WIPEONFORK, so also after a bare clone), and its first event opens its own trace
 *
 * Environment (read once, at start): QUIRE_RECORD path of the trace; QUIRE_RECORD_LIMIT largest size in bytes,
 * suffixes K M G, 0 for none.
 * Not here: the functions that programs call (hooks.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "record.h"

#if CPU_X86_64
#include <cpuid.h>
#endif

#define LIMIT_DEFAULT_BYTES (8ull << 30)
#define LOCK_SPINS          2000
#define LOCK_WAIT_MS        100
#define FORK_WAIT_SPINS     5000

struct rec_config rec_config;
_Atomic uint64_t rec_look_tick = UINT64_MAX;
uint32_t rec_session;
_Atomic int rec_on;
REC_TLS unsigned rec_busy;
bool rec_clock_is_tsc;
_Atomic bool rec_many;

static _Atomic uint32_t lock_holder;  // tid, 0: free
static unsigned lock_depth;
static int lock_cancel_state;  // the holder's before it took the lock
static _Atomic int fork_pending, unwinding;  // how many forks are under way; whether the loader or libunwind is asked
static char path_absolute[PATH_MAX];

extern void *__libc_stack_end;  // argc, argv[], NULL, envp[], NULL: there before libc itself is ready

char **rec_arguments(void) {
    return (char **)__libc_stack_end + 1;
}

static const char *environment_get(const char *name) {
    char **at = rec_arguments();
    while (*at != NULL) {
        at++;
    }
    size_t bytes = strlen(name);
    for (at++; *at != NULL; at++) {
        if (strncmp(*at, name, bytes) == 0 && (*at)[bytes] == '=') {
            return *at + bytes + 1;
        }
    }
    return NULL;
}

static void say(const char *text, const char *path, const char *why) {
    char line[PATH_MAX + 256];
    int n = snprintf(line, sizeof line, "quire record: %s%s%s%s\n", text, path, why[0] != '\0' ? ": " : "", why);
    if (n > 0) {
        ssize_t ignored = write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
        (void)ignored;
    }
}

static bool size_parse(const char *text, uint64_t *bytes) {
    char *end = NULL;
    unsigned long long number = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end == text || text[0] == '-' || end[shift != 0] != '\0' || number > UINT64_MAX >> shift) {
        return false;
    }
    *bytes = (uint64_t)number << shift;
    return true;
}

/* Where the next trace goes: a path that holds in any folder.  Why it cannot be one, or NULL. */
const char *rec_path_set(const char *path) {
    size_t used = 0;
    if (path[0] != '/') {
        if (getcwd(path_absolute, sizeof path_absolute - 1) == NULL) {
            return "the working directory has no name";
        }
        used = strlen(path_absolute);
        path_absolute[used++] = '/';
    }
    size_t bytes = strlen(path) + 1;
    if (used + bytes > sizeof path_absolute) {
        return "the path is too long";
    }
    memcpy(path_absolute + used, path, bytes);
    rec_config.path = path_absolute;
    return NULL;
}

/* False: do not record. */
static bool configure(void) {
    const char *path = environment_get("QUIRE_RECORD"), *limit = environment_get("QUIRE_RECORD_LIMIT");
    if (path == NULL || path[0] == '\0') {
        return false;
    }
    rec_config.limit_bytes = LIMIT_DEFAULT_BYTES;
    if (limit != NULL && !size_parse(limit, &rec_config.limit_bytes)) {
        say("QUIRE_RECORD_LIMIT is not a size such as 500M: ", limit, "not recording");
        return false;
    }
    const char *why = rec_path_set(path);
    if (why != NULL) {
        say("cannot record to ", path, why);
    }
    return why == NULL;
}

static bool clock_is_steady(void) {
#if CPU_X86_64
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;  // invariant TSC
#else
    return false;  // the kernel's clock is as cheap as the counter behind it: no system call
#endif
}

extern const char *strerrordesc_np(int error) __attribute__((weak));  // glibc from 2.32 on: allocates nothing

bool rec_trace_open(void) {
    int rc = rec_file_open();
    if (rc != 0) {
        char who[64];
        snprintf(who, sizeof who, "process %d cannot record to ", getpid());  // a child has the path of its parent's
        say(who, rec_config.path, strerrordesc_np != NULL ? strerrordesc_np(-rc) : strerror(-rc));
        return false;
    }
    return rec_threads_start() && rec_meta_start();
}

/* libunwind and the loader have locks of their own, which a child would inherit locked: no fork in the middle of a step. */
bool rec_unwind_begin(void) {
    for (unsigned spins = 0;; spins++) {
        atomic_store(&unwinding, 1);
        if (!atomic_load(&fork_pending)) {
            return true;
        }
        atomic_store(&unwinding, 0);
        if (spins == FORK_WAIT_SPINS) {  // we may hold what fork waits for, a stream's lock say
            return false;
        }
        sched_yield();
    }
}

void rec_unwind_end(void) {
    atomic_store(&unwinding, 0);
}

static void wait_a_little(bool is_early) {
    if (is_early) {
        sched_yield();
    } else {
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 100000}, NULL);  // libc's is a point of cancellation
    }
}

static void before_fork(void) {
    rec_busy++;
    atomic_fetch_add(&fork_pending, 1);
    for (unsigned spins = 0; atomic_load(&unwinding) && spins < FORK_WAIT_SPINS + LOCK_WAIT_MS * 10; spins++) {
        wait_a_little(spins < FORK_WAIT_SPINS);
    }
}

static void after_fork(void) {
    atomic_fetch_sub(&fork_pending, 1);
    rec_busy--;
}

static void after_fork_child(void) {
    atomic_store(&lock_holder, 0);
    atomic_store(&unwinding, 0);
    lock_depth = 0;
    rec_threads_wipe();
    atomic_store(&fork_pending, 1);  // its own: other threads' forks are not
    after_fork();
}

void rec_start(void) {
    int saved_errno = errno;
    rec_clock_is_tsc = clock_is_steady();
    if (!rec_attached && configure()) {
        if (rec_stack_start() && rec_rules_start() && rec_trace_open()) {
            atomic_store(&rec_on, 1);
        }
    }
    errno = saved_errno;
}

void rec_forks_watch(void) {
    pthread_atfork(before_fork, after_fork, after_fork_child);
}

/* libc's own tables are not ready at the first malloc; this runs later, and gives a program that never allocates its trace. */
__attribute__((constructor)) static void late_start(void) {
    if (rec_attached) {
        return;
    }
    rec_busy++;
    rec_hooks_start();
    if (atomic_load(&rec_on)) {
        rec_forks_watch();
        rec_own_start();
    }
    rec_busy--;
}

bool rec_lock_try(void) {
    uint32_t me = (uint32_t)syscall(SYS_gettid), free_lock = 0;
    if (atomic_load_explicit(&lock_holder, memory_order_relaxed) == me) {
        lock_depth++;
        return true;
    }
    int cancel_state = 0;  // writing and waiting are points of cancellation; malloc is none, and the lock would stay taken
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    for (unsigned spins = 0; !atomic_compare_exchange_weak(&lock_holder, &free_lock, me); spins++) {
        free_lock = 0;
        if (spins == LOCK_SPINS + LOCK_WAIT_MS * 10) {
            pthread_setcancelstate(cancel_state, NULL);
            return false;
        }
        wait_a_little(spins < LOCK_SPINS);
    }
    lock_depth = 1;
    lock_cancel_state = cancel_state;
    return true;
}

void rec_unlock(void) {
    if (--lock_depth == 0) {
        int cancel_state = lock_cancel_state;
        atomic_store_explicit(&lock_holder, 0, memory_order_release);
        pthread_setcancelstate(cancel_state, NULL);
    }
}

void rec_stop_locked(enum qtr_stop reason) {
    atomic_store(&rec_on, 0);
    if (rec_header != NULL && rec_header->stop == QTR_STOP_NONE) {
        rec_header->stop = reason;
        rec_file_touch(true);
    }
}

/* Any of its threads, and several at once. */
void rec_forked_child_slow(void) {
    rec_busy++;
    uint32_t holder = atomic_load(&lock_holder);
    if (holder != 0 && syscall(SYS_tgkill, getpid(), (pid_t)holder, 0) != 0) {
        atomic_compare_exchange_strong(&lock_holder, &holder, 0);  // a thread of the parent's
    }
    if (!rec_lock_try()) {
        rec_busy--;
        return;
    }
    if (rec_header != NULL && rec_is_forked_child()) {
        rec_file_forget();
        rec_meta_forget();
        rec_stack_forget(true);
        rec_thread_forget_all();
        if (!rec_child_begin()) {
            atomic_store(&rec_on, 0);
        }
    }
    rec_unlock();
    rec_busy--;
}

/* The mark that tells an end from a kill.  Recording goes on: other libraries still free in their destructors. */
void rec_exit_mark(int status, bool status_known) {
    int saved_errno = errno;
    if (rec_header != NULL && rec_header->pid == (uint32_t)getpid()) {
        rec_file_touch(true);
        if (status_known) {
            rec_header->exit_status = (uint32_t)status & 255;
            rec_header->exit_known = 1;
        }
        rec_header->state = QTR_EXITED;
    }
    errno = saved_errno;
}

__attribute__((destructor)) static void exit_mark(void) {
    rec_exit_mark(0, false);
}
