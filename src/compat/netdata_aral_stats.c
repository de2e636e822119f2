// SPDX-License-Identifier: MIT
/*
 * netdata_aral_stats.c - what arrays hold, in their own statistics and in those that many share.
 *
 *     a page of 4096 bytes, elements of 100 bytes in slots of 112:   36 slots
 *     allocated_bytes += 36 * 100    padding_bytes += 4096 - 36 * 100    structures: as the slab says
 *
 * Every sum is changed by relaxed atomic additions of what one array adds or takes off, so that a shared one is exact when its arrays are still.
 * An array's own struct always has its pages; a caller's has them too.  used_bytes is kept only where `used` points (netdata_aral.c): directly and not
 * in shards, since callers read the field itself, and it has to be right after every call.
 *
 * Locks: none.
 */
#include "base/align.h"
#include "compat/netdata_aral_internal.h"
#include "slab/slab_mark.h"

STATIC_ASSERT(sizeof(struct aral_group) == 4 * sizeof(size_t), "a group is its four words");
STATIC_ASSERT(offsetof(struct aral_statistics, malloc.padding_bytes) - offsetof(struct aral_statistics, malloc) == 3 * sizeof(size_t), "in this order");
STATIC_ASSERT(offsetof(struct aral_statistics, mmap.padding_bytes) - offsetof(struct aral_statistics, mmap) == 3 * sizeof(size_t), "in this order");
STATIC_ASSERT(offsetof(struct aral_statistics, malloc) == CACHE_LINE_BYTES && offsetof(struct aral_statistics, mmap) == 2 * CACHE_LINE_BYTES,
              "each group has a line");

static atomic_size *word(size_t *field)
{
    return (atomic_size *)(void *)field;
}

static size_t read_word(const size_t *field)
{
    return size_load_relaxed((const atomic_size *)(const void *)field);
}

/* The group that this array's pages and elements count in. */
static struct aral_group *group_of(const ARAL *ar, struct aral_statistics *stats)
{
    return (struct aral_group *)(ar->files ? (void *)&stats->mmap : (void *)&stats->malloc);
}

/* ---- what changes ---- */

static void add_page(struct aral_group *group, size_t pages, size_t room_bytes, size_t padding_bytes)
{
    size_add_relaxed(&group->allocations, pages);
    size_add_relaxed(&group->allocated_bytes, room_bytes);
    size_add_relaxed(&group->padding_bytes, padding_bytes);
}

static void add_structures(struct aral_statistics *stats, size_t allocations, size_t bytes)
{
    size_add_relaxed(word(&stats->structures.allocations), allocations);
    size_add_relaxed(word(&stats->structures.allocated_bytes), bytes);
}

/* What the array's bookkeeping takes now; nothing before its slab is made and after it has ended. */
static size_t structures_now(const ARAL *ar)
{
    return ar->slab ? sizeof(struct aral) + slab_meta_bytes(ar->slab) : 0;
}

/* Bring the statistics up to that; `allocations` are new, or gone when wrapped below 0. */
static void count_structures(ARAL *ar, size_t allocations)
{
    size_t now_bytes, before_bytes = size_load_relaxed(&ar->structures);
    do {
        now_bytes = structures_now(ar);
        while (!size_cas_relaxed(&ar->structures, &before_bytes, now_bytes)) {
        }
        add_structures(&ar->own, allocations, now_bytes - before_bytes);
        if (ar->stats != &ar->own)
            add_structures(ar->stats, allocations, now_bytes - before_bytes);
        allocations = 0;
        before_bytes = now_bytes;
    } while (structures_now(ar) != now_bytes); /* another thread changed it, and may have counted before this one */
}

void aral_count_page(ARAL *ar, size_t bytes, bool come)
{
    size_t room = bytes / ar->slot_bytes * ar->requested_bytes, padding = bytes - room;
    size_t pages = come ? 1 : (size_t)0 - 1;
    room = come ? room : 0 - room;
    padding = come ? padding : 0 - padding;
    add_page(group_of(ar, &ar->own), pages, room, padding);
    if (ar->stats != &ar->own)
        add_page(group_of(ar, ar->stats), pages, room, padding);
    count_structures(ar, pages);
}

void aral_count_meta(struct quire_source *source)
{
    count_structures((ARAL *)(void *)source, 0);
}

static size_t used_now(const ARAL *ar)
{
    struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
    quire_slab_stats(ar->slab, &stats);
    return stats.live_elements * ar->requested_bytes;
}

void aral_count_created(ARAL *ar)
{
    if (ar->stats != &ar->own)
        addr_store_relaxed(&ar->used, (uintptr_t)&group_of(ar, ar->stats)->used_bytes);
    count_structures(ar, 1);
}

void aral_count_destroyed(ARAL *ar, size_t live_elements)
{
    if (ar->stats != &ar->own)
        size_sub_relaxed(&group_of(ar, ar->stats)->used_bytes, live_elements * ar->requested_bytes);
    count_structures(ar, (size_t)0 - 1);
}

/* ---- what is asked ---- */

struct aral_statistics *aral_get_statistics(ARAL *ar)
{
    atomic_size *used = &group_of(ar, &ar->own)->used_bytes;
    uintptr_t nobody = 0;
    if (ar->stats == &ar->own && addr_cas_relaxed(&ar->used, &nobody, (uintptr_t)used))
        size_add_relaxed(used, used_now(ar));
    count_structures(ar, 0);
    return ar->stats;
}

static size_t left_of(size_t whole, size_t part)
{
    return whole > part ? whole - part : 0; /* the two were not read at one moment */
}

size_t aral_structures_bytes(const ARAL *ar)
{
    return structures_now(ar);
}

size_t aral_used_bytes(const ARAL *ar)
{
    return used_now(ar);
}

size_t aral_free_bytes(const ARAL *ar)
{
    size_t used = used_now(ar);
    return left_of(read_word(&ar->own.malloc.allocated_bytes) + read_word(&ar->own.mmap.allocated_bytes), used);
}

size_t aral_padding_bytes(const ARAL *ar)
{
    return aral_padding_bytes_from_stats(&ar->own);
}

size_t aral_structures_bytes_from_stats(const struct aral_statistics *stats)
{
    return stats ? read_word(&stats->structures.allocated_bytes) : 0;
}

size_t aral_used_bytes_from_stats(const struct aral_statistics *stats)
{
    return stats ? read_word(&stats->malloc.used_bytes) + read_word(&stats->mmap.used_bytes) : 0;
}

size_t aral_free_bytes_from_stats(const struct aral_statistics *stats)
{
    size_t used = aral_used_bytes_from_stats(stats);
    return stats ? left_of(read_word(&stats->malloc.allocated_bytes) + read_word(&stats->mmap.allocated_bytes), used) : 0;
}

size_t aral_padding_bytes_from_stats(const struct aral_statistics *stats)
{
    return stats ? read_word(&stats->malloc.padding_bytes) + read_word(&stats->mmap.padding_bytes) : 0;
}
