// SPDX-License-Identifier: MIT
/*
 * slab_cache_look.c - what is in caches and depots: how much, whether a slot is, and whether all of it is as it should be.
 *
 * Locks: as each function says in slab_internal.h.  Not here: anything that changes them (slab_cache.c).
 */
#include "slab/slab_internal.h"

/* Also while its thread moves: then it may be off by what moved. */
size_t slab_cache_slots(const struct slab_cache *cache)
{
    size_t slots = slab_current_count(cache) + (cache->prev ? cache->prev->count : 0);
    for (const struct slab_mag *mag = cache->own; mag; mag = mag->next)
        slots += mag->count;
    return slots;
}

size_t slab_depot_slots(const struct quire_slab *slab)
{
    size_t slots = 0;
    for (const struct slab_mag *mag = slab->depot; mag; mag = mag->next)
        slots += mag->count;
    return slots;
}

/* How often it is in these. */
static size_t mag_has(const struct slab_mag *mag, size_t count, const void *slot)
{
    size_t found = 0;
    for (size_t i = 0; mag && i < count; i++)
        found += addr_load_relaxed(&slab_mag_slots(mag)[i]) == (uintptr_t)slot;
    return found;
}

static size_t list_has(const struct slab_mag *mag, const void *slot)
{
    size_t found = 0;
    for (; mag; mag = mag->next)
        found += mag_has(mag, mag->count, slot);
    return found;
}

size_t slab_cache_has(const struct slab_cache *cache, const void *slot)
{
    size_t found = mag_has(cache->cur, slab_current_count(cache), slot);
    return found + (cache->prev ? mag_has(cache->prev, cache->prev->count, slot) : 0) + list_has(cache->own, slot);
}

size_t slab_depot_has(const struct quire_slab *slab, const void *slot)
{
    return list_has(slab->depot, slot);
}

static const char *mag_check(const struct quire_slab *slab, const struct slab_mag *mag, size_t count)
{
    struct slab_place place;
    for (size_t i = 0; i < count; i++) {
        void *slot = (void *)addr_load_relaxed(&slab_mag_slots(mag)[i]);
        if (slab_locate(slab, slot, &place) || slab_slot_is_free(place.page, place.slot) || u64_load_relaxed(slot) != slab_mark_of(slot, mag->key))
            return "slab P4 a cached slot carries its magazine's mark, and is not free in its page";
    }
    return NULL;
}

/* Under the slab's lock. */
const char *slab_cache_check(const struct slab_cache *cache)
{
    const char *wrong = mag_check(cache->slab, cache->cur, slab_current_count(cache));
    if (!wrong && cache->prev)
        wrong = mag_check(cache->slab, cache->prev, cache->prev->count);
    for (const struct slab_mag *mag = cache->own; mag && !wrong; mag = mag->next)
        wrong = mag_check(cache->slab, mag, mag->count);
    return wrong;
}
