// SPDX-License-Identifier: MIT
/*
 * source_memfd.c - shared mappings of memory without a file name: a forked child sees the same bytes.
 *
 * Invariants: S1 (source_account.h).
 * Locks: none.
 */
#include <string.h>

#include "base/fail.h"
#include "os/os.h"
#include "pages/source_internal.h"
#include "pages/source_shared.h"

enum { NAME_BYTES_MAX = 200 }; /* the kernel takes 249; longer names are cut */

struct source_memfd {
    struct source_shared shared; /* first: it is a source */
    char name[NAME_BYTES_MAX + 1];
};

static int memfd_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_memfd *memfd = (struct source_memfd *)(void *)source;
    return shared_take(&memfd->shared, os_memfd(memfd->name), bytes, align_bytes, out);
}

static const struct quire_source_verbs memfd_verbs = {
    .take = memfd_take, .give = shared_give, .idle = shared_idle, .busy = shared_busy, .fini = counted_fini, .stats = shared_stats};

struct quire_source *quire_source_memfd(const char *name)
{
    int fd = os_memfd("quire"); /* does this kernel have it? */
    if (fd < 0)
        return fail_null(fd == -ENOSYS ? ENOSYS : ENOMEM);
    os_close(fd);
    struct source_memfd *memfd = source_counted_new(sizeof *memfd, &memfd_verbs, NULL);
    if (!memfd)
        return NULL;
    strncpy(memfd->name, name ? name : "quire", NAME_BYTES_MAX);
    memfd->shared.counted.source.name = memfd->name;
    return &memfd->shared.counted.source;
}
