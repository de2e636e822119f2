// SPDX-License-Identifier: MIT
/*
 * heap_cache.c - a thread's free slots of each size, and where full magazines go to and come from.
 *
 *     alloc: the top of `cur`  <- the bin's word  <- prev  <- own  <- the heap's depot of the size  <- the next word, the next page
 *     free:  the top of `cur`  -> prev  -> own  -> the heap's depot, or past them to the slot's page  -> pages (heap_spill.c)
 *
 * Whoever frees a slot has it: whose page it lies in is asked only when it goes back there.  What a magazine is: slots/slots.h.  Each lies where headers
 * of pages do, in place of the bits (HEAP_MAGAZINE), so that they are counted, given back, and found by the child of a fork as these are.
 *
 * At first a thread has one small magazine of a size, inside its local, and what is freed beyond it goes to its page.  When slots that went to their
 * pages are missed, what is freed is allocated again: from then on (turning) magazines are large and depots deep (depot_max()), until memory is given back.
 *
 * When all that a thread is to keep is full, what it frees of its own pages goes there one by one (`drains`, heap_quick_drain()): no array, no second look, and what it
 * frees next finds the same.  An alloc makes room again, so who frees and allocates in turn has magazines.
 *
 * Where a thread has taken new pages for twice as much as its full magazines hold, and these hold more than a little, they go to their pages before the next: what is free there serves
 * any size, and the arrays other magazines.  A size that was emptied and is wanted again has its slots from pages then; so they go again only after 64 times the time that it took: little
 * of a program that fills and empties several sizes in turn.
 *
 * An empty magazine stays (`vacant`) in the place of each full one that is taken from a depot, and goes with the next full one that is given there.  Who finds
 * the heap's lock held takes, and gives, a batch at once.
 *
 * Locks: inside the local; the heap's for the depots and the vacant ones.  Not here: the short ways (heap_alloc.c, heap_free.c).
 */
#include "heap/heap_cache.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"

#include <string.h>

enum { SMALL_BYTES = 16 << 10, OWN_MOST = 128, DEPOT_OWNS = 16, KEPT_BYTES = 256 << 10, KEPT_PARTS = 64, LOOK_PAGES = 16, SERVED_PARTS = 2, AGAIN_TIMES = 64, IN_A_ROW = 4 };

STATIC_ASSERT(sizeof(struct magazine) + MAGAZINE_SLOTS * sizeof(atomic_addr) <= HEAP_MAGAZINE_WORDS * sizeof(uint64_t), "a magazine lies where a header's bits would");
STATIC_ASSERT(offsetof(struct heap_small, slot) == sizeof(struct magazine), "the small magazine's slots");

/* What a bin without a magazine has: nothing, and room for nothing. */
static const atomic_u64 *const below_none = &slots_nothing;

void heap_cache_none(struct slot_cache *cache)
{
    *cache = (struct slot_cache){.top = {(uintptr_t)(&below_none + 1)}, .key = slots_key};
}

/* ---- magazines ---- */

static inline struct heap_page *header_of(struct magazine *mag)
{
    return (struct heap_page *)(void *)((char *)mag - offsetof(struct heap_page, free));
}

/* Which of a thread's caches. */
struct place {
    struct heap_local *local;
    unsigned class;
};

static struct magazine *mag_new(void *place_)
{
    const struct place *place = place_;
    struct heap_bin *bin = &place->local->bin[place->class];
    struct magazine *mag = magazine_pop(&bin->slots.spare);
    if (mag)
        return mag;
    struct heap_page *header = heap_header_new(place->local->heap, HEAP_MAGAZINE_WORDS);
    if (!header)
        return NULL;
    mag = heap_magazine(header);
    magazine_init(mag, magazine_room(bin->slot_bytes, SLOTS_LARGE_BYTES, MAGAZINE_SLOTS));
    heap_state_set(header, HEAP_MAGAZINE);
    heap_work_is_due();
    return mag;
}

static void mags_delete(struct quire_heap *heap, struct magazine *list)
{
    for (struct magazine *mag; (mag = magazine_pop(&list)) != NULL;)
        heap_header_delete(heap, header_of(mag));
}

/* The cache's first magazine; it may be used from now on. */
static void begin(struct heap_local *local, unsigned class)
{
    struct heap_small *small = &local->small[class];
    magazine_init(&small->mag, magazine_room(heap_class_bytes(class), SMALL_BYTES, HEAP_SMALL_SLOTS));
    small->mag.is_small = true;
    slots_sort_from(&local->bin[class].slots, &small->mag, heap_class_bytes(class));
    slots_set(&local->bin[class].slots, &small->mag);
}

