// SPDX-License-Identifier: MIT
/*
 * source_file_dir.c - who lives in a directory, and removing what the dead left there.
 *
 *     name.lock   each living process holds it locked shared; the kernel unlocks it when a process dies
 *     name.17     a span's file
 *
 *     enter:  exclusive?  yes: nobody lives; remove name.<digits>, then shared
 *                         no:  somebody lives; remove nothing, shared
 *     leave:  exclusive?  yes: the last; remove name.lock
 *
 * A lock file may be removed between its opening and its locking.  So after locking, the name must
 * still be the file that was locked; otherwise all begins again.
 *
 * Locks: none but that one.  Not here: the spans (source_file.c).
 */
#include "pages/source_file_dir.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/os.h"

enum { JOIN_TRIES_MAX = 5000, JOIN_PAUSE_NS = 1000000 };

void file_dir_name(const struct file_dir *dir, uint32_t number, char out[FILE_NAME_BYTES])
{
    snprintf(out, FILE_NAME_BYTES, "%.*s.%" PRIu32, FILE_PREFIX_BYTES_MAX, dir->prefix, number);
}

static void lock_name(const struct file_dir *dir, char out[FILE_NAME_BYTES])
{
    snprintf(out, FILE_NAME_BYTES, "%.*s.lock", FILE_PREFIX_BYTES_MAX, dir->prefix);
}

/* Exactly "prefix.<digits>", as file_dir_name() writes them. */
static bool is_span_name(const struct file_dir *dir, const char *name)
{
    char same[FILE_NAME_BYTES];
    const char *dot = strrchr(name, '.');
    file_dir_name(dir, dot ? (uint32_t)strtoull(dot + 1, NULL, 10) : 0, same);
    return strcmp(name, same) == 0;
}

static void remove_leftover(const char *name, void *arg)
{
    const struct file_dir *dir = arg;
    if (is_span_name(dir, name) && os_file_is_ours(dir->dirfd, name))
        (void)os_unlink(dir->dirfd, name); /* what cannot be removed is skipped over when its number comes */
}

static int open_or_create(int dirfd, const char *name)
{
    int fd = os_file_create(dirfd, name);
    if (fd != -EEXIST)
        return fd; /* -ENOENT: the directory is gone, or takes no files */
    fd = os_file_open(dirfd, name);
    return fd == -ENOENT ? -EWOULDBLOCK : fd; /* removed in between: try again */
}

/* Lock `fd` shared, having cleaned up if nobody lives.  -EWOULDBLOCK: try all again. */
static int lock_shared(struct file_dir *dir, int fd, const char *name)
{
    int error = os_flock(fd, true);
    if (error == 0) {
        if (!os_file_is(fd, dir->dirfd, name))
            return -EWOULDBLOCK; /* whoever lives holds another file locked */
        error = os_dir_each(dir->dirfd, remove_leftover, dir);
        if (error)
            return error;
    } else if (error != -EWOULDBLOCK) {
        return error;
    }
    error = os_flock(fd, false);
    return error == 0 && !os_file_is(fd, dir->dirfd, name) ? -EWOULDBLOCK : error;
}

/* A descriptor of the lock file, locked shared; or -errno. */
static int join(struct file_dir *dir)
{
    char name[FILE_NAME_BYTES];
    lock_name(dir, name);
    for (int tries = 0; tries < JOIN_TRIES_MAX; tries++) {
        int fd = open_or_create(dir->dirfd, name);
        if (fd == -EWOULDBLOCK)
            continue;
        if (fd < 0)
            return fd;
        int error = lock_shared(dir, fd, name);
        if (error == 0)
            return fd;
        os_close(fd);
        if (error != -EWOULDBLOCK)
            return error;
        os_sleep_ns(JOIN_PAUSE_NS); /* somebody is entering or leaving */
    }
    return -EBUSY;
}

int file_dir_open(struct file_dir *dir, const char *path, const char *prefix)
{
    strcpy(dir->prefix, prefix);
    dir->dirfd = os_dir_open(path);
    if (dir->dirfd < 0)
        return dir->dirfd;
    dir->lockfd = join(dir);
    if (dir->lockfd >= 0)
        return 0;
    os_close(dir->dirfd);
    return dir->lockfd;
}

void file_dir_join_again(struct file_dir *dir)
{
    int fd = join(dir);
    dir->is_parents = fd < 0;
    if (dir->is_parents)
        return; /* the inherited one still says that somebody lives */
    os_close(dir->lockfd);
    dir->lockfd = fd;
}

void file_dir_close(struct file_dir *dir)
{
    char name[FILE_NAME_BYTES];
    lock_name(dir, name);
    if (!dir->is_parents && os_flock(dir->lockfd, true) == 0 && os_file_is(dir->lockfd, dir->dirfd, name)) {
        (void)os_dir_each(dir->dirfd, remove_leftover, dir); /* what could not be removed with its span */
        (void)os_unlink(dir->dirfd, name);
    }
    os_close(dir->lockfd);
    os_close(dir->dirfd);
}
