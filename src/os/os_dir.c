// SPDX-License-Identifier: MIT
/*
 * os_dir.c - directories: making one, what lies in it, and whose it is.
 *
 * The entries are read by the system call: opendir() allocates, and this runs below the allocators.
 *
 * Locks: none.  Not here: opening and creating (os_file.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/os.h"
#include "os/os_call.h"

enum { ENTRIES_BYTES = 4096 };

/* The kernel's struct linux_dirent64, whose d_name runs on to d_reclen. */
struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t bytes;
    uint8_t type;
    char name[];
};

int os_dir_each(int dirfd, void (*fn)(const char *name, void *arg), void *arg)
{
    union {
        struct entry aligned;
        char bytes[ENTRIES_BYTES];
    } entries;
    int kept = errno, error = 0;
    if (os_fault(OS_OPEN))
        return -EMFILE;
    int fd = call_openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); /* its own position */
    long got = fd < 0 ? -1 : 1;
    while (got > 0 && (got = syscall(SYS_getdents64, fd, entries.bytes, sizeof entries)) > 0)
        for (long at = 0; at < got;) {
            const struct entry *entry = (const void *)(entries.bytes + at);
            fn(entry->name, arg);
            at += entry->bytes;
        }
    if (got < 0)
        error = -errno;
    if (fd >= 0)
        call_close(fd);
    errno = kept;
    return error;
}

int os_dir_create(const char *path, unsigned mode)
{
    int kept = errno, error = 0;
    if (os_fault(OS_OPEN))
        return -EACCES;
    if (mkdir(path, (mode_t)mode) != 0 && errno != EEXIST)
        error = -errno;
    errno = kept;
    return error;
}

bool os_dir_is_private(int dirfd)
{
    int kept = errno;
    struct stat st;
    bool is_private = fstat(dirfd, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 077) == 0;
    errno = kept;
    return is_private;
}

bool os_file_is_ours(int dirfd, const char *name)
{
    int kept = errno;
    struct stat st;
    bool ours = fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid();
    errno = kept;
    return ours;
}

bool os_file_is(int fd, int dirfd, const char *name)
{
    int kept = errno;
    struct stat a, b;
    bool same = fstat(fd, &a) == 0 && fstatat(dirfd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    errno = kept;
    return same;
}
