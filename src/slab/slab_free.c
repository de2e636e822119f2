// SPDX-License-Identifier: MIT
/*
 * slab_free.c - giving an element back.
 *
 *     quire_slab_free:  (1) the thread's own page by a table of 128, checked by the page's bounds; (2) the slot, and that one begins
 *                       there, by one multiplication; (3) not free, not freed by others, not claimed; (4) set its bit;
 *                       (5) one count down, at 0 the page is looked at
 *     a batch:          elements of one word that follow each other are gathered: (2) for each, the rest once for all of them
 *     the long way:     the page map finds the page of any address; own page: as above; another's: slab_remote.c
 *
 * Locks: none on the short way.  Not here: what becomes of the page (slab_page.c).
 */
#include <errno.h>

#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"

/* A page that is being given back at this moment has nothing live.  Its header may be in use again: a guess, for the line that stops the process. */
static NO_SANITIZE bool is_going(const struct slab_page *page, const void *p)
{
    return !page->home && (page->slot_count == 0 || (size_t)((const char *)p - (const char *)page->span.start) >= page->span.bytes);
}

const char *slab_locate(const struct quire_slab *slab, const void *p, struct slab_place *place)
{
    owner_t owner = pagemap_find(p);
    if (owner_kind(owner) != OWNER_SLAB)
        return SLAB_E2;
    struct slab_page *page = owner_object(owner);
    if (page->slab != slab)
        return SLAB_E4;
    *place = (struct slab_place){page, slab_slot_of(slab, page, p)};
    if (likely(place->slot < __atomic_load_n(&page->slot_count, __ATOMIC_RELAXED)))
        return NULL;
    return is_going(page, p) ? SLAB_E1 : SLAB_E3;
}

static inline uint64_t bit_of(size_t slot)
{
    return UINT64_C(1) << slot % WORD_BITS;
}

/* The first slot of an element's word. */
static inline char *word_start(const struct quire_slab *slab, void *element, size_t slot)
{
    return (char *)element - slot % WORD_BITS * slab->slot_bytes;
}

enum { SPINS = 100 };

/*
 * `remote` first: a collection, and a claim, publish a bit elsewhere before they take it out of there.  Then again if a claim began or ended meanwhile.
 */
uint64_t slab_not_live(const struct slab_page *page, unsigned word)
{
    for (int spins = 0;; spins++) {
        uint32_t claims = u32_load_acquire(&page->claims); /* acquire [slab-claims] */
        uint64_t not_live = u64_load_acquire(&page->pair[word].remote);
        not_live |= u64_load_acquire(&page->pair[word].free); /* acquire [slab-claim] */
        if (likely(claims % 2 == 0)) {
            not_live |= slab_claimed(page, word);
            if (likely(u32_load_relaxed(&page->claims) == claims))
                return not_live;
        }
        if (spins < SPINS)
            cpu_pause();
        else
            os_yield(); /* the owner waits for a CPU in the middle of it */
    }
}

bool slab_slot_is_free(const struct slab_page *page, size_t slot)
{
    return (slab_not_live(page, (unsigned)(slot / WORD_BITS)) & bit_of(slot)) != 0;
}

/* Sets the slot's bit; who calls takes it off page->due.  False: it is not live. */
static ALWAYS_INLINE bool free_bit(struct slab_page *page, size_t slot)
{
    size_t at = slot / (WORD_BITS / sizeof(struct slab_pair)) & ~(sizeof(struct slab_pair) - 1);
    struct slab_pair *pair = (struct slab_pair *)(void *)((char *)page->pair + at);
    uint64_t free = u64_load_relaxed(&pair->free), not_live = free | u64_load_relaxed(&pair->remote);
    if (unlikely((uint32_t)at == page->claimed_at))
        not_live |= u64_load_relaxed((const atomic_u64 *)addr_load_relaxed(&page->avail));
    if (unlikely(not_live & bit_of(slot)))
        return false;
    u64_store_release(&pair->free, free | bit_of(slot)); /* release [slab-claim] */
    return true;
}

