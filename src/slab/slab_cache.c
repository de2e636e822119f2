// SPDX-License-Identifier: MIT
/*
 * slab_cache.c - a thread's free slots: magazines, and where they come from and go to.
 *
 *     alloc: the top of `cur`  <- prev  <- own  | <- the slab's depot <- its pages
 *     free:  the top of `cur`  -> prev  -> own  | -> the slab's depot -> its pages         behind the bar: under the slab's lock
 *
 * Magazines over a depot, as in Bonwick and Adams, "Magazines and Vmem" (2001), with a depot of the thread's own before the shared one: full arrays
 * that go from CPU to CPU cost more than all else.
 *
 * A magazine says which slots are free, and each of its slots says so too: its first word is its address under the magazine's key.  An alloc reads
 * that word: it proves that the slot is free, that nobody has written to it, that it is in no other magazine, and (because of what stands below
 * the first slot) that the magazine is not empty, by one comparison.
 *
 * At first each thread has one small magazine, inside its cache, and what is freed beyond it goes to its page at once.  When slots that went to their
 * pages are missed, what is freed is allocated again: from then on magazines are large and depots deep, unless so much is free in the pages that
 * these had better drain.  A tick that finds more cached than is allowed sends all of it to the pages (slab_trim.c).
 *
 * Locks: the caller has the thread's record; here the slab's, and that of the slab of magazines, never both.
 * Not here: the short ways (slab.c, slab_free.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "slab/slab_internal.h"

enum { LARGE_BYTES = 64 << 10, SMALL_BYTES = 16 << 10, FILL_BYTES = 16 << 10, OWN_BYTES = 4 << 20, SPARSE_PARTS = 5, SPARSE_BYTES = 256 << 10 };

STATIC_ASSERT(offsetof(struct slab_mag, below) + sizeof(void *) == sizeof(struct slab_mag), "what an empty magazine's top finds");
STATIC_ASSERT(offsetof(struct slab_cache, small_slot) == offsetof(struct slab_cache, small) + sizeof(struct slab_mag), "the small magazine's slots");

const atomic_u64 slab_nothing;
uint64_t slab_key;
atomic_size slab_cached_bytes;
static struct quire_slab *mags; /* whose elements are magazines; on no list */
static atomic_u32 mags_made;

int slab_mags_setup(void)
{
    if (mags)
        return 0;
    if (os_entropy(&slab_key, sizeof slab_key) != 0)
        slab_key = (uintptr_t)&slab_key * UINT64_C(0x9e3779b97f4a7c15) ^ os_time_ns();
    slab_key >>= 16;
    mags = slab_create(sizeof(struct slab_mag) + SLAB_MAG_SLOTS * sizeof(atomic_addr), &(struct quire_slab_opts){.name = "magazines"}, false, false);
    return mags ? 0 : -1;
}

bool slab_mags_after_fork(void)
{
    return mags && lock_reset(&mags->lock);
}

static void page_empty(struct slab_page *page)
{
    for (unsigned w = 0; w < page->words; w++)
        page->free[w] = slab_word_bits(page, w);
}

void slab_mags_anew(void)
{
    if (!mags)
        return;
    page_empty(mags->home);
    slab_headers_each(mags, page_empty);
    slab_repair(mags);
}

/* ---- one magazine ---- */

static void mag_init(struct slab_mag *mag, uint32_t room)
{
    uint64_t id = u32_add_relaxed(&mags_made, 1) % UINT16_MAX + 1; /* 0: of slots in their pages */
    *mag = (struct slab_mag){.key = slab_key ^ id << 48, .room = room, .below = &slab_nothing};
}

/* Slots up to 64 KiB, but four at least. */
static uint32_t room_of(const struct quire_slab *slab, size_t bytes, uint32_t most)
{
    size_t slots = bytes / slab->slot_bytes;
    return slots > most ? most : slots < 4 ? 4 : (uint32_t)slots;
}

static struct slab_mag *mag_new(struct slab_cache *cache)
{
    struct slab_mag *mag = cache->spare;
    if (mag) {
        cache->spare = mag->next;
        cache->spares--;
        return mag;
    }
    mag = slab_take_one(mags, LANE_ORDINARY);
    if (mag)
        mag_init(mag, room_of(cache->slab, LARGE_BYTES, SLAB_MAG_SLOTS));
    return mag;
}

