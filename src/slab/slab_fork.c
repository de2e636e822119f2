// SPDX-License-Identifier: MIT
/*
 * slab_fork.c - the child of a fork puts its slabs in order.
 *
 * Only the thread that forked is left; the others' locals become nobody's.  If one of them was inside an operation, every local is made anew
 * from what is always whole: the chain of its pages and the words of their slots.
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

static void page_repair(struct slab_local *local, struct slab_page *page)
{
    uint32_t free_count = 0;
    for (unsigned w = 0; w < page->words; w++) {
        uint64_t free = u64_load_relaxed(&page->pair[w].free) | u64_load_relaxed(&page->pair[w].remote);
        u64_store_relaxed(&page->pair[w].free, free);
        u64_store_relaxed(&page->pair[w].remote, 0);
        free_count += bits_count(free);
    }
    page->used = (uint32_t)page->slot_count - free_count;
    page->pins = 0;
    u32_store_relaxed(&page->queued, 0);
    slab_set_claimed(page, SLAB_WORD_NONE);
    addr_store_relaxed(&page->owner, (uintptr_t)local);
    page->state = PAGE_FULL;
    slab_page_freed(local, page);
}

void slab_local_repair(struct slab_local *local)
{
    for (unsigned number = 0; number < SLAB_LANES; number++) {
        struct slab_lane *lane = &local->lane[number];
        if (lane->pair)
            u64_store_relaxed(&lane->pair->free, u64_load_relaxed(&lane->pair->free) | u64_load_relaxed(&lane->avail));
        *lane = (struct slab_lane){.filled = 0};
    }
    slab_cache_clear(local);
    addr_store_relaxed(&local->remote, 0);
    local->empty = (struct slab_list){NULL, NULL};
    local->empties = local->empties_low = local->pages = 0;
    local->held_bytes = 0;
    struct slab_page *prev = NULL;
    for (struct slab_page *page = local->all; page; prev = page, page = page->all_next) {
        page->all_prev = prev;
        local->pages++;
        local->held_bytes += page->span.bytes;
        page_repair(local, page);
    }
}

static void slab_repair(struct quire_slab *slab, bool inside)
{
    inside |= lock_reset(&slab->lock);
    slab_headers_after_fork(slab);
    slab->unbound = NULL;
    u32_store_relaxed(&slab->unbound_count, 0);
    u32_store_relaxed(&slab->walkers, 0);
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        inside |= lock_reset(&local->lock);
        if (inside)
            slab_local_repair(local);
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
    bool inside = slab_threads_after_fork();
    for (struct quire_slab *slab = slab_registry_first(); slab; slab = slab->next)
        slab_repair(slab, inside);
}
