// SPDX-License-Identifier: MIT
/*
 * slab_remote.c - elements freed by other threads than the one that has their page.
 *
 *     other thread:  word.remote |= bit      first since the last collection: push the page on the owner's stack
 *     owner:         at its next refill: for each page of the stack: free |= remote, remote &= ~collected
 *
 * Nothing is lost: the owner takes `queued` back, passes a full fence, then reads the words; whoever set a bit before that is read, whoever
 * sets one after it finds `queued` 0 and pushes again.
 *
 * No double free goes unseen, and none is seen too late, that is, after its slot has been handed out again.  A free by another thread looks
 * at `free` and `avail` before and after its atomic or; two of them meet in that or.  The owner looks at `remote` before it frees.  If owner and other
 * free at the same moment and neither sees the other, both bits are set, and the owner meets them before it claims the word: a claim and a
 * collection publish what they take (in `avail` or `free`) before the atomic and that takes it out of `remote`, so that a late or finds it there.
 *
 * A page may be gone while the thread whose free made it empty is still about to push it: headers outlive that (slab_meta.c), and an unused
 * header on a stack is dropped.  A page that was moved to another local meanwhile is passed on.
 *
 * Locks: none: the stack is a list that many push on and one takes whole.  Not here: when to collect (slab_refill.c, slab_trim.c).
 */
#include "slab/slab_internal.h"

uint64_t slab_claimed(const struct slab_page *page, unsigned word)
{
    if (u32_load_relaxed(&page->claimed) != word)
        return 0;
    return u64_load_relaxed(&slab_owner(page)->lane[page->lane].avail);
}

/* What of a word may not be freed. */
static uint64_t not_live(const struct slab_page *page, unsigned word)
{
    uint64_t free = u64_load_acquire(&page->pair[word].free); /* acquire [slab-claim] */
    return free | slab_claimed(page, word);
}

void slab_refuse_bits(struct slab_page *page, unsigned word, uint64_t bits)
{
    slab_refuse(page->slab, SLAB_E1, slab_slot_at(page, word * WORD_BITS + bits_lowest(bits)));
}

static void push(struct slab_local *local, struct slab_page *page)
{
    uintptr_t head = addr_load_relaxed(&local->remote);
    do
        addr_store_relaxed(&page->queue_next, head);
    while (!addr_cas_release(&local->remote, &head, (uintptr_t)page)); /* release [slab-queue] */
    if (unlikely(u32_load_relaxed(&local->slab->pending) == 0))
        slab_wake(local->slab);
}

/* The owner finds it at its next collection. */
void slab_queue(struct slab_page *page)
{
    if (u32_load_seq_cst(&page->queued) == 0 && u32_exchange_acquire(&page->queued, 1) == 0)
        push(slab_owner(page), page);
}

/* Free the slots of `bits`; the caller does not have the page. */
void slab_remote_free(struct slab_page *page, unsigned word, uint64_t bits)
{
    uint64_t refused = not_live(page, word) & bits;
    if (unlikely(refused))
        slab_refuse_bits(page, word, refused);
    if (unlikely(page->marks != NULL))
        slab_unmark_bits(page, word, bits);
    refused = u64_or_seq_cst(&page->pair[word].remote, bits) & bits; /* release [slab-remote] */
    if (likely(!refused))
        refused = not_live(page, word) & bits;
    if (unlikely(refused))
        slab_refuse_bits(page, word, refused);
    slab_queue(page);
}

/* The owner takes what others have freed into `page`. */
void slab_collect(struct slab_local *local, struct slab_page *page)
{
    const struct slab_lane *lane = &local->lane[page->lane];
    for (unsigned w = 0; w < page->words; w++) {
        struct slab_pair *pair = &page->pair[w];
        uint64_t taken = u64_load_relaxed(&pair->remote);
        if (taken == 0)
            continue;
        uint64_t free = u64_load_relaxed(&pair->free), known = free | (pair == lane->pair ? u64_load_relaxed(&lane->avail) : 0);
        if (unlikely(taken & known))
            slab_refuse_bits(page, w, taken & known);
        u64_store_release(&pair->free, free | taken);  /* release [slab-claim] */
        u64_and_acq_rel(&pair->remote, ~taken);        /* acquire [slab-remote] */
        page->used -= bits_count(taken);
        if (free == 0)
            slab_page_opened(local, page, w);
    }
    if (page->used == 0)
        slab_page_emptied(local, page);
}

static NOINLINE void drain_taken(struct slab_local *local, struct slab_page *page)
{
    for (struct slab_page *next; page; page = next) {
        next = (struct slab_page *)addr_load_relaxed(&page->queue_next);
        struct slab_local *owner = slab_owner(page);
        if (unlikely(owner != local)) {
            push(owner, page);
            continue;
        }
        u32_store_relaxed(&page->queued, 0);
        atomic_fence_seq_cst();
        if (unlikely(page->state == PAGE_UNUSED))
            continue;
        slab_collect(local, page);
        slab_page_rejoin(local, page);
    }
}

void slab_drain(struct slab_local *local)
{
    if (addr_load_relaxed(&local->remote) != 0)
        drain_taken(local, (struct slab_page *)addr_exchange_acquire(&local->remote, 0)); /* acquire [slab-queue] */
}
