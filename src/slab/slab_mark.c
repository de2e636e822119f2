// SPDX-License-Identifier: MIT
/*
 * slab_mark.c - elements with a mark, on pages that hold only marked ones until the last mark is gone.
 *
 *     alloc_marked:  lane 1, a page of its own; the slot's mark is set
 *     unmark, free:  the mark is taken off
 *     no mark left:  the page moves to lane 0 (nothing in it moves)
 *
 * Invariant:  K1  only pages of lane 1 have marks, and only on live slots, at rest
 *
 * Locks: slab->lock.  Not here: netdata's names for it (compat/).
 */
#include "slab/slab_mark.h"
#include "slab/slab_internal.h"

static bool page_has_marks(struct slab_page *page)
{
    uint64_t marks = 0;
    for (unsigned w = 0; w < slab_words(page); w++)
        marks |= slab_marks(page)[w];
    return marks != 0;
}

void slab_page_rejoin(struct slab_page *page)
{
    if (page->lane == LANE_ORDINARY || page_has_marks(page))
        return;
    page->lane = LANE_ORDINARY;
    slab_page_publish(page);
}

bool slab_unmark_bit(struct slab_page *page, size_t slot)
{
    if (!bits_test(slab_marks(page), slot))
        return false;
    bits_clear_one(slab_marks(page), slot);
    if (page->state == PAGE_PARTIAL && likely(!page->slab->is_torn)) {
        slab_page_unlink(page);
        slab_page_rejoin(page);
        slab_page_link(page);
    } else if (page->state == PAGE_FULL) {
        slab_page_rejoin(page);
    }
    return true; /* a page that is held, or lies on no list for a fork's sake, rejoins when it is let go the next time */
}

void *slab_alloc_marked(struct quire_slab *slab)
{
    return slab_alloc_lane(slab, LANE_MARKED);
}

bool slab_unmark(struct quire_slab *slab, void *element)
{
    struct slab_place place;
    bool good = false;
    if (!element)
        return false;
    (void)slab_hold(slab);
    slab_lock(slab);
    if (!slab_locate(slab, element, &place) && slab->markable)
        good = slab_unmark_bit(place.page, place.slot);
    slab_unlock(slab);
    slab_drop();
    return good;
}

void slab_meta_tell(struct quire_slab *slab, void (*told)(struct quire_source *source))
{
    slab->told = told;
}

size_t slab_meta_bytes(const struct quire_slab *slab)
{
    return size_load_relaxed(&slab->account.meta_bytes);
}
