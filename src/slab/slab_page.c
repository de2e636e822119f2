// SPDX-License-Identifier: MIT
/*
 * slab_page.c - the life of a page of slots.
 *
 *                 taken           last slot claimed          a slot is freed
 *     (source) ----------> CURRENT ---------------> FULL ---------------> PARTIAL
 *        ^                  ^   ^                                          |  |
 *        |                  |   '------------------------------------------'  | the last live slot is freed
 *        |   not needed     |  needed                                         v
 *        '----------------- | ------------------------------------------- EMPTY
 *                           '----------------------------------------------'
 *
 *     EMPTY pages go back at once, but for one, until that proves wrong: for each that is missed soon after it went, one more is kept from then
 *     on, and given up again when a whole tick did not need it.
 *
 *     a slot:  free bit --claim--> claimed (in the lane's avail) --alloc--> live --free--> free bit
 *                                                                    '--free by others--> remote bit --collect--> free bit
 *
 * Invariants, checked by quire_slab_check():
 *   P1  the page map says that the page's addresses are the page's
 *   P2  used == slots - free bits
 *   P3  a page is full exactly when it has no free bits, and empty exactly when nothing in it is used
 *   P4  no slot is two of: free, claimed, freed by others
 *   P5  a page is on the list of its state, and in the bucket of its fullness or above
 *   P6  mapped == live + free + meta, and no more than the limit
 *   P7  the owner's frees count a page's `due` down to 0 just when its state may change: at the next one of a full page, at the last live slot
 *       of a partial one
 *
 * Locks: none: the caller has the local.  Not here: allocating from a page (slab_refill.c), others' frees (slab_remote.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "pages/reaper.h"
#include "pages/source_internal.h"
#include "slab/slab_internal.h"

void slab_list_push(struct slab_list *list, struct slab_page *page)
{
    page->prev = NULL;
    page->next = list->first;
    if (list->first)
        list->first->prev = page;
    else
        list->last = page;
    list->first = page;
}

void slab_list_remove(struct slab_list *list, struct slab_page *page)
{
    if (page->prev)
        page->prev->next = page->next;
    else
        list->first = page->next;
    if (page->next)
        page->next->prev = page->prev;
    else
        list->last = page->prev;
}

/* ---- which pages a local has ---- */

/* The chain through all_next is whole at every moment: the child of a fork may find it as it was in the middle of this. */
void slab_page_enter_all(struct slab_local *local, struct slab_page *page)
{
    lock_take(&local->chain);
    addr_store_release(&page->owner, (uintptr_t)local); /* release [slab-owner] */
    page->all_prev = NULL;
    page->all_next = local->all;
    if (local->all)
        local->all->all_prev = page;
    __atomic_store_n(&local->all, page, __ATOMIC_RELEASE);
    lock_drop(&local->chain);
    local->pages++;
    local->held_bytes += page->span.bytes;
}

/* The thread's shortcuts from address to page: one for each 32 KiB that the page touches. */
void slab_cache_forget(struct slab_local *local, const struct slab_page *page)
{
    if (!local->cache)
        return;
    uintptr_t first = (uintptr_t)page->slots >> SLAB_CACHE_SHIFT, last = ((uintptr_t)page->slots + slab_slots_bytes(page)) >> SLAB_CACHE_SHIFT;
    for (uintptr_t i = first; i <= last && i < first + SLAB_CACHE; i++) {
        struct slab_page **entry = &local->cache[(i + local->slab->id) % SLAB_CACHE];
        if (*entry == page)
            *entry = &slab_page_none;
    }
}

bool slab_page_leave_all(struct slab_local *local, struct slab_page *page)
{
    lock_take(&local->chain);
    if (unlikely(page->pins != 0)) {
        lock_drop(&local->chain);
        return false;
    }
    if (page->all_prev)
        __atomic_store_n(&page->all_prev->all_next, page->all_next, __ATOMIC_RELEASE);
    else
        __atomic_store_n(&local->all, page->all_next, __ATOMIC_RELEASE);
    if (page->all_next)
        page->all_next->all_prev = page->all_prev;
    lock_drop(&local->chain);
    local->pages--;
    local->held_bytes -= page->span.bytes;
    slab_cache_forget(local, page);
    return true;
}

