// SPDX-License-Identifier: MIT
/*
 * slab_fork.c - the child of a fork puts its slabs in order.
 *
 * Only the thread that forked is left; what the others had cached goes to the pages.  If one of them was inside an operation, or a lock was held,
 * every slab is made anew from what is always whole: the headers in use, the bits of their slots, and the marks in the slots themselves:
 *
 *     free bit |= the slot carries a mark      it was in a magazine, or on its way there
 *     counts, states, lists                    from the bits
 *     magazines, depots                        empty
 *
 * What such a thread was about to hand out is lost to the child: one element for each thread; one page at most that was coming or going.  Pages that
 * become empty here stay until the child uses the slab: it may call nothing at all, and the source may be locked by a handler that has not run yet.
 *
 * Locks: none: there is one thread.  Not here: the parent, which notices nothing.
 */
#include "pages/source_fork.h"
#include "slab/slab_internal.h"

bool slab_is_repairing;

static void page_repair(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    uint32_t free_count = 0;
    for (unsigned w = 0; w < slab_words(page); w++) {
        uint64_t used = slab_word_bits(page, w) & ~page->free[w];
        for (; used; used &= used - 1)
            if (slab_is_marked(slab, slab_slot_at(page, w * WORD_BITS + bits_lowest(used))))
                page->free[w] |= used & -used;
        free_count += bits_count(page->free[w]);
    }
    page->free_count = (uint16_t)free_count;
    slab_page_enter(page);
    page->state = PAGE_FULL;
    if (page->free_count == page->slot_count && !slab_is_home(page)) { /* kept, whatever the slab's flags are: nothing is given back here */
        page->state = PAGE_EMPTY;
        slab_pages_push(&slab->empty, page);
        slab->empties++;
    } else if (page->free_count != 0) {
        slab_page_link(page);
    }
    size_add_relaxed(&slab->account.mapped_bytes, slab_page_bytes(page));
}

void slab_repair(struct quire_slab *slab)
{
    slab_headers_after_fork(slab); /* what was coming or going is sorted out */
    for (unsigned lane = 0; lane < SLAB_LANES; lane++)
        slab->lane[lane] = (struct slab_lane){.filled = 0};
    slab->empty = NULL;
    slab->empties = slab->empties_low = slab->pages = slab->keep = slab->returned = slab->depot_count = 0;
    slab->held_bytes = slab->slots = slab->free_slots = 0;
    slab->depot = slab->vacant = NULL;
    size_store_relaxed(&slab->account.mapped_bytes, size_load_relaxed(&slab->account.meta_bytes));
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        page_repair(page);
    slab_table_anew(slab);
}

void slab_after_fork(void)
{
    struct lock_notes notes;
    bool lists = lock_is_mine(&slab_registry.lock); /* this thread goes on with what it was doing to the list */
    lock_set_aside(&notes);
    slab_is_repairing = true;
    slab_shared_after_fork();
    u32_store_relaxed(&slab_pending, 0);
    bool inside = !lists && registry_after_fork(&slab_registry);
    if (!lists)
        slabs_mend(slab_first);
    inside |= slab_threads_after_fork();
    inside |= slab_mags_after_fork();
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next)
        inside |= lock_reset(&slab->lock);
    if (inside) {
        source_fork_lose();
        slab_mags_anew();
    }
    for (struct quire_slab *slab = inside ? slab_first : NULL; slab; slab = slab->next)
        slab_repair(slab);
    slab_threads_adopt(inside);
    bool straight = !bias_works(); /* the child has no barrier */
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next) {
        if (straight && !slab->straight) {
            slab_depot_flush(slab);
            slab->straight = true;
            slab->offset = SLAB_OFFSET_NONE;
        }
        slab_gate_set(slab);
        u32_store_relaxed(&slab->pending, 0); /* there is no reaper: the next that has something for it wakes one */
        slab->wakes = false;
        for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
            page->pins = 0;
    }
    slab_walks_after_fork();
    slab_is_repairing = false;
    lock_take_up(&notes);
}