/* The page may have had no room before, or have nothing live now.  The last look at it: it may be gone. */
static void page_changed(struct slab_local *local, struct slab_page *page, size_t slot)
{
    if (slab_used(page) != 0 && page->lane == LANE_ORDINARY && u64_load_relaxed(&local->lane[LANE_ORDINARY].avail) == 0 &&
        slab_lane_turn(local, page, (unsigned)(slot / WORD_BITS)))
        return;
    slab_page_freed(local, page);
}

void slab_free_owned(struct slab_local *local, struct slab_page *page, size_t slot)
{
    if (unlikely(page->lane == LANE_MARKED))
        slab_unmark_bits(page, (unsigned)(slot / WORD_BITS), bit_of(slot));
    if (unlikely(!free_bit(page, slot)))
        slab_refuse(page->slab, SLAB_E1, slab_slot_at(page, slot));
    page->due--;
    slab_page_rejoin(local, page);
    page_changed(local, page, slot);
}

/* The long way, inside an operation; `local` is the thread's, or none.  False: a doubt to settle. */
static bool free_anywhere(struct quire_slab *slab, struct slab_local *local, void *element, struct slab_doubt *doubt)
{
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (unlikely(refused != NULL))
        slab_refuse(slab, refused, element);
    struct slab_page *page = place.page;
    if (slab_owner(page) != local) {
        doubt->first = word_start(slab, element, place.slot);
        return slab_remote_free(page, (unsigned)(place.slot / WORD_BITS), bit_of(place.slot), doubt);
    }
    slab_free_owned(local, page, place.slot);
    return true;
}

/* The next free into this page takes a shorter way.  Only where the thread holds no lock: whoever visits its locals empties the cache, and relies
 * on its staying so. */
static void cache_fill(struct slab_thread *thread, struct slab_local *local, const struct quire_slab *slab, const void *element)
{
    owner_t owner = pagemap_find(element);
    struct slab_page *page = owner_object(owner);
    if (owner_kind(owner) != OWNER_SLAB || page->slab != slab)
        return; /* given back meanwhile */
    if (slab_owner(page) != local)
        addr_store_relaxed(&thread->remote, (uintptr_t)page);
    else if (page->lane == LANE_ORDINARY && page->state != PAGE_EMPTY)
        thread->cache[slab_cache_idx(slab, element)] = page, __atomic_store_n(&thread->fills, thread->fills + 1, __ATOMIC_RELAXED);
}

/* What sanitizers are told, before anybody else can have it. */
static void watched_free(const struct quire_slab *slab, void *element)
{
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (refused)
        slab_refuse(slab, refused, element);
    if (slab_slot_is_free(place.page, place.slot))
        return; /* refused in a moment, or settled */
    sanitize_no_access(element, slab->slot_bytes);
    sanitize_end_of_use(element);
}

/* With the thread's record locked. */
static void free_held(struct quire_slab *slab, void *element)
{
    struct slab_hold hold;
    struct slab_doubt doubt;
    struct slab_local *local = slab_hold(slab, &hold, false);
    if (unlikely(slab->watched))
        watched_free(slab, element);
    bool done = free_anywhere(slab, local, element, &doubt);
    slab_drop(&hold);
    if (unlikely(!done))
        slab_settle(slab, doubt);
}

static NOINLINE void free_slower(struct quire_slab *slab, void *element)
{
    int kept = errno;
    struct slab_doubt doubt;
    struct slab_thread *thread = slab_thread_self;
    struct slab_local *local = slab_local_of(slab, thread);
    if (element && local) {
        bool done = free_anywhere(slab, local, element, &doubt);
        cache_fill(thread, local, slab, element);
        slab_leave(thread);
        if (unlikely(!done))
            slab_settle(slab, doubt);
    } else {
        slab_leave(thread);
        if (element)
            free_held(slab, element);
    }
    errno = kept;
}

