// SPDX-License-Identifier: MIT
/*
 * source_shared.c - a span as a shared mapping whose space is reserved before anybody writes to it.
 *
 *     new file --reserve--> its blocks exist --map--> span --close--> the mapping alone holds it
 *
 * No descriptor stays open: a program may have as many spans as it likes.  A full disk is an error here,
 * never a SIGBUS at the first write.
 *
 * Locks: none.  Not here: names (source_file.c).
 */
#include "pages/source_shared.h"

#include <errno.h>
#include <stdint.h>

#include "os/os.h"

int shared_take(struct source_shared *shared, int fd, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    void *start = NULL;
    int error = fd < 0 || bytes > PTRDIFF_MAX ? -ENOMEM : os_file_reserve(fd, bytes);
    if (!error)
        error = os_map_file(fd, bytes, align_bytes, &start);
    if (fd >= 0)
        os_close(fd);
    if (!error)
        *out = (struct quire_span){start, bytes, QUIRE_SPAN_ZERO, 0};
    return account_take(&shared->counted.account, bytes, error ? -ENOMEM : 0);
}

void shared_give(struct quire_source *source, const struct quire_span *span)
{
    struct source_shared *shared = (struct source_shared *)source;
    size_t bytes = span->bytes; /* the span may lie in the memory it describes */
    if (os_unmap(span->start, bytes) != 0) {
        /* No VMA left for a split: the blocks go, the addresses stay. */
        (void)os_mapped_punch(span->start, bytes);
        size_add_relaxed(&shared->stuck_bytes, bytes);
    }
    account_gave(&shared->counted.account, bytes);
}

void shared_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    const struct source_shared *shared = (const struct source_shared *)source;
    account_stats(&shared->counted.account, out);
    out->reserved_bytes = out->taken_bytes + size_load_relaxed(&shared->stuck_bytes);
    out->meta_bytes = os_page_bytes();
}

void shared_idle(struct quire_source *source, void *start, size_t bytes)
{
    (void)source;
    (void)os_mapped_punch(start, bytes);
}

int shared_busy(struct quire_source *source, void *start, size_t bytes)
{
    (void)source;
    return os_mapped_reserve(start, bytes);
}
