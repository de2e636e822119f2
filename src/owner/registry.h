// SPDX-License-Identifier: MIT
/*
 * registry.h - all objects of a kind, as whoever makes, ends or looks at them needs them: a lock, births, ids.
 *
 *     slabs, heaps, pools ---> struct registry: who has the lock knows that none of them ends
 *                              births: 1, 2, 3 ... never used twice        ids: the lowest free one, so that threads' tables stay short
 *
 * The list itself is the allocator's (base/list.h): its links lie in the objects.
 *
 * Locks: it is one.  Not here: what an object is.
 */
#ifndef QUIRE_OWNER_REGISTRY_H
#define QUIRE_OWNER_REGISTRY_H

#include "base/lock.h"

C_DECLARATIONS_BEGIN

struct registry {
    struct lock lock;
    /* under the lock */
    uint64_t births; /* so many objects there have been */
    uint64_t *ids;   /* a bit for each that is taken; NULL: this kind has none */
    uint32_t ids_max, ids_from; /* from: the first that may be free; 1 at first: this kind has no 0, which is what zeroed memory says */
};

enum { REGISTRY_FULL = UINT32_MAX };

void registry_lock(struct registry *registry);
/*
 * Whoever sleeps for the lock is woken when it is dropped, which takes longer than one that looks again and again needs to come back: it would keep all
 * others from ending.  So who has woken somebody waits until the lock is taken, a tenth of a millisecond at most.
 */
void registry_unlock(struct registry *registry);
void registry_leave_to(const struct registry *registry, bool woke); /* the second half, behind lock_drop() */
void registry_let_go(struct registry *registry);                    /* if this thread has it */

/* With the lock.  REGISTRY_FULL: all are taken. */
uint32_t registry_id_new(struct registry *registry);
void registry_id_delete(struct registry *registry, uint32_t id);

C_DECLARATIONS_END
#endif
