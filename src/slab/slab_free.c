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

/* What a free finds out beside setting the slot's bit. */
enum freed { FREED, FREED_FIRST, FREED_NOT }; /* FIRST: of its word; NOT: it is not live */

static ALWAYS_INLINE enum freed free_bit(struct slab_page *page, size_t slot)
{
    unsigned word = (unsigned)slot / WORD_BITS;
    struct slab_pair *pair = &page->pair[word];
    uint64_t free = u64_load_relaxed(&pair->free), not_live = free | u64_load_relaxed(&pair->remote);
    if (unlikely(word == page->word))
        not_live |= u64_load_relaxed((const atomic_u64 *)addr_load_relaxed(&page->avail));
    if (unlikely(not_live >> slot % WORD_BITS & 1))
        return FREED_NOT;
    u64_store_release(&pair->free, free | bit_of(slot)); /* release [slab-claim] */
    page->used--;
    return unlikely(free == 0) ? FREED_FIRST : FREED;
}

/* The page may have had no room before, or have nothing live now.  The last look at it: it may be gone. */
static void page_changed(struct slab_local *local, struct slab_page *page, size_t slot)
{
    if (page->used != 0 && page->lane == LANE_ORDINARY && u64_load_relaxed(&local->lane[LANE_ORDINARY].avail) == 0 &&
        slab_lane_turn(local, page, (unsigned)(slot / WORD_BITS)))
        return;
    slab_page_freed(local, page);
}

void slab_free_owned(struct slab_local *local, struct slab_page *page, size_t slot)
{
    if (unlikely(page->lane == LANE_MARKED))
        slab_unmark_bits(page, (unsigned)(slot / WORD_BITS), bit_of(slot));
    if (unlikely(free_bit(page, slot) == FREED_NOT))
        slab_refuse(page->slab, SLAB_E1, slab_slot_at(page, slot));
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

void quire_slab_free(struct quire_slab *slab, void *element)
{
    struct slab_thread *thread = slab_thread_self;
    slab_enter(thread);
    struct slab_page *page = thread->cache[slab_cache_idx(slab, element)];
    size_t slot = slab_slot_of(slab, page, element);
    if (likely(page->slab == slab) && likely(slot < page->slot_count)) {
        enum freed freed = free_bit(page, slot);
        if (likely(freed == FREED) && likely(page->used != 0)) {
            slab_leave(thread);
            return;
        }
        if (freed != FREED_NOT) {
            free_more(page, slot);
            return;
        }
    }
    free_slow(slab, element);
}

/* ---- batches ---- */

/* Others' elements of one word that follow each other, freed by one atomic or. */
struct gathered {
    struct slab_page *page;
    char *first; /* slot of the word */
    unsigned word;
    uint64_t bits;
};

/* Bits that are gathered keep their page from going away. */
static bool gathered_flush(struct gathered *g, struct slab_doubt *doubt)
{
    uint64_t bits = g->bits;
    g->bits = 0;
    doubt->first = g->first;
    return bits == 0 || likely(slab_remote_free(g->page, g->word, bits, doubt));
}

/* False: not added, because there is a doubt about those before it. */
static bool gathered_add(struct gathered *g, struct slab_place place, void *element, struct slab_doubt *doubt)
{
    struct slab_page *page = place.page;
    size_t slot = place.slot;
    if (g->page != page || g->word != slot / WORD_BITS) {
        if (!gathered_flush(g, doubt))
            return false;
        g->page = page;
        g->word = (unsigned)(slot / WORD_BITS);
        g->first = word_start(page->slab, element, slot);
    }
    if (unlikely(g->bits & bit_of(slot)))
        slab_refuse(page->slab, SLAB_E1, element);
    g->bits |= bit_of(slot);
    return true;
}

static bool batch_free_one(struct slab_local *local, struct gathered *g, void *element, struct slab_doubt *doubt)
{
    struct quire_slab *slab = local->slab;
    struct slab_page *page = local->cache[slab_cache_idx(slab, element)];
    size_t slot = slab_slot_of(slab, page, element);
    enum freed freed = likely(page->slab == slab) && likely(slot < page->slot_count) ? free_bit(page, slot) : FREED_NOT;
    if (likely(freed != FREED_NOT)) {
        if (unlikely(freed == FREED_FIRST) || unlikely(page->used == 0))
            page_changed(local, page, slot);
        return true;
    }
    if (g->bits != 0 && (slot = slab_slot_of(slab, g->page, element)) < g->page->slot_count)
        return gathered_add(g, (struct slab_place){g->page, slot}, element, doubt);
    struct slab_place place;
    const char *refused = slab_locate(slab, element, &place);
    if (unlikely(refused != NULL))
        slab_refuse(slab, refused, element);
    if (slab_owner(place.page) != local)
        return gathered_add(g, place, element, doubt);
    slab_free_owned(local, place.page, place.slot);
    cache_fill(slab_thread_self, local, slab, element);
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

/* Returns how many are freed; fewer than `count` when there is a doubt to settle first. */
static size_t batch_free(struct slab_local *local, void **elements, size_t count, struct slab_doubt *doubt)
{
    struct gathered g = {.bits = 0};
    size_t done = 0;
    while (done < count && (!elements[done] || batch_free_one(local, &g, elements[done], doubt)))
        done++;
    if (done == count && !gathered_flush(&g, doubt))
        return count;
    if (done == count)
        doubt->bits = 0;
    return done;
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
