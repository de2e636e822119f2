// SPDX-License-Identifier: MIT
/*
 * lost.c - addresses that could not be unmapped.
 *
 * munmap in the middle of a mapping needs one more VMA, and a process has 65,530.  Past that munmap fails and madvise still works: the memory
 * goes back, and the addresses wait in a list (a link in the first page of each) until an unmapping succeeds again.
 *
 * Locks: lost_lock over the list; never held over a system call.
 */
#include "pages/lost.h"

#include "base/lock.h"
#include "os/os.h"

struct lost {
    struct lost *next;
    size_t bytes;
};

static struct lock lost_lock = LOCK_INIT(LOCK_LOST);
static struct lost *list;
static atomic_size bytes_kept;

static void lost_keep(void *start, size_t bytes)
{
    struct lost *lost = start;
    lock_take(&lost_lock);
    *lost = (struct lost){list, bytes};
    list = lost;
    lock_drop(&lost_lock);
    size_add_relaxed(&bytes_kept, bytes);
}

void lost_unmap(void *start, size_t bytes)
{
    if (os_unmap(start, bytes) == 0) {
        if (unlikely(size_load_relaxed(&bytes_kept) != 0))
            lost_retry(); /* there may be VMAs again */
        return;
    }
    (void)os_discard(start, bytes);
    lost_keep(start, bytes);
}

void lost_retry(void)
{
    lock_take(&lost_lock);
    struct lost *lost = list;
    list = NULL;
    lock_drop(&lost_lock);
    while (lost) {
        struct lost *next = lost->next;
        size_t bytes = lost->bytes;
        size_sub_relaxed(&bytes_kept, bytes);
        if (os_unmap(lost, bytes) != 0)
            lost_keep(lost, bytes);
        lost = next;
    }
}

size_t lost_bytes(void)
{
    return size_load_relaxed(&bytes_kept);
}

/* A list that was being walked by another thread at the fork is that thread's: its addresses stay mapped in the child. */
void lost_after_fork(void)
{
    (void)lock_reset(&lost_lock);
}
