// SPDX-License-Identifier: MIT
/*
 * record.h - what others know of each thread: its memory stays a record for ever, and serves a later thread.
 *
 *     all ---> record (thread 3) ---> record (ended) ---> record (thread 1)          only grows: walked without a lock
 *                                       ^ unused
 *
 * A kind of record is a struct whose first field is a struct record.
 *
 * Locks: the records' own, over what is unused.  Not here: what is in a record.
 */
#ifndef QUIRE_OWNER_RECORD_H
#define QUIRE_OWNER_RECORD_H

#include "base/lock.h"

C_DECLARATIONS_BEGIN

#define RECORD_SHARED UINTPTR_MAX /* in place of a thread: no thread is to have it */

struct record {
    void *next;         /* of the same kind */
    atomic_addr thread; /* whose it is, by its thread pointer, and 1; else the next unused one, or 0 */
};

struct records {
    struct lock lock;
    atomic_addr all;            /* at first NULL, or a record of the caller's that is RECORD_SHARED */
    size_t bytes;               /* of a record */
    void (*begin)(void *record); /* of one in fresh zeroed memory, before others see it; NULL: nothing */
    void (*end)(void *record);  /* its thread ends; record_delete() is its last act */
    struct record *unused;
    char *room;                 /* for more of them, so much: */
    size_t room_bytes;
};

static inline void *records_first(const struct records *records)
{
    return (void *)addr_load_acquire(&records->all); /* acquire [records] */
}

/*
 * For the calling thread, until it ends.  NULL: there is no memory, or no pthread key left.  A thread whose first call is in the last round of its
 * destructors (PTHREAD_DESTRUCTOR_ITERATIONS) has one, too, and may have no end that we hear of: nothing tells that round from the others.
 */
void *record_new(struct records *records);
void record_delete(struct records *records, void *record);
/*
 * In the child of a fork: those of threads that are gone are unused.  True: another had the lock.  If this thread has it, by a signal's handler, it goes on
 * with what it was doing to the list, and they stay nobody's.
 */
bool records_after_fork(struct records *records);

static inline bool record_is_used(const struct record *record)
{
    return addr_load_relaxed(&record->thread) & 1;
}

static inline bool record_is_of(const struct record *record, const void *thread_pointer)
{
    return addr_load_relaxed(&record->thread) == ((uintptr_t)thread_pointer | 1);
}

C_DECLARATIONS_END
#endif
