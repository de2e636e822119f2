// SPDX-License-Identifier: MIT
/*
 * slab_cache.c - a thread's free slots: magazines, and where they come from and go to.
 *
 *     alloc: the top of `cur`  <- prev  <- own  | <- the slab's depot <- its pages
 *     free:  the top of `cur`  -> prev  -> own  | -> the slab's depot -> its pages         behind the bar: under the slab's lock
 *
 * What a magazine is, and which of a thread's is the current one: slots/slots.h.
 *
 * At first each thread has one small magazine, inside its cache, and what is freed beyond it goes to its page at once.  When slots that went to their
 * pages are missed, what is freed is allocated again: from then on magazines are large and depots deep, unless so much is free in the pages that
 * these had better drain.  Who only allocates has a large one after some fills, until it frees.  Who finds the lock held takes, and gives, a batch at
 * once.  A tick that finds more cached than is allowed sends all of it to the pages (slab_trim.c).
 *
 * Locks: the caller has the thread's record; here the slab's, and that of the slab of magazines, never both.
 * Not here: the short ways (slab.c, slab_free.c).
 */
#include "pages/reaper.h"
#include "slab/slab_internal.h"

enum { SMALL_BYTES = 16 << 10, HOLD_BYTES = 4 << 10, OWN_MOST = 2048, UNTOLD_BYTES = 16 << 10, TOUCH_BYTES = 4096, IN_A_ROW = 4, SPARSE_PARTS = 5, SPARSE_BYTES = 256 << 10 };

STATIC_ASSERT(offsetof(struct slab_cache, small_slot) == offsetof(struct slab_cache, small) + sizeof(struct magazine), "the small magazine's slots");

atomic_size slab_cached_bytes;
static struct quire_slab *mags; /* whose elements are magazines; on no list */

