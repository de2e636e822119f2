// SPDX-License-Identifier: MIT
/*
 * heap_page.c - a page's life.
 *
 *                 heap_next_page()                    no free slot left                   so many frees
 *     (source) ---------------------> CURRENT ---------------------------> FULL -------------------------+
 *         ^                             ^  |                                                            v
 *         |                             |  +--- heap_local_settle() ---------------------------------> PARTIAL
 *         |                             +------------ heap_next_page() ----------------------------------|
 *         +------------------------------------------ its last block was freed --------------------------+
 *
 * Which page next is looked for in this order: the fullest of the first few of the bin's list; one of an idle local's; a new one.
 *
 * Locks: inside the page's local.  Not here: single slots (heap_alloc.c, heap_free.c).
 */
#include "heap/heap_cache.h"
#include "heap/heap_large.h"
#include "heap/heap_note.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"

#include <errno.h>
#include <string.h>

#include "os/os.h"
#include "os/sanitize.h"
#include "pages/source_internal.h"

enum { FILLED_PAGES = 16, LOOK_AT = 4, NEVER = UINT16_MAX, IDLE_TRIES = 4 };

uint32_t heap_page_live(const struct heap_page *page)
{
    uint32_t free = 0;
    for (unsigned w = 0; w < page->words; w++)
        free += bits_count(page->free[w]);
    return page->slots - free;
}

/* ---- a bin's list ---- */

/* Off the list, if it is on it. */
static void page_leave(struct heap_local *local, struct heap_page *page)
{
    if (page->state == HEAP_PARTIAL)
        heap_pages_remove(&local->bin[page->class].partial, page);
}

/* ---- coming and going ---- */

static void page_setup(struct heap_page *page, struct heap_local *local, unsigned class)
{
    uint32_t slot_bytes = local->bin[class].slot_bytes;
    size_t slots = page->span.bytes / slot_bytes;
    page->slots = (uint16_t)(slots < HEAP_SLOTS_MAX ? slots : HEAP_SLOTS_MAX);
    page->words = (uint16_t)((page->slots + WORD_BITS - 1) / WORD_BITS);
    page->slot_bytes = slot_bytes;
    page->reciprocal = heap_reciprocal(slot_bytes);
    page->exact = (page->slots - 1U) * (uint32_t)(page->reciprocal * slot_bytes) + 1; /* of a power of two, 1: its last slot ends with the page */
    page->bin_at = (uint16_t)(offsetof(struct heap_local, bin) + class * sizeof(struct heap_bin));
    page->quick_of = local->is_secure || local->heap->is_watched ? NULL : local->heap;
    page->class = (uint8_t)class;
    u32_store_relaxed(&page->carved, 0);
    for (unsigned w = 0; w < page->words; w++)
        heap_bits_set(&page->free[w], ~UINT64_C(0));
    if (page->slots % WORD_BITS)
        heap_bits_set(&page->free[page->words - 1], bits_low(page->slots % WORD_BITS));
    for (unsigned w = 0; w < page->words && local->is_secure; w++)
        heap_bits_set(&page->free[page->words + w], 0);
}

/* Blocks of no bytes lie where nobody can touch them; where the system does not do that, they are as others are. */
static bool memory_take(struct quire_heap *heap, unsigned class, size_t bytes, struct quire_span *span)
{
    if (!account_charge(&heap->account, bytes, heap) ||
        !account_settle(&heap->account, bytes, heap->source->verbs->take(heap->source, bytes, os_page_bytes(), span) == 0))
        return false;
    if (class == HEAP_ZERO)
        (void)os_guard(span->start, bytes, true);
    else if (os_tags_on() && heap_is_secure(heap) && heap->own_memory)
        (void)os_tags_ready(span->start, bytes); /* or it has none, which is seen at each slot */
    return true;
}

static void memory_give(struct quire_heap *heap, unsigned class, const struct quire_span *span)
{
    if (class == HEAP_ZERO && os_guard(span->start, span->bytes, false) != 0) {
        size_add_relaxed(&heap->account.meta_bytes, span->bytes); /* nobody could touch it: lost, and counted */
        return;
    }
    account_discharge(&heap->account, span->bytes);
    heap->source->verbs->give(heap->source, span);
}