/* ---- pages with room ---- */

static unsigned bucket_of(const struct slab_local *local, const struct slab_page *page)
{
    return local->defrag ? slab_bucket(slab_used(page), (uint32_t)page->slot_count) : 0;
}

void slab_page_link(struct slab_local *local, struct slab_page *page)
{
    struct slab_lane *lane = &local->lane[page->lane];
    unsigned bucket = bucket_of(local, page);
    slab_set_state(page, PAGE_PARTIAL);
    page->bucket = (uint8_t)bucket;
    slab_list_push(&lane->bucket[bucket], page);
    lane->filled |= 1U << bucket;
}

void slab_page_unlink(struct slab_local *local, struct slab_page *page)
{
    struct slab_lane *lane = &local->lane[page->lane];
    struct slab_list *list = &lane->bucket[page->bucket];
    slab_list_remove(list, page);
    if (!list->first)
        lane->filled &= ~(1U << page->bucket);
}

/* The fullest of the first few. */
static struct slab_page *fullest_of(struct slab_page *best, int count)
{
    struct slab_page *page = best;
    for (int i = 1; i < count && page && (page = page->next) != NULL; i++)
        if (slab_fuller(slab_used(page), (uint32_t)page->slot_count, slab_used(best), (uint32_t)best->slot_count))
            best = page;
    return best;
}

static struct slab_page *pick_near(struct slab_lane *lane)
{
    struct slab_page *first = lane->bucket[0].first;
    if (first && slab_bucket(slab_used(first), (uint32_t)first->slot_count) == SLAB_BUCKETS - 1)
        return first; /* full enough not to look at others */
    return fullest_of(first, SLAB_LOOK_PAGES);
}

/*
 * The fullest of all, to an eighth, and of those the fullest of the first few: a page that has been freed into since it was filed goes down to where
 * it belongs, once for each eighth of it.
 */
static struct slab_page *pick_fullest(struct slab_local *local, struct slab_lane *lane)
{
    while (lane->filled) {
        unsigned bucket = bits_highest(lane->filled);
        struct slab_page *page = lane->bucket[bucket].first;
        if (slab_bucket(slab_used(page), (uint32_t)page->slot_count) >= bucket)
            return fullest_of(page, SLAB_LOOK_CLOSELY);
        slab_page_unlink(local, page);
        slab_page_link(local, page);
    }
    return NULL;
}

struct slab_page *slab_page_pick(struct slab_local *local, unsigned number)
{
    if (unlikely(local->defrag != u32_load_relaxed(&local->slab->defrag)))
        slab_local_follow(local);
    struct slab_lane *lane = &local->lane[number];
    struct slab_page *page = local->defrag ? pick_fullest(local, lane) : pick_near(lane);
    if (page)
        slab_page_unlink(local, page);
    return page;
}

/* The defragmenter was switched: all pages with room are filed anew. */
void slab_local_follow(struct slab_local *local)
{
    local->defrag = u32_load_relaxed(&local->slab->defrag);
    for (unsigned number = 0; number < SLAB_LANES; number++) {
        struct slab_lane *lane = &local->lane[number];
        struct slab_page *all = NULL;
        for (unsigned bucket = 0; bucket < SLAB_BUCKETS; bucket++)
            for (struct slab_page *page; (page = lane->bucket[bucket].last) != NULL;) {
                slab_list_remove(&lane->bucket[bucket], page);
                page->next = all;
                all = page;
            }
        lane->filled = 0;
        for (struct slab_page *next; all; all = next) {
            next = all->next;
            slab_page_link(local, all);
        }
    }
}

/* ---- coming and going ---- */