int slab_mags_setup(void)
{
    if (likely(__atomic_load_n(&mags, __ATOMIC_ACQUIRE) != NULL)) /* acquire [slab-mags] */
        return 0;
    slots_setup();
    struct quire_slab *none = NULL, *made = slab_create(sizeof(struct magazine) + MAGAZINE_SLOTS * sizeof(atomic_addr), &(struct quire_slab_opts){.name = "magazines"}, false, false);
    if (made && !__atomic_compare_exchange_n(&mags, &none, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) /* release [slab-mags] */
        slab_unmake(made); /* another thread made the first slab at this moment, too */
    return made ? 0 : -1;
}

bool slab_mags_after_fork(void)
{
    return mags && slab_reset_others(mags);
}

void slab_mags_anew(void)
{
    if (!mags)
        return;
    for (struct slab_page *page = NULL; (page = slab_page_after(mags, page)) != NULL;)
        for (unsigned w = 0; w < slab_words(page); w++)
            page->free[w] = slab_word_bits(page, w);
    slab_repair(mags);
}

/* ---- one magazine ---- */

static struct magazine *mag_new(void *cache_)
{
    struct slab_cache *cache = cache_;
    struct magazine *mag = magazine_pop(&cache->slots.spare);
    if (!mag && (mag = slab_take_one(mags, LANE_ORDINARY)) != NULL)
        magazine_init(mag, magazine_room(cache->slab->slot_bytes, SLOTS_LARGE_BYTES, MAGAZINE_SLOTS));
    return mag;
}

/* How many full magazines a thread keeps for itself at most, and half of what the slab keeps for all. */
static uint32_t own_max(const struct quire_slab *slab)
{
    return u32_load_relaxed(&slab->turning) ? slots_own_max(slab->slot_bytes, OWN_MOST) : 0;
}

void slab_cache_init(struct slab_cache *cache, struct quire_slab *slab)
{
    *cache = (struct slab_cache){.slab = slab, .fill = SLAB_SMALL_SLOTS};
    magazine_init(&cache->small, slab ? magazine_room(slab->slot_bytes, SMALL_BYTES, SLAB_SMALL_SLOTS) : 0);
    cache->small.is_small = true;
    cache->slots.shut = slab ? &slab->defrag : NULL;
    if (slab) {
        slots_sort_from(&cache->slots, &cache->small, slab->slot_bytes);
        size_add_relaxed(&slab_cached_bytes, SLAB_SMALL_SLOTS * slab->slot_bytes);
    }
    slots_set(&cache->slots, &cache->small);
}

/* ---- pages ---- */

/* All of a magazine, under the slab's lock. */
static void spill_locked(struct quire_slab *slab, struct magazine *mag)
{
    struct slab_place place = {.page = NULL};
    for (uint32_t i = 0; i < mag->count; i++) {
        void *slot = (void *)addr_load_relaxed(&magazine_slots(mag)[i]);
        const char *wrong = slab_locate(slab, slot, &place);
        if (unlikely(wrong != NULL) || unlikely(bits_test(place.page->free, place.slot)))
            slab_refuse(slab, SLAB_E1, slot); /* a page does not go while a slot of it is here once */
        slab_page_put(place.page, place.slot);
    }
    slab->spilled += mag->count;
    mag->count = 0;
}

/* Pages with holes are to be filled by what is allocated next, and not by what was freed last: so they drain, and go back. */
static bool is_sparse(const struct quire_slab *slab)
{
    return slab->free_slots > slab->slots / SPARSE_PARTS && slab->free_slots > 2 * slab->swing && slab->held_bytes > SPARSE_BYTES;
}

/* Nobody asked for memory to be kept dense. */
static bool may_keep(const struct quire_slab *slab)
{
    return !is_sparse(slab) && !u32_load_relaxed(&slab->defrag) && !reaper_keeps_nothing();
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
    u32_store_relaxed(&slab->turning, may_keep(slab));
}

static void release_held(struct slab_cache *cache)
{
    if (cache->held)
        slab_page_settle(cache->held);
    cache->held = NULL;
}

/* Memory that the next slots of a held page are the first to use: who has it brought under the lock lets all others wait for the system. */
static void touch(const struct slab_page *page, uint32_t count)
{
    uint32_t first = page->reached, left = page->slot_count - first, end = first + (count < left ? count : left);
    uint32_t step = page->slab->slot_bytes < TOUCH_BYTES ? (uint32_t)(TOUCH_BYTES / page->slab->slot_bytes) : 1;
    for (uint32_t slot = first; slot < end; slot += step)
        u64_store_relaxed((atomic_u64 *)(void *)slab_slot_at(page, slot), 0);
    if (first < end)
        u64_store_relaxed((atomic_u64 *)(void *)slab_slot_at(page, end - 1), 0);
}

/* How many slots at once. */
static uint32_t fill_of(const struct slab_cache *cache, const struct magazine *mag)
{
    uint32_t most = cache->slab->fill < mag->room ? cache->slab->fill : mag->room;
    return cache->fill < most ? cache->fill : most;
}

/* From a page into an empty magazine. */
static bool fill_locked(struct slab_cache *cache, struct magazine *mag)
{
    struct quire_slab *slab = cache->slab;
    uint32_t want = fill_of(cache, mag);
    cache->fill = 2 * want;
    if (cache->held && cache->held->free_count == 0)
        release_held(cache);
    struct slab_page *page = cache->held ? cache->held : slab_page_next(slab, LANE_ORDINARY);
    if (!page)
        return false;
    bool is_held = !mag->is_small && want * slab->slot_bytes >= HOLD_BYTES;
    if (is_held && page->reached == 0) {
        cache->held = page;
        slab_unlock(slab);
        touch(page, want);
        slab_lock(slab);
    }
    slots_set(&cache->slots, mag); /* the key: it may be another thread's */
    mag->count = slab_page_take(page, magazine_slots(mag), want, mag->key);
    if (slab->spilled >= mag->count)
        miss(cache, mag->count);
    if (is_held && page->free_count != 0) {
        cache->held = page; /* threads that allocate side by side do not share lines; those that need few share pages */
    } else {
        cache->held = NULL;
        slab_page_settle(page);
    }
    return true;
}

/* ---- the long ways ---- */

/* The small magazine is empty.  The turnover is worth a large one; or so much is had in a row that a small one would have all threads wait for each other. */
static void grow(struct slab_cache *cache)
{
    if (!cache->slots.cur->is_small || (cache->in_a_row < IN_A_ROW && u32_load_relaxed(&cache->slab->turning) == 0))
        return;
    struct magazine *mag = mag_new(cache);
    if (mag) {
        slots_set(&cache->slots, mag);
        size_add_relaxed(&slab_cached_bytes, 2 * mag->room * cache->slab->slot_bytes);
    }
}

static void wake(struct quire_slab *slab)
{
    if (unlikely(u32_load_relaxed(&slab->pending) == 0) && size_load_relaxed(&slab_cached_bytes) > REAPER_FLOOR_BYTES)
        slab_wake(slab);
}

static void lock_for_magazines(struct slab_cache *cache)
{
    if (unlikely(lock_held(&cache->slab->lock)))
        slots_batch(&cache->slots, cache->slab->slot_bytes);
    slab_lock(cache->slab);
}

bool slab_cache_refill(struct slab_cache *cache)
{
    struct quire_slab *slab = cache->slab;
    struct magazine *mag;
    if (slots_current(&cache->slots) != 0)
        return true;
    wake(slab);
    if (slots_turn(&cache->slots))
        return true;
    grow(cache);
    struct magazine *empty = cache->slots.cur;
    if (cache->held)
        touch(cache->held, fill_of(cache, empty));
    lock_for_magazines(cache);
    mag = slots_depot_take(&cache->slots, &slab->depot, &slab->vacant);
    bool filled = mag || fill_locked(cache, empty);
    cache->in_a_row = may_keep(slab) ? cache->in_a_row + 1 : 0;
    slab_unlock(slab);
    slots_had(&cache->slots);
    slots_set(&cache->slots, mag ? mag : empty);
    return filled;
}

/* What the thread keeps for itself now, and did not before; true.  Told in portions: the sum is on one line for all threads. */
static bool kept_more(struct slab_cache *cache, uint32_t owns)
{
    cache->untold += cache->slots.owns > owns ? cache->slots.owns - owns : 0;
    size_t untold_bytes = cache->untold * slots_magazine_bytes(cache->slab->slot_bytes);
    if (untold_bytes >= UNTOLD_BYTES) {
        size_add_relaxed(&slab_cached_bytes, untold_bytes);
        cache->untold = 0;
    }
    return true;
}

bool slab_cache_return(struct slab_cache *cache)
{
    uint32_t owns = cache->slots.owns;
    return cache->slots.prev && slots_return(&cache->slots, own_max(cache->slab)) && kept_more(cache, owns); /* one that is not used yet has no slab */
}

/* To the depot, until it has `most`, then to the pages.  True: these got some. */
static bool put_away_locked(struct slab_cache *cache, struct magazine *full, uint32_t most)
{
    struct quire_slab *slab = cache->slab;
    slots_depot_put(&cache->slots, &slab->depot, &slab->vacant, &full, most);
    bool is_spilled = full != NULL;
    for (struct magazine *mag; (mag = magazine_pop(&full)) != NULL;) {
        spill_locked(slab, mag);
        magazine_push(&cache->slots.spare, mag);
    }
    return is_spilled;
}

static void give(struct magazine *full, void *cache_)
{
    struct slab_cache *cache = cache_;
    lock_for_magazines(cache);
    bool is_spilled = put_away_locked(cache, full, 2 * own_max(cache->slab));
    slab_unlock(cache->slab);
    cache->run = is_spilled ? 0 : cache->run;
}

/* `cur` has no room for another. */
static void overflow(struct slab_cache *cache)
{
    struct magazine *full = cache->slots.cur;
    bool is_over = !full->is_small && !cache->slots.prev && !cache->slots.owns && u32_load_relaxed(&cache->slab->turning) == 0; /* having in a row: see grow() */
    wake(cache->slab);
    cache->in_a_row = 0;
    if (full->is_small || is_over) {
        slots_sync(&cache->slots);
        slab_lock(cache->slab);
        spill_locked(cache->slab, full);
        if (is_over)
            release_held(cache);
        slab_unlock(cache->slab);
        cache->run = 0;
        if (is_over)
            magazine_push(&cache->slots.spare, full);
        slots_set(&cache->slots, &cache->small);
        grow(cache);
    } else if (!slab_cache_return(cache)) {
        uint32_t owns = cache->slots.owns;
        slots_overflow(&cache->slots, own_max(cache->slab), &(struct slots_beyond){give, mag_new, cache}, &cache->small);
        kept_more(cache, owns);
    }
}

void slab_cache_free(struct slab_cache *cache, void *element)
{
    struct quire_slab *slab = cache->slab;
    if (unlikely(u32_load_relaxed(&slab->defrag))) {
        slab_put_one(slab, element);
        return;
    }
    slots_sync(&cache->slots);
    slots_set(&cache->slots, cache->slots.cur);
    if ((atomic_addr *)addr_load_relaxed(&cache->slots.top) >= cache->slots.end)
        overflow(cache);
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top);
    u64_store_relaxed(element, slots_mark(element, cache->slots.key));
    addr_store_relaxed(top, (uintptr_t)element);
    addr_store_relaxed(&cache->slots.top, (uintptr_t)(top + 1));
}