/* How many full magazines a thread keeps for itself at most, and half of what the slab keeps for all. */
static uint32_t own_max(const struct quire_slab *slab)
{
    return u32_load_relaxed(&slab->turning) ? OWN_BYTES / (uint32_t)slab->slot_bytes / SLAB_MAG_SLOTS + 1 : 0;
}

static void mag_delete(struct slab_cache *cache, struct slab_mag *mag)
{
    if (mag == NULL || mag == &cache->small)
        return;
    if (cache->spares < own_max(cache->slab) + 2) {
        mag->next = cache->spare;
        cache->spare = mag;
        cache->spares++;
    } else {
        slab_put_one(mags, mag);
    }
}

static void set_current(struct slab_cache *cache, struct slab_mag *mag)
{
    uint32_t cap = mag == &cache->small ? room_of(cache->slab, SMALL_BYTES, SLAB_SMALL_SLOTS) : mag->room;
    cache->cur = mag;
    cache->key = mag->key;
    addr_store_relaxed(&cache->top, (uintptr_t)&slab_mag_slots(mag)[mag->count]);
    __atomic_store_n(&cache->end, &slab_mag_slots(mag)[u32_load_relaxed(&cache->slab->defrag) ? 0 : cap], __ATOMIC_RELAXED);
}

static void sync_current(struct slab_cache *cache)
{
    cache->cur->count = slab_current_count(cache);
}

void slab_cache_init(struct slab_cache *cache, struct quire_slab *slab)
{
    *cache = (struct slab_cache){.slab = slab};
    mag_init(&cache->small, SLAB_SMALL_SLOTS);
    cache->cur = &cache->small;
    cache->key = cache->small.key;
    cache->end = slab_mag_slots(&cache->small);
    addr_store_relaxed(&cache->top, (uintptr_t)slab_mag_slots(&cache->small));
    if (slab) {
        set_current(cache, &cache->small);
        size_add_relaxed(&slab_cached_bytes, SLAB_SMALL_SLOTS * slab->slot_bytes);
    }
}

/* ---- pages ---- */

/* All of a magazine, under the slab's lock. */
static void spill_locked(struct quire_slab *slab, struct slab_mag *mag)
{
    struct slab_place place = {.page = NULL};
    for (uint32_t i = 0; i < mag->count; i++) {
        void *slot = (void *)addr_load_relaxed(&slab_mag_slots(mag)[i]);
        const char *wrong = slab_locate(slab, slot, &place);
        if (unlikely(wrong != NULL) || unlikely(slab_slot_is_free(place.page, place.slot)))
            slab_refuse(slab, SLAB_E1, slot); /* a page does not go while a slot of it is here once */
        slab_page_put(place.page, place.slot);
    }
    slab->spilled += mag->count;
    mag->count = 0;
}

static void spill(struct quire_slab *slab, struct slab_mag *mag)
{
    slab_lock(slab);
    spill_locked(slab, mag);
    slab_unlock(slab);
}

/* Pages with holes are to be filled by what is allocated next, and not by what was freed last: so they drain, and go back. */
static bool is_sparse(const struct quire_slab *slab)
{
    return slab->free_slots > slab->slots / SPARSE_PARTS && slab->free_slots > 2 * slab->swing && slab->held_bytes > SPARSE_BYTES;
}

/* So many slots come from a page, as many as went there before: they are missed. */
static void miss(struct slab_cache *cache, size_t count)
{
    struct quire_slab *slab = cache->slab;
    slab->spilled -= count;
    cache->run += count;
    if (cache->run > cache->run_most) {
        slab->swing += cache->run - cache->run_most;
        cache->run_most = cache->run;
    }
    u32_store_relaxed(&slab->turning, !is_sparse(slab) && !u32_load_relaxed(&slab->defrag) && !reaper_keeps_nothing());
}

static void release_held(struct slab_cache *cache)
{
    if (cache->held)
        slab_page_settle(cache->held);
    cache->held = NULL;
}

/* From a page into an empty magazine. */
static bool fill_locked(struct slab_cache *cache, struct slab_mag *mag)
{
    struct quire_slab *slab = cache->slab;
    uint32_t want = slab->fill < mag->room ? slab->fill : mag->room;
    if (cache->held && cache->held->free_count == 0)
        release_held(cache);
    struct slab_page *page = cache->held ? cache->held : slab_page_next(slab, LANE_ORDINARY);
    if (!page)
        return false;
    mag->count = slab_page_take(page, slab_mag_slots(mag), want, mag->key);
    if (slab->spilled >= mag->count)
        miss(cache, mag->count);
    if (mag != &cache->small && page->free_count != 0) {
        cache->held = page; /* threads that allocate side by side do not share lines */
    } else {
        cache->held = NULL;
        slab_page_settle(page);
    }
    return true;
}