/* Slots behind the last stay not free for ever. */
void slab_page_setup(struct slab_page *page, char *slots, uint32_t slot_count)
{
    __atomic_store_n(&page->slots, slots, __ATOMIC_RELAXED); /* before slot_count: who has an old address of this header must not find it in bounds */
    __atomic_store_n(&page->slot_count, slot_count, __ATOMIC_RELEASE);
    page->words = (slot_count + WORD_BITS - 1) / WORD_BITS;
    slab_set_used(page, 0);
    page->pins = 0;
    slab_set_claimed(page, SLAB_WORD_NONE);
    for (unsigned w = 0; w < page->words; w++) {
        slab_refuse_remote(page, w); /* of its last life */
        u64_store_relaxed(&page->pair[w].free, slab_word_bits(page, w));
        if (page->marks)
            u64_store_relaxed(&page->marks[w], 0);
    }
    page->from = 0;
}

static bool span_take(struct quire_slab *slab, size_t bytes, struct quire_span *span)
{
    size_t align = slab->align_bytes > os_page_bytes() ? slab->align_bytes : os_page_bytes();
    if (!slab_charge(slab, bytes))
        return false;
    if (slab->source->verbs->take(slab->source, bytes, align, span) == 0) {
        slab_charged(slab);
        return true;
    }
    slab_discharge(slab, bytes);
    return false;
}

static void span_give(struct quire_slab *slab, const struct quire_span *span)
{
    slab_discharge(slab, span->bytes);
    slab->source->verbs->give(slab->source, span);
}

static size_t next_bytes(const struct slab_local *local, size_t least)
{
    struct quire_slab *slab = local->slab;
    size_t most = size_load_relaxed(&slab->page_bytes_most), first = size_load_relaxed(&slab->first_bytes);
    size_t held = local->defrag ? local->held_bytes / SLAB_DEFRAG_PAGES : local->held_bytes;
    return slab_page_bytes_next(held > first ? held : first, least, most);
}

static struct slab_page *page_new(struct slab_local *local, unsigned lane, size_t bytes)
{
    struct quire_slab *slab = local->slab;
    struct quire_span span;
    if (!span_take(slab, bytes, &span))
        return NULL;
    size_t slots = bytes / slab->slot_bytes < SLAB_SLOTS_MAX ? bytes / slab->slot_bytes : SLAB_SLOTS_MAX;
    struct slab_page *page = slab_header_new(slab, (uint32_t)(slots + WORD_BITS - 1) / WORD_BITS);
    if (!page || pagemap_set(span.start, span.bytes, owner_make(page, OWNER_SLAB)) != 0) {
        if (page)
            slab_header_delete(page);
        span_give(slab, &span);
        return NULL;
    }
    if (slab->flags & QUIRE_SLAB_DONT_DUMP)
        (void)os_advise_dontdump(span.start, span.bytes);
    page->span = span;
    page->lane = (uint8_t)lane;
    slab_page_setup(page, span.start, (uint32_t)slots);
    sanitize_no_access(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, true);
    addr_store_release(&page->owner, (uintptr_t)local); /* release [slab-owner] */
    __atomic_store_n(&page->state, PAGE_CURRENT, __ATOMIC_RELEASE); /* after the owner: see drain_taken() */
    slab_page_enter_all(local, page);
    return page;
}

/* A page of the size that is due, or when it cannot be had, of a smaller one, down to one slot. */
struct slab_page *slab_page_new(struct slab_local *local, unsigned lane)
{
    size_t least = size_load_relaxed(&local->slab->page_bytes_least), one = align_up(local->slab->slot_bytes, os_page_bytes());
    size_t bytes = next_bytes(local, least);
    struct slab_page *page = page_new(local, lane, bytes);
    if (unlikely(!page) && bytes > least)
        page = page_new(local, lane, least);
    if (unlikely(!page) && least > one)
        page = page_new(local, lane, one);
    if (page && local->returned != 0) { /* given back too early: the next time it is kept */
        local->returned--;
        local->keep++;
    }
    return page;
}