/* Into the same page of another thread as the last time; or the long way. */
static NOINLINE void free_slow(struct quire_slab *slab, void *element)
{
    struct slab_thread *thread = slab_thread_self;
    struct slab_page *page = (struct slab_page *)addr_load_relaxed(&thread->remote);
    struct slab_doubt doubt;
    if (likely(page != NULL) && likely(u32_load_acquire(&thread->limit) != 0)) { /* acquire [slab-limit] */
        size_t slot = slab_slot_of(slab, page, element);
        if (likely(page->slab == slab) && likely(slot < page->slot_count)) {
            doubt.first = word_start(slab, element, slot);
            bool done = slab_remote_free(page, (unsigned)slot / WORD_BITS, bit_of(slot), &doubt);
            slab_leave(thread);
            if (unlikely(!done))
                slab_settle(slab, doubt);
            return;
        }
    }
    free_slower(slab, element);
}

static NOINLINE void free_more(struct slab_page *page, size_t slot)
{
    int kept = errno;
    page_changed(slab_owner(page), page, slot);
    slab_leave(slab_thread_self);
    errno = kept;
}

/* The code begins on a cache line, whatever stands before it: see quire_slab_alloc(). */
CACHE_ALIGNED void quire_slab_free(struct quire_slab *slab, void *element)
{
    struct slab_thread *thread = slab_thread_self;
    slab_enter(thread);
    struct slab_page *page = thread->cache[slab_cache_idx(slab, element)];
    size_t slot = slab_slot_from(slab, page->slots, element);
    if (likely(page->slab == slab) && likely(slot < page->slot_count) && likely(free_bit(page, slot))) {
        if (likely(--page->due != 0))
            slab_leave(thread);
        else
            free_more(page, slot);
        return;
    }
    free_slow(slab, element);
}

/* ---- batches ---- */

/* Elements of one word that follow each other, freed together: by one store, or where the page is another's by one atomic or. */
struct gathered {
    char *first;  /* slot of the word */
    size_t slots; /* of the word; 0: nothing is gathered */
    uint64_t bits;
    struct slab_page *page; /* what is gathered keeps it from going away */
    unsigned word;
    bool own;
};

static void gathered_free_own(struct slab_local *local, const struct gathered *g)
{
    struct slab_page *page = g->page;
    struct slab_pair *pair = &page->pair[g->word];
    uint64_t free = u64_load_relaxed(&pair->free), not_live = free | u64_load_relaxed(&pair->remote) | slab_claimed(page, g->word);
    if (unlikely(not_live & g->bits))
        slab_refuse_bits(page, g->word, not_live & g->bits);
    if (unlikely(page->lane == LANE_MARKED))
        slab_unmark_bits(page, g->word, g->bits);
    u64_store_release(&pair->free, free | g->bits); /* release [slab-claim] */
    bool is_due = slab_used_less(page, bits_count(g->bits));
    slab_page_rejoin(local, page);
    if (unlikely(is_due))
        page_changed(local, page, (size_t)g->word * WORD_BITS);
}

/* False: there is a doubt. */
static bool gathered_flush(struct slab_local *local, struct gathered *g, struct slab_doubt *doubt)
{
    bool done = true;
    if (g->slots != 0 && g->own) {
        gathered_free_own(local, g);
    } else if (g->slots != 0) {
        doubt->first = g->first;
        done = slab_remote_free(g->page, g->word, g->bits, doubt);
    }
    g->slots = 0;
    return done;
}