/* ---- the long ways ---- */

/* The turnover is worth a large magazine; the small one is empty. */
static void grow(struct slab_cache *cache)
{
    if (cache->cur != &cache->small || u32_load_relaxed(&cache->slab->turning) == 0)
        return;
    struct slab_mag *mag = mag_new(cache);
    if (mag) {
        set_current(cache, mag);
        size_add_relaxed(&slab_cached_bytes, 2 * mag->room * cache->slab->slot_bytes);
    }
}

static void wake(struct quire_slab *slab)
{
    if (unlikely(u32_load_relaxed(&slab->pending) == 0) && size_load_relaxed(&slab_cached_bytes) > REAPER_FLOOR_BYTES)
        slab_wake(slab);
}

/* `cur` is empty, and there is another of the thread's own: no lock is needed. */
bool slab_cache_turn(struct slab_cache *cache)
{
    struct slab_mag *mag = cache->prev, *empty = cache->cur;
    if (slab_current_count(cache) != 0)
        return false;
    if (mag && mag->count) {
        cache->prev = empty;
    } else if ((mag = cache->own) != NULL && empty != &cache->small) {
        cache->own = mag->next;
        cache->owns--;
        empty->next = cache->spare; /* one more than there were: as many as it had magazines at most */
        cache->spare = empty;
        cache->spares++;
    } else {
        return false;
    }
    empty->count = 0;
    set_current(cache, mag);
    return true;
}

/* `cur` is empty. */
static bool refill(struct slab_cache *cache)
{
    struct quire_slab *slab = cache->slab;
    struct slab_mag *mag;
    wake(slab);
    if (slab_cache_turn(cache))
        return true;
    grow(cache);
    slab_lock(slab);
    bool filled = true;
    if ((mag = slab->depot) != NULL) {
        slab->depot = mag->next;
        slab->depot_count--;
    } else {
        filled = fill_locked(cache, cache->cur);
    }
    slab_unlock(slab);
    cache->demand++;
    if (mag)
        mag_delete(cache, cache->cur);
    set_current(cache, mag ? mag : cache->cur);
    return filled;
}

void *slab_cache_alloc(struct slab_cache *cache, void **bad)
{
    sync_current(cache);
    if (cache->cur->count == 0 && !refill(cache))
        return NULL;
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->top) - 1;
    void *slot = (void *)addr_load_relaxed(top);
    if (unlikely(u64_load_relaxed(slot) != slab_mark_of(slot, cache->key))) {
        *bad = slot;
        return NULL;
    }
    addr_store_relaxed(&cache->top, (uintptr_t)top);
    u64_store_relaxed(slot, 0);
    return slot;
}

/* A full magazine stays with the thread, if it has allocated as much. */
static bool keep(struct slab_cache *cache, struct slab_mag *full)
{
    if (cache->owns >= own_max(cache->slab) || cache->owns >= cache->demand)
        return false;
    full->next = cache->own;
    cache->own = full;
    cache->owns++;
    size_add_relaxed(&slab_cached_bytes, full->count * cache->slab->slot_bytes);
    return true;
}

/* `cur` is full, and one of the thread's own has room: no lock is needed. */
bool slab_cache_return(struct slab_cache *cache)
{
    struct slab_mag *full = cache->cur, *prev = cache->prev, *empty = prev;
    if (!prev || (atomic_addr *)addr_load_relaxed(&cache->top) < cache->end || cache->end == slab_mag_slots(full))
        return false;
    if (prev->count) {
        empty = cache->spare;
        if (!empty || !keep(cache, prev))
            return false;
        cache->spare = empty->next;
        cache->spares--;
    }
    sync_current(cache);
    cache->prev = full;
    set_current(cache, empty);
    return true;
}

/* A full magazine leaves the cache's two.  False: it went to the pages, and is empty. */
static bool retire(struct slab_cache *cache, struct slab_mag *full)
{
    struct quire_slab *slab = cache->slab;
    if (keep(cache, full))
        return true;
    cache->demand -= cache->demand != 0;
    slab_lock(slab);
    bool kept = slab->depot_count < 2 * own_max(slab);
    if (kept) {
        full->next = slab->depot;
        slab->depot = full;
        slab->depot_count++;
    } else {
        spill_locked(slab, full);
        cache->run = 0;
    }
    slab_unlock(slab);
    return kept;
}

