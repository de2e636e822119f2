// SPDX-License-Identifier: MIT
/*
 * slots.h - free slots of one size, cached by a thread: magazines, and the mark that a slot in one carries.
 *
 *     struct slot_cache   cur ----> struct magazine | &slots_nothing | slot | slot | slot |
 *                         top ------------------------------------------------------------^   behind the last; `end`: frees go no further
 *                         prev ---> a second one          own ---> full ones          spare ---> empty ones
 *     struct slot_depot   full ---> those that no thread has
 *
 * Magazines as in Bonwick and Adams, "Magazines and Vmem" (2001).  A magazine says which slots are free, and each of its slots says so too: its first
 * word is its address under the magazine's key.  An alloc reads that word: it proves that the slot is free, that nobody has written to it, that it is in
 * no other magazine, and (because of what stands below the first slot) that the magazine is not empty, by one comparison.  Where magazines of a cache share
 * a key, the second copy is found when it is about to be handed out after the first: a mark is good for one alloc.
 *
 * Whose slots these are, where more come from and where they go to, is the allocator's: slab/slab_cache.c, heap/heap_cache.c.
 *
 * Locks: none; who calls is alone with the cache.
 */
#ifndef QUIRE_SLOTS_SLOTS_H
#define QUIRE_SLOTS_SLOTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/atomic.h"
#include "base/compiler.h"

C_DECLARATIONS_BEGIN

enum { MAGAZINE_SLOTS = 121, MAGAZINE_BELOW = 4, SLOTS_LARGE_BYTES = 64 << 10 };

/* Pointers to free slots, behind this; each slot's mark names the magazine by its key. */
struct magazine {
    struct magazine *next;
    uint64_t key;
    uint32_t count; /* but for a cache's current one: there `top` says it */
    uint16_t id;    /* names its own key */
    uint8_t room;
    uint8_t is_small; /* lies in a cache; is never on a list */
    /* &slots_nothing.  What the top of an empty magazine points to never carries a mark; and who fetches ahead finds addresses here that are mapped. */
    const void *below[MAGAZINE_BELOW];
};

/* One thread's free slots of one size. */
struct slot_cache {
    atomic_addr top; /* atomic_addr *: behind the last slot of `cur` */
    uint64_t key;    /* cur's */
    atomic_addr *end; /* frees go no further; `cur` may have been filled further */
    struct magazine *cur, *prev; /* prev: NULL, or full, or empty */
    struct magazine *own, *spare; /* full ones before those of all threads, and empty ones: what goes from CPU to CPU costs more than all else */
    const atomic_u32 *shut; /* NULL, or not 0: nothing is to be put into magazines */
    uint32_t demand; /* magazines' worth had from elsewhere, less what was given back and not missed: a thread that only frees keeps none, or less than a batch */
    uint16_t owns;
    uint16_t unsorted;   /* of `own`, the first: came since they were sorted */
    uint16_t sort_least; /* so many are sorted before they are used; 0: never */
    uint16_t kin; /* 0, or names the one key of all magazines that are filled here: these can exchange slots */
    uint8_t shift; /* where slots are sorted: they lie at multiples of 1 << shift */
    bool is_sorting; /* some slots are in two magazines, others in none */
    bool has_had; /* a magazine from elsewhere, since one went there */
    uint8_t batch; /* so many more go elsewhere, or come from there, at once; 0 until others were at the same lock */
    uint32_t drained; /* slots that passed the magazines by, and the allocator's count does not know of yet */
    bool drains; /* `cur` is full and stays so: what is freed passes it by */
};

extern const atomic_u64 slots_nothing;
extern uint64_t slots_key; /* of the process; 48 bits */
void slots_setup(void); /* the key: before the first magazine; once, whoever comes */

/*
 * What a free slot's first word is: its address, under the key of the magazine that it is, or was, in.  Magazines' keys differ from the process's in
 * the upper 16 bits.  A live slot has such a word by chance once in 2^48: who meets one looks into all magazines before it is called free.
 */
static ALWAYS_INLINE uint64_t slots_mark(const void *slot, uint64_t key)
{
    return (uintptr_t)slot ^ key;
}

/* Of any magazine. */
static inline bool slots_is_marked(const void *slot)
{
    return (u64_load_relaxed((const atomic_u64 *)slot) ^ slots_mark(slot, slots_key)) << 16 == 0;
}

static inline uint64_t slots_key_of(uint16_t id)
{
    return slots_key ^ (uint64_t)id << 48;
}

static inline atomic_addr *magazine_slots(const struct magazine *mag)
{
    return (atomic_addr *)(uintptr_t)(mag + 1);
}

