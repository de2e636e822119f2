// SPDX-License-Identifier: MIT
/*
 * slab_free.c - giving an element back.
 *
 *     quire_slab_free:  (1) the thread's own page by a table of 64, checked by the page's bounds; (2) the slot, and that one begins
 *                       there, by one multiplication; (3) not free, not freed by others, not claimed; (4) set its bit
 *     the long way:     the page map finds the page of any address; own page: as above; another's: slab_remote.c
 *
 * Locks: none on the short way.  Not here: what becomes of the page (slab_page.c).
 */
#include <errno.h>

#include "base/panic.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"

const char *slab_locate(const struct quire_slab *slab, const void *p, struct slab_place *place)
{
    owner_t owner = pagemap_find(p);
    if (owner_kind(owner) != OWNER_SLAB)
        return SLAB_E2;
    struct slab_page *page = owner_object(owner);
    if (page->slab != slab)
        return SLAB_E4;
    size_t offset = (size_t)((const char *)p - page->slots);
    place->page = page;
    return offset < page->slots_bytes && slab_index(slab->reciprocal, offset, &place->slot) ? NULL : SLAB_E3;
}

static inline uint64_t bit_of(uint32_t slot)
{
    return UINT64_C(1) << slot % WORD_BITS;
}

bool slab_slot_is_free(const struct slab_page *page, uint32_t slot)
{
    const struct slab_pair *pair = &page->pair[slot / WORD_BITS];
    uint64_t not_live = u64_load_relaxed(&pair->free) | u64_load_relaxed(&pair->remote) | slab_claimed(page, slot / WORD_BITS);
    return (not_live & bit_of(slot)) != 0;
}

/* What a free finds out beside setting the bit. */
enum free_outcome { FREE_DONE, FREE_CHANGED, FREE_TWICE };

static ALWAYS_INLINE enum free_outcome free_bit(const struct slab_lane *lane, struct slab_page *page, uint32_t slot)
{
    struct slab_pair *pair = &page->pair[slot / WORD_BITS];
    uint64_t free = u64_load_relaxed(&pair->free), not_live = free | u64_load_relaxed(&pair->remote), bit = bit_of(slot);
    if (pair == lane->pair)
        not_live |= u64_load_relaxed(&lane->avail);
    if (unlikely(not_live & bit))
        return FREE_TWICE;
    u64_store_release(&pair->free, free | bit); /* release [slab-claim] */
    return unlikely(--page->used == 0) || unlikely(free == 0) ? FREE_CHANGED : FREE_DONE;
}

/* The word had no room before, or the page has nothing live now. */
static NOINLINE void free_changed(struct slab_local *local, struct slab_page *page, unsigned word)
{
    if ((page->open >> word & 1) == 0)
        slab_page_opened(local, page, word);
    if (page->used == 0)
        slab_page_emptied(local, page);
}

void slab_free_owned(struct slab_local *local, struct slab_page *page, uint32_t slot)
{
    if (unlikely(page->marks != NULL))
        slab_unmark_bits(page, slot / WORD_BITS, bit_of(slot));
    switch (free_bit(&local->lane[page->lane], page, slot)) {
    case FREE_TWICE:
        slab_refuse(page->slab, SLAB_E1, slab_slot_at(page, slot));
    case FREE_CHANGED:
        free_changed(local, page, slot / WORD_BITS);
        break;
    case FREE_DONE:
        break;
    }
    slab_page_rejoin(local, page);
}

/* The long way, inside an operation; `local` is the thread's, or none. */
static void free_anywhere(struct quire_slab *slab, struct slab_local *local, void *element)
{
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (unlikely(refused != NULL))
        slab_refuse(slab, refused, element);
    struct slab_page *page = place.page;
    if (slab_owner(page) != local) {
        slab_remote_free(page, place.slot / WORD_BITS, bit_of(place.slot));
        return;
    }
    if (page->lane == LANE_ORDINARY && !page->marks)
        local->cache[slab_cache_idx(element)] = page;
    slab_free_owned(local, page, place.slot);
}

/* What sanitizers are told, before anybody else can have it. */
static void watched_free(const struct quire_slab *slab, void *element)
{
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (refused || slab_slot_is_free(place.page, place.slot))
        slab_refuse(slab, refused ? refused : SLAB_E1, element);
    sanitize_no_access(element, slab->slot_bytes);
    sanitize_end_of_use(element);
}

/* With the thread's record locked. */
static void free_held(struct quire_slab *slab, void **elements, size_t count)
{
    struct slab_hold hold;
    struct slab_local *local = slab_hold(slab, &hold, false);
    for (size_t i = 0; i < count; i++) {
        if (!elements[i])
            continue;
        if (unlikely(slab->watched))
            watched_free(slab, elements[i]);
        free_anywhere(slab, local, elements[i]);
    }
    slab_drop(&hold);
}

