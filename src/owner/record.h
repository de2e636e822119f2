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

struct record {
    void *next, *unused_next; /* records of the same kind */
};

struct records {
    struct lock lock;
    atomic_addr all;            /* at first NULL, or a record of the caller's that no thread is to have */
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
/* In the child of a fork: none is unused, until those of threads that are gone are deleted.  True: somebody had the lock. */
bool records_after_fork(struct records *records);

C_DECLARATIONS_END
#endif