/* How many full magazines a thread keeps for itself at most, and a sixteenth of what the heap keeps for all, until a tick: so much memory, and of small slots no more arrays. */
static uint32_t own_max(const struct heap_local *local, unsigned class)
{
    return u32_load_relaxed(&local->heap->of_class[class].turning) ? slots_own_max(heap_class_bytes(class), OWN_MOST) : 0;
}

/* ---- to the pages ---- */

static void spill(struct heap_local *local, unsigned class, struct magazine *mag)
{
    size_add_relaxed(&local->heap->of_class[class].spilled, mag->count);
    heap_spill(local, mag);
}

/* The older half of the small magazine. */
static void spill_half(struct heap_local *local, unsigned class, struct magazine *small)
{
    uint32_t all = small->count, half = all / 2;
    small->count = half;
    spill(local, class, small);
    for (uint32_t i = half; i < all; i++)
        addr_store_relaxed(&magazine_slots(small)[i - half], addr_load_relaxed(&magazine_slots(small)[i]));
    small->count = all - half;
}

/* What went past the magazines is counted from time to time: before it is asked for, and before the thread forgets it. */
static void drained_count(struct heap_local *local, unsigned class)
{
    struct slot_cache *cache = &local->bin[class].slots;
    size_add_relaxed(&local->heap->of_class[class].spilled, cache->drained);
    cache->drained = 0;
}

void heap_cache_missed(struct heap_local *local, unsigned class)
{
    struct heap_of_class *of = &local->heap->of_class[class];
    drained_count(local, class);
    if (size_load_relaxed(&of->spilled) / WORD_BITS <= u32_load_relaxed(&of->missed))
        return;
    local->bin[class].slots.demand++;
    local->bin[class].slots.drains = false; /* one magazine more may be kept */
    u32_add_relaxed(&of->missed, 1);
    if (u32_load_relaxed(&of->turning) == 0)
        u32_store_relaxed(&of->turning, 1);
}

/* ---- the long ways ---- */

static void lock_for_magazines(struct heap_local *local, unsigned class)
{
    if (unlikely(lock_held(&local->heap->lock)))
        slots_batch(&local->bin[class].slots, heap_class_bytes(class));
    lock_take(&local->heap->lock);
}

bool heap_cache_refill(struct heap_local *local, unsigned class)
{
    struct quire_heap *heap = local->heap;
    struct slot_cache *cache = &local->bin[class].slots;
    struct slot_depot *depot = &heap->of_class[class].depot;
    if (cache->cur && slots_turn(cache))
        return true;
    if (!local->small || __atomic_load_n(&depot->full, __ATOMIC_RELAXED) == NULL)
        return false;
    lock_for_magazines(local, class);
    struct magazine *mag = slots_depot_take(cache, depot, &heap->vacant);
    lock_drop(&heap->lock);
    if (!mag)
        return false;
    if (!cache->cur)
        begin(local, class); /* where it all ends */
    slots_set(cache, mag);
    slots_had(cache);
    return true;
}

/* To the depot, until it has `most`, and the others to their pages. */
static void put_away(struct heap_local *local, unsigned class, struct magazine *full, uint32_t most)
{
    struct quire_heap *heap = local->heap;
    struct slot_cache *cache = &local->bin[class].slots;
    if (full && most != 0) {
        lock_for_magazines(local, class);
        slots_depot_put(cache, &heap->of_class[class].depot, &heap->vacant, &full, most);
        lock_drop(&heap->lock);
    }
    for (struct magazine *mag; (mag = magazine_pop(&full)) != NULL;) {
        spill(local, class, mag);
        magazine_push(&cache->spare, mag);
    }
}

/*
 * How deep the depot may be for `full`.  What all lies in a thread's own pages goes there: the way is short, who frees much at its end has no use for the arrays,
 * and it comes from there in order.  A depot keeps any disorder, and each time around adds to it.
 */
static uint32_t depot_max(const struct heap_local *local, unsigned class, const struct magazine *full)
{
    uint32_t most = DEPOT_OWNS * own_max(local, class);
    return most == 0 || heap_spills_home(local, full) ? 0 : most;
}

static void give(struct magazine *full, void *place_)
{
    const struct place *place = place_;
    put_away(place->local, place->class, full, depot_max(place->local, place->class, full));
}

/*
 * The small magazine is full.  Where slots came from the page since it was so last, what went there is missed, though the page has not run out; where none
 * came several times in a row, much is freed at once, and a large magazine makes the way to the pages shorter.
 */
static void grow(struct heap_local *local, unsigned class)
{
    struct heap_bin *bin = &local->bin[class];
    struct slot_cache *cache = &bin->slots;
    struct heap_small *last = &local->small[class];
    bool turned = last->word && (last->word != bin->word || last->bits != *bin->word);
    last->in_a_row = turned ? 0 : last->in_a_row + 1;
    if (turned)
        heap_cache_missed(local, class);
    bool large = last->in_a_row >= IN_A_ROW || u32_load_relaxed(&local->heap->of_class[class].turning);
    struct magazine *small = cache->cur, *mag = large ? mag_new(&(struct place){local, class}) : NULL;
    slots_sync(cache);
    if (mag)
        spill(local, class, small);
    else
        spill_half(local, class, small);
    slots_set(cache, mag ? mag : small);
    last->word = bin->word;
    last->bits = *bin->word;
}

