// SPDX-License-Identifier: MIT
/*
 * sort.c - what a thread has freed, much of it and in any order, is handed out by rising addresses.
 *
 *     own:   | 7 2 9 |  | 4 8 1 |  | 3 6 5 |         one bit for each place between the lowest and the highest
 *            | 1 2 3 |  | 4 5 6 |  | 7 8 9 |         the first is used first, from its lowest slot on
 *
 * Last in, first out keeps a little hot; of more than the second cache holds it keeps only the order in which the program frees, which is more at random
 * each time around.  Neighbours in memory then are no neighbours in time, and no processor fetches ahead.  Sorting costs some 2 ns a slot, once for each that
 * was freed and not missed, and no slot is touched: the magazines that take part have one key.
 *
 * Locks: none; who calls is alone with the cache, and inside an operation: the child of a fork goes by the marks then.
 * Not here: magazines (slots.c).
 */
#include "slots/slots.h"

#include "base/bits.h"

enum { SORT_BYTES = 1 << 20, SLOT_LEAST = 128, NEAR = 4 << 10, JUMPS_PARTS = 8, PLACES = 32 << 10 };

void slots_sort_from(struct slot_cache *cache, const struct magazine *first, size_t slot_bytes)
{
    if (slot_bytes < SLOT_LEAST || (size_t)PLACES << bits_lowest(slot_bytes) < 2 * (size_t)SORT_BYTES)
        return; /* a miss costs less there than sorting; or places are so close that there are never enough of them */
    size_t magazine_bytes = slot_bytes * magazine_room(slot_bytes, SLOTS_LARGE_BYTES, MAGAZINE_SLOTS);
    cache->kin = (uint16_t)((first->key ^ slots_key) >> 48);
    cache->sort_least = (uint16_t)(SORT_BYTES / magazine_bytes + 2);
}

/* How many of its slots take part. */
static inline uint32_t part_of(const struct slot_cache *cache, const struct magazine *mag)
{
    return mag->key == slots_key_of(cache->kin) ? mag->count : 0;
}

/* Of addresses: they differ by multiples of 1 << shift; jumps: from one to the next, to another OS page. */
struct range {
    uintptr_t low, high;
    unsigned shift;
    size_t count, jumps;
};

static struct range range_of(const struct slot_cache *cache)
{
    uintptr_t low = UINTPTR_MAX, high = 0, any = 0, last = 0;
    size_t count = 0, jumps = 0;
    uint32_t left = cache->unsorted;
    for (const struct magazine *mag = cache->own; left-- > 0; mag = mag->next) {
        uint32_t part = part_of(cache, mag);
        for (uint32_t i = 0; i < part; i++) {
            uintptr_t at = addr_load_relaxed(&magazine_slots(mag)[i]);
            low = at < low ? at : low;
            high = at > high ? at : high;
            any |= at;
            jumps += at - last + NEAR > 2 * NEAR;
            last = at;
        }
        count += part;
    }
    return (struct range){low, high, any ? bits_lowest(any) : 0, count, jumps};
}

/* False: one is there twice; which shows when it is handed out. */
static bool places_set(const struct slot_cache *cache, struct range range, uint64_t *places)
{
    uint32_t left = cache->unsorted;
    for (const struct magazine *mag = cache->own; left-- > 0; mag = mag->next) {
        uint32_t part = part_of(cache, mag);
        for (uint32_t i = 0; i < part; i++) {
            size_t place = (addr_load_relaxed(&magazine_slots(mag)[i]) - range.low) >> range.shift;
            uint64_t bit = UINT64_C(1) << place % WORD_BITS;
            if (unlikely(places[place / WORD_BITS] & bit))
                return false;
            places[place / WORD_BITS] |= bit;
        }
    }
    return true;
}

static void write_back(struct slot_cache *cache, struct range range, const uint64_t *places)
{
    const uint64_t *word = places;
    uint64_t bits = *word;
    uint32_t left = cache->unsorted;
    cache->is_sorting = true;
    atomic_fence_signal(); /* the child of a fork */
    for (struct magazine *mag = cache->own; left-- > 0; mag = mag->next) {
        for (uint32_t i = part_of(cache, mag); i-- > 0; bits &= bits - 1) {
            while (!bits)
                bits = *++word;
            size_t place = (size_t)(word - places) * WORD_BITS + bits_lowest(bits);
            addr_store_relaxed(&magazine_slots(mag)[i], range.low + (place << range.shift));
        }
    }
    atomic_fence_signal();
    cache->is_sorting = false;
}

void slots_sort(struct slot_cache *cache)
{
    struct range range = range_of(cache);
    bool disordered = range.jumps > range.count / JUMPS_PARTS;
    if (disordered && (range.high - range.low) >> range.shift < PLACES) { /* wider: few are neighbours */
        uint64_t places[PLACES / WORD_BITS] = {0};
        if (places_set(cache, range, places))
            write_back(cache, range, places);
    }
    cache->unsorted = 0;
}
