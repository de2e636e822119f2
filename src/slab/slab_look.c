// SPDX-License-Identifier: MIT
/*
 * slab_look.c - what a slab holds: statistics, walking, owning, checking.
 *
 * Statistics and walks stop nobody: a local's chain of pages is theirs to read under local->chain, and the words of a page say at any moment which of
 * its slots are live.  mapped is summed, not read from a counter, so that the equation P6 holds in every snapshot; what threads do meanwhile
 * may be in it or not.
 *
 * A walk looks at one page at a time and calls the user's function without a lock, so that it may use the slab; meanwhile a pin keeps the page.
 * A check visits every local (slab_thread.c): what it compares must be at rest.
 *
 * Locks: local->chain; visits.  Not here: anything that changes what is live.
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "pages/pagemap.h"
#include "slab/slab_internal.h"

/* The live slots of a word, also of a page in use. */
static uint64_t live_bits(const struct slab_page *page, unsigned word)
{
    return slab_word_bits(page, word) & ~slab_not_live(page, word);
}

static size_t live_count(const struct slab_page *page)
{
    size_t live = 0;
    for (unsigned w = 0; w < page->words; w++)
        live += bits_count(live_bits(page, w));
    return live;
}

/* ---- statistics ---- */

static void local_stats(const struct slab_local *local, struct quire_slab_stats *out)
{
    for (const struct slab_page *page = local->all; page; page = page->all_next) {
        size_t live = live_count(page);
        out->live_elements += live;
        out->mapped_bytes += page->home ? slab_slots_bytes(page) : page->span.bytes;
        out->pages++;
        out->empty_pages += live == 0;
    }
    out->caches++;
}

void quire_slab_stats(const struct quire_slab *slab, struct quire_slab_stats *out)
{
    slab_verify(slab);
    *out = (struct quire_slab_stats){.element_bytes = slab->element_bytes, .slot_bytes = slab->slot_bytes, .limit_bytes = slab->limit_bytes};
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        lock_take(&local->chain);
        local_stats(local, out);
        lock_drop(&local->chain);
    }
    out->meta_bytes = size_load_relaxed(&slab->meta_bytes);
    out->mapped_bytes += out->meta_bytes;
    out->live_bytes = out->live_elements * slab->slot_bytes;
    out->free_bytes = out->mapped_bytes - out->meta_bytes - out->live_bytes;
    out->peak_bytes = size_load_relaxed(&slab->peak_bytes);
    if (out->peak_bytes < out->mapped_bytes)
        out->peak_bytes = out->mapped_bytes; /* a page that one thread gave up and another took while we looked is in the sum twice */
}

/* ---- pages, for a picture ---- */

STATIC_ASSERT((int)PAGE_LOOK_WORDS >= (int)WORD_BITS, "a picture has room for a page");

void slab_pages_look(const struct quire_slab *slab, page_look_fn *fn, void *arg)
{
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        lock_take(&local->chain);
        for (const struct slab_page *page = local->all; page; page = page->all_next) {
            struct page_look seen = {.start = page->slots, .slot_bytes = slab->slot_bytes, .slots = page->slot_count};
            seen.bytes = page->home ? slab_slots_bytes(page) : page->span.bytes;
            for (unsigned w = 0; w < page->words; w++)
                seen.live[w] = live_bits(page, w);
            fn(&seen, arg);
        }
        lock_drop(&local->chain);
    }
}

/* ---- walking ---- */

struct walk {
    struct quire_slab *slab;
    struct walk *outer; /* of the same thread, which called this one */
    int (*fn)(void *element, void *arg);
    void *arg;
    struct slab_page *page;       /* pinned */
    uint64_t live[WORD_BITS];     /* its live slots when it was looked at */
    char *slots;
    unsigned words;
};

static THREAD_LOCAL struct walk *walks __attribute__((tls_model("initial-exec")));

/* The child of a fork has only its own thread's walks. */
void slab_walks_after_fork(void)
{
    for (struct walk *walk = walks; walk; walk = walk->outer) {
        u32_add_relaxed(&walk->slab->walkers, 1);
        if (walk->page)
            walk->page->pins++;
    }
}