/* For the OS pages from some byte of the page to another: there are slots of this size; or none.  Each is one store, which a fork's child finds done or not. */
static void notes_write(const struct heap_page *page, size_t from, size_t to, uint32_t bin_at)
{
    for (size_t at = from; page->is_noted && at < to; at += os_page_bytes()) {
        struct heap_note note = {{bin_at ? (uint32_t)at : 0}, {bin_at}};
        uint64_t word;
        memcpy(&word, &note, sizeof word);
        u64_store_relaxed(pagemap_note(pagemap_near_page((char *)page->span.start + at)), word);
    }
}

/* It marks what lies behind the last slot, too, if one more could begin there: free knows no page's end. */
void heap_page_carve(struct heap_page *page, const char *slot)
{
    uint32_t slot_bytes = page->slot_bytes, from = (uint32_t)align_up(u32_load_relaxed(&page->carved), os_page_bytes()), all = page->slots * slot_bytes;
    uint32_t to = (uint32_t)align_down((size_t)(slot - (const char *)page->span.start), os_page_bytes()) + (uint32_t)os_page_bytes();
    for (uint32_t at = (from + slot_bytes - 1) / slot_bytes * slot_bytes; at < to; at += slot_bytes) {
        char *p = (char *)page->span.start + at;
        heap_mark(p, slots_mark(p, slots_key));
    }
    atomic_fence_signal(); /* the child of a fork */
    notes_write(page, from, to, page->bin_at);
    u32_store_relaxed(&page->carved, to < all ? to : all);
}

/* A size of which there are many pages, in a thread that has just filled one: this one will be filled, too. */
static bool fills(const struct heap_local *local, unsigned class, bool has_filled)
{
    return has_filled && local->bin[class].slot_bytes < os_page_bytes() && size_load_relaxed(&local->heap->of_class[heap_stat_class(class)].pages) >= FILLED_PAGES;
}

static void fill(const struct quire_heap *heap, const struct quire_span *span)
{
    static atomic_u32 is_unknown; /* to the system, Linux before 5.14 */
    if (u32_load_relaxed(&is_unknown) == 0 && source_fill(heap->source, span) == -EINVAL)
        u32_store_relaxed(&is_unknown, 1);
}

static bool has_notes(const struct quire_span *span)
{
    const char *start = span->start, *last = start + span->bytes - 1;
    return pagemap_near_page(start) < pagemap_noted() && pagemap_near_page(last) < pagemap_noted();
}

static struct heap_page *page_new(struct heap_local *local, unsigned class, bool has_filled)
{
    struct quire_heap *heap = local->heap;
    size_t slot_bytes = local->bin[class].slot_bytes, bytes = class == HEAP_ZERO ? os_page_bytes() : heap_page_bytes(slot_bytes, os_page_bytes());
    uint32_t words = (uint32_t)(bytes / slot_bytes + WORD_BITS - 1) / WORD_BITS * (local->is_secure ? 2 : 1);
    struct quire_span span;
    if (!memory_take(heap, class, bytes, &span))
        return NULL;
    if (local->is_secure && class != HEAP_ZERO && !(span.flags & QUIRE_SPAN_ZERO))
        memset(span.start, 0, bytes); /* S1 */
    if ((span.flags & QUIRE_SPAN_ZERO) && heap->own_memory && fills(local, class, has_filled))
        fill(heap, &span);
    struct heap_page *page = heap_header_new(heap, words);
    if (page) {
        page->span = span;
        page_setup(page, local, class);
        addr_store_release(&page->owner, heap_owner_word(local)); /* release [heap-owner] */
    }
    if (!page || pagemap_set(span.start, span.bytes, owner_make(page, heap == &heap_of_process ? OWNER_MALLOC : OWNER_HEAP)) != 0) {
        if (page)
            heap_header_delete(heap, page);
        memory_give(heap, class, &span);
        return NULL;
    }
    page->is_noted = page->quick_of == &heap_of_process && has_notes(&span);
    sanitize_no_access(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, true);
    unsigned counted = heap_stat_class(class);
    size_max_relaxed(&heap->of_class[counted].peak, size_add_relaxed(&heap->of_class[counted].pages, 1) + 1);
    heap_work_is_due();
    return page;
}

