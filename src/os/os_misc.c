// SPDX-License-Identifier: MIT
/*
 * os_misc.c - time, entropy, messages, sleeping, threads and their end, fork, barriers.
 */
#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "os/os.h"
#include "os/os_call.h"

enum { THREAD_STACK_BYTES = 64 * 1024 }; /* beside thread-local storage */

uint64_t os_time_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t os_clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec;
}

void os_host_name(char *name, size_t bytes)
{
    int kept = errno;
    if (gethostname(name, bytes) != 0)
        name[0] = 0;
    name[bytes - 1] = 0;
    errno = kept;
}

int os_entropy(void *out, size_t bytes)
{
    if (os_fault(OS_ENTROPY))
        return -ENOSYS;
    int kept = errno;
    long got = syscall(SYS_getrandom, out, bytes, GRND_NONBLOCK); /* libc's is a point of cancellation, and locks may be held here */
    int error = got == (long)bytes ? 0 : got < 0 ? -errno : -EAGAIN;
    errno = kept;
    return error;
}

int os_write_plainly(int fd, const char *text, size_t bytes)
{
    int kept = errno, error = 0;
    while (bytes > 0 && error == 0) {
        ssize_t put = call_write(fd, text, bytes);
        if (put < 0) {
            error = errno == EINTR ? 0 : -errno;
        } else if (put == 0) {
            error = -EIO; /* not a byte and no reason: trying again would be for ever */
        } else {
            text += put;
            bytes -= (size_t)put;
        }
    }
    errno = kept;
    return error;
}

int os_write(int fd, const char *text, size_t bytes)
{
    int kept = errno;
    sigset_t ends, before, waits;
    sigemptyset(&ends);
    sigaddset(&ends, SIGXFSZ);
    sigaddset(&ends, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    sigpending(&waits); /* where the program blocks it itself */
    int error = os_write_plainly(fd, text, bytes), ours = error == -EFBIG ? SIGXFSZ : error == -EPIPE ? SIGPIPE : 0;
    if (ours && !sigismember(&waits, ours)) {
        sigemptyset(&ends);
        sigaddset(&ends, ours);
        (void)call_sigtake(&ends);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = kept;
    return error;
}

bool os_blocks_signals(void)
{
    sigset_t now;
    return pthread_sigmask(SIG_BLOCK, NULL, &now) == 0 && !sigisemptyset(&now);
}

_Static_assert(sizeof(sigset_t) <= sizeof(struct os_signals), "room for libc's");

void os_signals_hold(struct os_signals *before)
{
    static const int met[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE}; /* blocked, they would end the process */
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof met / sizeof met[0]; i++)
        sigdelset(&all, met[i]);
    pthread_sigmask(SIG_BLOCK, &all, (sigset_t *)(void *)before);
}

void os_signals_let(const struct os_signals *before)
{
    pthread_sigmask(SIG_SETMASK, (const sigset_t *)(const void *)before, NULL);
}

/* glibc since 2.32, whose strerror() asks the locale and may allocate; musl's does neither. */
extern const char *strerrordesc_np(int error) __attribute__((weak));

const char *os_error_text(int error)
{
    const char *text = strerrordesc_np ? strerrordesc_np(error) : strerror(error);
    return text ? text : "unknown error";
}

void os_write_stderr(const char *text, size_t bytes)
{
    (void)os_write(2, text, bytes);
}

void os_futex_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    int kept = errno;
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns ? &t : NULL, NULL, 0);
    errno = kept;
}

bool os_futex_wake(uint32_t *word, int count)
{
    int kept = errno;
    bool woke = syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0) > 0;
    errno = kept;
    return woke;
}

struct thread_start {
    void (*fn)(void *);
    void *arg;
    sigset_t mask; /* of who started it */
};

static struct {
    uint32_t running; /* threads of ours; each counts itself: one too few looks like one of the program's, which is waited for */
    uint32_t main_has_ended, is_last_there;
} threads;

bool os_thread_ends(void)
{
    if (os_thread_id() == os_process_id())
        __atomic_store_n(&threads.main_has_ended, 1, __ATOMIC_RELEASE);
    return os_main_has_ended();
}

bool os_main_has_ended(void)
{
    return __atomic_load_n(&threads.main_has_ended, __ATOMIC_ACQUIRE) != 0;
}

