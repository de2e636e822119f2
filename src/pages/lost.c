// SPDX-License-Identifier: MIT
/*
 * lost.c - addresses that could not be unmapped.
 *
 * munmap in the middle of a mapping needs one more VMA, and a process has 65,530.  Past that munmap fails and madvise still works: the memory
 * goes back, and the addresses wait in a list (a link in the first page of each) until an unmapping succeeds again.
 *
 * Whoever still has a pointer there may write to it: the link is under a key, and proved before it is followed.  What is behind one that was
 * written to stays as it is, addresses without memory.
 *
 * Locks: lost_lock over the list; never held over a system call.
 */
#include "pages/lost.h"

#include "base/lock.h"
#include "base/random.h"
#include "os/os.h"

struct lost {
    uintptr_t next; /* all three under the key */
    size_t bytes;
    uintptr_t proof; /* of the two, here */
};

static struct lock lost_lock = LOCK_INIT(LOCK_LOST);
static struct lost *list;
static uintptr_t key; /* from the first on; not 0 */
static atomic_size bytes_kept;

static uintptr_t proof_of(const struct lost *lost)
{
    return ((uintptr_t)lost ^ lost->next ^ (lost->bytes << 32 | lost->bytes >> 32)) * (key | 1) ^ key;
}

static void lost_keep(void *start, size_t bytes)
{
    struct lost *lost = start;
    lock_take(&lost_lock);
    while (key == 0)
        key = (uintptr_t)random_seed();
    *lost = (struct lost){.next = (uintptr_t)list ^ key, .bytes = bytes ^ key};
    lost->proof = proof_of(lost);
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
    while (lost && lost->proof == proof_of(lost)) {
        struct lost *next = (struct lost *)(lost->next ^ key);
        size_t bytes = lost->bytes ^ key;
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
    (void)lock_reset_others(&lost_lock);
}
