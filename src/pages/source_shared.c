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

int shared_map(int fd, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    void *start = NULL;
    int error = bytes > PTRDIFF_MAX ? -ENOMEM : os_file_reserve(fd, bytes);
    if (!error)
        error = os_map_file(fd, bytes, align_bytes, &start);
    os_close(fd);
    if (error)
        return -ENOMEM;
    *out = (struct quire_span){start, bytes, QUIRE_SPAN_ZERO, 0};
    return 0;
}

size_t shared_unmap(const struct quire_span *span)
{
    if (os_unmap(span->start, span->bytes) == 0)
        return 0;
    /* No VMA left for a split: the blocks go, the addresses stay. */
    (void)os_mapped_punch(span->start, span->bytes);
    return span->bytes;
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
