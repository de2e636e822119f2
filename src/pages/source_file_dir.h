// SPDX-License-Identifier: MIT
/*
 * source_file_dir.h - a directory in which living processes keep files `name.N`, and dead ones left some.
 */
#ifndef QUIRE_PAGES_SOURCE_FILE_DIR_H
#define QUIRE_PAGES_SOURCE_FILE_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FILE_NAME_BYTES = 256,                         /* NAME_MAX and the end */
    FILE_PREFIX_BYTES_MAX = FILE_NAME_BYTES - 12,  /* with room for ".4294967295" */
};

struct file_dir {
    int dirfd;
    int lockfd; /* `name.lock`, locked shared as long as this process lives */
    bool is_parents; /* the lock, which a child of a fork could get none beside */
    char prefix[FILE_NAME_BYTES];
};

/* Open the directory, join those who use it under `prefix`, and remove what the dead left.  0 or -errno. */
int file_dir_open(struct file_dir *dir, const char *path, const char *prefix);
/* In the child of a fork: a lock of its own, so that parent and child can end on their own. */
void file_dir_join_again(struct file_dir *dir);
/* Leave; the last one removes the lock file, never while another lives. */
void file_dir_close(struct file_dir *dir);

/* "prefix.N" */
void file_dir_name(const struct file_dir *dir, uint32_t number, char out[FILE_NAME_BYTES]);

#endif
