// SPDX-License-Identifier: MIT
/*
 * os_call.h - system calls on files that are no points of cancellation, as libc's functions of these names are.
 *
 * A thread that was cancelled goes on until such a point.  malloc() is none, for POSIX and for programs: it may be in the middle of a change, with locks
 * held.  Results and errno are libc's.
 */
#ifndef QUIRE_OS_CALL_H
#define QUIRE_OS_CALL_H

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static inline int call_openat(int dirfd, const char *path, int flags, unsigned mode) { return (int)syscall(SYS_openat, dirfd, path, flags, mode); }
static inline int call_open(const char *path, int flags) { return call_openat(AT_FDCWD, path, flags, 0); }
static inline int call_close(int fd) { return (int)syscall(SYS_close, fd); }
static inline ssize_t call_read(int fd, void *to, size_t bytes) { return syscall(SYS_read, fd, to, bytes); }
static inline ssize_t call_write(int fd, const void *from, size_t bytes) { return syscall(SYS_write, fd, from, bytes); }
static inline ssize_t call_pwrite(int fd, const void *from, size_t bytes, off_t at) { return syscall(SYS_pwrite64, fd, from, bytes, at); }
static inline int call_fallocate(int fd, off_t at, off_t bytes) { return (int)syscall(SYS_fallocate, fd, 0, at, bytes); }

#endif