/* ---- ends ---- */

static void mags_delete(struct magazine *list)
{
    for (struct magazine *mag; (mag = magazine_pop(&list)) != NULL;)
        slab_put_one(mags, mag);
}

static void clear(struct slab_cache *cache)
{
    cache->small.count = 0;
    mags_delete(slots_clear(&cache->slots, &cache->small));
    cache->in_a_row = 0;
    cache->run = cache->run_most = 0;
    cache->fill = SLAB_SMALL_SLOTS;
}

void slab_cache_flush(struct slab_cache *cache, bool ends)
{
    struct quire_slab *slab = cache->slab;
    slab_lock(slab);
    release_held(cache);
    (void)put_away_locked(cache, slots_take_all(&cache->slots), ends ? 2 * own_max(slab) : 0);
    spill_locked(slab, &cache->small);
    slab_unlock(slab);
    clear(cache);
}

void slab_cache_forget(struct slab_cache *cache)
{
    struct magazine *all = slots_take_all(&cache->slots);
    cache->held = NULL;
    clear(cache);
    mags_delete(all);
}

void slab_depot_flush(struct quire_slab *slab, bool full)
{
    slab_lock(slab);
    for (struct magazine *mag; full && (mag = slots_depot_pop(&slab->depot)) != NULL;) {
        spill_locked(slab, mag);
        magazine_push(&slab->vacant, mag);
    }
    if (full)
        u32_store_relaxed(&slab->turning, 0);
    struct magazine *vacant = slab->vacant;
    slab->vacant = NULL;
    slab_unlock(slab);
    mags_delete(vacant);
}

void slab_depot_forget(struct quire_slab *slab)
{
    mags_delete(slab->depot.full);
    mags_delete(slab->vacant);
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
