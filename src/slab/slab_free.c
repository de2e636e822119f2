// SPDX-License-Identifier: MIT
/*
 * slab_free.c - giving an element back.
 *
 *     quire_slab_free:  (1) a table finds the page, or the page map, which knows any address; (2) that an element begins there, by one multiplication; (3) its first word
 *                       does not say that it is free; (4) mark it, and put it on the thread's magazine
 *     the long way:     without a cache, or into a page with marks: the page's bit says whether it is free
 *     a doubt:          the word says that it is free, which a live element's may by chance: all magazines are looked through, all threads outside
 *
 * What a second free meets: the mark, if nothing was written since the first; else, when the page gets its slot back, the page's bit; or when the slot is
 * taken from a magazine or its page is to go, another word than that mark.  Not here: magazines (slab_cache.c).
 *
 * Locks: none on the short way.
 */
#define QUIRE_SLAB_INLINE 0 /* here is the function itself */
#include <errno.h>

#include "os/sanitize.h"
#include "slab/slab_gate.h"
#include "slab/slab_internal.h"

const char *slab_locate(const struct quire_slab *slab, const void *p, struct slab_place *place)
{
    owner_t owner = pagemap_find(p);
    if (owner_kind(owner) != OWNER_SLAB)
        return SLAB_E2;
    struct slab_page *page = owner_object(owner);
    if (page->slab != slab)
        return SLAB_E4;
    *place = (struct slab_place){page, slab_slot_of(slab, page, p)};
    return likely(place->slot < page->slot_count) ? NULL : SLAB_E3;
}

/* ---- doubts ---- */

struct search {
    const struct quire_slab *slab;
    const void *slot;
    size_t found;
};

static void search_thread(struct slab_thread *thread, void *arg)
{
    struct search *search = arg;
    const struct slab_cache *cache = slab_visited_cache(thread, search->slab);
    search->found += cache ? slots_have(&cache->slots, search->slot) : 0;
}

/* In how many places is it free?  Its page's bits are one, magazines the others.  Holding nothing. */
static size_t count_places(struct quire_slab *slab, const void *slot)
{
    struct search search = {.slab = slab, .slot = slot};
    struct slab_place place;
    slab_list_lock();
    slab_visit_all(search_thread, &search, true);
    slab_lock(slab);
    search.found += magazines_have(slab->depot.full, slot);
    if (!slab_locate(slab, slot, &place))
        search.found += bits_test(place.page->free, place.slot);
    slab_unlock(slab);
    registry_unlock(&slab_registry);
    return search.found;
}

static NOINLINE void settle(struct quire_slab *slab, void *element)
{
    if (count_places(slab, element) != 0)
        slab_refuse(slab, SLAB_E1, element);
    u64_store_relaxed(element, 0); /* what was there had that look by chance */
}

/* A slot was not in its magazine as it was left there. */
void slab_refuse_slot(struct quire_slab *slab, void *slot)
{
    slab_refuse(slab, count_places(slab, slot) > 1 ? SLAB_E1 : SLAB_E7, slot);
}

/* ---- the long way ---- */

/* What sanitizers are told, before anybody else can have it. */
static void watched_free(const struct quire_slab *slab, void *element)
{
    sanitize_no_access(element, slab->slot_bytes);
    sanitize_end_of_use(element);
}

void slab_put_one(struct quire_slab *slab, void *element)
{
    struct slab_place place;
    slab_lock(slab);
    const char *refused = slab_locate(slab, element, &place);
    if (!refused && bits_test(place.page->free, place.slot))
        refused = SLAB_E1;
    if (refused)
        slab_refuse(slab, refused, element);
    if (unlikely(slab->watched))
        watched_free(slab, element);
    else if (!slab->straight)
        u64_store_relaxed(element, slots_mark(element, slots_key));
    if (place.page->lane == LANE_MARKED)
        slab_unmark_bit(place.page, place.slot);
    slab_page_put(place.page, place.slot);
    slab_unlock(slab);
}

/* With the thread's record locked.  False: a doubt to settle. */
static bool free_held(struct quire_slab *slab, struct slab_cache *cache, void *element)
{
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (unlikely(refused != NULL))
        slab_refuse(slab, refused, element);
    if (slab_is_marked(slab, element))
        return false;
    if (cache && place.slot * slab->slot_bytes < size_load_relaxed(&place.page->carved))
        slab_cache_free(cache, element);
    else
        slab_put_one(slab, element);
    return true;
}