static void walk_begin(struct walk *walk)
{
    walk->outer = walks;
    walks = walk;
    lock_take(&walk->slab->moves);
    u32_add_relaxed(&walk->slab->walkers, 1);
    lock_drop(&walk->slab->moves);
}

static void walk_end(struct walk *walk)
{
    walks = walk->outer;
    u32_sub_relaxed(&walk->slab->walkers, 1);
}

/* Go on to the page after the pinned one, or the first; false at the end. */
static bool walk_next(struct walk *walk, struct slab_local *local)
{
    lock_take(&local->chain);
    struct slab_page *page = walk->page ? walk->page->all_next : local->all;
    if (walk->page)
        walk->page->pins--;
    if (page) {
        page->pins++;
        walk->slots = page->slots;
        walk->words = page->words;
        for (unsigned w = 0; w < page->words; w++)
            walk->live[w] = live_bits(page, w);
    }
    walk->page = page;
    lock_drop(&local->chain);
    return page != NULL;
}

static int walk_page(const struct walk *walk, size_t slot_bytes)
{
    int stop = 0;
    for (unsigned w = 0; w < walk->words && stop == 0; w++)
        for (uint64_t live = walk->live[w]; live && stop == 0; live &= live - 1)
            stop = walk->fn(walk->slots + ((size_t)w * WORD_BITS + bits_lowest(live)) * slot_bytes, walk->arg);
    return stop;
}

int quire_slab_walk(struct quire_slab *slab, int (*fn)(void *element, void *arg), void *arg)
{
    struct walk walk = {.slab = slab, .fn = fn, .arg = arg};
    int stop = 0;
    slab_verify(slab);
    if (!fn) {
        errno = EINVAL;
        return -1;
    }
    walk_begin(&walk);
    for (struct slab_local *local = slab_locals(slab); local && stop == 0; local = local->next) {
        while (stop == 0 && walk_next(&walk, local))
            stop = walk_page(&walk, slab->slot_bytes);
        if (stop != 0) {
            lock_take(&local->chain);
            walk.page->pins--;
            lock_drop(&local->chain);
        }
    }
    walk_end(&walk);
    return stop;
}

/* ---- owning ---- */

bool quire_slab_owns(const struct quire_slab *slab, const void *p)
{
    struct slab_hold hold;
    (void)slab_hold((struct quire_slab *)(uintptr_t)slab, &hold, false);
    owner_t owner = pagemap_find(p);
    bool owns = false;
    if (owner_kind(owner) == OWNER_SLAB) {
        const struct slab_page *page = owner_object(owner);
        size_t slot = (size_t)((const char *)p - page->slots) / slab->slot_bytes;
        if (page->slab == slab && slot < page->slot_count)
            owns = !slab_slot_is_free(page, slot);
    }
    slab_drop(&hold);
    return owns;
}

/* ---- checking ---- */

static const char *word_check(const struct slab_page *page, unsigned w, uint32_t *free_count)
{
    uint64_t free = u64_load_relaxed(&page->pair[w].free), remote = u64_load_relaxed(&page->pair[w].remote), claimed = slab_claimed(page, w);
    if (((free | remote | claimed) & ~slab_word_bits(page, w)) != 0 || (free & remote) != 0 || (free & claimed) != 0 || (remote & claimed) != 0)
        return "slab P4 a slot is free, claimed or freed by others, and only one";
    *free_count += bits_count(free);
    return NULL;
}

/* The list that the page's state says has it. */
static bool is_listed(const struct slab_local *local, const struct slab_page *page)
{
    const struct slab_lane *lane = &local->lane[page->lane];
    const struct slab_list *list = page->state == PAGE_EMPTY ? &local->empty : &lane->bucket[page->bucket];
    switch (page->state) {
    case PAGE_FULL:
        return !slab_page_has_room(page);
    case PAGE_CURRENT:
        return lane->page == page;
    case PAGE_EMPTY:
        if (slab_used(page) != 0)
            return false;
        break;
    case PAGE_PARTIAL:
        if (!slab_page_has_room(page) || (slab_used(page) == 0 && !page->home) || (lane->filled >> page->bucket & 1) == 0)
            return false;
        if (local->defrag && slab_bucket(slab_used(page), (uint32_t)page->slot_count) > page->bucket)
            return false;
        break;
    default:
        return false;
    }
    return (page->prev ? page->prev->next == page : list->first == page) && (page->next ? page->next->prev == page : list->last == page);
}