/* An empty page, on no list, goes back to the source. */
static void page_give(struct quire_heap *heap, struct heap_page *page)
{
    struct quire_span span = page->span;
    unsigned class = page->class;
    heap_secure_untag(page);
    notes_write(page, 0, span.bytes, 0);
    pagemap_clear(span.start, span.bytes);
    sanitize_undefined(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    heap_header_delete(heap, page);
    memory_give(heap, class, &span);
    heap_work_is_due();
}

/*
 * Whoever freed a slot of the page, wrote to it and freed it once more has it in a magazine still, or it was handed out from there: the page must not go.
 * A write since is found, too.  NULL: each free slot is as it was left.
 */
const char *heap_page_written(const struct heap_page *page)
{
    uint32_t slot_bytes = page->slot_bytes, number = 0;
    const char *slot = page->span.start, *carved = slot + u32_load_relaxed(&page->carved);
    bool is_empty = heap_page_live(page) == 0;
    for (; slot < carved; slot += slot_bytes, number++) {
        if ((is_empty || heap_bit_is_set(page, number)) && unlikely(!heap_has_mark(slot, slots_mark(slot, slots_key)))) /* what lives is its user's to read */
            return slot;
    }
    return NULL;
}

static void page_retire(struct heap_local *local, struct heap_page *page)
{
    const char *written = heap_page_written(page);
    if (unlikely(written != NULL))
        heap_refuse(local->heap, HEAP_E6, written);
    size_sub_relaxed(&local->heap->of_class[heap_stat_class(page->class)].pages, 1);
    if (local->is_secure)
        heap_secure_page_goes(local->heap, page, true);
    page_give(local->heap, page);
}

/* The last walk that stood on it: an empty one goes. */
void heap_page_unpin(struct heap_local *local, struct heap_page *page)
{
    if (heap_unpin(page) && page->state == HEAP_PARTIAL && heap_page_live(page) == 0)
        heap_page_due(local, page);
}

/* With their heap, whatever lives in them. */
void heap_pages_destroy(struct quire_heap *heap)
{
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *page; (page = heap_header_next(heap, &headers)) != NULL;) {
        if (page->state == HEAP_UNUSED || page->state == HEAP_MAGAZINE)
            continue;
        if (heap_is_large(page)) { /* freed under more walks than could be counted */
            heap_large_leave(heap, page);
            continue;
        }
        if (heap_page_is_secure(page))
            heap_secure_page_goes(heap, page, false);
        page_give(heap, page);
    }
}

/* ---- which slots next ---- */

/* The next word of the current page with a free slot, upwards and around; false: there is none. */
NOINLINE bool heap_next_word(struct heap_bin *bin)
{
    const struct heap_page *page = bin->page;
    if (unlikely(!page))
        return false;
    unsigned at = (unsigned)(bin->word - page->free), word = at;
    do {
        word = word + 1 < page->words ? word + 1 : 0;
        if (page->free[word] != 0) {
            bin->word = &bin->page->free[word];
            return true;
        }
    } while (word != at);
    return false;
}

static void bin_set(struct heap_bin *bin, struct heap_page *page)
{
    unsigned word = 0;
    while (page->free[word] == 0)
        word++;
    heap_state_set(page, HEAP_CURRENT);
    page->until = NEVER;
    bin->page = page;
    if (heap_page_is_secure(page))
        bin->word_at = (uint16_t)word;
    else
        bin->word = &page->free[word];
}

/* A bin without a current page; its pages stay. */
static void bin_unset(struct heap_bin *bin)
{
    static uint64_t no_slots;
    bin->page = NULL;
    bin->word = &no_slots;
}

/* The fullest of the first few: the others get time to become empty. */
static struct heap_page *partial_pick(const struct heap_bin *bin)
{
    struct heap_page *best = bin->partial, *page = best;
    for (int i = 0; page && i < LOOK_AT; i++, page = page->next)
        if (page->until > best->until)
            best = page;
    return best;
}