/* The magazines are full, no more are to be kept, and what would go to the pages lies in the local's own, as does this slot: it goes there. */
static bool drain(struct heap_local *local, unsigned class, void *p)
{
    struct slot_cache *cache = &local->bin[class].slots;
    struct heap_page *page = heap_page_find(p);
    if (!page || heap_owner(page) != local || !slots_are_enough(cache, own_max(local, class)))
        return false;
    if (!cache->drains && depot_max(local, class, cache->prev ? cache->prev : cache->cur) != 0)
        return false;
    cache->drains = true;
    (void)heap_slot_free(local, page, p, heap_slot_of(page, p));
    return true;
}

bool heap_cache_make_room(struct heap_local *local, unsigned class, void *p)
{
    struct slot_cache *cache = &local->bin[class].slots;
    if (!cache->cur)
        begin(local, class);
    if ((atomic_addr *)addr_load_relaxed(&cache->top) < cache->end)
        return true;
    if (cache->cur->is_small)
        grow(local, class);
    else if (!slots_return(cache, own_max(local, class)) && !drain(local, class, p))
        slots_overflow(cache, own_max(local, class), &(struct slots_beyond){give, mag_new, &(struct place){local, class}}, &local->small[class].mag);
    return !cache->drains;
}

/* Not counted as what may be missed: the thread may keep as much again. */
static void own_put_away(struct heap_local *local, struct slot_cache *cache)
{
    struct magazine *own = slots_take_own(cache);
    for (struct magazine *mag; (mag = magazine_pop(&own)) != NULL;) {
        heap_spill(local, mag);
        magazine_push(&cache->spare, mag);
    }
    mags_delete(local->heap, cache->spare);
    cache->spare = NULL;
}

void heap_caches_make_way(struct heap_local *local)
{
    size_t kept = 0, had = (size_t)++local->pages_had * HEAP_PAGE_BYTES_LEAST;
    if (local->pages_had % LOOK_PAGES != 0)
        return;
    for (unsigned c = 0; c < heap_bins_ready(local); c++)
        kept += local->bin[c].slots.owns * slots_magazine_bytes(heap_class_bytes(c));
    if (likely(kept <= KEPT_BYTES + size_load_relaxed(&local->heap->account.mapped_bytes) / KEPT_PARTS) || kept > had / SERVED_PARTS)
        return;
    uint64_t from_ns = os_time_ns();
    if (from_ns < local->way_again_ns)
        return;
    for (unsigned c = 0; c < heap_bins_ready(local); c++)
        own_put_away(local, &local->bin[c].slots);
    uint64_t to_ns = os_time_ns();
    local->pages_had = 0;
    local->way_again_ns = to_ns + AGAIN_TIMES * (to_ns - from_ns);
}

/* ---- ends ---- */

void heap_caches_flush(struct heap_local *local, bool ends)
{
    for (unsigned c = 0; c < heap_bins_ready(local); c++) {
        struct slot_cache *cache = &local->bin[c].slots;
        if (!cache->cur)
            continue;
        put_away(local, c, slots_take_all(cache), ends ? DEPOT_OWNS * own_max(local, c) : 0);
        spill(local, c, &local->small[c].mag);
        drained_count(local, c);
        mags_delete(local->heap, slots_clear(cache, &local->small[c].mag));
    }
    local->pages_had = 0;
    heap_larges_flush(local);
}

void heap_depots_flush(struct heap_local *local)
{
    struct quire_heap *heap = local->heap;
    struct magazine *mag, *empty = NULL;
    if (__atomic_load_n(&heap->vacant, __ATOMIC_RELAXED) != NULL) {
        lock_take(&heap->lock);
        empty = heap->vacant;
        __atomic_store_n(&heap->vacant, NULL, __ATOMIC_RELAXED);
        lock_drop(&heap->lock);
    }
    for (unsigned c = 0; c < HEAP_CLASSES; c++) {
        while (__atomic_load_n(&heap->of_class[c].depot.full, __ATOMIC_RELAXED) != NULL) {
            lock_take(&heap->lock);
            mag = slots_depot_pop(&heap->of_class[c].depot);
            lock_drop(&heap->lock);
            if (!mag)
                continue;
            spill(local, c, mag);
            magazine_push(&empty, mag);
        }
    }
    mags_delete(heap, empty);
}

