// SPDX-License-Identifier: MIT
/*
 * slab_page.c - the life of a page of slots.
 *
 *                 taken           last slot taken            a slot comes back
 *     (source) ----------> HELD -----------------> FULL ---------------> PARTIAL
 *        ^                  ^  ^                                          |  |
 *        |                  |  '------------------------------------------'  | the last one comes back
 *        |   not needed     |  needed                                        v
 *        '----------------- | ------------------------------------------- EMPTY
 *                           '----------------------------------------------'
 *
 *     HELD is on no list: slots are being taken, or one cache alone is filled from it.
 *     EMPTY pages go back at once, but for one, until that proves wrong: for each that is missed soon after it went, one more is kept from then
 *     on, and given up again when a whole tick did not need it.
 *
 * Invariants, checked by quire_slab_check():
 *   P1  the page map says that the page's addresses are the page's
 *   P2  free_count is the number of free bits, and none of these stands behind the last slot
 *   P3  a page is full exactly when it has no free bits, and empty exactly when all its slots have one
 *   P4  a slot in a magazine carries its mark and has no free bit (slab_cache.c)
 *   P5  a page is on the list of its state, and in the bucket of its fullness or above
 *   P6  mapped == live + free + meta, and no more than the limit
 *
 * Locks: slab->lock throughout.  Not here: magazines (slab_cache.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/reaper.h"
#include "pages/source_internal.h"
#include "slab/slab_internal.h"

/* ---- the sums of all pages ---- */

void slab_page_enter(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    slab->pages++;
    slab->slots += page->slot_count;
    slab->free_slots += page->free_count;
    slab->held_bytes += slab_span_bytes(page);
}

static void leave(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    slab->pages--;
    slab->slots -= page->slot_count;
    slab->free_slots -= page->free_count;
    slab->held_bytes -= slab_span_bytes(page);
}

/* ---- pages with room ---- */

void slab_page_link(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    struct slab_lane *lane = &slab->lane[page->lane];
    unsigned bucket = slab->filed_by_fullness ? slab_bucket(slab_used(page), page->slot_count) : 0;
    page->state = PAGE_PARTIAL;
    page->bucket = bucket & 7;
    slab_pages_push(&lane->bucket[bucket], page);
    lane->filled |= 1U << bucket;
}

void slab_page_unlink(struct slab_page *page)
{
    struct slab_lane *lane = &page->slab->lane[page->lane];
    slab_pages_remove(&lane->bucket[page->bucket], page);
    if (!lane->bucket[page->bucket])
        lane->filled &= ~(1U << page->bucket);
}

/* The fullest of the first few. */
static struct slab_page *fullest_of(struct slab_page *best, int count)
{
    struct slab_page *page = best;
    for (int i = 1; i < count && page && (page = page->next) != NULL; i++)
        if (slab_fuller(slab_used(page), page->slot_count, slab_used(best), best->slot_count))
            best = page;
    return best;
}

static struct slab_page *pick_near(struct slab_lane *lane)
{
    struct slab_page *first = lane->bucket[0];
    if (first && slab_bucket(slab_used(first), first->slot_count) == SLAB_BUCKETS - 1)
        return first; /* full enough not to look at others */
    return fullest_of(first, SLAB_LOOK_PAGES);
}

/*
 * One as full as `page`, to an eighth, whose header lies behind that of the last one: so the headers of those that stay lie together, and the OS pages of the
 * others' go back.
 */
static struct slab_page *beside(const struct slab_lane *lane, struct slab_page *page)
{
    struct slab_page *other = lane->picked;
    for (int i = 0; other && i < SLAB_LOOK_BESIDE; i++) {
        other = slab_page_after(page->slab, other);
        if (other && other->state == PAGE_PARTIAL && other->lane == page->lane && slab_bucket(slab_used(other), other->slot_count) == page->bucket)
            return other;
    }
    return fullest_of(page, SLAB_LOOK_CLOSELY);
}

/*
 * The fullest of all, to an eighth, and of those the one beside the last, or the fullest of the first few: a page that has been freed into since it was
 * filed goes down to where it belongs, once for each eighth of it.
 */