/* A page that is nobody's any more goes back to the source. */
void slab_page_give(struct slab_local *local, struct slab_page *page, bool cold)
{
    struct quire_slab *slab = local->slab;
    struct quire_span span = page->span;
    local->given_bytes += span.bytes;
    pagemap_clear(span.start, span.bytes);
    __atomic_store_n(&page->slot_count, 0, __ATOMIC_RELAXED); /* a late free by another thread looks whether the page is still here */
    __atomic_store_n(&page->slots, NULL, __ATOMIC_RELEASE);   /* release [slab-went]: what was collected of it */
    sanitize_undefined(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    if (slab->flags & QUIRE_SLAB_DONT_DUMP)
        (void)os_advise_dump(span.start, span.bytes);
    slab_header_delete(page);
    slab_discharge(slab, span.bytes);
    if (cold)
        source_give_cold(slab->source, &span);
    else
        slab->source->verbs->give(slab->source, &span);
}

/* ---- empty pages ---- */

static void empties_remove(struct slab_local *local, struct slab_page *page)
{
    slab_list_remove(&local->empty, page);
    if (--local->empties < local->empties_low)
        local->empties_low = local->empties;
}

struct slab_page *slab_empty_pop(struct slab_local *local)
{
    struct slab_page *page = local->empty.first;
    if (page)
        empties_remove(local, page);
    return page;
}

/* Up to `count` of them, those that have waited longest first.  Returns bytes. */
size_t slab_empties_give(struct slab_local *local, uint32_t count, bool cold)
{
    size_t freed = 0;
    for (struct slab_page *page = local->empty.last, *prev; page && count > 0; page = prev) {
        prev = page->prev;
        if (!slab_page_leave_all(local, page))
            continue; /* later */
        for (unsigned w = 0; w < page->words; w++)
            slab_refuse_remote(page, w);
        empties_remove(local, page);
        freed += page->span.bytes;
        slab_page_give(local, page, cold);
        count--;
    }
    return freed;
}

static void empties_push(struct slab_local *local, struct slab_page *page)
{
    slab_set_state(page, PAGE_EMPTY);
    slab_list_push(&local->empty, page);
    local->empties++;
    if (slab_keeps_nothing(local->slab) || reaper_keeps_nothing()) {
        uint32_t homes = local->slab->home && slab_owner(local->slab->home) == local && local->slab->home->slot_count != 0;
        slab_empties_give(local, local->pages - homes > 1 ? local->empties : 0, false);
        return;
    }
    if (local->empties > (local->defrag ? 0 : slab_empties_kept(local->keep)))
        local->returned += slab_empties_give(local, 1, false) != 0;
    if (unlikely(u32_load_relaxed(&local->slab->pending) == 0))
        slab_wake(local->slab);
}

/* ---- what a free changes ---- */

void slab_page_freed(struct slab_local *local, struct slab_page *page)
{
    if (page->state == PAGE_FULL && slab_page_has_room(page))
        slab_page_link(local, page);
    if (page->state == PAGE_PARTIAL && slab_used(page) == 0 && !page->home) {
        slab_page_unlink(local, page);
        empties_push(local, page);
    }
}

/* The lane claims no longer; its page goes where its room says. */
void slab_lane_detach(struct slab_local *local, unsigned number)
{
    struct slab_lane *lane = &local->lane[number];
    struct slab_page *page = lane->page;
    if (!page)
        return;
    uint64_t avail = u64_load_relaxed(&lane->avail);
    slab_claims_begin(page);
    if (avail) {
        u64_store_release(&lane->pair->free, u64_load_relaxed(&lane->pair->free) | avail); /* release [slab-claim] */
        (void)slab_used_less(page, bits_count(avail));
    }
    u64_store_relaxed(&lane->avail, 0);
    slab_set_claimed(page, SLAB_WORD_NONE);
    slab_claims_end(page);
    lane->pair = NULL;
    lane->page = NULL;
    slab_set_state(page, PAGE_FULL);
    slab_page_rejoin(local, page);
    slab_page_freed(local, page);
}