/* `cur` has no room for another. */
static void overflow(struct slab_cache *cache)
{
    struct slab_mag *full = cache->cur, *prev = cache->prev, *leaving = prev, *empty;
    wake(cache->slab);
    if (full == &cache->small) {
        spill(cache->slab, full);
        cache->run = 0;
        set_current(cache, full);
        grow(cache);
        return;
    }
    if (slab_cache_return(cache))
        return;
    if (!prev && cache->demand == 0)
        leaving = full; /* a thread that only frees has one */
    empty = leaving && !retire(cache, leaving) ? leaving : mag_new(cache);
    if (!empty && leaving != full)
        spill(cache->slab, empty = full);
    cache->prev = leaving != full && empty != full ? full : NULL;
    set_current(cache, empty ? empty : &cache->small);
}

void slab_cache_free(struct slab_cache *cache, void *element)
{
    struct quire_slab *slab = cache->slab;
    if (unlikely(u32_load_relaxed(&slab->defrag))) {
        slab_put_one(slab, element);
        return;
    }
    sync_current(cache);
    set_current(cache, cache->cur);
    if (&slab_mag_slots(cache->cur)[cache->cur->count] >= cache->end)
        overflow(cache);
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->top);
    u64_store_relaxed(element, slab_mark_of(element, cache->key));
    addr_store_relaxed(top, (uintptr_t)element);
    addr_store_relaxed(&cache->top, (uintptr_t)(top + 1));
}

/* ---- ends ---- */

static void mags_delete(struct slab_mag *mag)
{
    for (struct slab_mag *next; mag; mag = next) {
        next = mag->next;
        slab_put_one(mags, mag);
    }
}

/* Magazines that are not the small one, in one list. */
static struct slab_mag *take_all(struct slab_cache *cache)
{
    struct slab_mag *all = cache->own, *mine[] = {cache->cur, cache->prev};
    for (int i = 0; i < 2; i++)
        if (mine[i] && mine[i] != &cache->small) {
            mine[i]->next = all;
            all = mine[i];
        }
    cache->own = cache->prev = NULL;
    cache->owns = 0;
    return all;
}

static void clear(struct slab_cache *cache, struct slab_mag *others)
{
    cache->small.count = 0;
    set_current(cache, &cache->small);
    mags_delete(others);
    mags_delete(cache->spare);
    cache->spare = NULL;
    cache->spares = cache->demand = 0;
    cache->run = cache->run_most = 0;
}

static void leave(struct slab_cache *cache, bool to_depot)
{
    struct quire_slab *slab = cache->slab;
    struct slab_mag *all = NULL, *empty = NULL, *next;
    sync_current(cache);
    slab_lock(slab);
    release_held(cache);
    for (all = take_all(cache); all; all = next) {
        next = all->next;
        if (to_depot && all->count != 0 && slab->depot_count < 2 * own_max(slab)) {
            all->next = slab->depot;
            slab->depot = all;
            slab->depot_count++;
        } else {
            spill_locked(slab, all);
            all->next = empty;
            empty = all;
        }
    }
    spill_locked(slab, &cache->small);
    slab_unlock(slab);
    clear(cache, empty);
}

void slab_cache_flush(struct slab_cache *cache)
{
    leave(cache, false);
}

void slab_cache_leave(struct slab_cache *cache)
{
    leave(cache, true);
}

void slab_cache_forget(struct slab_cache *cache)
{
    cache->held = NULL;
    clear(cache, take_all(cache));
}

void slab_depot_flush(struct quire_slab *slab)
{
    slab_lock(slab);
    for (struct slab_mag *mag = slab->depot; mag; mag = mag->next)
        spill_locked(slab, mag);
    struct slab_mag *all = slab->depot;
    slab->depot = NULL;
    slab->depot_count = 0;
    slab_unlock(slab);
    mags_delete(all);
}

void slab_depot_forget(struct quire_slab *slab)
{
    mags_delete(slab->depot);
    slab->depot = NULL;
    slab->depot_count = 0;
}

size_t slab_mags_trim(void)
{
    size_t bytes = 0;
    if (mags) {
        slab_lock(mags);
        bytes = slab_empties_give(mags, mags->empties, true);
        mags->keep = mags->returned = 0;
        slab_unlock(mags);
    }
    return bytes;
}