/* The short way; false: it is not for it. */
static ALWAYS_INLINE bool free_fast(struct quire_slab *slab, struct slab_local *local, void *element)
{
    struct slab_page *page = local->cache[slab_cache_idx(element)];
    size_t offset = (size_t)((char *)element - page->slots);
    uint32_t slot;
    if (unlikely(offset >= page->slots_bytes) || unlikely(!slab_index(slab->reciprocal, offset, &slot)))
        return false;
    enum free_outcome outcome = free_bit(&local->lane[LANE_ORDINARY], page, slot);
    if (unlikely(outcome != FREE_DONE)) {
        if (outcome == FREE_TWICE)
            slab_refuse(slab, SLAB_E1, element);
        free_changed(local, page, slot / WORD_BITS);
    }
    return true;
}

static NOINLINE void free_slow(struct quire_slab *slab, struct slab_thread *thread, void *element)
{
    int kept = errno;
    if (slab->solo && !slab->watched) {
        slab_leave(thread);
        if (element && !free_fast(slab, slab->solo, element))
            free_anywhere(slab, slab->solo, element);
    } else if (element && likely(slab->id < u32_load_acquire(&thread->limit))) { /* acquire [slab-limit] */
        free_anywhere(slab, thread->table[slab->id], element);
        slab_leave(thread);
    } else {
        slab_leave(thread);
        if (element)
            free_held(slab, &element, 1);
    }
    errno = kept;
}

void quire_slab_free(struct quire_slab *slab, void *element)
{
    struct slab_thread *thread = slab_thread_self;
    slab_enter(thread);
    /* acquire [slab-limit] */
    if (likely(slab->id < u32_load_acquire(&thread->limit)) && likely(free_fast(slab, thread->table[slab->id], element))) {
        slab_leave(thread);
        return;
    }
    free_slow(slab, thread, element);
}

/* ---- batches ---- */

/* Others' elements of one word that follow each other, freed by one atomic or. */
struct gathered {
    struct slab_page *page;
    unsigned word;
    uint64_t bits;
};

static void gathered_flush(struct gathered *g)
{
    if (g->bits)
        slab_remote_free(g->page, g->word, g->bits);
    g->bits = 0;
}

static void gathered_add(struct gathered *g, struct slab_page *page, uint32_t slot)
{
    if (g->page != page || g->word != slot / WORD_BITS) {
        gathered_flush(g);
        g->page = page;
        g->word = slot / WORD_BITS;
    }
    if (unlikely(g->bits & bit_of(slot)))
        slab_refuse(page->slab, SLAB_E1, slab_slot_at(page, slot));
    g->bits |= bit_of(slot);
}

/* The page of the element before is the likeliest: bits that are gathered keep it from going away. */
static ALWAYS_INLINE void batch_free_one(struct quire_slab *slab, struct slab_local *local, struct gathered *g, void *element)
{
    size_t offset = g->bits ? (size_t)((char *)element - g->page->slots) : SIZE_MAX;
    uint32_t slot;
    if (likely(g->bits && offset < g->page->slots_bytes && slab_index(slab->reciprocal, offset, &slot))) {
        gathered_add(g, g->page, slot);
        return;
    }
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (unlikely(refused != NULL))
        slab_refuse(slab, refused, element);
    if (slab_owner(place.page) == local)
        slab_free_owned(local, place.page, place.slot);
    else
        gathered_add(g, place.page, place.slot);
}

static void batch_free(struct quire_slab *slab, struct slab_local *local, void **elements, size_t count)
{
    struct gathered g = {.bits = 0};
    for (size_t i = 0; i < count; i++)
        if (likely(elements[i] != NULL))
            batch_free_one(slab, local, &g, elements[i]);
    gathered_flush(&g);
}

/* So long a batch at once that a visitor does not wait for long. */
enum { BATCH_AT_ONCE = 4096 };

void quire_slab_free_batch(struct quire_slab *slab, void **elements, size_t count)
{
    int kept = errno;
    for (size_t n; count > 0; elements += n, count -= n) {
        n = count < BATCH_AT_ONCE ? count : BATCH_AT_ONCE;
        struct slab_thread *thread = slab_thread_self;
        slab_enter(thread);
        if (likely(slab->id < u32_load_acquire(&thread->limit))) { /* acquire [slab-limit] */
            batch_free(slab, thread->table[slab->id], elements, n);
            slab_leave(thread);
        } else {
            slab_leave(thread);
            free_held(slab, elements, n);
        }
    }
    errno = kept;
}
