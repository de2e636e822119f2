// SPDX-License-Identifier: MIT
/*
 * heap_spill.c - free slots go from a magazine to their pages: the local's own by their bits, others' on their way (heap_remote.c).
 *
 *     magazine  | slot slot slot | slot slot | slot |        runs of slots that lie in one page: its header is looked up once for each
 *                  page A           page B      page C
 *
 * Locks: inside the local.  Not here: which magazines go, and when (heap_cache.c).
 */
#include "heap/heap_cache.h"

enum { FETCH_AHEAD = 12, LOOK_EACH = 8 }; /* slots were freed a while ago, and are far by now: fetched before they are looked at */

/* A slot of a page of the local's own: its bit, and the mark of no magazine, so that one that has it once more finds out. */
static ALWAYS_INLINE void slot_home(const struct heap_local *local, struct heap_page *page, void *slot, size_t number, bool is_watched)
{
    uint64_t *word = &page->free[number / WORD_BITS], bit = UINT64_C(1) << number % WORD_BITS, bits = *word;
    if (unlikely(bits & bit))
        heap_refuse(local->heap, HEAP_E1, slot);
    if (likely(!is_watched))
        heap_mark(slot, slots_mark(slot, slots_key));
    atomic_fence_signal();
    heap_bits_set(word, bits | bit);
}

bool heap_slot_free(struct heap_local *local, struct heap_page *page, void *p, size_t slot)
{
    slot_home(local, page, p, slot, local->heap->is_watched);
    bool stays = likely(--page->until != 0);
    if (!stays)
        heap_page_due(local, page);
    return stays;
}

/* A page does not go while a slot of it is here once. */
static COLD __attribute__((noreturn)) void refuse_spilled(const struct quire_heap *heap, const struct heap_page *page, const void *slot)
{
    size_t number = page && !heap_is_large(page) ? heap_slot_of(page, slot) : SIZE_MAX;
    bool is_live = number != SIZE_MAX && !heap_bit_is_set(page, number);
    heap_refuse(heap, is_live ? HEAP_E6 : HEAP_E1, slot);
}

static inline char *slot_at(const struct magazine *mag, uint32_t i)
{
    return (char *)addr_load_relaxed(&magazine_slots(mag)[i]);
}

static inline void fetch(const struct magazine *mag, uint32_t i)
{
    if (i < mag->count)
        __builtin_prefetch(slot_at(mag, i), 1);
}

static inline bool lies_in(const struct heap_page *page, const char *slot)
{
    return (size_t)(slot - (const char *)page->span.start) < page->span.bytes;
}

/* The run that begins at i, of a page of the local's own.  Returns where it ends: there, or behind the slot with which the page is due, and may go. */
static uint32_t spill_run(struct heap_local *local, struct heap_page *page, const struct magazine *mag, uint32_t i)
{
    uint64_t key = mag->key;
    uint32_t begin = i, left = page->until, end = mag->count - begin < left ? mag->count : begin + left;
    for (char *slot; i < end && lies_in(page, slot = slot_at(mag, i)); i++) {
        fetch(mag, i + FETCH_AHEAD);
        size_t number = heap_slot_of(page, slot);
        if (unlikely(number == SIZE_MAX) || unlikely(!heap_has_mark(slot, slots_mark(slot, key))))
            refuse_spilled(local->heap, page, slot);
        slot_home(local, page, slot, number, false);
    }
    page->until = (uint16_t)(left - (i - begin));
    if (unlikely(page->until == 0))
        heap_page_due(local, page);
    return i;
}

static uint32_t run_end(const struct heap_page *page, const struct magazine *mag, uint32_t i)
{
    for (; i < mag->count && lies_in(page, slot_at(mag, i)); i++)
        fetch(mag, i + FETCH_AHEAD);
    return i;
}

void heap_spill(struct heap_local *local, struct magazine *mag)
{
    for (uint32_t i = 0; i < FETCH_AHEAD; i++)
        fetch(mag, i);
    for (uint32_t i = 0; i < mag->count;) {
        char *slot = slot_at(mag, i);
        struct heap_page *page = heap_page_find(slot);
        if (unlikely(!page) || unlikely(heap_is_large(page)))
            refuse_spilled(local->heap, page, slot);
        struct heap_local *owner = heap_owner(page);
        if (likely(owner == local)) {
            i = spill_run(local, page, mag, i);
            continue;
        }
        uint32_t end = run_end(page, mag, i);
        i = heap_out_run(local, owner, mag, i, end);
        if (unlikely(i != end))
            refuse_spilled(local->heap, page, slot_at(mag, i));
    }
    mag->count = 0;
}

/* Looks at some: the others are mostly of the same pages, and what is not goes on its way. */
bool heap_spills_home(const struct heap_local *local, const struct magazine *mag)
{
    for (uint32_t i = 0; i < mag->count; i += LOOK_EACH) {
        const struct heap_page *page = heap_page_find(slot_at(mag, i));
        if (!page || heap_owner(page) != local)
            return false;
    }
    return true;
}