/* A page with room that nobody has any more. */
static struct heap_page *adopt_from(struct heap_local *local, struct heap_local *idle, unsigned class)
{
    if (!heap_idle_try(idle))
        return NULL;
    heap_inbox_drain(idle);
    struct heap_page *page = partial_pick(&idle->bin[class]);
    if (page) {
        page_leave(idle, page);
        addr_store_release(&page->owner, heap_owner_word(local)); /* release [heap-owner] */
    }
    heap_idle_drop(idle);
    return page;
}

/* A guess, before the lock is asked for. */
static NO_SANITIZE bool may_have_room(const struct heap_local *idle, unsigned class)
{
    return heap_is_idle(idle) && (__atomic_load_n(&idle->bin[class].partial, __ATOMIC_RELAXED) || addr_load_relaxed(&idle->inbox) != 0);
}

static struct heap_page *adopt(struct heap_local *local, unsigned class)
{
    struct quire_heap *heap = local->heap;
    struct heap_page *page = NULL;
    if (likely(u32_load_relaxed(&heap->idle_count) == 0) || heap_tls.held != local || local->is_sample) /* the others' pages were never wiped */
        return NULL;
    struct heap_local *idle = heap_locals(heap);
    for (int tries = 0; idle && !page && tries < IDLE_TRIES; idle = idle->next)
        if (may_have_room(idle, class)) {
            page = adopt_from(local, idle, class);
            tries++;
        }
    return page;
}

static void current_is_full(struct heap_bin *bin)
{
    struct heap_page *page = bin->page;
    if (!page)
        return;
    heap_state_set(page, HEAP_FULL);
    page->until = heap_rejoin_frees(page->slots);
    bin_unset(bin);
}

bool heap_next_page(struct heap_local *local, unsigned class)
{
    struct heap_bin *bin = &local->bin[class];
    heap_bins_reach(local, class);
    heap_inbox_drain(local);
    if (local->is_secure ? heap_secure_has_room(bin) : heap_next_word(bin))
        return true;
    bool has_filled = bin->page != NULL;
    current_is_full(bin);
    struct heap_page *page = partial_pick(bin);
    if (page)
        page_leave(local, page);
    else
        page = adopt(local, class);
    if (!page) {
        heap_caches_make_way(local);
        page = page_new(local, class, has_filled);
    }
    if (!page)
        return false;
    bin_set(bin, page);
    return true;
}

/* Every page of a class that has a free slot is on the list. */
void heap_rejoin_all(struct heap_local *local, unsigned class)
{
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *page; (page = heap_header_next(local->heap, &headers)) != NULL;)
        if (heap_state(page) == HEAP_FULL && heap_owner(page) == local && page->class == class && heap_page_live(page) < page->slots)
            heap_page_to_partial(local, page);
}

/* ---- which page is empty ---- */

/* On no list.  With the free slots it has now it waits for use, or is empty. */
void heap_page_to_partial(struct heap_local *local, struct heap_page *page)
{
    uint32_t live = heap_page_live(page);
    if (live == 0 && page->pins == 0) {
        page_retire(local, page);
    } else if (live == page->slots) {
        heap_state_set(page, HEAP_FULL);
        page->until = heap_rejoin_frees(page->slots);
    } else {
        page->until = (uint16_t)(live ? live : 1);
        heap_bins_reach(local, page->class);
        heap_state_set(page, HEAP_PARTIAL);
        heap_pages_push(&local->bin[page->class].partial, page);
    }
}

void heap_page_due(struct heap_local *local, struct heap_page *page)
{
    if (page->state == HEAP_CURRENT) {
        page->until = NEVER;
        return;
    }
    page_leave(local, page);
    heap_page_to_partial(local, page);
}

void heap_local_settle(struct heap_local *local, uint32_t live_max)
{
    for (unsigned c = 0; c < heap_bins_ready(local); c++) {
        struct heap_page *page = local->bin[c].page;
        if (!page || heap_page_live(page) > live_max)
            continue;
        bin_unset(&local->bin[c]);
        heap_page_to_partial(local, page);
    }
}
