// SPDX-License-Identifier: MIT
/*
 * slab_look.c - what a slab holds: statistics, walking, owning, checking.
 *
 * A page's bits say which slots are free in it, marks in the slots which are in a magazine.  Statistics count the former under the slab's lock and add
 * up what threads have cached; what threads do meanwhile may be in it or not.
 *
 * A walk looks at one page at a time and calls the user's function without a lock, so that it may use the slab; meanwhile a pin keeps the page.
 * A check visits every thread (slab_thread.c): what it compares must be at rest.
 *
 * Locks: slab->lock; visits.  Not here: anything that changes what is live.
 */
#include "base/abi.h"
#include "base/fail.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"

/* The live slots of a word; under slab->lock. */
NO_SANITIZE static uint64_t live_bits(const struct slab_page *page, unsigned word)
{
    uint64_t used = slab_word_bits(page, word) & ~page->free[word], live = used;
    for (; used && !page->slab->straight; used &= used - 1)
        if (slab_is_marked(page->slab, slab_slot_at(page, word * WORD_BITS + bits_lowest(used))))
            live &= ~(used & -used);
    return live;
}

static bool has_live(const struct slab_page *page)
{
    for (unsigned w = 0; w < slab_words(page); w++)
        if (live_bits(page, w))
            return true;
    return false;
}

/* ---- statistics ---- */

/* By the marks: every slot is looked at. */
static size_t count_live(const struct quire_slab *slab)
{
    size_t live = 0;
    for (const struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        for (unsigned w = 0; w < slab_words(page); w++)
            live += bits_count(live_bits(page, w));
    return live;
}

/* By what threads say that they have cached, if nothing went from a page to a thread or back meanwhile; the slab is locked in the end. */
static size_t count_locked(struct quire_slab *slab, size_t *caches)
{
    enum { LOOKS = 4 };
    for (int looks = 0;; looks++) {
        *caches = 0;
        slab_lock(slab);
        uint64_t turn = slab->turns + 1;
        slab_unlock(slab);
        size_t cached = slab_caches_count(slab, caches);
        slab_lock(slab);
        if (slab->turns == turn) {
            size_t out = slab->slots - slab->free_slots, idle = magazines_count(slab->depot.full) + cached;
            return out - (idle < out ? idle : out); /* a magazine on its way from a thread to the depot is in both for a moment */
        }
        if (looks == LOOKS)
            return count_live(slab);
        slab_unlock(slab);
    }
}

static void stats_locked(const struct quire_slab *slab, struct quire_slab_stats *out)
{
    for (const struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;) {
        out->mapped_bytes += slab_page_bytes(page);
        out->pages++;
        out->empty_pages += !has_live(page);
    }
    out->meta_bytes = size_load_relaxed(&slab->account.meta_bytes);
    out->mapped_bytes += out->meta_bytes;
    out->live_bytes = out->live_elements * slab->slot_bytes;
    out->free_bytes = out->mapped_bytes - out->meta_bytes - out->live_bytes;
    out->peak_bytes = size_load_relaxed(&slab->account.peak_bytes);
}

void quire_slab_stats(const struct quire_slab *slab, struct quire_slab_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_slab_stats, caches);
    struct quire_slab *locked = (struct quire_slab *)(uintptr_t)slab;
    slab_verify(slab);
    struct quire_slab_stats own = {.element_bytes = slab->element_bytes, .slot_bytes = slab->slot_bytes, .limit_bytes = slab->account.limit_bytes};
    own.live_elements = count_locked(locked, &own.caches);
    stats_locked(slab, &own);
    slab_unlock(locked);
    abi_write(&layout, &own, out);
}

/* ---- pages, for a picture ---- */

STATIC_ASSERT((int)PAGE_LOOK_WORDS >= (int)WORD_BITS, "a picture has room for a page");

static void page_look(const struct slab_page *page, struct page_look *seen)
{
    *seen = (struct page_look){.start = slab_slots(page), .bytes = slab_page_bytes(page), .slot_bytes = page->slab->slot_bytes, .slots = page->slot_count};
    for (unsigned w = 0; w < slab_words(page); w++)
        seen->live[w] = live_bits(page, w);
}

