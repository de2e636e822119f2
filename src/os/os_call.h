// SPDX-License-Identifier: MIT
/*
 * os_call.h - system calls that are no points of cancellation, as libc's functions of these names are.
 *
 * A thread that was cancelled goes on until such a point.  malloc() is none, for POSIX and for programs: it may be in the middle of a change, with locks
 * held.  Results and errno are libc's.
 */
#ifndef QUIRE_OS_CALL_H
#define QUIRE_OS_CALL_H

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static inline int call_openat(int dirfd, const char *path, int flags, unsigned mode) { return (int)syscall(SYS_openat, dirfd, path, flags, mode); }
static inline int call_fcntl(int fd, int what, int value) { return (int)syscall(SYS_fcntl, fd, what, value); }
static inline int call_ftruncate(int fd, off_t bytes) { return (int)syscall(SYS_ftruncate, fd, bytes); }
static inline int call_open(const char *path, int flags) { return call_openat(AT_FDCWD, path, flags, 0); }
static inline int call_close(int fd) { return (int)syscall(SYS_close, fd); }
static inline ssize_t call_read(int fd, void *to, size_t bytes) { return syscall(SYS_read, fd, to, bytes); }
static inline ssize_t call_write(int fd, const void *from, size_t bytes) { return syscall(SYS_write, fd, from, bytes); }
static inline ssize_t call_pwrite(int fd, const void *from, size_t bytes, off_t at) { return syscall(SYS_pwrite64, fd, from, bytes, at); }
static inline int call_wait4(int child, int *status, int how) { return (int)syscall(SYS_wait4, child, status, how, NULL); }
/* Takes a waiting signal of the mask, if there is one. */
static inline int call_sigtake(const sigset_t *of)
{
    static const struct timespec at_once;
    enum { KERNEL_MASK_BYTES = 8 };
    return (int)syscall(SYS_rt_sigtimedwait, of, NULL, &at_once, KERNEL_MASK_BYTES);
}
static inline int call_fallocate(int fd, off_t at, off_t bytes) { return (int)syscall(SYS_fallocate, fd, 0, at, bytes); }

#endif
