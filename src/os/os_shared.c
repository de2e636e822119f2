// SPDX-License-Identifier: MIT
/*
 * os_shared.c - shared mappings of files: aligned, and their memory given back and had again by address.
 *
 *     file     |####|####|....|####|        punched: no block behind it, reads as zero
 *     mapping  |    |    |    |    |        a write there needs a block: os_mapped_reserve() first
 *
 * Locks: none.  Not here: files as such (os_file.c).
 */
#include <errno.h>
#include <sys/mman.h>

#include "os/os.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

int os_map_file(int fd, size_t bytes, size_t align_bytes, void **out)
{
    void *at;
    int error = os_reserve(bytes, align_bytes, &at);
    if (error)
        return error;
    int kept = errno;
    void *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    error = errno;
    if (p == MAP_FAILED)
        (void)munmap(at, bytes);
    errno = kept;
    if (p == MAP_FAILED)
        return -error;
    *out = p;
    return 0;
}

int os_mapped_punch(void *start, size_t bytes)
{
    int kept = errno;
    if (os_fault(OS_DISCARD))
        return -ENOMEM;
    /* Of no bytes it only tells whether the kernel knows it. */
    int result = madvise(start, 0, MADV_POPULATE_WRITE);
    if (result == 0)
        result = madvise(start, bytes, MADV_REMOVE);
    int error = result ? -errno : 0;
    errno = kept;
    return error;
}

int os_mapped_reserve(void *start, size_t bytes)
{
    int kept = errno, result;
    if (os_fault(OS_GROW))
        return -ENOMEM;
    do
        result = madvise(start, bytes, MADV_POPULATE_WRITE);
    while (result && errno == EINTR);
    /* EFAULT is what would have been a SIGBUS.  EINVAL: an old kernel, which never punched either. */
    int error = result && errno != EINVAL ? -ENOMEM : 0;
    errno = kept;
    return error;
}