static struct slab_page *pick_fullest(struct slab_lane *lane)
{
    while (lane->filled) {
        unsigned bucket = bits_highest(lane->filled);
        struct slab_page *page = lane->bucket[bucket];
        if (slab_bucket(slab_used(page), page->slot_count) >= bucket)
            return lane->picked = beside(lane, page);
        slab_page_unlink(page);
        slab_page_link(page);
    }
    return NULL;
}

/* The defragmenter was switched: all pages with room are filed anew. */
static void follow(struct quire_slab *slab)
{
    slab->filed_by_fullness = u32_load_relaxed(&slab->defrag);
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        if (page->state == PAGE_PARTIAL) {
            slab_page_unlink(page);
            slab_page_link(page);
        }
}

static struct slab_page *pick(struct quire_slab *slab, unsigned number)
{
    if (unlikely(slab->filed_by_fullness != u32_load_relaxed(&slab->defrag)))
        follow(slab);
    struct slab_lane *lane = &slab->lane[number];
    struct slab_page *page = slab->filed_by_fullness ? pick_fullest(lane) : pick_near(lane);
    if (page)
        slab_page_unlink(page);
    return page;
}

/* ---- coming ---- */

void slab_page_publish(struct slab_page *page)
{
    const struct quire_slab *slab = page->slab;
    bool is_short = !slab->straight && page->lane == LANE_ORDINARY && page->slot_count * slab->slot_bytes <= UINT32_MAX;
    size_store_relaxed(&page->carved, is_short ? page->reached * slab->slot_bytes : 0);
}

void slab_page_setup(struct slab_page *page, char *slots, uint32_t slot_count)
{
    size_store_relaxed(&page->carved, 0);
    addr_store_relaxed(&page->slots, (uintptr_t)slots);
    page->slot_count = page->free_count = (uint16_t)slot_count;
    page->pins = page->reached = page->from = 0;
    for (unsigned w = 0; w < slab_words(page); w++) {
        page->free[w] = slab_word_bits(page, w); /* those behind the last slot stay not free for ever */
        if (page->slab->markable)
            slab_marks(page)[w] = 0;
    }
}

static bool span_take(struct quire_slab *slab, size_t bytes, struct quire_span *span)
{
    size_t align = slab->align_bytes > os_page_bytes() ? slab->align_bytes : os_page_bytes();
    return account_charge(&slab->account, bytes, slab) &&
           account_settle(&slab->account, bytes, slab->source->verbs->take(slab->source, bytes, align, span) == 0);
}

static void span_give(struct quire_slab *slab, const struct quire_span *span, bool cold)
{
    account_discharge(&slab->account, span->bytes);
    if (cold)
        source_give_cold(slab->source, span);
    else
        slab->source->verbs->give(slab->source, span);
}

static size_t next_bytes(const struct quire_slab *slab, size_t least)
{
    size_t most = size_load_relaxed(&slab->page_bytes_most), first = size_load_relaxed(&slab->first_bytes);
    size_t held = u32_load_relaxed(&slab->defrag) ? slab->held_bytes / SLAB_DEFRAG_PAGES : slab->held_bytes;
    return slab_page_bytes_next(held > first ? held : first, least, most);
}

static struct slab_page *page_new(struct quire_slab *slab, size_t bytes)
{
    struct quire_span span;
    if (bytes >> SPAN_STEP_LOG2 > UINT32_MAX || !span_take(slab, bytes, &span))
        return NULL;
    size_t slots = bytes / slab->slot_bytes < SLAB_SLOTS_MAX ? bytes / slab->slot_bytes : SLAB_SLOTS_MAX;
    struct slab_page *page = slab_header_new(slab, (uint32_t)(slots + WORD_BITS - 1) / WORD_BITS);
    if (!page || pagemap_set(span.start, span.bytes, owner_make(page, OWNER_SLAB)) != 0) {
        if (page)
            slab_header_delete(page);
        span_give(slab, &span, false);
        return NULL;
    }
    if (slab->flags & QUIRE_SLAB_DONT_DUMP)
        (void)os_advise_dontdump(span.start, span.bytes);
    page->span_steps = (uint32_t)(span.bytes >> SPAN_STEP_LOG2);
    page->span_flags = span.flags;
    page->span_cookie = span.cookie;
    slab_page_setup(page, span.start, (uint32_t)slots);
    sanitize_no_access(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, true);
    atomic_fence_signal();
    page->state = PAGE_HELD;
    slab_page_enter(page);
    slab_table_enter(page);
    return page;
}

