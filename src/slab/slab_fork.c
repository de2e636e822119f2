// SPDX-License-Identifier: MIT
/*
 * slab_fork.c - the child of a fork puts its slabs in order.
 *
 * Only the thread that forked is left; the others' locals become nobody's.  If one of them was inside an operation, every local is made anew
 * from what is always whole: the headers in use and the words of their slots.
 *
 *     free |= avail, free |= remote      claims and frees that nobody is left to finish
 *     used, state, lists                 from `free`
 *     stacks, shortcuts, queued          empty
 *
 * What such a thread was about to hand out is lost to the child: one element for each thread; one page at most that was coming or going.
 *
 * Locks: none: there is one thread.  Not here: the parent, which notices nothing.
 */
#include "slab/slab_internal.h"

static void page_repair(struct slab_page *page)
{
    struct slab_local *local = slab_owner(page);
    uint32_t free_count = 0;
    for (unsigned w = 0; w < page->words; w++) {
        uint64_t free = u64_load_relaxed(&page->pair[w].free) | u64_load_relaxed(&page->pair[w].remote);
        u64_store_relaxed(&page->pair[w].free, free);
        u64_store_relaxed(&page->pair[w].remote, 0);
        free_count += bits_count(free);
    }
    slab_set_used(page, (uint32_t)page->slot_count - free_count);
    u32_store_relaxed(&page->queued, 0);
    u32_store_relaxed(&page->claims, 0);
    slab_set_claimed(page, SLAB_WORD_NONE);
    slab_page_enter_all(local, page);
    slab_set_state(page, PAGE_FULL);
    if (slab_used(page) == 0 && !page->home) { /* kept, whatever the slab's flags are: nothing is given back here */
        slab_set_state(page, PAGE_EMPTY);
        slab_list_push(&local->empty, page);
        local->empties++;
    } else if (slab_page_has_room(page)) {
        slab_page_link(local, page);
    }
    size_add_relaxed(&local->slab->mapped_bytes, page->home ? slab_slots_bytes(page) : page->span.bytes);
}

/* What a lane has claimed goes back to its word; then the local has nothing. */
static void local_empty(struct slab_local *local)
{
    for (unsigned number = 0; number < SLAB_LANES; number++) {
        struct slab_lane *lane = &local->lane[number];
        if (lane->pair)
            u64_store_relaxed(&lane->pair->free, u64_load_relaxed(&lane->pair->free) | u64_load_relaxed(&lane->avail));
        *lane = (struct slab_lane){.filled = 0};
    }
    addr_store_relaxed(&local->remote, 0);
    local->empty = (struct slab_list){NULL, NULL};
    local->empties = local->empties_low = local->pages = 0;
    local->held_bytes = 0;
    local->keep = local->returned = 0;
    local->all = NULL;
}

/* All lists anew, from the headers. */
static void pages_repair(struct quire_slab *slab)
{
    for (struct slab_local *local = slab_locals(slab); local; local = local->next)
        local_empty(local);
    size_store_relaxed(&slab->mapped_bytes, size_load_relaxed(&slab->meta_bytes));
    if (slab->home->slot_count)
        page_repair(slab->home);
    slab_headers_each(slab, page_repair);
}

static void page_ignore(struct slab_page *page)
{
    (void)page; /* only what was coming or going is sorted out */
}

static void slab_repair(struct quire_slab *slab, bool inside)
{
    inside |= lock_reset(&slab->lock);
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        inside |= lock_reset(&local->lock);
        inside |= lock_reset(&local->chain);
    }
    inside |= lock_reset(&slab->moves);
    slab_headers_each(slab, page_ignore);
    slab_headers_after_fork(slab);
    if (inside)
        pages_repair(slab);
    slab->unbound = NULL;
    u32_store_relaxed(&slab->pending, 0); /* there is no reaper: the next that has something for it wakes one */
    u32_store_relaxed(&slab->unbound_count, 0);
    bool walked = u32_load_relaxed(&slab->walkers) != 0;
    u32_store_relaxed(&slab->walkers, 0);
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        for (struct slab_page *page = walked ? local->all : NULL; page; page = page->all_next)
            page->pins = 0;
        struct slab_thread *thread = (struct slab_thread *)addr_load_relaxed(&local->thread);
        if (thread && slab_thread_is_left(thread))
            continue;
        addr_store_relaxed(&local->thread, 0);
        local->cache = NULL;
        local->unbound_next = slab->unbound;
        slab->unbound = local;
        u32_add_relaxed(&slab->unbound_count, 1);
    }
}

void slab_after_fork(void)
{
    slab_by_size_after_fork();
    u32_store_relaxed(&slab_pending, 0);
    slab_settlers_after_fork();
    bool inside = slab_registry_after_fork();
    inside |= slab_threads_after_fork();
    for (struct quire_slab *slab = slab_registry_first(); slab; slab = slab->next)
        slab_repair(slab, inside);
    slab_walks_after_fork();
}