void heap_depots_unlearn(struct quire_heap *heap)
{
    for (unsigned c = 0; c < HEAP_CLASSES; c++) {
        u32_store_relaxed(&heap->of_class[c].turning, 0);
        size_store_relaxed(&heap->of_class[c].spilled, 0);
        u32_store_relaxed(&heap->of_class[c].missed, 0);
    }
}

/* ---- looking ---- */

size_t heap_cached(struct quire_heap *heap, unsigned class, const void *slot)
{
    size_t found = 0;
    if (unlikely(heap_is_in_local())) /* a signal handler's call */
        return 0;
    HEAP_EACH_VISITED(heap, local)
        found += local->bin[class].slots.cur ? slots_have(&local->bin[class].slots, slot) : 0;
    lock_take(&heap->lock);
    found += magazines_have(heap->of_class[class].depot.full, slot);
    lock_drop(&heap->lock);
    return found;
}

void heap_refuse_slot(struct quire_heap *heap, const void *slot)
{
    const struct heap_page *page = heap_page_find(slot);
    size_t number = page ? heap_slot_of(page, slot) : SIZE_MAX;
    bool is_twice = number == SIZE_MAX || heap_bit_is_set(page, number) + heap_cached(heap, page->class, slot) > 1;
    heap_refuse(heap, is_twice ? HEAP_E1 : HEAP_E6, slot);
}

static void slot_to_bits(struct heap_page *page, size_t number)
{
    char *slot = heap_slot_at(page, number);
    heap_mark(slot, slots_mark(slot, slots_key));
    bits_set_one(page->free, number);
}

/*
 * The child of a fork: what vanished threads had cached is free; and what was on its way to its page, which has that mark already.  What was on its way to
 * another's page has the mark in its first word alone, and is in a chain.
 */
static void slots_to_bits(const struct magazine *mag, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *slot = (void *)addr_load_relaxed(&magazine_slots(mag)[i]);
        struct heap_page *page = heap_page_find(slot);
        size_t number = page && !heap_is_large(page) && page->quick_of ? heap_slot_of(page, slot) : SIZE_MAX;
        if (number != SIZE_MAX && (u64_load_relaxed((atomic_u64 *)slot) == slots_mark(slot, mag->key) || heap_has_mark(slot, slots_mark(slot, slots_key))))
            slot_to_bits(page, number);
    }
}

/* A thread that is gone was sorting (slots/sort.c): slots that are in no magazine say themselves that they were in one of these. */
static COLD void marks_to_bits(struct quire_heap *heap, unsigned class, uint64_t key)
{
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *page; (page = heap_header_next(heap, &headers)) != NULL;) {
        bool is_page = page->state != HEAP_UNUSED && page->state != HEAP_MAGAZINE && !heap_is_large(page) && page->class == class && page->quick_of == heap;
        if (!is_page || heap_page_find(page->span.start) != page)
            continue;
        for (size_t slot = 0; slot < page->slots; slot++)
            if (!heap_bit_is_set(page, slot) && unlikely(heap_has_mark(heap_slot_at(page, slot), slots_mark(heap_slot_at(page, slot), key))))
                slot_to_bits(page, slot);
    }
}

void heap_caches_to_bits(struct heap_local *local)
{
    for (unsigned c = 0; c < heap_bins_ready(local); c++) {
        const struct slot_cache *cache = &local->bin[c].slots;
        if (!cache->cur)
            continue;
        size_t count = slots_current(cache); /* torn: more than there can be */
        slots_to_bits(&local->small[c].mag, local->small[c].mag.count);
        if (count <= cache->cur->room)
            slots_to_bits(cache->cur, count);
        if (unlikely(cache->is_sorting))
            marks_to_bits(local->heap, c, slots_key_of(cache->kin));
    }
}

void heap_magazine_to_bits(struct heap_page *header)
{
    const struct magazine *mag = heap_magazine(header);
    slots_to_bits(mag, mag->count);
    heap_state_set(header, HEAP_UNUSED);
}

/* ---- check ---- */

struct soundness {
    const struct quire_heap *heap;
    unsigned class;
};

static bool mag_is_sound(const struct magazine *mag, size_t count, void *of_)
{
    const struct soundness *of = of_;
    for (size_t i = 0; i < count; i++) {
        const void *slot = (void *)addr_load_relaxed(&magazine_slots(mag)[i]);
        const struct heap_page *page = heap_page_find(slot);
        size_t number = page && !heap_is_large(page) && page->class == of->class ? heap_slot_of(page, slot) : SIZE_MAX;
        if (number == SIZE_MAX || page->quick_of != of->heap || heap_bit_is_set(page, number))
            return false;
    }
    return true;
}

bool heap_cache_is_sound(struct heap_local *local, unsigned class)
{
    struct soundness of = {local->heap, class};
    return !local->bin[class].slots.cur || slots_each(&local->bin[class].slots, mag_is_sound, &of);
}
