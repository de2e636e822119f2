// SPDX-License-Identifier: MIT
/*
 * slots.c - magazines of one thread: which is the current one, and which are kept.
 *
 *     alloc: the top of `cur`  <- prev  <- own  | <- what all threads share
 *     free:  the top of `cur`  -> prev  -> own  | -> what all threads share         behind the bar: a depot, then the allocator's
 *
 * Locks: none; who calls is alone with the cache.
 */
#include "base/layout.h"
#include "slots/slots.h"

#include "base/random.h"

STATIC_ASSERT(offsetof(struct magazine, below) + MAGAZINE_BELOW * sizeof(void *) == sizeof(struct magazine), "what an empty magazine's top finds");

enum { OWN_BYTES = 16 << 20, OWN_SLOT_BYTES_MOST = 2 << 10, BATCH = 3, BATCH_BYTES = 32 << 10 };

const atomic_u64 slots_nothing;
uint64_t slots_key;
static atomic_u32 made;

void slots_setup(void)
{
    uint64_t none = 0;
    if (__atomic_load_n(&slots_key, __ATOMIC_RELAXED) == 0)
        __atomic_compare_exchange_n(&slots_key, &none, random_seed() >> 16 | 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void magazine_init(struct magazine *mag, uint32_t room)
{
    uint16_t id = (uint16_t)(u32_add_relaxed(&made, 1) % UINT16_MAX + 1); /* 0: of slots in their pages */
    *mag = (struct magazine){.key = slots_key_of(id), .id = id, .room = (uint8_t)room, .below = {&slots_nothing, &slots_nothing, &slots_nothing, &slots_nothing}};
}

uint32_t magazine_room(size_t slot_bytes, size_t bytes, uint32_t most)
{
    size_t slots = bytes / slot_bytes;
    return slots > most ? most : slots < 4 ? 4 : (uint32_t)slots;
}

size_t slots_magazine_bytes(size_t slot_bytes)
{
    return slot_bytes * magazine_room(slot_bytes, SLOTS_LARGE_BYTES, MAGAZINE_SLOTS);
}

uint32_t slots_own_max(size_t slot_bytes, uint32_t most)
{
    size_t own = slot_bytes > OWN_SLOT_BYTES_MOST ? 1 : OWN_BYTES / slots_magazine_bytes(slot_bytes) + 1;
    return own < most ? (uint32_t)own : most;
}

void slots_set(struct slot_cache *cache, struct magazine *mag)
{
    bool shut = cache->shut && u32_load_relaxed(cache->shut) != 0;
    if (mag->count == 0)
        mag->key = slots_key_of(cache->kin ? cache->kin : mag->id);
    cache->cur = mag;
    cache->key = mag->key;
    cache->drains = false;
    addr_store_relaxed(&cache->top, (uintptr_t)&magazine_slots(mag)[mag->count]);
    __atomic_store_n(&cache->end, &magazine_slots(mag)[shut ? 0 : mag->room], __ATOMIC_RELAXED);
    atomic_fence_signal();
    mag->count = 0;
}

static void own_push(struct slot_cache *cache, struct magazine *full)
{
    magazine_push(&cache->own, full);
    cache->owns++;
    cache->unsorted++;
}

static struct magazine *own_pop(struct slot_cache *cache)
{
    struct magazine *mag = magazine_pop(&cache->own);
    cache->owns--;
    if (cache->unsorted)
        cache->unsorted--;
    return mag;
}

bool slots_turn(struct slot_cache *cache)
{
    struct magazine *mag = cache->prev, *empty = cache->cur;
    if (slots_current(cache) != 0)
        return false;
    if (mag && mag->count) {
        cache->prev = empty;
    } else if (cache->own && !empty->is_small) {
        if (cache->unsorted >= cache->sort_least && cache->sort_least)
            slots_sort(cache);
        mag = own_pop(cache);
        magazine_push(&cache->spare, empty); /* one more than there were: as many as it had magazines at most */
    } else {
        return false;
    }
    slots_set(cache, mag);
    return true;
}

void slots_batch(struct slot_cache *cache, size_t slot_bytes)
{
    size_t batch = BATCH_BYTES / slots_magazine_bytes(slot_bytes);
    cache->batch = (uint8_t)(batch < BATCH ? batch : BATCH);
}

/* A full magazine stays with the thread, if it has had as much, or until there is a batch.  False: it does not. */
static bool keep(struct slot_cache *cache, struct magazine *full, uint32_t own_max)
{
    if (cache->owns >= own_max || cache->owns >= cache->demand + cache->batch)
        return false;
    own_push(cache, full);
    return true;
}

bool slots_return(struct slot_cache *cache, uint32_t own_max)
{
    struct magazine *full = cache->cur, *prev = cache->prev, *empty = prev;
    if (!prev || (atomic_addr *)addr_load_relaxed(&cache->top) < cache->end || cache->end == magazine_slots(full))
        return false;
    if (prev->count) {
        if (!cache->spare || !keep(cache, prev, own_max))
            return false;
        empty = magazine_pop(&cache->spare);
    }
    slots_sync(cache);
    cache->prev = full;
    slots_set(cache, empty);
    return true;
}

/*
 * A full magazine leaves the cache's two, and with it a batch of those that are kept beyond what the thread has had.
 *
 * The first that goes after one came would have been of use here: the thread may keep one more from then on, and what it turns over stops going from CPU to CPU.
 */
static void retire(struct slot_cache *cache, struct magazine *full, uint32_t own_max, const struct slots_beyond *beyond)
{
    if (keep(cache, full, own_max))
        return;
    cache->demand -= cache->demand != 0 && !cache->has_had;
    cache->has_had = false;
    full->next = NULL;
    for (uint32_t i = 0; i < cache->batch && cache->own && cache->owns > cache->demand; i++)
        magazine_push(&full, own_pop(cache));
    beyond->give(full, beyond->arg);
}

void slots_overflow(struct slot_cache *cache, uint32_t own_max, const struct slots_beyond *beyond, struct magazine *small)
{
    struct magazine *full = cache->cur, *prev = cache->prev, *leaving = prev;
    slots_sync(cache);
    if (!prev && cache->demand == 0)
        leaving = full; /* a thread that only frees has one */
    if (leaving)
        retire(cache, leaving, own_max, beyond);
    struct magazine *empty = beyond->fresh(beyond->arg);
    bool stays = leaving != full && empty;
    if (!empty && leaving != full) {
        retire(cache, full, 0, beyond);
        empty = magazine_pop(&cache->spare);
    }
    cache->prev = stays ? full : NULL;
    slots_set(cache, empty ? empty : small);
}

struct magazine *slots_take_own(struct slot_cache *cache)
{
    struct magazine *own = cache->own;
    cache->own = NULL;
    cache->owns = cache->unsorted = 0;
    return own;
}

struct magazine *slots_take_all(struct slot_cache *cache)
{
    struct magazine *all = slots_take_own(cache), *mine[] = {cache->cur, cache->prev};
    slots_sync(cache);
    for (int i = 0; i < 2; i++)
        if (mine[i] && !mine[i]->is_small)
            magazine_push(&all, mine[i]);
    cache->prev = NULL;
    return all;
}

struct magazine *slots_clear(struct slot_cache *cache, struct magazine *small)
{
    struct magazine *spare = cache->spare;
    slots_set(cache, small);
    cache->spare = NULL;
    cache->demand = cache->batch = 0;
    cache->has_had = false;
    return spare;
}

/* ---- depots ---- */

struct magazine *slots_depot_pop(struct slot_depot *depot)
{
    struct magazine *mag = magazine_pop(&depot->full);
    depot->count -= mag != NULL;
    return mag;
}

struct magazine *slots_depot_take(struct slot_cache *cache, struct slot_depot *depot, struct magazine **vacant)
{
    struct magazine *first = slots_depot_pop(depot), *empty = cache->cur, *mag;
    if (first && empty && !empty->is_small)
        magazine_push(vacant, empty);
    for (uint32_t i = 0; i < cache->batch && (mag = slots_depot_pop(depot)) != NULL; i++) {
        own_push(cache, mag);
        slots_had(cache);
        if ((empty = magazine_pop(&cache->spare)) != NULL)
            magazine_push(vacant, empty);
    }
    return first;
}

void slots_depot_put(struct slot_cache *cache, struct slot_depot *depot, struct magazine **vacant, struct magazine **list, uint32_t most)
{
    struct magazine *rest = NULL, *mag, *empty;
    while ((mag = magazine_pop(list)) != NULL) {
        bool stays = mag->count == 0 || depot->count >= most;
        magazine_push(stays ? &rest : &depot->full, mag);
        depot->count += !stays;
        if (!stays && (empty = magazine_pop(vacant)) != NULL) {
            empty->room = mag->room;
            magazine_push(&cache->spare, empty);
        }
    }
    *list = rest;
}

/* ---- looking ---- */

size_t magazines_count(const struct magazine *list)
{
    size_t slots = 0;
    for (; list; list = list->next)
        slots += list->count;
    return slots;
}

static size_t magazine_has(const struct magazine *mag, size_t count, const void *slot)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += addr_load_relaxed(&magazine_slots(mag)[i]) == (uintptr_t)slot;
    return found;
}

size_t magazines_have(const struct magazine *list, const void *slot)
{
    size_t found = 0;
    for (; list; list = list->next)
        found += magazine_has(list, list->count, slot);
    return found;
}

size_t slots_count(const struct slot_cache *cache)
{
    uint32_t current = slots_current(cache);
    return (likely(current <= cache->cur->room) ? current : 0) /* in the middle of slots_set() */ + (cache->prev ? cache->prev->count : 0) + magazines_count(cache->own);
}

size_t slots_have(const struct slot_cache *cache, const void *slot)
{
    size_t found = magazine_has(cache->cur, slots_current(cache), slot) + magazines_have(cache->own, slot);
    return found + (cache->prev ? magazine_has(cache->prev, cache->prev->count, slot) : 0);
}

bool slots_each(const struct slot_cache *cache, bool (*fn)(const struct magazine *mag, size_t count, void *arg), void *arg)
{
    if (!fn(cache->cur, slots_current(cache), arg) || (cache->prev && !fn(cache->prev, cache->prev->count, arg)))
        return false;
    for (const struct magazine *mag = cache->own; mag; mag = mag->next)
        if (!fn(mag, mag->count, arg))
            return false;
    return true;
}

static const LAYOUT struct layout_row layout[] = {
    LAYOUT_STRUCT(magazine), LAYOUT_FIELD(magazine, next), LAYOUT_FIELD(magazine, count), LAYOUT_FIELD(magazine, room),
};
