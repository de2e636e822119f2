// SPDX-License-Identifier: MIT
/*
 * slab_refill.c - where the next element comes from when the claimed word is used up.
 *
 *     the page's next word with room | what others have freed | the page that the policy picks | an empty page
 *     | a page that an ended thread left | a new page from the source
 *
 * Claiming a word takes all its free slots out of `free` into the lane's `avail`, where an allocation is a bit cleared.
 *
 * Locks: none: the caller has the local; stealing takes the lock of a local that is nobody's.
 * Not here: the fast path (slab.c), what to do when all of this fails (slab_trim.c: slab_reclaim).
 */
#include "slab/slab_internal.h"

/* The next word with room of a page that has some. */
static unsigned word_with_room(struct slab_page *page)
{
    unsigned word = page->from;
    for (;; word++) {
        word = word < page->words ? word : 0;
        if (u64_load_relaxed(&page->pair[word].free) != 0)
            break;
    }
    page->from = word + 1;
    return word;
}

/* Take that word's slots.  The atomic comes last, and always: see slab_remote.c. */
static void claim(struct slab_lane *lane, struct slab_page *page)
{
    unsigned word = word_with_room(page);
    struct slab_pair *pair = &page->pair[word];
    uint64_t free = u64_load_relaxed(&pair->free), taken = u64_load_relaxed(&pair->remote);
    lane->pair = pair;
    slab_claims_begin(page);
    addr_store_relaxed(&page->avail, (uintptr_t)&lane->avail);
    lane->base = page->slots + (size_t)word * WORD_BITS * page->slab->slot_bytes;
    slab_set_claimed(page, word);
    u64_store_release(&lane->avail, free | taken); /* release [slab-claim] */
    slab_claims_end(page);
    slab_used_more(page, bits_count(free));
    u64_store_release(&pair->free, 0); /* release [slab-claim] */
    if (taken == 0 && (page->slab->flags & QUIRE_SLAB_SINGLE_THREAD))
        return; /* nobody else, by promise */
    uint64_t twice = u64_and_acq_rel(&pair->remote, ~taken) & free; /* acquire [slab-remote] */
    if (unlikely(twice))
        slab_refuse_bits(page, word, twice);
}

/*
 * The lane has nothing left, nor has its page, and a slot of this word was freed just now: the next allocation takes it, hot, and no list is
 * touched.  It is the fullest page there can be.
 */
bool slab_lane_turn(struct slab_local *local, struct slab_page *page, unsigned word)
{
    struct slab_lane *lane = &local->lane[LANE_ORDINARY];
    if (page->state == PAGE_FULL) {
        if (lane->page && slab_page_has_room(lane->page))
            return false;
        if (lane->page)
            slab_lane_detach(local, LANE_ORDINARY);
        slab_set_state(page, PAGE_CURRENT);
        lane->page = page;
    } else if (page->state != PAGE_CURRENT) {
        return false;
    }
    page->from = word;
    claim(lane, page);
    return true;
}

/* own: only what the local has. */
static struct slab_page *next_page(struct slab_local *local, unsigned number, bool own)
{
    struct slab_page *page = slab_page_pick(local, number);
    if (!page)
        page = slab_empty_pop(local);
    if (own)
        return page;
    if (!page && u32_load_relaxed(&local->slab->unbound_count) != 0) {
        slab_steal(local, number);
        page = slab_page_pick(local, number);
        if (!page)
            page = slab_empty_pop(local);
    }
    return page ? page : slab_page_new(local, number);
}

static bool refill(struct slab_local *local, unsigned number, bool own)
{
    struct slab_lane *lane = &local->lane[number];
    struct slab_page *page = lane->page;
    if (!page || !slab_page_has_room(page))
        slab_drain(local);
    if (!page || !slab_page_has_room(page)) {
        if (page)
            slab_lane_detach(local, number);
        page = next_page(local, number, own);
        if (!page)
            return false;
        if (unlikely(number == LANE_MARKED))
            slab_cache_forget(local, page);
        page->lane = (uint8_t)number;
        slab_set_state(page, PAGE_CURRENT);
        page->from = 0;
        lane->page = page;
    }
    claim(lane, page);
    return true;
}

static void *take(const struct slab_local *local, struct slab_lane *lane, uint64_t avail)
{
    u64_store_relaxed(&lane->avail, avail & (avail - 1));
    return lane->base + bits_lowest(avail) * local->slab->slot_bytes;
}

void *slab_local_alloc(struct slab_local *local, unsigned number)
{
    struct slab_lane *lane = &local->lane[number];
    uint64_t avail = u64_load_relaxed(&lane->avail);
    if (unlikely(avail == 0)) {
        if (unlikely(!refill(local, number, false)))
            return NULL;
        avail = u64_load_relaxed(&lane->avail);
    }
    return take(local, lane, avail);
}

/* Up to `count` of the claimed word, which has some. */
static size_t take_many(struct slab_lane *lane, void **elements, size_t count, size_t slot_bytes)
{
    uint64_t avail = u64_load_relaxed(&lane->avail), lowest = avail & -avail;
    size_t many = bits_count(avail), n = count < many ? count : many;
    char *element = lane->base + bits_lowest(avail) * slot_bytes;
    if (((avail + lowest) & avail) == 0) { /* they lie in a row */
        for (size_t i = 0; i < n; i++, element += slot_bytes)
            elements[i] = element;
        avail = n < many ? avail & -(lowest << n) : 0;
    } else {
        for (size_t i = 0; i < n; i++, avail &= avail - 1)
            elements[i] = lane->base + bits_lowest(avail) * slot_bytes;
    }
    u64_store_relaxed(&lane->avail, avail);
    return n;
}

static size_t alloc_batch(struct slab_local *local, void **elements, size_t count, bool own)
{
    struct slab_lane *lane = &local->lane[LANE_ORDINARY];
    size_t got = 0, slot_bytes = local->slab->slot_bytes;
    while (got < count) {
        if (u64_load_relaxed(&lane->avail) == 0 && !refill(local, LANE_ORDINARY, own))
            break;
        got += take_many(lane, elements + got, count - got, slot_bytes);
    }
    return got;
}

size_t slab_local_alloc_batch(struct slab_local *local, void **elements, size_t count)
{
    return alloc_batch(local, elements, count, false);
}

size_t slab_local_alloc_own(struct slab_local *local, void **elements, size_t count)
{
    return alloc_batch(local, elements, count, true);
}
