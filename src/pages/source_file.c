// SPDX-License-Identifier: MIT
/*
 * source_file.c - spans as shared mappings of files `directory/name.N`, removed with their span.
 *
 *     take   next N that does not exist --> 0600, never a link --> space reserved --> mapped, closed
 *     give   unmapped --> name.N removed
 *
 * Invariants, beside S1 (source_account.h):
 *   S9  numbers rise: a process never uses one twice, so that removing name.N by a copy of a span that
 *       was given back elsewhere cannot remove the file of another span of this process
 *
 * After 2^32 spans, days of nothing else at the least, numbers begin anew.  One whose file is there is passed over, so no two spans share one; a child of a
 * fork, to which what it takes below its parent's numbers then seems inherited, leaves those files to the last source that leaves the directory.
 *
 * A child of a fork shares the spans it inherited with its parent, who removes their files; it takes
 * numbers of its own and holds a lock of its own on the directory.
 *
 * Locks: none of ours; the child's repair runs under that of source_fork.c.
 * Not here: leftovers and who lives (source_file_dir.c), the mapping (source_shared.c).
 */
#include <string.h>

#include "base/fail.h"
#include "os/os.h"
#include "pages/source_file_dir.h"
#include "pages/source_fork.h"
#include "pages/source_internal.h"
#include "pages/source_shared.h"

struct source_file {
    struct source_shared shared; /* first: it is a source */
    struct file_dir dir;        /* changed by a repair only */
    uint32_t inherited_below;   /* numbers whose files are the parent's to remove */
    struct source_fork fork;
    /* any thread */
    CACHE_ALIGNED atomic_u32 next; /* S9 */
};

static void file_repair(void *source)
{
    struct source_file *file = source;
    file->inherited_below = u32_load_relaxed(&file->next);
    file_dir_join_again(&file->dir);
}

static struct source_file *file_of(struct quire_source *source)
{
    struct source_file *file = (struct source_file *)(void *)source;
    source_fork_repair(&file->fork, file_repair, file);
    return file;
}

/* A new file and its number; -errno. */
static int create_next(struct source_file *file, uint32_t *number)
{
    char name[FILE_NAME_BYTES];
    int fd;
    do {
        *number = u32_add_relaxed(&file->next, 1);
        file_dir_name(&file->dir, *number, name);
        fd = os_file_create(file->dir.dirfd, name);
    } while (fd == -EEXIST); /* another process's, or something planted */
    return fd;
}

static void remove_file(struct source_file *file, uint32_t number)
{
    char name[FILE_NAME_BYTES];
    file_dir_name(&file->dir, number, name);
    (void)os_unlink(file->dir.dirfd, name); /* what stays is removed when the last source leaves the directory */
}

static int file_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_file *file = file_of(source);
    uint32_t number;
    int fd = create_next(file, &number);
    int error = shared_take(&file->shared, fd, bytes, align_bytes, out);
    if (!error)
        out->cookie = number;
    else if (fd >= 0)
        remove_file(file, number);
    return error;
}

static void file_give(struct quire_source *source, const struct quire_span *span)
{
    struct source_file *file = file_of(source);
    uint32_t number = span->cookie; /* the span may lie in the memory it describes */
    shared_give(source, span);
    if (number >= file->inherited_below)
        remove_file(file, number);
}

static void file_fini(struct quire_source *source)
{
    struct source_file *file = file_of(source);
    struct file_dir dir = file->dir; /* left after the struct is gone: S1 comes first */
    counted_fini(source);
    file_dir_close(&dir);
}

static const struct quire_source_verbs file_verbs = {
    .take = file_take, .give = file_give, .idle = shared_idle, .busy = shared_busy, .fini = file_fini, .stats = shared_stats};

/* What the header promises: anything that says "no more of something" is ENOMEM. */
static int create_errno(int error)
{
    switch (error) {
    case -ENOENT:
    case -ENOTDIR:
    case -EACCES:
    case -EROFS:
    case -ELOOP:
    case -ENAMETOOLONG:
    case -EBUSY:
        return -error;
    case -EPERM:
    case -EISDIR: /* the lock file */
        return EACCES;
    case -EMFILE:
    case -ENFILE:
        return EMFILE;
    default:
        return ENOMEM;
    }
}

struct quire_source *quire_source_file(const char *directory, const char *name)
{
    if (!directory || !name || !*directory || !*name || strchr(name, '/'))
        return fail_null(EINVAL);
    if (strlen(name) > FILE_PREFIX_BYTES_MAX)
        return fail_null(ENAMETOOLONG);
    struct source_file *file = source_counted_new(sizeof *file, &file_verbs, NULL);
    if (!file)
        return NULL;
    source_fork_init(&file->fork);
    int error = file_dir_open(&file->dir, directory, name);
    if (error) {
        counted_fini(&file->shared.counted.source);
        return fail_null(create_errno(error));
    }
    file->shared.counted.source.name = file->dir.prefix;
    return &file->shared.counted.source;
}
