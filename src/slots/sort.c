// SPDX-License-Identifier: MIT
/*
 * sort.c - what a thread has freed, much of it and in any order, is handed out by rising addresses.
 *
 *     own:   | 7 2 9 |  | 4 8 1 |  | 3 6 5 |         one bit for each place, in those stretches of 128 places where any is
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

#include <string.h>

#include "base/bits.h"

enum { SORT_BYTES = 1 << 20, SLOT_LEAST = 128, NEAR = 4 << 10, JUMPS_PARTS = 8, SHIFT_MOST = 12 };
enum { STRETCH_WORDS = 2, STRETCH = STRETCH_WORDS * WORD_BITS, STRETCHES = 4096, USED_MAX = 254 };

void slots_sort_from(struct slot_cache *cache, const struct magazine *first, size_t slot_bytes)
{
    unsigned shift = bits_lowest(slot_bytes);
    if (slot_bytes < SLOT_LEAST || ((size_t)USED_MAX * STRETCH) << shift < SORT_BYTES + SORT_BYTES / 2)
        return; /* a miss costs less there than sorting; or places are so close that there are never enough of them */
    cache->shift = (uint8_t)(shift < SHIFT_MOST ? shift : SHIFT_MOST);
    cache->kin = (uint16_t)((first->key ^ slots_key) >> 48);
    cache->sort_least = (uint16_t)(SORT_BYTES / slots_magazine_bytes(slot_bytes) + 2);
}

/* How many of its slots take part. */
static inline uint32_t part_of(const struct slot_cache *cache, const struct magazine *mag)
{
    return mag->key == slots_key_of(cache->kin) ? mag->count : 0;
}

/* Those that lie as others do, at multiples of what all slots of a page differ by; it is the OS page at most. */
static inline bool is_placed(const struct slot_cache *cache, uintptr_t at)
{
    return (at & ((UINT64_C(1) << cache->shift) - 1)) == 0;
}

/* jumps: from one to the next, to another OS page. */
struct range {
    uintptr_t low, high;
    size_t count, jumps;
};

static struct range range_of(const struct slot_cache *cache)
{
    struct range range = {.low = UINTPTR_MAX};
    uintptr_t last = 0;
    uint32_t left = cache->unsorted;
    for (const struct magazine *mag = cache->own; left-- > 0; mag = mag->next) {
        uint32_t part = part_of(cache, mag);
        for (uint32_t i = 0; i < part; i++) {
            uintptr_t at = addr_load_relaxed(&magazine_slots(mag)[i]);
            if (unlikely(!is_placed(cache, at)))
                continue;
            range.low = at < range.low ? at : range.low;
            range.high = at > range.high ? at : range.high;
            range.jumps += at - last + NEAR > 2 * NEAR;
            last = at;
        }
        range.count += part;
    }
    return range;
}

/* A thread's slots lie in stretches, with those of other threads between: `used` says which, by rising numbers from 1 on.  Only these have places. */
struct order {
    uintptr_t low;
    unsigned shift;
    uint8_t used[STRETCHES];
    uint64_t places[1 + USED_MAX][STRETCH_WORDS];
};

static inline size_t place_of(const struct order *order, uintptr_t at)
{
    return (at - order->low) >> order->shift;
}

/* False: they are too many, so few are neighbours. */
static bool stretches_set(const struct slot_cache *cache, struct order *order)
{
    uint32_t left = cache->unsorted, number = 0;
    for (const struct magazine *mag = cache->own; left-- > 0; mag = mag->next) {
        uint32_t part = part_of(cache, mag);
        for (uint32_t i = 0; i < part; i++) {
            uintptr_t at = addr_load_relaxed(&magazine_slots(mag)[i]);
            if (likely(is_placed(cache, at)))
                order->used[place_of(order, at) / STRETCH] = 1;
        }
    }
    for (size_t stretch = 0; stretch < STRETCHES && number <= USED_MAX; stretch++)
        if (order->used[stretch])
            order->used[stretch] = (uint8_t)++number;
    return number <= USED_MAX;
}

/* False: one is there twice; which shows when it is handed out. */
static bool places_set(const struct slot_cache *cache, struct order *order)
{
    uint32_t left = cache->unsorted;
    for (const struct magazine *mag = cache->own; left-- > 0; mag = mag->next) {
        uint32_t part = part_of(cache, mag);
        for (uint32_t i = 0; i < part; i++) {
            uintptr_t at = addr_load_relaxed(&magazine_slots(mag)[i]);
            if (unlikely(!is_placed(cache, at)))
                continue;
            size_t place = place_of(order, at);
            uint64_t *word = &order->places[order->used[place / STRETCH]][place / WORD_BITS % STRETCH_WORDS], bit = UINT64_C(1) << place % WORD_BITS;
            if (unlikely(*word & bit))
                return false;
            *word |= bit;
        }
    }
    return true;
}

/* Where the walk along the places is. */
struct reached {
    size_t stretch, word;
    uint64_t bits;
};

static inline size_t next_place(const struct order *order, struct reached *at)
{
    while (!at->bits) {
        if (++at->word == STRETCH_WORDS) {
            do
                at->stretch++;
            while (!order->used[at->stretch]);
            at->word = 0;
        }
        at->bits = order->places[order->used[at->stretch]][at->word];
    }
    size_t place = at->stretch * STRETCH + at->word * WORD_BITS + bits_lowest(at->bits);
    at->bits &= at->bits - 1;
    return place;
}

static void write_back(struct slot_cache *cache, const struct order *order)
{
    struct reached at = {0, 0, order->places[1][0]}; /* the lowest slot's stretch is the first */
    uint32_t left = cache->unsorted;
    cache->is_sorting = true;
    atomic_fence_signal(); /* the child of a fork */
    for (struct magazine *mag = cache->own; left-- > 0; mag = mag->next)
        for (uint32_t i = part_of(cache, mag); i-- > 0;)
            if (likely(is_placed(cache, addr_load_relaxed(&magazine_slots(mag)[i]))))
                addr_store_relaxed(&magazine_slots(mag)[i], order->low + (next_place(order, &at) << order->shift));
    atomic_fence_signal();
    cache->is_sorting = false;
}

/* 8 KiB, half of what the smallest stacks have: one for all threads.  Who finds another at it goes without, this time. */
static struct order sort_order;
static atomic_u32 sort_is_taken;

static NOINLINE void order_by_places(struct slot_cache *cache, uintptr_t low)
{
    if (u32_exchange_acquire(&sort_is_taken, 1) != 0) /* acquire [slots-order] */
        return;
    memset(&sort_order, 0, sizeof sort_order);
    sort_order.low = low;
    sort_order.shift = cache->shift;
    if (stretches_set(cache, &sort_order) && places_set(cache, &sort_order))
        write_back(cache, &sort_order);
    u32_store_release(&sort_is_taken, 0); /* release [slots-order] */
}

void slots_after_fork(void)
{
    if (u32_load_relaxed(&sort_is_taken) != 0)
        u32_store_relaxed(&sort_is_taken, 0);
}

void slots_sort(struct slot_cache *cache)
{
    struct range range = range_of(cache);
    bool disordered = range.jumps > range.count / JUMPS_PARTS;
    if (disordered && (range.high - range.low) >> cache->shift < (size_t)STRETCHES * STRETCH)
        order_by_places(cache, range.low);
    cache->unsorted = 0;
}
