// SPDX-License-Identifier: MIT
/*
 * os_file.c - files that hold memory: created safely, their space reserved before anybody writes.
 *
 * A file that shall hold memory must never be one that somebody else put there: O_EXCL and O_NOFOLLOW on creation, 0600, and on opening what
 * exists: no link, no FIFO, regular, owned by this user.
 *
 * Locks: none.  Not here: names and leftovers (src/pages/source_file.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "os/os.h"
#include "os/os_call.h"

enum { ZEROES_BYTES = 4096, MEMORY_CHECK_BYTES = 16 << 20 };

int os_dir_open(const char *given)
{
    int kept = errno;
    char path[PATH_MAX];
    size_t length = strlen(given);
    if (os_fault(OS_OPEN))
        return -EMFILE;
    if (length >= sizeof path)
        return -ENAMETOOLONG;
    memcpy(path, given, length + 1);
    while (length > 1 && path[length - 1] == '/') /* the kernel would follow a link with one behind it */
        path[--length] = '\0';
    int fd = call_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = errno;
    /* With O_DIRECTORY the kernel reports a link as ENOTDIR: tell it from a file. */
    struct stat st;
    if (fd < 0 && error == ENOTDIR && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        error = ELOOP;
    errno = kept;
    return fd < 0 ? -error : fd;
}

int os_file_create(int dirfd, const char *name)
{
    int kept = errno;
    if (os_fault(OS_OPEN))
        return -EMFILE;
    int fd = call_openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600), error = errno;
    errno = kept;
    return fd < 0 ? -error : fd;
}

int os_file_open(int dirfd, const char *name)
{
    int kept = errno;
    if (os_fault(OS_OPEN))
        return -EMFILE;
    int fd = call_openat(dirfd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0), error = errno;
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid())) {
        call_close(fd);
        fd = -1;
        error = EACCES;
    }
    errno = kept;
    return fd < 0 ? -error : fd;
}

int os_memfd(const char *name)
{
    int kept = errno;
    if (os_fault(OS_MEMFD))
        return -EMFILE;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), error = errno;
    errno = kept;
    return fd < 0 ? -error : fd;
}

/* For file systems without fallocate: zeroes written for real. */
static int reserve_by_writing(int fd, size_t bytes)
{
    static const char zeroes[ZEROES_BYTES];
    for (size_t at = 0; at < bytes;) {
        size_t want = bytes - at < ZEROES_BYTES ? bytes - at : ZEROES_BYTES;
        ssize_t put = call_pwrite(fd, zeroes, want, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put < 0 ? -errno : -ENOSPC;
        at += (size_t)put;
    }
    return 0;
}

/* Memory that the system could still hand out, from /proc/meminfo; SIZE_MAX when it does not say. */
static size_t memory_available_bytes(void)
{
    char text[512];
    int fd = call_open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : call_read(fd, text, sizeof text - 1);
    if (fd >= 0)
        call_close(fd);
    text[got > 0 ? got : 0] = 0;
    const char *line = strstr(text, "MemAvailable:");
    return line ? (size_t)strtoull(line + sizeof "MemAvailable:" - 1, NULL, 10) * 1024 : SIZE_MAX;
}

/*
 * Asked for more than there is, a file system in memory takes page after page until nothing is left for anybody, and only then says so.
 * So what plainly cannot be had is refused before.
 */
static bool plainly_too_large(int fd, size_t bytes)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return false;
    size_t free_bytes = SIZE_MAX;
    if (fs.f_blocks != 0 && !__builtin_mul_overflow(fs.f_bavail, (size_t)fs.f_bsize, &free_bytes) && bytes > free_bytes)
        return true;
    return fs.f_type == TMPFS_MAGIC && bytes >= MEMORY_CHECK_BYTES && bytes > memory_available_bytes();
}

int os_file_reserve(int fd, size_t bytes)
{
    int kept = errno, error = 0;
    struct rlimit limit;
    if (os_fault(OS_GROW))
        return -ENOSPC;
    if (plainly_too_large(fd, bytes)) {
        errno = kept;
        return -ENOSPC;
    }
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
        return -EFBIG;
    while (call_fallocate(fd, 0, (off_t)bytes) != 0) {
        error = errno;
        if (error == EINTR)
            continue;
        error = error == EOPNOTSUPP || error == ENOSYS ? reserve_by_writing(fd, bytes) : -error;
        break;
    }
    if (error > 0)
        error = 0; /* EINTR, then success */
    errno = kept;
    return error;
}

int os_unlink(int dirfd, const char *name)
{
    int kept = errno;
    if (os_fault(OS_UNLINK))
        return -EACCES;
    int error = unlinkat(dirfd, name, 0) ? -errno : 0;
    errno = kept;
    return error;
}

int os_rename(int dirfd, const char *from, const char *to)
{
    int kept = errno;
    if (os_fault(OS_OPEN))
        return -EACCES;
    int error = renameat(dirfd, from, dirfd, to) ? -errno : 0;
    errno = kept;
    return error;
}

int os_flock(int fd, bool exclusive)
{
    int kept = errno;
    if (os_fault(OS_FLOCK))
        return -ENOLCK;
    int error = flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) ? -errno : 0;
    errno = kept;
    return error;
}

void os_close(int fd)
{
    int kept = errno;
    call_close(fd);
    errno = kept;
}
