// SPDX-License-Identifier: MIT
/*
 * libc.c - as much of libc as the recorder asks for, in a program whose own libc may not be called: it is linked in, unseen, and another one's.
 *
 *   recorder, zstd --> these --> system calls          errno is ours (thread-local, lent by the launcher), the program's stays as it is
 *
 * Invariants:
 *   L1  nothing here calls the program, or keeps anything but errno, where its stack begins and its segments
 *   L2  nobody gets memory from malloc here: zstd is given its own, and asks for none
 *
 * Locks: none.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../record/record.h"
#include "static.h"

#define PAGE_BYTES 4096

void *__libc_stack_end;
struct dl_phdr_info static_program;

static REC_TLS int local_errno;

int *__errno_location(void) {
    return &local_errno;
}

static long kernel(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result = number;
    __asm__ volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    if (result < 0 && result > -PAGE_BYTES) {
        local_errno = (int)-result;
        return -1;
    }
    return result;
}

#define KERNEL(n, a, b, c, d) kernel(SYS_##n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

long syscall(long number, ...) {
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (unsigned i = 0; i < 6; i++) {
        a[i] = va_arg(rest, long);
    }
    va_end(rest);
    return kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* --- files --- */

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
    va_end(rest);
    return (int)KERNEL(open, path, flags, mode, 0);
}

int fcntl(int fd, int command, ...) {
    va_list rest;
    va_start(rest, command);
    long argument = va_arg(rest, long);
    va_end(rest);
    return (int)KERNEL(fcntl, fd, command, argument, 0);
}

int close(int fd) {
    return (int)KERNEL(close, fd, 0, 0, 0);
}

ssize_t read(int fd, void *to, size_t bytes) {
    return KERNEL(read, fd, to, bytes, 0);
}

ssize_t write(int fd, const void *from, size_t bytes) {
    return KERNEL(write, fd, from, bytes, 0);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    return KERNEL(pwrite64, fd, from, bytes, at);
}

int fstat(int fd, struct stat *about) {
    return (int)KERNEL(fstat, fd, about, 0, 0);
}

int fallocate(int fd, int mode, off_t at, off_t bytes) {
    return (int)KERNEL(fallocate, fd, mode, at, bytes);
}

int unlink(const char *path) {
    return (int)KERNEL(unlink, path, 0, 0, 0);
}

ssize_t readlink(const char *restrict path, char *restrict to, size_t bytes) {
    return KERNEL(readlink, path, to, bytes, 0);
}

char *getcwd(char *to, size_t bytes) {
    return KERNEL(getcwd, to, bytes, 0, 0) < 0 ? NULL : to;
}

/* --- memory --- */

void *mmap(void *at, size_t bytes, int rights, int flags, int fd, off_t offset) {
    return (void *)kernel(SYS_mmap, (long)at, (long)bytes, rights, flags, fd, offset);
}

int munmap(void *at, size_t bytes) {
    return (int)KERNEL(munmap, at, bytes, 0, 0);
}

int mprotect(void *at, size_t bytes, int rights) {
    return (int)KERNEL(mprotect, at, bytes, rights, 0);
}

int madvise(void *at, size_t bytes, int advice) {
    return (int)KERNEL(madvise, at, bytes, advice, 0);
}

long sysconf(int name) {
    return name == _SC_PAGESIZE ? PAGE_BYTES : -1;
}

/* L2 */
void *malloc(size_t bytes) {
    (void)bytes;
    return NULL;
}

void *calloc(size_t count, size_t bytes) {
    (void)count;
    (void)bytes;
    return NULL;
}

void free(void *p) {
    (void)p;
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    void *result = to;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return result;
}

void *memmove(void *to, const void *from, size_t bytes) {
    if ((uintptr_t)to - (uintptr_t)from >= bytes) {
        return memcpy(to, from, bytes);
    }
    unsigned char *out = to;
    const unsigned char *in = from;
    while (bytes-- > 0) {
        out[bytes] = in[bytes];
        __asm__ volatile("" : : : "memory");  // or a compiler makes a call of memmove of it
    }
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    void *result = to;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
    return result;
}

