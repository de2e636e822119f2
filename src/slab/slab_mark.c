// SPDX-License-Identifier: MIT
/*
 * slab_mark.c - elements with a mark, on pages that hold only marked ones until the last mark is gone.
 *
 *     alloc_marked:  lane 1, a page of its own; the slot's mark is set
 *     unmark, free:  the mark is taken by one atomic and
 *     no mark left:  the page is queued for its owner, who moves it to lane 0 (nothing in it moves)
 *
 * Invariant:  K1  only pages of lane 1 have marks, and only on live slots, at rest
 *
 * Locks: none.  Not here: netdata's names for it (compat/).
 */
#include <errno.h>

#include "slab/slab_internal.h"
#include "slab/slab_mark.h"

enum { ATTEMPTS_MAX = 64 };

bool slab_unmark_bits(struct slab_page *page, unsigned word, uint64_t bits)
{
    return (u64_load_relaxed(&page->marks[word]) & bits) != 0 && (u64_and_acq_rel(&page->marks[word], ~bits) & bits) != 0;
}

static bool has_marks(const struct slab_page *page)
{
    uint64_t marks = 0;
    for (unsigned w = 0; w < page->words; w++)
        marks |= u64_load_relaxed(&page->marks[w]);
    return marks != 0;
}

void slab_page_rejoin(struct slab_local *local, struct slab_page *page)
{
    if (likely(page->lane == LANE_ORDINARY) || has_marks(page))
        return;
    if (page->state == PAGE_FULL) {
        page->lane = LANE_ORDINARY;
    } else if (page->state == PAGE_PARTIAL) {
        slab_page_unlink(local, page);
        page->lane = LANE_ORDINARY;
        slab_page_link(local, page);
    }
}

/* The new element's page is the lane's current one. */
static void mark(struct slab_local *local, const void *element)
{
    struct slab_page *page = local->lane[LANE_MARKED].page;
    size_t slot = slab_slot_of(local->slab, page, element);
    u64_or_seq_cst(&page->marks[slot / WORD_BITS], UINT64_C(1) << slot % WORD_BITS);
}

void *slab_alloc_marked(struct quire_slab *slab)
{
    for (int attempt = 0;; attempt++) {
        struct slab_hold hold;
        struct slab_local *local = slab_hold(slab, &hold, true);
        void *element = local ? slab_local_alloc(local, LANE_MARKED) : NULL;
        if (element)
            mark(local, element);
        slab_drop(&hold);
        if (element)
            return slab_watched_alloc(slab, element);
        if (attempt == ATTEMPTS_MAX || !slab_reclaim(slab, LANE_MARKED))
            break;
    }
    errno = ENOMEM;
    return NULL;
}

bool slab_unmark(struct quire_slab *slab, void *element)
{
    struct slab_hold hold;
    struct slab_place place;
    if (!element)
        return false;
    struct slab_local *local = slab_hold(slab, &hold, false);
    bool good = !slab_locate(slab, element, &place) && place.page->marks &&
                slab_unmark_bits(place.page, (unsigned)(place.slot / WORD_BITS), UINT64_C(1) << place.slot % WORD_BITS);
    if (good && !has_marks(place.page)) {
        if (slab_owner(place.page) == local)
            slab_page_rejoin(local, place.page);
        else
            slab_queue(place.page);
    }
    slab_drop(&hold);
    return good;
}

size_t slab_meta_bytes(const struct quire_slab *slab)
{
    return size_load_relaxed(&slab->meta_bytes);
}

void slab_set_page_bytes_max(struct quire_slab *slab, size_t page_bytes_max)
{
    slab_set_sizes(slab, page_bytes_max);
}