/* A key for each function: the library has four, its tests others.  A slot is claimed by its function and then has its key made; who comes between gets -ENOMEM and asks again later. */
enum { EXITS_MAX = 8 };
static struct {
    void (*fn)(void *);
    uint32_t key_plus_1;
} exits[EXITS_MAX];

void os_threads_after_fork(void)
{
    for (int i = 0; i < EXITS_MAX; i++) /* by a thread that was about to make the key */
        if (exits[i].key_plus_1 == 0)
            exits[i].fn = NULL;
    threads.running = threads.main_has_ended = threads.is_last_there = 0;
}

/* How many threads the process has, if the first one is gone: that counts until the last is, too.  UINT64_MAX: it is there, or nobody can say. */
static uint64_t threads_without_main(void)
{
    enum { STAT_BYTES = 1024, THREADS_FIELD = 20 };
    char text[STAT_BYTES];
    const char *end = os_read_text("/proc/self/stat", text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
    return end && strncmp(end, ") Z ", 4) == 0 ? os_stat_field(text, THREADS_FIELD, UINT64_MAX) : UINT64_MAX;
}

bool os_is_deserted(void)
{
    return os_main_has_ended() && threads_without_main() <= 1 + (uint64_t)__atomic_load_n(&threads.running, __ATOMIC_ACQUIRE);
}

/* Functions for the end of the process run on its last thread: on a stack of the usual size, and signals reach it. */
static void *last_main(void *unused)
{
    __atomic_fetch_add(&threads.running, 1, __ATOMIC_ACQ_REL);
    while (threads_without_main() > 2)
        os_sleep_ns(1000000);
    return unused;
}

static void last_start(const sigset_t *mask)
{
    uint32_t nobody = 0;
    pthread_t thread;
    if (!__atomic_compare_exchange_n(&threads.is_last_there, &nobody, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    pthread_sigmask(SIG_SETMASK, mask, NULL);
    if (pthread_create(&thread, NULL, last_main, NULL) == 0)
        pthread_detach(thread);
}

static void *thread_main(void *start)
{
    struct thread_start s = *(struct thread_start *)start;
    os_unmap(start, os_page_bytes());
    __atomic_fetch_add(&threads.running, 1, __ATOMIC_ACQ_REL);
    s.fn(s.arg);
    if (os_is_deserted())
        last_start(&s.mask);
    __atomic_fetch_sub(&threads.running, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

static int tls_add(struct dl_phdr_info *info, size_t unused, void *sum)
{
    (void)unused;
    for (size_t i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *(size_t *)sum += info->dlpi_phdr[i].p_memsz + info->dlpi_phdr[i].p_align;
    return 0;
}

static size_t tls_bytes;

void os_threads_at_load(void)
{
    dl_iterate_phdr(tls_add, &tls_bytes);
}

/* Thread-local storage of the program and its libraries lies in the stack; that of what is opened later does not. */
static size_t stack_bytes(void)
{
    return (THREAD_STACK_BYTES + tls_bytes + os_page_bytes() - 1) & ~(os_page_bytes() - 1);
}

/*
 * Zeroed by the kernel in every child that has a copy of it: NULL where no thread of ours was started, which alone can hold what a program of one thread
 * finds held in a child that had no handler run.
 */
static uint32_t *whole;

static void whole_again(void)
{
    uint32_t *word = __atomic_load_n(&whole, __ATOMIC_ACQUIRE); /* acquire [os-whole] */
    if (word)
        __atomic_store_n(word, 1, __ATOMIC_RELAXED);
}

bool os_is_unrepaired(void)
{
    uint32_t *word = __atomic_load_n(&whole, __ATOMIC_ACQUIRE); /* acquire [os-whole] */
    return word && __atomic_load_n(word, __ATOMIC_RELAXED) == 0;
}

static void whole_begin(void)
{
    void *page;
    if (__atomic_load_n(&whole, __ATOMIC_RELAXED) || os_map(os_page_bytes(), os_page_bytes(), &page) != 0)
        return;
    *(uint32_t *)page = 1;
    int kept = errno;
    uint32_t *none = NULL;
    if (madvise(page, os_page_bytes(), MADV_WIPEONFORK) != 0 ||
        !__atomic_compare_exchange_n(&whole, &none, (uint32_t *)page, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) /* release [os-whole] */
        os_unmap(page, os_page_bytes());
    errno = kept;
}

int os_thread_start(void (*fn)(void *), void *arg)
{
    void *page;
    if (os_fault(OS_THREAD))
        return -EAGAIN;
    whole_begin();
    int error = os_map(os_page_bytes(), os_page_bytes(), &page);
    if (error)
        return error;
    struct thread_start *start = page;
    *start = (struct thread_start){.fn = fn, .arg = arg};
    int kept = errno;

    /* The thread inherits a mask of everything: the program's signals are not its business. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    start->mask = before;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, stack_bytes());
    error = pthread_create(&thread, &attributes, thread_main, page);
    pthread_attr_destroy(&attributes);
    if (error == EINVAL) { /* the program's thread-local storage does not fit in such a stack */
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attributes, thread_main, page);
        pthread_attr_destroy(&attributes);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = kept;
    if (error)
        os_unmap(page, os_page_bytes());
    return -error;
}

/* libc's list cannot be gone through by hand, which a copy has to do (os_copy.c). */
static struct {
    uint32_t count;
    void (*fn[OS_REPAIRS_MAX])(void);
} repairs;

int os_after_fork_in_child(void (*fn)(void))
{
    static uint32_t is_first_there;
    if (__atomic_exchange_n(&is_first_there, 1, __ATOMIC_RELAXED) == 0)
        (void)pthread_atfork(NULL, NULL, whole_again);
    int error = -pthread_atfork(NULL, NULL, fn);
    uint32_t at = error ? OS_REPAIRS_MAX : __atomic_fetch_add(&repairs.count, 1, __ATOMIC_RELAXED);
    if (at < OS_REPAIRS_MAX)
        __atomic_store_n(&repairs.fn[at], fn, __ATOMIC_RELAXED);
    return error;
}

void os_repair(void)
{
    whole_again();
    for (uint32_t i = 0; i < OS_REPAIRS_MAX; i++) {
        void (*fn)(void) = __atomic_load_n(&repairs.fn[i], __ATOMIC_RELAXED);
        if (fn)
            fn();
    }
}

uint64_t os_thread_id(void)
{
    return (uint64_t)syscall(SYS_gettid);
}

void os_sleep_ns(uint64_t ns)
{
    int kept = errno;
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL); /* not the function: a thread must not be cancelled here, with locks held */
    errno = kept;
}

void os_yield(void)
{
    int kept = errno;
    sched_yield(); /* which a filter may refuse */
    errno = kept;
}

static int exit_key(void (*fn)(void *), pthread_key_t *out)
{
    for (int i = 0; i < EXITS_MAX; i++) {
        void (*seen)(void *) = NULL;
        bool claimed = __atomic_compare_exchange_n(&exits[i].fn, &seen, fn, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        if (!claimed && seen != fn)
            continue;
        pthread_key_t key;
        if (claimed && pthread_key_create(&key, fn) == 0)
            __atomic_store_n(&exits[i].key_plus_1, (uint32_t)key + 1, __ATOMIC_RELEASE);
        else if (claimed)
            __atomic_store_n(&exits[i].fn, NULL, __ATOMIC_RELEASE); /* no key left: later, perhaps */
        uint32_t known = __atomic_load_n(&exits[i].key_plus_1, __ATOMIC_ACQUIRE);
        *out = known - 1;
        return known ? 0 : -ENOMEM;
    }
    return -ENOMEM;
}

int os_at_thread_exit(void (*fn)(void *), void *arg)
{
    pthread_key_t key;
    if (os_fault(OS_THREAD) || exit_key(fn, &key) != 0)
        return -ENOMEM;
    return -pthread_setspecific(key, arg);
}

int os_barrier_init(void)
{
    if (os_fault(OS_BARRIER))
        return -ENOSYS;
    int kept = errno;
    int error = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 ? 0 : -ENOSYS;
    errno = kept;
    return error;
}

void os_barrier(void)
{
    int kept = errno;
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
        os_sleep_ns(1000000); /* a filter took it away since os_barrier_init(): a millisecond empties every store buffer */
    errno = kept;
}

/* glibc since 2.32. */
extern char __libc_single_threaded __attribute__((weak));

bool os_is_single_threaded(void)
{
    return &__libc_single_threaded != NULL && __libc_single_threaded != 0;
}
