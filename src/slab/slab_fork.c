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
    page->free_count = 0;
    for (unsigned w = 0; w < page->words; w++) {
        uint64_t used = slab_word_bits(page, w) & ~page->free[w];
        for (; used; used &= used - 1)
            if (slab_is_marked(slab, slab_slot_at(page, w * WORD_BITS + bits_lowest(used))))
                page->free[w] |= used & -used;
        page->free_count += bits_count(page->free[w]);
    }
    slab_page_enter_all(page);
    page->state = PAGE_FULL;
    if (page->free_count == page->slot_count && !page->home) { /* kept, whatever the slab's flags are: nothing is given back here */
        page->state = PAGE_EMPTY;
        slab_pages_push(&slab->empty, page);
        slab->empties++;
    } else if (page->free_count != 0) {
        slab_page_link(page);
    }
    size_add_relaxed(&slab->account.mapped_bytes, slab_page_bytes(page));
}

enum { NOT_FOUND = UINT32_MAX }; /* in free_count: the list of all pages has not led there yet */

static void page_lose(struct slab_page *page)
{
    page->free_count = NOT_FOUND;
}

static void page_repair_lost(struct slab_page *page)
{
    if (page->free_count == NOT_FOUND)
        page_repair(page);
}

/* In the order of the list as it was, for a walk that forked and goes on; what it does not lead to comes last. */
static void pages_repair(struct quire_slab *slab, struct slab_page *was)
{
    struct slab_page *last = NULL, *next;
    if (slab->home->slot_count)
        page_lose(slab->home);
    slab_headers_each(slab, page_lose);
    for (struct slab_page *page = was; page && page->free_count == NOT_FOUND; page = next) {
        next = page->all_next;
        page->free_count = 0;
        page->all_next = last;
        last = page;
    }
    if (slab->home->slot_count)
        page_repair_lost(slab->home);
    slab_headers_each(slab, page_repair_lost);
    for (struct slab_page *page = last; page; page = next) {
        next = page->all_next;
        page_repair(page); /* pushes it in front */
    }
}

static void page_unpin(struct slab_page *page)
{
    page->pins = 0;
}

void slab_repair(struct quire_slab *slab)
{
    slab_headers_each(slab, NULL); /* what was coming or going is sorted out */
    slab_headers_after_fork(slab);
    for (unsigned lane = 0; lane < SLAB_LANES; lane++)
        slab->lane[lane] = (struct slab_lane){.filled = 0};
    slab->empty = NULL;
    slab->empties = slab->empties_low = slab->pages = slab->keep = slab->returned = slab->depot_count = 0;
    slab->held_bytes = slab->slots = slab->free_slots = 0;
    slab->depot = slab->vacant = NULL;
    struct slab_page *was = slab->all;
    slab->all = NULL;
    size_store_relaxed(&slab->account.mapped_bytes, size_load_relaxed(&slab->account.meta_bytes));
    pages_repair(slab, was);
    slab_table_anew(slab);
}

void slab_after_fork(void)
{
    struct lock_notes notes;
    lock_set_aside(&notes);
    slab_is_repairing = true;
    slab_shared_after_fork();
    u32_store_relaxed(&slab_pending, 0);
    slabs_mend(slab_first);
    bool inside = registry_after_fork(&slab_registry);
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
        page_unpin(slab->home);
        slab_headers_each(slab, page_unpin);
    }
    slab_walks_after_fork();
    slab_is_repairing = false;
    lock_take_up(&notes);
}