/* A page of the size that is due, or when it cannot be had, of a smaller one, down to one slot. */
static struct slab_page *page_new_due(struct quire_slab *slab)
{
    size_t least = size_load_relaxed(&slab->page_bytes_least), one = align_up(slab->slot_bytes, os_page_bytes());
    size_t bytes = next_bytes(slab, least);
    struct slab_page *page = page_new(slab, bytes);
    while (unlikely(!page) && bytes > least) {
        bytes = align_down(bytes / 2, os_page_bytes()); /* whole pages: a source gives no more than it is asked for */
        bytes = bytes > least ? bytes : least;
        page = page_new(slab, bytes);
    }
    if (unlikely(!page) && least > one)
        page = page_new(slab, one);
    if (page && slab->returned != 0) { /* given back too early: the next time it is kept */
        slab->returned--;
        slab->keep++;
    }
    return page;
}

static void empties_remove(struct quire_slab *slab, struct slab_page *page)
{
    slab_pages_remove(&slab->empty, page);
    if (--slab->empties < slab->empties_low)
        slab->empties_low = slab->empties;
}

struct slab_page *slab_page_next(struct quire_slab *slab, unsigned lane)
{
    if (unlikely(slab->is_torn))
        return NULL;
    struct slab_page *page = pick(slab, lane);
    if (!page && (page = slab->empty) != NULL)
        empties_remove(slab, page);
    if (!page)
        page = page_new_due(slab);
    if (!page)
        return NULL;
    page->state = PAGE_HELD;
    if (page->lane != lane) {
        page->lane = lane & 1;
        slab_page_publish(page);
    }
    return page;
}

void slab_currents_release(struct quire_slab *slab)
{
    for (unsigned number = 0; number < SLAB_LANES; number++) {
        struct slab_page *page = slab->lane[number].current;
        slab->lane[number].current = NULL;
        if (page) {
            slab_page_rejoin(page);
            slab_page_settle(page);
        }
    }
}

/* ---- slots ---- */

/* The marks come first: a child that is forked in between finds the slot free, in whichever way (slab_fork.c). */
uint32_t slab_page_take(struct slab_page *page, atomic_addr *slots, uint32_t count, uint64_t key)
{
    char *first = slab_slots(page);
    size_t slot_bytes = page->slab->slot_bytes;
    uint32_t n = count < page->free_count ? count : page->free_count, at = n, reached = page->reached;
    unsigned w = page->from, words = slab_words(page);
    for (; at > 0; w++) {
        w = w < words ? w : 0;
        uint64_t free = page->free[w];
        for (; free && at > 0; free &= free - 1) {
            uint32_t slot = w * WORD_BITS + bits_lowest(free);
            char *p = first + slot * slot_bytes;
            if (slot >= reached)
                reached = slot + 1;
            else if (unlikely(!slab_is_marked(page->slab, p)) && !page->slab->straight)
                slab_refuse(page->slab, SLAB_E7, p); /* it came back twice, and was had since; or was written to */
            if (key)
                u64_store_relaxed((atomic_u64 *)(void *)p, slots_mark(p, key));
            addr_store_relaxed(&slots[--at], (uintptr_t)p);
        }
        atomic_fence_signal();
        page->free[w] = free;
        page->from = w & 63;
    }
    page->free_count = (uint16_t)(page->free_count - n);
    page->slab->free_slots -= n;
    if (reached != page->reached) {
        page->reached = (uint16_t)reached;
        slab_page_publish(page);
    }
    return n;
}

