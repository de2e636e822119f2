// SPDX-License-Identifier: MIT
/*
 * netdata_aral_registry.c - all arrays of the process: the page size they follow, and those shared by size.
 *
 *     first --> ARAL --> ARAL --> ARAL          by_size[64] --> one of them, acquired 3 times
 *
 * Invariants:
 *   1  a word at a time: at every moment, seen in the order of the stores, the list leads to every array but one that is coming or going
 *   2  by_size[n] is an array that was acquired at least once
 *
 * Locks: one (LOCK_COMPAT), never held while memory is obtained or given back.  The child of a fork finds 1 and 2 true whatever the thread that held
 * the lock was doing; the way back (`prev`) is derived again.
 */
#include <errno.h>
#include <stdio.h>

#include "base/lock.h"
#include "compat/netdata_aral_internal.h"
#include "os/os.h"
#include "slab/slab_mark.h"

enum { SIZE_SHARED_MAX = 1024, PAGE_BYTES_START = 64 << 10, PAGE_BYTES_MIN = 16 << 10 };

static struct {
    struct lock lock;
    atomic_addr first; /* ARAL * */
    atomic_size page_bytes;
    struct aral_statistics by_size_stats;
} registry = {.lock = LOCK_INIT(LOCK_COMPAT), .page_bytes = {PAGE_BYTES_START}};
static atomic_addr by_size[SIZE_SHARED_MAX + 1]; /* ARAL * */

static ARAL *array_at(const atomic_addr *place)
{
    return (ARAL *)addr_load_acquire(place); /* acquire [aral-list] */
}

static void put_array(atomic_addr *place, const ARAL *ar)
{
    addr_store_release(place, (uintptr_t)ar); /* release [aral-list] */
}

/* ---- fork ---- */

static void registry_after_fork(void)
{
    if (lock_is_mine(&registry.lock)) /* by a signal's handler: this thread goes on with what it was doing to the list */
        return;
    (void)lock_reset(&registry.lock);
    ARAL *before = NULL;
    for (ARAL *ar = array_at(&registry.first); ar; before = ar, ar = array_at(&ar->next))
        ar->prev = before;
}

static __attribute__((constructor)) void registry_at_load(void)
{
    (void)os_after_fork_in_child(registry_after_fork);
}

/* ---- the list ---- */

void aral_registry_add(ARAL *ar)
{
    lock_take(&registry.lock);
    ARAL *next = array_at(&registry.first);
    put_array(&ar->next, next);
    if (next)
        next->prev = ar;
    put_array(&registry.first, ar);
    if (ar->follows) /* it may have been set since the slab was made */
        slab_set_page_bytes_max(ar->slab, size_load_relaxed(&registry.page_bytes));
    lock_drop(&registry.lock);
}

void aral_registry_remove(ARAL *ar)
{
    lock_take(&registry.lock);
    ARAL *next = array_at(&ar->next);
    put_array(ar->prev ? &ar->prev->next : &registry.first, next);
    if (next)
        next->prev = ar->prev;
    lock_drop(&registry.lock);
}

/* ---- the largest page ---- */

size_t aral_optimal_malloc_page_size(void)
{
    return size_load_relaxed(&registry.page_bytes);
}

size_t aral_optimal_malloc_page_size_set(size_t size)
{
    size_t bytes = size > PAGE_BYTES_MIN ? size : PAGE_BYTES_MIN;
    lock_take(&registry.lock);
    size_store_relaxed(&registry.page_bytes, bytes);
    for (ARAL *ar = array_at(&registry.first); ar; ar = array_at(&ar->next))
        if (ar->follows)
            slab_set_page_bytes_max(ar->slab, bytes);
    lock_drop(&registry.lock);
    return bytes;
}

/* ---- by size ---- */

static ARAL *by_size_new(size_t size)
{
    char name[sizeof "by-size-18446744073709551615"];
    snprintf(name, sizeof name, "by-size-%zu", size);
    ARAL *ar = aral_create(name, size, 0, 0, &registry.by_size_stats, NULL, NULL, false, false, false);
    ar->acquired = 1;
    return ar;
}

/* The one that is there, acquired once more; or NULL, and `fresh` (unless NULL too) is there now. */
static ARAL *by_size_join(size_t size, const ARAL *fresh)
{
    lock_take(&registry.lock);
    ARAL *ar = array_at(&by_size[size]);
    if (ar)
        ar->acquired++;
    else
        put_array(&by_size[size], fresh);
    lock_drop(&registry.lock);
    return ar;
}

ARAL *aral_by_size_acquire(size_t size)
{
    if (size > SIZE_SHARED_MAX)
        return by_size_new(size);
    ARAL *ar = by_size_join(size, NULL);
    if (ar)
        return ar;
    ARAL *fresh = by_size_new(size);
    ar = by_size_join(size, fresh);
    if (!ar)
        return fresh;
    fresh->acquired = 0; /* another thread was first */
    aral_destroy(fresh);
    return ar;
}

void aral_by_size_release(ARAL *ar)
{
    if (!ar)
        return;
    bool live = aral_is_live(ar);
    lock_take(&registry.lock);
    size_t acquired = live ? ar->acquired : 0;
    if (acquired == 1 && ar->requested_bytes <= SIZE_SHARED_MAX)
        put_array(&by_size[ar->requested_bytes], NULL);
    if (acquired)
        ar->acquired = acquired - 1;
    lock_drop(&registry.lock);
    if (!acquired)
        aral_fatal(live ? ar->name : NULL, "N5 released more often than acquired", ar);
    if (acquired == 1)
        aral_destroy(ar);
}

struct aral_statistics *aral_by_size_statistics(void)
{
    return &registry.by_size_stats;
}

size_t aral_by_size_structures_bytes(void)
{
    return aral_structures_bytes_from_stats(&registry.by_size_stats);
}

size_t aral_by_size_free_bytes(void)
{
    return aral_free_bytes_from_stats(&registry.by_size_stats);
}

size_t aral_by_size_used_bytes(void)
{
    return aral_used_bytes_from_stats(&registry.by_size_stats);
}

size_t aral_by_size_padding_bytes(void)
{
    return aral_padding_bytes_from_stats(&registry.by_size_stats);
}