/* An element of another word.  False: not added, because there is a doubt about those before it. */
static NOINLINE bool gathered_begin(struct slab_local *local, struct gathered *g, void *element, struct slab_doubt *doubt)
{
    const struct quire_slab *slab = local->slab;
    if (unlikely(!gathered_flush(local, g, doubt)))
        return false;
    struct slab_place place = {.page = local->cache[slab_cache_idx(slab, element)]};
    place.slot = slab_slot_of(slab, place.page, element);
    g->own = true;
    if (unlikely(place.page->slab != slab) || unlikely(place.slot >= place.page->slot_count)) {
        const char *refused = slab_locate(slab, element, &place);
        if (unlikely(refused != NULL))
            slab_refuse(slab, refused, element);
        g->own = slab_owner(place.page) == local;
        if (g->own)
            cache_fill(slab_thread_self, local, slab, element);
    }
    g->page = place.page;
    g->word = (unsigned)(place.slot / WORD_BITS);
    g->first = word_start(slab, element, place.slot);
    size_t left = __atomic_load_n(&place.page->slot_count, __ATOMIC_RELAXED) - (size_t)g->word * WORD_BITS;
    g->slots = left < WORD_BITS ? left : WORD_BITS;
    g->bits = bit_of(place.slot);
    return true;
}

/* A thread that frees batches has a local too: it is what says that its cache may be used.  False: there is no memory for one. */
static bool slab_join(struct quire_slab *slab)
{
    struct slab_hold hold;
    bool joined = slab_hold(slab, &hold, true) != NULL;
    slab_drop(&hold);
    return joined;
}

/* So long a batch at once that a visitor does not wait for long. */
enum { BATCH_AT_ONCE = 4096 };

/* One of these elements, which are all of the gathered word, is there twice. */
static COLD void gathered_refuse(const struct quire_slab *slab, const struct gathered *g, void **elements)
{
    uint64_t bits = g->bits, bit;
    for (size_t i = 0;; i++, bits |= bit) {
        bit = bit_of(slab_slot_from(slab, g->first, elements[i]));
        if (bits & bit)
            slab_refuse(slab, SLAB_E1, elements[i]);
    }
}

/* Adds elements of the same word, as many as follow each other.  Alone and on a cache line: the loop is worth a sixth of a pair where it falls well. */
static NOINLINE CACHE_ALIGNED size_t gathered_add(const struct quire_slab *slab, struct gathered *g, void **elements, size_t count)
{
    uint64_t bits = g->bits;
    size_t slots = g->slots, i = 0;
    const char *first = g->first;
    for (size_t slot; i < count && (slot = slab_slot_from(slab, first, elements[i])) < slots; i++)
        bits |= bit_of(slot);
    if (i > 0 && unlikely(bits_count(bits) != bits_count(g->bits) + i))
        gathered_refuse(slab, g, elements);
    g->bits = bits;
    return i;
}

/* Returns how many are freed; fewer than `count` when there is a doubt to settle first. */
static size_t batch_free(struct slab_local *local, void **elements, size_t count, struct slab_doubt *doubt)
{
    struct gathered g = {.slots = 0};
    for (size_t i = 0; i < count; i++) {
        if (elements[i] && unlikely(!gathered_begin(local, &g, elements[i], doubt)))
            return i;
        i += gathered_add(local->slab, &g, elements + i + 1, count - i - 1);
    }
    if (likely(gathered_flush(local, &g, doubt)))
        doubt->bits = 0;
    return count;
}

void quire_slab_free_batch(struct quire_slab *slab, void **elements, size_t count)
{
    int kept = errno;
    for (size_t n; count > 0; elements += n, count -= n) {
        struct slab_doubt doubt = {.bits = 0};
        struct slab_thread *thread = slab_thread_self;
        slab_enter(thread);
        struct slab_local *local = slab_local_of(slab, thread);
        if (likely(local != NULL) && likely(local != &slab_local_none))
            n = batch_free(local, elements, count < BATCH_AT_ONCE ? count : BATCH_AT_ONCE, &doubt);
        else
            n = 0;
        slab_leave(thread);
        if (n == 0 && doubt.bits == 0 && (!local || !slab_join(slab)))
            quire_slab_free(slab, elements[n++]);
        slab_settle(slab, doubt);
    }
    errno = kept;
}
