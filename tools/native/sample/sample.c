// SPDX-License-Identifier: MIT
/*
 * sample.c - libquire-sample.so: what share of a program's CPU time is spent in libc's malloc, by looking at it now and then.
 *
 *   program -> malloc (here: inside = 1) -> __libc_malloc (inside = 0 again behind it)
 *   every 250 us of a thread's CPU time:  looks++, and looks_inside++ when that thread is inside
 *
 * Preloaded, on libc's malloc.  QUIRE_SAMPLE names a file of two counters, which all processes of the program share.  What malloc and
 * free call, and what the kernel does for them, counts as inside: system calls, and the faults of pages that malloc touches first.
 * A page that the program touches first is not.
 *
 * The clock is a perf event for each thread, armed again by each look; where the kernel refuses it, a timer of the process's CPU
 * time, which is as coarse as the kernel's tick.  Both raise SIGURG: one that is on its way when a program is executed is ignored
 * there, where SIGPROF would end it.  A program that handles SIGURG itself is not looked at.
 *
 * Invariants: S1  the signal handler only counts, and arms its thread's clock; errno stays.
 * Not here: what share that is, beside the replay's (tools/quire/sampling.py).
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define PER_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))

enum { PERIOD_NS = 250000, TICK_NS = 1000000 };

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t align_bytes, size_t bytes);
void __libc_free(void *block);

struct looks {
    _Atomic uint64_t all, inside;
};

static struct looks unshared, *looks = &unshared;
static bool on, perf_refused; /* QUIRE_SAMPLE_TICK=1 refuses perf, for tests */

/* Changed by its thread alone, read by the handler in the same thread. */
PER_THREAD volatile sig_atomic_t inside;
PER_THREAD int clock_fd; /* 0: none yet; -1: this thread has no clock of its own */
static pthread_key_t ends;

static void look(int number)
{
    int saved_errno = errno;
    (void)number;
    atomic_fetch_add_explicit(&looks->all, 1, memory_order_relaxed);
    if (inside)
        atomic_fetch_add_explicit(&looks->inside, 1, memory_order_relaxed);
    if (clock_fd > 0)
        ioctl(clock_fd, PERF_EVENT_IOC_REFRESH, 1);
    errno = saved_errno;
}

/* A descriptor that raises SIGURG in this thread after the next PERIOD_NS of its CPU time; negative where that is refused. */
static int perf_clock(void)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_TASK_CLOCK,
                                   .sample_period = PERIOD_NS, .wakeup_events = 1, .disabled = 1};
    struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = (pid_t)syscall(SYS_gettid)};
    int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        return -1;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 500); /* away from the numbers that a program expects to get */
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    if (fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK) != 0 || fcntl(fd, F_SETSIG, SIGURG) != 0 ||
        fcntl(fd, F_SETOWN_EX, &owner) != 0 || ioctl(fd, PERF_EVENT_IOC_REFRESH, 1) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void tick_clock(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGURG};
    struct itimerspec tick = {.it_interval.tv_nsec = TICK_NS, .it_value.tv_nsec = TICK_NS};
    timer_t timer;
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) == 0)
        timer_settime(timer, 0, &tick, NULL);
}

static __attribute__((noinline)) void thread_start(void)
{
    int saved_errno = errno;
    clock_fd = -1; /* what is allocated from here on finds it begun */
    if (on && !perf_refused) {
        int fd = perf_clock();
        if (fd < 0) {
            perf_refused = true;
            tick_clock();
        } else {
            clock_fd = fd;
            pthread_setspecific(ends, looks);
        }
    }
    errno = saved_errno;
}

/* The program may have closed it, and have another file of that number. */
static void clock_close(void *unused)
{
    int fd = clock_fd;
    (void)unused;
    clock_fd = -1;
    if (fd > 0 && fcntl(fd, F_GETSIG) == SIGURG)
        close(fd);
}

/* The descriptor of a forked child counts its parent's time, the timer is not inherited. */
static void child_start(void)
{
    clock_close(NULL);
    clock_fd = 0;
    if (perf_refused)
        tick_clock();
    else
        thread_start();
}

static void share(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *looks, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        looks = at;
}

__attribute__((constructor)) static void start(void)
{
    struct sigaction action = {.sa_handler = look, .sa_flags = SA_RESTART}, old;
    const char *path = getenv("QUIRE_SAMPLE");
    if (!path || sigaction(SIGURG, NULL, &old) != 0 || old.sa_handler != SIG_DFL || sigaction(SIGURG, &action, NULL) != 0)
        return;
    share(path);
    on = true;
    perf_refused = getenv("QUIRE_SAMPLE_TICK") != NULL;
    if (perf_refused)
        tick_clock();
    pthread_atfork(NULL, NULL, child_start);
    pthread_key_create(&ends, clock_close);
    thread_start();
}

struct begin {
    void *(*run)(void *);
    void *argument;
};

static void *thread_run(void *begin_)
{
    struct begin begin = *(struct begin *)begin_;
    __libc_free(begin_);
    if (clock_fd == 0)
        thread_start();
    return begin.run(begin.argument);
}

/* A thread that never allocates uses CPU time as well. */
EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    struct begin *begin = on ? __libc_malloc(sizeof *begin) : NULL;
    if (!begin)
        return next(thread, attributes, run, argument);
    *begin = (struct begin){run, argument};
    int error = next(thread, attributes, thread_run, begin);
    if (error)
        __libc_free(begin);
    return error;
}

static inline void enter(void)
{
    if (__builtin_expect(clock_fd == 0, 0))
        thread_start();
    inside = 1;
}

EXPORT void *malloc(size_t bytes)
{
    enter();
    void *block = __libc_malloc(bytes);
    inside = 0;
    return block;
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    enter();
    void *block = __libc_calloc(count, bytes);
    inside = 0;
    return block;
}

EXPORT void *realloc(void *old, size_t bytes)
{
    enter();
    void *block = __libc_realloc(old, bytes);
    inside = 0;
    return block;
}

EXPORT void free(void *block)
{
    enter();
    __libc_free(block);
    inside = 0;
}

EXPORT void *aligned_alloc(size_t align_bytes, size_t bytes)
{
    enter();
    void *block = __libc_memalign(align_bytes, bytes);
    inside = 0;
    return block;
}

EXPORT int posix_memalign(void **result, size_t align_bytes, size_t bytes)
{
    int saved_errno = errno;
    if (align_bytes < sizeof(void *) || (align_bytes & (align_bytes - 1)) != 0)
        return EINVAL;
    void *block = aligned_alloc(align_bytes, bytes);
    errno = saved_errno;
    if (!block)
        return ENOMEM;
    *result = block;
    return 0;
}