void slab_pages_look(const struct quire_slab *slab, page_look_fn *fn, void *arg)
{
    struct quire_slab *locked = (struct quire_slab *)(uintptr_t)slab;
    slab_lock(locked);
    for (const struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;) {
        struct page_look seen;
        page_look(page, &seen);
        fn(&seen, arg);
    }
    slab_unlock(locked);
}

/* ---- walking ---- */

struct slab_walk {
    struct quire_slab *slab;
    struct slab_walk *outer; /* of the same thread, which called this one */
    struct slab_page *page; /* pinned */
    struct page_look seen;  /* its live slots when it was looked at */
};

static THREAD_LOCAL struct slab_walk *walks __attribute__((tls_model("initial-exec")));

struct slab_walk *const *slab_walks(void)
{
    return &walks;
}

void slab_walks_after_fork(const struct slab_walk *walks_left)
{
    for (const struct slab_walk *walk = walks_left; walk; walk = walk->outer)
        if (walk->page)
            walk->page->pins++;
}

/* Go on to the page after the pinned one, or the first; false at the end. */
static bool walk_next(struct slab_walk *walk)
{
    slab_verify(walk->slab); /* it may have been forked in, in a handler */
    slab_lock(walk->slab);
    struct slab_page *page = slab_page_after(walk->slab, walk->page);
    if (page) {
        page->pins++;
        page_look(page, &walk->seen);
    }
    if (walk->page)
        slab_page_unpin(walk->page);
    walk->page = page;
    slab_unlock(walk->slab);
    return page != NULL;
}

/* Freed since the page was looked at, by fn itself: a sanitizer lets nobody read it. */
static bool is_refused(const struct slab_walk *walk, const void *element)
{
    return walk->slab->watched && !quire_slab_owns(walk->slab, element);
}

int quire_slab_walk(struct quire_slab *slab, int (*fn)(void *element, void *arg), void *arg)
{
    struct slab_walk walk = {.slab = slab};
    int stop = 0;
    slab_verify(slab);
    if (!fn)
        return fail_int(EINVAL);
    walk.outer = walks;
    walks = &walk;
    while (stop == 0 && walk_next(&walk))
        for (size_t slot = page_look_live(&walk.seen, 0); slot < walk.seen.slots && stop == 0; slot = page_look_live(&walk.seen, slot + 1)) {
            void *element = page_look_slot(&walk.seen, slot);
            if (!is_refused(&walk, element))
                stop = fn(element, arg);
        }
    if (stop != 0) {
        slab_lock(slab);
        slab_page_unpin(walk.page);
        slab_unlock(slab);
    }
    walks = walk.outer;
    return stop;
}

/* ---- owning ---- */

bool quire_slab_owns(const struct quire_slab *slab, const void *p)
{
    struct quire_slab *locked = (struct quire_slab *)(uintptr_t)slab;
    bool owns = false;
    (void)slab_hold(locked);
    slab_lock(locked);
    owner_t owner = pagemap_find(p);
    if (owner_kind(owner) == OWNER_SLAB) {
        const struct slab_page *page = owner_object(owner);
        size_t slot = ((uintptr_t)p - addr_load_relaxed(&page->slots)) / slab->slot_bytes;
        if (page->slab == slab && slot < page->slot_count)
            owns = live_bits(page, (unsigned)(slot / WORD_BITS)) >> slot % WORD_BITS & 1;
    }
    slab_unlock(locked);
    slab_drop();
    return owns;
}

/* ---- checking ---- */

