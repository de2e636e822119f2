// SPDX-License-Identifier: MIT
/*
 * os_process.c - what a process can ask about itself, and descriptors that outlive what the program does to its own.
 *
 * Locks: none.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "os/os.h"
#include "os/os_call.h"

uint64_t os_stat_field(const char *stat, int number, uint64_t otherwise)
{
    const char *at = strrchr(stat, ')'); /* the program's name, which may hold anything, is the second */
    uint64_t value = 0;
    for (int field = 2; at && field < number; field++) {
        at = strchr(at, ' ');
        at += at != NULL;
    }
    if (!at || *at < '0' || *at > '9')
        return otherwise;
    for (; *at >= '0' && *at <= '9'; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    return value;
}

int os_read_text(const char *path, char *text, size_t bytes)
{
    int kept = errno, error = 0;
    size_t used = 0;
    int fd = call_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe that nobody writes to is empty */
    if (fd < 0)
        error = -errno;
    while (!error && used < bytes - 1) {
        ssize_t got = call_read(fd, text + used, bytes - 1 - used);
        if (got < 0 && errno != EINTR)
            error = -errno;
        if (got == 0)
            break;
        used += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0)
        call_close(fd);
    text[used] = 0;
    errno = kept;
    return error ? error : (int)used;
}

int os_read_each(const char *path, void (*fn)(const char *text, size_t bytes, void *arg), void *arg)
{
    char text[1024];
    int kept = errno, error = 0, fd = call_open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    if (fd < 0)
        error = -errno;
    while (!error && ((got = call_read(fd, text, sizeof text)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0)
            fn(text, (size_t)got, arg);
    if (got < 0)
        error = -errno;
    if (fd >= 0)
        call_close(fd);
    errno = kept;
    return error;
}

static const char *hex(const char *at, uintptr_t *out)
{
    for (*out = 0; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
        *out = *out * 16 + (uintptr_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return at;
}

/* "55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0      [heap]" */
static enum os_memory memory_in(const char *line, uintptr_t p, uintptr_t *start, uintptr_t *end)
{
    const char *at = hex(line, start);
    if (*at != '-')
        return OS_MEMORY_NONE;
    at = hex(at + 1, end);
    if (p < *start || p >= *end || at[0] != ' ' || at[1] != 'r')
        return OS_MEMORY_NONE;
    for (int field = 0; field < 4; field++) { /* rights, offset, device, inode */
        at += strspn(at, " ");
        at += strcspn(at, " ");
    }
    at += strspn(at, " ");
    if (strcmp(at, "[heap]") == 0)
        return OS_MEMORY_BRK;
    return *at == 0 || strncmp(at, "[anon", 5) == 0 ? OS_MEMORY_ANON : OS_MEMORY_OTHER;
}

enum os_memory os_memory_of(const void *p, uintptr_t *start, uintptr_t *end)
{
    int kept = errno;
    char text[1024], line[96];
    size_t used = 0;
    int fd = call_open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC); /* not the process's: that has none once its first thread has ended */
    enum os_memory found = fd < 0 ? OS_MEMORY_UNKNOWN : OS_MEMORY_NONE;
    ssize_t got;
    while (fd >= 0 && !found && ((got = call_read(fd, text, sizeof text)) > 0 || (got < 0 && errno == EINTR)))
        for (ssize_t i = 0; i < got && !found; i++) {
            if (text[i] != '\n') {
                line[used] = text[i];
                used += used < sizeof line - 1;
                continue;
            }
            line[used] = 0;
            used = 0;
            found = memory_in(line, (uintptr_t)p, start, end);
        }
    if (fd >= 0)
        call_close(fd);
    errno = kept;
    return found;
}

/*
 * Threads of libc have their descriptor behind their stack, in the same mapping, and a guard before it; the first has the kernel's random bytes there.  Nothing
 * else tells a stack from what lies beside it: to the kernel it may be one mapping with a coroutine's.
 */
void os_stack_of(const void *frame, struct os_stack *out)
{
    bool is_first = os_thread_id() == os_process_id();
    uintptr_t low, end, at = (uintptr_t)frame, behind = is_first ? (uintptr_t)getauxval(AT_RANDOM) : (uintptr_t)pthread_self();
    enum os_memory kind = os_memory_of(frame, &low, &end);
    bool is_known = kind != OS_MEMORY_NONE && kind != OS_MEMORY_UNKNOWN && at < behind && behind < end;
    *out = is_known ? (struct os_stack){low, behind} : (struct os_stack){0, 0};
}

/* Nothing else is mapped so near below the first thread's stack: the kernel leaves a gap. */
bool os_is_first_stack(const void *frame)
{
    enum { NEAR_BYTES = 1 << 20 };
    return os_thread_id() == os_process_id() && (uintptr_t)getauxval(AT_RANDOM) - (uintptr_t)frame < NEAR_BYTES;
}

uintptr_t os_brk(void)
{
    return (uintptr_t)sbrk(0);
}

bool os_has_brk(void)
{
    uintptr_t start, end;
    return os_memory_of((const char *)os_brk() - 1, &start, &end) == OS_MEMORY_BRK;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t os_cpu_time_ns(void)
{
    return clock_ns(CLOCK_PROCESS_CPUTIME_ID);
}

uint64_t os_thread_time_ns(void)
{
    return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void os_program_path(char *path, size_t bytes)
{
    int kept = errno;
    ssize_t got = readlink("/proc/thread-self/exe", path, bytes - 1);
    path[got > 0 ? got : 0] = 0;
    errno = kept;
}

bool os_is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

uint64_t os_user_id(void)
{
    return (uint64_t)geteuid();
}

const char *os_setting(const char *name)
{
    return environ ? secure_getenv(name) : NULL;
}

/* An open file, to be written anew; but where the program's own output goes there, it goes on behind that. */
static int report_file(int fd)
{
    struct os_identity file, other;
    bool is_known = os_fd_identity(fd, &file);
    for (int own = STDERR_FILENO; own >= STDOUT_FILENO; own--)
        if (is_known && own != fd && os_fd_identity(own, &other) && file.device == other.device && file.inode == other.inode) {
            call_close(fd);
            fd = call_fcntl(own, F_DUPFD_CLOEXEC, 0);
            return fd < 0 ? -errno : fd;
        }
    if (lseek(fd, 0, SEEK_END) != 0) { /* a new file need not be cut, which would be a change of its own to the file system; a device, or a pipe, cannot be */
        (void)call_ftruncate(fd, 0);
        (void)lseek(fd, 0, SEEK_SET);
    }
    (void)call_fcntl(fd, F_SETFL, 0); /* it was opened so as not to wait for a reader */
    return fd;
}

int os_report_open(const char *path)
{
    int kept = errno, fd = call_openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666);
    int result = fd < 0 ? -errno : report_file(fd);
    errno = kept;
    return result;
}

bool os_fd_identity(int fd, struct os_identity *out)
{
    struct stat is;
    int kept = errno;
    bool is_open = fstat(fd, &is) == 0;
    errno = kept;
    *out = is_open ? (struct os_identity){is.st_dev, is.st_ino} : (struct os_identity){0, 0};
    return is_open;
}

int os_fd_keep(int fd, int least)
{
    int kept = errno;
    struct rlimit limit;
    bool has_room = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > (rlim_t)least;
    int copy = has_room ? fcntl(fd, F_DUPFD_CLOEXEC, least) : -1;
    errno = kept;
    return copy;
}

int os_on_signal(int number, void (*fn)(int number))
{
    struct sigaction action = {.sa_handler = fn, .sa_flags = SA_RESTART | SA_ONSTACK};
    int kept = errno, error = 0;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, NULL) != 0)
        error = -errno;
    errno = kept;
    return error;
}

bool os_on_signal_if_default(int number, void (*fn)(int number))
{
    struct sigaction before, action = {.sa_handler = fn, .sa_flags = SA_RESTART | SA_ONSTACK};
    int kept = errno;
    sigfillset(&action.sa_mask);
    bool is_free = sigaction(number, NULL, &before) == 0 && !(before.sa_flags & SA_SIGINFO) && before.sa_handler == SIG_DFL;
    bool is_done = is_free && sigaction(number, &action, NULL) == 0;
    errno = kept;
    return is_done;
}

void os_signal_by_default(int number)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    int kept = errno;
    (void)sigaction(number, &plain, NULL);
    (void)raise(number); /* waits until the handler has returned */
    errno = kept;
}

/* ---- faults ---- */

static bool (*fault_asked)(uintptr_t address, enum os_access access);
static struct sigaction fault_before[2]; /* SIGSEGV, SIGBUS */

static enum os_access access_of(const void *context)
{
#if defined(__x86_64__)
    return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? OS_ACCESS_WRITE : OS_ACCESS_READ;
#else
    (void)context;
    return OS_ACCESS_UNKNOWN;
#endif
}

/* Whoever's it was before: the fault comes again where nobody was asked, and ends the process as it would have. */
static void fault_hand_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction *before = &fault_before[number == SIGBUS];
    if (before->sa_flags & SA_SIGINFO) {
        before->sa_sigaction(number, info, context);
    } else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        before->sa_handler(number);
    } else {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        (void)sigaction(number, &plain, NULL);
        if (info->si_code <= 0) /* sent, not met */
            (void)raise(number);
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int kept = errno;
    if (info->si_code <= 0 || !fault_asked((uintptr_t)info->si_addr, access_of(context)))
        fault_hand_on(number, info, context);
    errno = kept;
}

static int fault_take(int number, const struct sigaction *action, struct sigaction *before)
{
    return os_fault(OS_SIGNAL) ? -ENOMEM : sigaction(number, action, before) == 0 ? 0 : -errno;
}

int os_on_fault(bool (*fn)(uintptr_t address, enum os_access access))
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    int kept = errno;
    sigemptyset(&action.sa_mask);
    fault_asked = fn;
    int error = fault_take(SIGSEGV, &action, &fault_before[0]);
    if (error == 0 && (error = fault_take(SIGBUS, &action, &fault_before[1])) != 0)
        (void)sigaction(SIGSEGV, &fault_before[0], NULL); /* or the next try would find us before us */
    errno = kept;
    return error;
}