static NOINLINE void free_slow(struct quire_slab *slab, void *element)
{
    int kept = errno;
    for (bool done = element == NULL; !done;) {
        struct slab_cache *cache = slab_hold(slab);
        done = free_held(slab, cache, element);
        slab_drop();
        if (unlikely(!done))
            settle(slab, element);
    }
    errno = kept;
}

/* A live element of this page begins here, as far as one can see; key: of any magazine. */
static ALWAYS_INLINE bool seems_live(const struct quire_slab *slab, const struct slab_page *page, const void *element, uint64_t key)
{
    size_t offset = (uintptr_t)element - addr_load_relaxed(&page->slots);
    return likely(offset < size_load_relaxed(&page->carved)) && likely(slab_begins(slab, offset)) &&
           likely((uint32_t)u64_load_relaxed(element) != (uint32_t)slots_mark(element, key));
}

/* On the thread's magazine; the thread is inside. */
static ALWAYS_INLINE bool free_short(const struct quire_slab *slab, struct slab_cache *cache, const struct slab_page *page, void *element)
{
    uint64_t key = cache->slots.key;
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top);
    if (unlikely(!seems_live(slab, page, element, key)) || unlikely(top >= cache->slots.end))
        return false;
    u64_store_relaxed(element, slots_mark(element, key));
    addr_store_relaxed(top, (uintptr_t)element);
    addr_store_relaxed(&cache->slots.top, (uintptr_t)(top + 1));
    return true;
}

/* By the page map. */
static ALWAYS_INLINE bool free_mapped(const struct quire_slab *slab, struct slab_cache *cache, void *element)
{
    owner_t owner = pagemap_find(element);
    const struct slab_page *page = owner_object(owner);
    return likely(owner_kind(owner) == OWNER_SLAB) && likely(page->slab == slab) && free_short(slab, cache, page, element);
}

/* Into another magazine of the thread's own; or the page was not in the table, or the slab has no gate. */
static NOINLINE void free_far(struct quire_slab *slab, void *element)
{
    uintptr_t gate = slab_enter(slab);
    struct slab_cache *near = slab_gate_cache(gate);
    bool done = near != &slab_cache_none && (free_mapped(slab, near, element) || (slab_cache_return(near) && free_mapped(slab, near, element)));
    slab_leave(gate);
    if (likely(done))
        return;
    struct slab_thread *thread = slab_thread_self;
    struct slab_cache *cache = slab_enter_far(slab, thread);
    if (likely(cache != NULL)) {
        done = free_mapped(slab, cache, element) || (slab_cache_return(cache) && free_mapped(slab, cache, element));
        slab_leave_far(thread);
        if (likely(done))
            return;
    }
    free_slow(slab, element);
}

/* The code begins on a cache line, whatever stands before it: see quire_slab_alloc(). */
CACHE_ALIGNED void quire_slab_free(struct quire_slab *slab, void *element)
{
    uintptr_t gate = slab_enter(slab);
    struct slab_table *table = (struct slab_table *)addr_load_acquire(&slab->table); /* acquire [slab-table] */
    const struct slab_page *page = __atomic_load_n(slab_table_entry(slab, table, (uintptr_t)element), __ATOMIC_RELAXED);
    bool done = free_short(slab, slab_gate_cache(gate), page, element);
    slab_leave(gate);
    if (unlikely(!done))
        free_far(slab, element);
}

/* As many as go the short way; NULLs are done with. */
static size_t free_some(struct quire_slab *slab, void **elements, size_t count)
{
    uintptr_t gate = slab_enter(slab);
    struct slab_cache *cache = slab_gate_cache(gate);
    struct slab_table *table = (struct slab_table *)addr_load_acquire(&slab->table); /* acquire [slab-table] */
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top), *end = cache->slots.end;
    uint64_t key = cache->slots.key;
    size_t i = 0;
    for (; i < count && (top < end || !elements[i]); i++) {
        void *element = elements[i];
        const struct slab_page *page = __atomic_load_n(slab_table_entry(slab, table, (uintptr_t)element), __ATOMIC_RELAXED);
        if (!element)
            continue;
        if (unlikely(!seems_live(slab, page, element, key)))
            break;
        u64_store_relaxed(element, slots_mark(element, key));
        addr_store_relaxed(top++, (uintptr_t)element);
    }
    if (likely(cache != &slab_cache_none))
        addr_store_relaxed(&cache->slots.top, (uintptr_t)top);
    slab_leave(gate);
    return i;
}

void quire_slab_free_batch(struct quire_slab *slab, void **elements, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((i += free_some(slab, elements + i, count - i)) < count)
            free_far(slab, elements[i]);
}