int memcmp(const void *one, const void *other, size_t bytes) {
    const unsigned char *a = one, *b = other;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != b[i]) {
            return a[i] - b[i];
        }
    }
    return 0;
}

/* --- process, threads, time --- */

int clock_gettime(clockid_t clock, struct timespec *now) {
    return (int)KERNEL(clock_gettime, clock, now, 0, 0);
}

int nanosleep(const struct timespec *wanted, struct timespec *left) {
    return (int)KERNEL(nanosleep, wanted, left, 0, 0);
}

int sched_yield(void) {
    return (int)KERNEL(sched_yield, 0, 0, 0, 0);
}

pid_t getpid(void) {
    return (pid_t)KERNEL(getpid, 0, 0, 0, 0);
}

pid_t getppid(void) {
    return (pid_t)KERNEL(getppid, 0, 0, 0, 0);
}

int getrlimit(__rlimit_resource_t what, struct rlimit *limit) {
    return (int)KERNEL(getrlimit, what, limit, 0, 0);
}

int getrusage(__rusage_who_t who, struct rusage *usage) {
    return (int)KERNEL(getrusage, who, usage, 0, 0);
}

int prctl(int what, ...) {
    va_list rest;
    va_start(rest, what);
    long argument = va_arg(rest, long);
    va_end(rest);
    return (int)KERNEL(prctl, what, argument, 0, 0);
}

/* System calls as they are made here are no points of cancellation. */
int pthread_setcancelstate(int state, int *before) {
    (void)state;
    if (before != NULL) {
        *before = 0;
    }
    return 0;
}

/* Children are known by their memory, which the kernel wipes (../record/thread.c). */
int pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
    (void)before;
    (void)parent;
    (void)child;
    return 0;
}

/* Both libcs keep a thread's own block at the end of its stack. */
pthread_t pthread_self(void) {
    pthread_t self;
    __asm__("movq %%fs:0, %0" : "=r"(self));
    return self;
}

struct bounds {
    uintptr_t low, high;
};

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The mapping that an address lies in: lines of START-END, the rest of each is skipped. */
static struct bounds mapping_of(uintptr_t address) {
    struct bounds line = {0, 0};
    uintptr_t *number = &line.low;
    char text[1024];
    ssize_t got = 0;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && (got = read(fd, text, sizeof text)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            if (text[i] == '\n') {
                line = (struct bounds){0, 0};
                number = &line.low;
            } else if (number != NULL && hex(text[i]) >= 0) {
                *number = *number << 4 | (uintptr_t)hex(text[i]);
            } else if (number == &line.low) {
                number = &line.high;
            } else if (number == &line.high) {
                number = NULL;
                if (address >= line.low && address < line.high) {
                    close(fd);
                    return line;
                }
            }
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return (struct bounds){0, 0};
}

/* Only where its stack lies: the attributes are no more than those two addresses. */
int pthread_getattr_np(pthread_t thread, pthread_attr_t *attributes) {
    struct bounds stack = mapping_of((uintptr_t)__builtin_frame_address(0));
    uintptr_t self = (uintptr_t)thread;
    if (self > (uintptr_t)__builtin_frame_address(0) && self < stack.high) {
        stack.high = self;
    }
    memcpy(attributes, &stack, sizeof stack);
    return stack.high == 0 ? ENOENT : 0;
}

int pthread_attr_getstack(const pthread_attr_t *restrict attributes, void **restrict low, size_t *restrict bytes) {
    struct bounds stack;
    memcpy(&stack, attributes, sizeof stack);
    *low = (void *)stack.low;
    *bytes = stack.high - stack.low;
    return 0;
}

int pthread_attr_destroy(pthread_attr_t *attributes) {
    (void)attributes;
    return 0;
}

int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *info, size_t bytes, void *argument), void *argument) {
    return visit(&static_program, sizeof static_program, argument);
}

_Noreturn void __stack_chk_fail(void);
_Noreturn void __stack_chk_fail(void) {
    __builtin_trap();
}