/* Of a page that is claimed from, or empty: no more than all its slots can be freed before it is counted anew. */
static bool is_seen_in_time(const struct slab_page *page)
{
    if (page->state == PAGE_FULL)
        return page->due == 1;
    return page->state == PAGE_PARTIAL ? page->beside == 0 : SLAB_NEVER - page->due <= SLAB_SLOTS_MAX;
}

static const char *page_check(const struct slab_local *local, const struct slab_page *page)
{
    const char *start = page->home ? (const char *)page->slots : page->span.start;
    if (owner_object(pagemap_find(start)) != page || slab_owner(page) != local || page->slab != local->slab)
        return "slab P1 the page map knows the page";
    uint32_t free_count = 0;
    for (unsigned w = 0; w < page->words; w++) {
        const char *wrong = word_check(page, w, &free_count);
        if (wrong)
            return wrong;
    }
    if (slab_used(page) != page->slot_count - free_count)
        return "slab P2 used is slots less free bits";
    if (page->state == PAGE_FULL ? free_count != 0 : page->state == PAGE_EMPTY && slab_used(page) != 0)
        return "slab P3 full is without free bits, empty is without use";
    if (!is_seen_in_time(page))
        return "slab P7 the free that changes a page's state is noticed";
    return is_listed(local, page) ? NULL : "slab P5 a page is on the list of its state";
}

static const char *local_check(const struct slab_local *local)
{
    uint32_t pages = 0, empties = 0;
    size_t held_bytes = 0;
    for (const struct slab_page *page = local->all; page; page = page->all_next) {
        const char *wrong = page_check(local, page);
        if (wrong)
            return wrong;
        pages++;
        empties += page->state == PAGE_EMPTY;
        held_bytes += page->span.bytes;
    }
    if (pages != local->pages || held_bytes != local->held_bytes || empties != local->empties || local->empties_low > empties)
        return "slab P5 a local counts its pages";
    return NULL;
}

/* The counter that the limit goes by against the sum of what is there; true, too, when somebody is at work before, after, or in between. */
static bool sums_agree(struct quire_slab *slab)
{
    size_t before = size_load_relaxed(&slab->mapped_bytes);
    bool rest = slab_all_seem_outside();
    struct quire_slab_stats stats;
    quire_slab_stats(slab, &stats);
    rest = rest && slab_all_seem_outside() && size_load_relaxed(&slab->mapped_bytes) == before;
    return stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes && (!rest || stats.mapped_bytes == before);
}

/*
 * What is wrong is wrong in every look.  In a single one a thread may have given a page back and another have taken one just after we had passed
 * it by, both outside again by the end.
 */
static const char *sums_check(struct quire_slab *slab)
{
    enum { LOOKS = 10 };
    bool agree = false;
    for (int looks = 0; looks < LOOKS && !agree; looks++)
        agree = sums_agree(slab);
    bool is_within = slab->limit_bytes == 0 || size_load_relaxed(&slab->mapped_bytes) <= slab->limit_bytes;
    return agree && is_within ? NULL : "slab P6 mapped == live + free + meta, within the limit";
}

const char *quire_slab_check(struct quire_slab *slab)
{
    const char *wrong = NULL;
    slab_verify(slab);
    for (struct slab_local *local = slab_locals(slab); local && !wrong; local = local->next) {
        struct slab_visit visit;
        slab_visit_begin(&visit, local);
        wrong = local_check(local);
        slab_visit_end(&visit);
    }
    if (wrong)
        return wrong;
    if (slab_registry_try()) { /* else there is a tick or a trim, and sums are not at rest */
        wrong = sums_check(slab);
        slab_registry_unlock();
    }
    return wrong;
}
