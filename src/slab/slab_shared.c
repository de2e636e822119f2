// SPDX-License-Identifier: MIT
/*
 * slab_shared.c - one shared slab for each exact size up to 1024 bytes.
 *
 *     size 0 (as 1)  1  2 ... 1024
 *        [ ]        [ ][ ] ... [ ] ---> struct quire_slab, with the number of those who hold it
 *
 * Locks: its own, below all of the slab's.  Not here: slabs.
 */
#include <errno.h>
#include <stdio.h>

#include "slab/slab_internal.h"

enum { SHARED_BYTES_MAX = 1024 };

static struct lock shared_lock = LOCK_INIT(LOCK_SLAB_SHARED);
static struct quire_slab *shared[SHARED_BYTES_MAX + 1]; /* 0: what is larger, none */

static struct quire_slab *create(size_t bytes)
{
    char name[SLAB_NAME_BYTES];
    snprintf(name, sizeof name, "size-%zu", bytes);
    return quire_slab_create(bytes, &(struct quire_slab_opts){.name = name});
}

struct quire_slab *quire_slab_shared_acquire(size_t element_bytes)
{
    size_t bytes = element_bytes ? element_bytes : 1;
    uint32_t size = bytes <= SHARED_BYTES_MAX ? (uint32_t)bytes : 0;
    lock_take(&shared_lock);
    struct quire_slab *slab = shared[size] ? shared[size] : create(bytes);
    if (slab) {
        shared[size] = size ? slab : NULL;
        slab->shared_size = size;
        slab->shared_count++;
    }
    lock_drop(&shared_lock);
    return slab;
}

void quire_slab_shared_release(struct quire_slab *slab)
{
    if (!slab)
        return;
    lock_take(&shared_lock);
    bool known = slab_is_live(slab) && slab->shared_count != 0;
    if (unlikely(!known)) {
        lock_drop(&shared_lock);
        slab_refuse(NULL, SLAB_E6, slab);
    }
    bool last = --slab->shared_count == 0;
    if (last)
        shared[slab->shared_size] = NULL;
    lock_drop(&shared_lock);
    if (last)
        quire_slab_destroy(slab);
}

void slab_shared_after_fork(void)
{
    (void)lock_reset_others(&shared_lock);
}
