// SPDX-License-Identifier: MIT
/*
 * source_memfd.c - shared mappings of memory without a file name: a forked child sees the same bytes.
 *
 * Invariants: S1 (source_wrap.c).
 * Locks: none.
 */
#include <errno.h>
#include <string.h>

#include "base/panic.h"
#include "os/os.h"
#include "pages/source_account.h"
#include "pages/source_internal.h"
#include "pages/source_shared.h"

enum { NAME_BYTES_MAX = 200 }; /* the kernel takes 249; longer names are cut */

struct source_memfd {
    struct quire_source source; /* first: it is a source */
    char name[NAME_BYTES_MAX + 1];
    /* any thread */
    struct source_account account;
    atomic_size stuck_bytes; /* addresses that could not be unmapped, without memory */
};

static int memfd_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_memfd *memfd = (struct source_memfd *)source;
    int fd = os_memfd(memfd->name);
    int error = fd < 0 ? -ENOMEM : shared_map(fd, bytes, align_bytes, out);
    if (error)
        account_failed(&memfd->account);
    else
        account_took(&memfd->account, bytes);
    return error;
}

static void memfd_give(struct quire_source *source, const struct quire_span *span)
{
    struct source_memfd *memfd = (struct source_memfd *)source;
    size_t bytes = span->bytes; /* the span may lie in the memory it describes */
    size_add_relaxed(&memfd->stuck_bytes, shared_unmap(span));
    account_gave(&memfd->account, bytes);
}

static void memfd_fini(struct quire_source *source)
{
    struct source_memfd *memfd = (struct source_memfd *)source;
    if (account_taken(&memfd->account) != 0)
        panic("source", source->name, "S1 destroyed with spans still taken", source);
    source_struct_delete(memfd, sizeof *memfd);
}

static void memfd_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    const struct source_memfd *memfd = (const struct source_memfd *)source;
    account_stats(&memfd->account, out);
    out->reserved_bytes = out->taken_bytes + size_load_relaxed(&memfd->stuck_bytes);
    out->meta_bytes = os_page_bytes();
}

static const struct quire_source_verbs memfd_verbs = {
    .take = memfd_take, .give = memfd_give, .idle = shared_idle, .busy = shared_busy, .fini = memfd_fini, .stats = memfd_stats};

struct quire_source *quire_source_memfd(const char *name)
{
    int fd = os_memfd("quire"); /* does this kernel have it? */
    if (fd < 0) {
        errno = fd == -ENOSYS ? ENOSYS : ENOMEM;
        return NULL;
    }
    os_close(fd);
    struct source_memfd *memfd = source_struct_new(sizeof *memfd);
    if (!memfd)
        return NULL;
    strncpy(memfd->name, name ? name : "quire", NAME_BYTES_MAX);
    memfd->source = (struct quire_source){&memfd_verbs, memfd->name};
    return &memfd->source;
}