void magazine_init(struct magazine *mag, uint32_t room);
/* So many slots as take up `bytes`, but four at least, and `most`. */
uint32_t magazine_room(size_t slot_bytes, size_t bytes, uint32_t most);
size_t slots_magazine_bytes(size_t slot_bytes); /* of the slots of a full large one */
uint32_t slots_own_max(size_t slot_bytes, uint32_t most); /* so many full ones are 16 MiB, and `most`; of slots above 2 KiB one: what a thread keeps for itself, where slots turn over */

static inline uint32_t slots_current(const struct slot_cache *cache)
{
    return (uint32_t)((atomic_addr *)addr_load_relaxed(&cache->top) - magazine_slots(cache->cur));
}

static inline void slots_sync(struct slot_cache *cache)
{
    cache->cur->count = slots_current(cache);
}

/* `mag` is the current one from now on; the one before has been synced, or is of no use.  The child of a fork finds each slot at least once. */
void slots_set(struct slot_cache *cache, struct magazine *mag);
/* A magazine's worth came from elsewhere. */
static inline void slots_had(struct slot_cache *cache)
{
    cache->demand++;
    cache->has_had = true;
}

/* `cur` is empty, and there is another of the thread's own.  False: there is none. */
bool slots_turn(struct slot_cache *cache);
/* `cur` is full, and one of the thread's own has room.  False: there is none, or it is not full. */
bool slots_return(struct slot_cache *cache, uint32_t own_max);
/* `cur` is full, slots_return() found no room, and no magazine more is to be kept. */
static inline bool slots_are_enough(const struct slot_cache *cache, uint32_t own_max)
{
    return (cache->prev || cache->demand == 0) && (cache->owns >= own_max || cache->owns >= cache->demand + cache->batch);
}

/* Where full magazines go to, and empty ones come from. */
struct slots_beyond {
    void (*give)(struct magazine *full, void *arg); /* a list; what empty ones it leaves here are spare */
    struct magazine *(*fresh)(void *arg); /* a spare one, or another; NULL: no memory */
    void *arg;
};
/* `cur`, which is not small, is full, and slots_return() found no room.  `small`: the cache's, where there is no memory for another. */
void slots_overflow(struct slot_cache *cache, uint32_t own_max, const struct slots_beyond *beyond, struct magazine *small);
/* If slots are so large that it is worth it: the magazines that are filled here have the key of `first`, and are sorted when much was freed (sort.c). */
void slots_sort_from(struct slot_cache *cache, const struct magazine *first, size_t slot_bytes);
/* Others are at the lock that is taken for each: from now on more magazines go at once, and it is taken less often. */
void slots_batch(struct slot_cache *cache, size_t slot_bytes);
void slots_sort(struct slot_cache *cache); /* those unsorted, while nobody who must find each slot looks */
void slots_after_fork(void); /* in the child: nobody sorts */
struct magazine *slots_take_own(struct slot_cache *cache); /* a list */
/* All that are not small and hold something, perhaps: one list. */
struct magazine *slots_take_all(struct slot_cache *cache);
/* After that: it begins anew with `small`, which is empty.  Returns what was spare. */
struct magazine *slots_clear(struct slot_cache *cache, struct magazine *small);

/* Of lists that all threads share others may ask without the lock whether there is any. */
static inline void magazine_push(struct magazine **list, struct magazine *mag)
{
    mag->next = *list;
    __atomic_store_n(list, mag, __ATOMIC_RELAXED);
}

static inline struct magazine *magazine_pop(struct magazine **list)
{
    struct magazine *mag = *list;
    if (mag)
        __atomic_store_n(list, mag->next, __ATOMIC_RELAXED);
    return mag;
}

/* ---- what all threads share; under the allocator's lock.  `vacant`: empty ones, of those who took full ones, for who brings some ---- */

struct slot_depot {
    struct magazine *full;
    uint32_t count;
};

struct magazine *slots_depot_pop(struct slot_depot *depot); /* NULL: there is none */
/* A full one, to be the current one, and a batch beside it; an empty one is vacant in the place of each.  NULL: there is none. */
struct magazine *slots_depot_take(struct slot_cache *cache, struct slot_depot *depot, struct magazine **vacant);
/* Those of a list that hold something, until `most` are there; vacant ones are spare in their place.  The others stay in the list. */
void slots_depot_put(struct slot_cache *cache, struct slot_depot *depot, struct magazine **vacant, struct magazine **list, uint32_t most);

/* ---- looking; also while the thread moves: then it may be off by what moved ---- */

size_t magazines_count(const struct magazine *list);
size_t magazines_have(const struct magazine *list, const void *slot); /* how often: more than once is a double free */
size_t slots_count(const struct slot_cache *cache);
size_t slots_have(const struct slot_cache *cache, const void *slot);
/* fn for each magazine of the cache with the number of its slots, until it returns false; so does this then. */
bool slots_each(const struct slot_cache *cache, bool (*fn)(const struct magazine *mag, size_t count, void *arg), void *arg);

C_DECLARATIONS_END
#endif