void slab_page_put(struct slab_page *page, size_t slot)
{
    struct quire_slab *slab = page->slab;
    uint64_t bit = UINT64_C(1) << slot % WORD_BITS;
    if (unlikely(slab->is_torn))
        return; /* its mark says it; without marks it is lost */
    if (unlikely(page->free[slot / WORD_BITS] & bit))
        slab_refuse(slab, SLAB_E1, slab_slot_at(page, slot));
    page->free[slot / WORD_BITS] |= bit;
    page->free_count++;
    slab->free_slots++;
    if (page->state != PAGE_HELD && (page->state == PAGE_FULL || page->free_count == page->slot_count)) {
        if (page->state == PAGE_PARTIAL)
            slab_page_unlink(page);
        slab_page_settle(page);
    } else if (page->free_count == page->slot_count && slab->lane[page->lane].current == page && !slab_is_home(page)) {
        slab_currents_release(slab); /* single slots come from the next, so that this one can go */
    }
}

/* ---- going ---- */

/*
 * What was freed, written to and freed again is in a magazine too, and perhaps was had from there since.  No mark is to prove that copy good.  The child of
 * a fork meanwhile has a page from which nothing was ever had.
 */
static void marks_clear(struct slab_page *page)
{
    uint32_t reached = page->slab->straight ? 0 : page->reached;
    for (size_t slot = 0; slot < reached; slot++)
        if (unlikely(!slab_is_marked(page->slab, slab_slot_at(page, slot))))
            slab_refuse(page->slab, SLAB_E7, slab_slot_at(page, slot));
    page->reached = 0;
    atomic_fence_signal();
    for (size_t slot = 0; slot < reached; slot++)
        u64_store_relaxed((atomic_u64 *)(void *)slab_slot_at(page, slot), 0);
}

/* A page that is on no list goes back to the source. */
static void page_give(struct slab_page *page, bool cold)
{
    struct quire_slab *slab = page->slab;
    struct quire_span span = slab_page_span(page);
    pagemap_clear(span.start, span.bytes);
    size_store_relaxed(&page->carved, 0);
    slab_table_leave(page);
    page->slot_count = 0;
    sanitize_undefined(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    if (slab->flags & QUIRE_SLAB_DONT_DUMP)
        (void)os_advise_dump(span.start, span.bytes);
    slab_header_delete(page);
    span_give(slab, &span, cold);
}

/* Up to `count` of the empty ones, those that have waited longest first.  Returns bytes. */
size_t slab_empties_give(struct quire_slab *slab, uint32_t count, bool cold)
{
    size_t freed = 0;
    for (struct slab_page *page = slab_pages_last(slab->empty), *prev; page && count > 0; page = prev) {
        prev = page == slab->empty ? NULL : page->prev;
        if (page->pins)
            continue; /* later */
        marks_clear(page);
        leave(page);
        empties_remove(slab, page);
        freed += slab_span_bytes(page);
        page_give(page, cold);
        count--;
    }
    return freed;
}

/* Where none is to stay, unless it is the last: they go.  False: they may stay. */
static bool give_at_once(struct quire_slab *slab)
{
    if (!slab_keeps_nothing(slab) && !reaper_keeps_nothing())
        return false;
    slab_empties_give(slab, slab->pages - (slab->home->slot_count != 0) > 1 ? slab->empties : 0, false);
    return true;
}

/* A walk has left the page.  What became empty meanwhile could not go. */
void slab_page_unpin(struct slab_page *page)
{
    if (--page->pins == 0 && page->state == PAGE_EMPTY)
        (void)give_at_once(page->slab);
}

static void empties_push(struct quire_slab *slab, struct slab_page *page)
{
    page->state = PAGE_EMPTY;
    slab_pages_push(&slab->empty, page);
    slab->empties++;
    if (slab_is_repairing || give_at_once(slab))
        return;
    /* As many stay as were missed lately, and one: a slab that is nearly empty takes and gives the same page all the time. */
    if (slab->empties > (u32_load_relaxed(&slab->defrag) ? 0 : slab->keep + 1))
        slab->returned += slab_empties_give(slab, 1, false) != 0;
    slab->wakes = true; /* as soon as the lock is dropped */
}

void slab_page_settle(struct slab_page *page)
{
    if (unlikely(page->slab->is_torn))
        return;
    if (page->free_count == page->slot_count && !slab_is_home(page))
        empties_push(page->slab, page);
    else if (page->free_count != 0)
        slab_page_link(page);
    else
        page->state = PAGE_FULL;
}

void slab_pages_destroy(struct quire_slab *slab)
{
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        if (!slab_is_home(page))
            page_give(page, false);
}
