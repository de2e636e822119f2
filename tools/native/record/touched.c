// SPDX-License-Identifier: MIT
/*
 * touched.c - how much of a large block has memory, looked at before it is freed or gets another size.
 *
 *   64 KiB or more --> remembered (rec_thread.large) --free, realloc--> its pages in /proc/self/pagemap --> an event
 *
 * A replay that touched all of a block of which the program touches one page would book page faults to the allocator that the program never had.
 * Memory that was in use before has pages, whoever touched them: there a replay has no faults either.
 *
 * Of many such ends every LOOK_EACH-th is looked at.  By calls that a sandbox allows which lets files be read: mincore() gets a program killed.
 * Where pagemap cannot be opened nobody tries again.
 *
 * Locks: none; a thread's own blocks alone.  errno stays.  Not here: what a replay makes of it (../replay/touch.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "event.h"

enum { LOOK_ALL = 64, LOOK_EACH = 16, STRETCH_PAGES = 64, STRETCHES = 8 };
#define PAGE_HAS_MEMORY (UINT64_C(3) << 62) // present, or swapped out

static _Atomic bool cannot_look;

/* Of `count` pages from `page` on; how many were looked at is added to `seen`. */
static uint64_t count_pages(int fd, uint64_t page, uint64_t count, uint64_t *seen) {
    uint64_t entry[STRETCH_PAGES], found = 0;
    long got = syscall(SYS_pread64, fd, entry, count * sizeof entry[0], page * sizeof entry[0]);
    for (long i = 0; i < got / (long)sizeof entry[0]; i++) {
        found += (entry[i] & PAGE_HAS_MEMORY) != 0;
        ++*seen;
    }
    return found;
}

/* Bytes of a block that have memory, by its whole pages; of a large one by STRETCHES of them. */
static bool touched_bytes(int fd, uintptr_t address, uint64_t bytes, uint64_t *touched) {
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), first = (address + page_bytes - 1) / page_bytes;
    uint64_t pages = (address + bytes) / page_bytes - first, seen = 0, found = 0;
    uint64_t step = pages > STRETCH_PAGES * STRETCHES ? pages / STRETCHES : STRETCH_PAGES;
    for (uint64_t at = 0; at < pages; at += step) {
        uint64_t left = pages - at;
        found += count_pages(fd, first + at, left < STRETCH_PAGES ? left : STRETCH_PAGES, &seen);
    }
    *touched = seen > 0 ? (uint64_t)((double)bytes * (double)found / (double)seen) : 0;
    return seen > 0;
}

void rec_large_look(struct rec_thread *thread, struct rec_large *block) {
    struct rec_large was = *block;
    block->address = 0;
    if (thread->large_ends++ >= LOOK_ALL && thread->large_ends % LOOK_EACH != 0) {
        return;
    }
    if (atomic_load_explicit(&cannot_look, memory_order_relaxed)) {
        return;
    }
    int kept = errno;
    uint64_t touched = 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        atomic_store_explicit(&cannot_look, true, memory_order_relaxed);
    } else {
        bool is_known = touched_bytes(fd, was.address, was.bytes, &touched);
        syscall(SYS_close, fd);
        if (is_known) {
            rec_event_put(thread, (struct rec_event){.kind = QTR_TOUCHED, .address = was.address, .tick = rec_tick_of(thread), .size = touched});
        }
    }
    errno = kept;
}
