// SPDX-License-Identifier: MIT
/*
 * slab_cache_look.c - whether all that is in a cache is as it should be.
 *
 * Locks: as each function says in slab_internal.h.  Not here: anything that changes them (slab_cache.c), how much there is (slots/slots.c).
 */
#include "slab/slab_internal.h"

static bool mag_is_sound(const struct magazine *mag, size_t count, void *slab)
{
    struct slab_place place;
    for (size_t i = 0; i < count; i++) {
        void *slot = (void *)addr_load_relaxed(&magazine_slots(mag)[i]);
        if (slab_locate(slab, slot, &place) || slab_slot_is_free(place.page, place.slot) || u64_load_relaxed(slot) != slots_mark(slot, mag->key))
            return false;
    }
    return true;
}

/* Under the slab's lock. */
const char *slab_cache_check(const struct slab_cache *cache)
{
    bool sound = slots_each(&cache->slots, mag_is_sound, cache->slab);
    return sound ? NULL : "slab P4 a cached slot carries its magazine's mark, and is not free in its page";
}