/* The list that the page's state says has it. */
static const char *listing_check(const struct slab_page *page)
{
    static const char wrong[] = "slab P5 a page is on the list of its state";
    const struct quire_slab *slab = page->slab;
    const struct slab_lane *lane = &slab->lane[page->lane];
    const struct slab_page *first = page->state == PAGE_EMPTY ? slab->empty : lane->bucket[page->bucket];
    if (page->state == PAGE_FULL || page->state == PAGE_HELD)
        return NULL;
    if (page->state == PAGE_PARTIAL && (lane->filled >> page->bucket & 1) == 0)
        return wrong;
    if (page->state == PAGE_PARTIAL && slab->filed_by_fullness && slab_bucket(slab_used(page), page->slot_count) > page->bucket)
        return wrong;
    return first && slab_pages_is_linked(first, page) ? NULL : wrong;
}

static const char *page_check(const struct slab_page *page)
{
    uint32_t free_count = 0;
    bool behind = false;
    if (owner_object(pagemap_find(slab_slots(page))) != page)
        return "slab P1 the page map knows the page";
    for (unsigned w = 0; w < slab_words(page); w++) {
        behind |= (page->free[w] & ~slab_word_bits(page, w)) != 0;
        free_count += bits_count(page->free[w]);
    }
    if (free_count != page->free_count || behind)
        return "slab P2 free bits are counted, and stand for slots";
    if (page->state == PAGE_UNUSED || (page->state == PAGE_FULL && free_count != 0) || (page->state == PAGE_EMPTY && free_count != page->slot_count) ||
        (page->state == PAGE_PARTIAL && (free_count == 0 || (free_count == page->slot_count && !slab_is_home(page)))))
        return "slab P3 full is without free bits, empty is without others";
    return listing_check(page);
}

static const char *sums_check(const struct quire_slab *slab)
{
    uint32_t pages = 0, empties = 0;
    size_t slots = 0, free_slots = 0, held_bytes = 0, mapped = size_load_relaxed(&slab->account.meta_bytes);
    for (const struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;) {
        pages++;
        empties += page->state == PAGE_EMPTY;
        held_bytes += slab_span_bytes(page);
        slots += page->slot_count;
        free_slots += page->free_count;
        mapped += slab_page_bytes(page);
    }
    if (pages != slab->pages || held_bytes != slab->held_bytes || slots != slab->slots || free_slots != slab->free_slots || empties != slab->empties || slab->empties_low > empties)
        return "slab P5 a slab counts its pages";
    bool is_counted = mapped == size_load_relaxed(&slab->account.mapped_bytes) && account_has_room(&slab->account, 0);
    return is_counted ? NULL : "slab P6 mapped == live + free + meta, within the limit";
}

struct verdict {
    struct quire_slab *slab;
    const char *wrong;
};

static bool mag_is_sound(const struct magazine *mag, size_t count, void *slab)
{
    struct slab_place place;
    for (size_t i = 0; i < count; i++) {
        void *slot = (void *)addr_load_relaxed(&magazine_slots(mag)[i]);
        if (slab_locate(slab, slot, &place) || bits_test(place.page->free, place.slot) || u64_load_relaxed(slot) != slots_mark(slot, mag->key))
            return false;
    }
    return true;
}

static void check_thread(struct slab_thread *thread, void *arg)
{
    struct verdict *verdict = arg;
    const struct slab_cache *cache = slab_visited_cache(thread, verdict->slab);
    if (!cache || verdict->wrong)
        return;
    slab_lock(verdict->slab);
    if (!slots_each(&cache->slots, mag_is_sound, verdict->slab))
        verdict->wrong = "slab P4 a cached slot carries its magazine's mark, and is not free in its page";
    slab_unlock(verdict->slab);
}

const char *quire_slab_check(struct quire_slab *slab)
{
    struct verdict verdict = {slab, NULL};
    slab_verify(slab);
    slab_lock(slab);
    for (const struct slab_page *page = NULL; !verdict.wrong && (page = slab_page_after(slab, page)) != NULL;)
        verdict.wrong = page_check(page);
    if (!verdict.wrong)
        verdict.wrong = sums_check(slab);
    slab_unlock(slab);
    if (verdict.wrong || slab->straight)
        return verdict.wrong;
    slab_list_lock();
    slab_visit_all(check_thread, &verdict, true);
    registry_unlock(&slab_registry);
    return verdict.wrong;
}
