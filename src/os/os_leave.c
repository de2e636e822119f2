// SPDX-License-Identifier: MIT
/*
 * os_leave.c - the contents of pages move to other addresses, and the pages stay.
 *
 *     start [contents] --mremap, MREMAP_DONTUNMAP--> way [contents] --mremap--> to [contents | new, zero]
 *           [zero    ]                               nobody's
 *
 * Two steps, since the first cannot change the size, and what is mapped behind moved pages would be another mapping, which the next growth could not
 * take along.  (mremap(2), MREMAP_DONTUNMAP: Linux 5.7.)
 *
 * Locks: none.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "os/os.h"
#include "os/os_call.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { UNKNOWN, CAN, CANNOT };

/* Asked once, on a page (the last NULL is a hint, which the kernel reads with this flag): emulators (qemu-user 7.2) hand the flag on and hold the page for gone. */
static bool can_leave(void)
{
    static int known;
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED), kept = errno;
    void *page;
    if (now == UNKNOWN && os_map(os_page_bytes(), os_page_bytes(), &page) == 0) {
        *(volatile char *)page = 1;
        char *there = mremap(page, os_page_bytes(), os_page_bytes(), MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        now = there != MAP_FAILED && *there == 1 && os_is_readable(page) && *(volatile char *)page == 0 ? CAN : CANNOT;
        if (there != MAP_FAILED)
            (void)munmap(there, os_page_bytes());
        (void)munmap(page, os_page_bytes());
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    errno = kept;
    return now == CAN;
}

/*
 * The program may have given some of its pages another protection or advice: then they are several mappings, which do not grow, and of which some may
 * have moved (Linux 6.17 and later) when the move fails.  Asked by a growth in place: EFAULT says that it is several, ENOMEM that there is no room.
 */
bool os_is_one_mapping(void *start, size_t bytes)
{
    int kept = errno;
    bool grew = mremap(start, bytes, bytes + os_page_bytes(), 0) != MAP_FAILED, is_one = grew || errno == ENOMEM;
    if (grew)
        (void)munmap((char *)start + bytes, os_page_bytes());
    errno = kept;
    return is_one;
}

/* It is as it was. */
static void come_back(void *start, void *way, size_t bytes)
{
    if (mremap(way, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, start) != MAP_FAILED)
        return;
    memcpy(start, way, bytes);
    (void)munmap(way, bytes);
}

/* What the program did to all of a block went along, and stays on its pages here: the next block there must have none of it. */
void os_make_plain(void *start, size_t bytes)
{
    int kept = errno;
    (void)mprotect(start, bytes, PROT_READ | PROT_WRITE);
    (void)madvise(start, bytes, MADV_DOFORK);
    (void)madvise(start, bytes, MADV_KEEPONFORK);
    errno = kept;
}

/* Free addresses for the way, as aligned as the pages are, so that huge ones stay whole.  A hint: another thread may have them by then. */
static void *way_for(void *start, size_t bytes)
{
    size_t huge = os_huge_bytes(), unit = huge && (uintptr_t)start % huge == 0 ? huge : os_page_bytes();
    void *hint = NULL;
    if (unit != os_page_bytes() && os_reserve(bytes, unit, &hint) == 0)
        (void)os_unmap(hint, bytes);
    return hint;
}

int os_leave(void *start, size_t bytes, size_t new_bytes, void *to)
{
    int kept = errno, error = 0;
    if (os_fault(OS_REMAP) || !can_leave() || !os_is_one_mapping(start, bytes)) {
        errno = kept;
        return -ENOMEM;
    }
    void *way = mremap(start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, way_for(start, bytes));
    if (way == MAP_FAILED) {
        error = -ENOMEM;
    } else if (os_fault(OS_REMAP) || mremap(way, bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
        come_back(start, way, bytes);
        error = -EFAULT;
    } else {
        os_make_plain(start, bytes);
    }
    errno = kept;
    return error;
}
