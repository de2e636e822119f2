// SPDX-License-Identifier: MIT
/*
 * slab_fork.c - the child of a fork puts its slabs in order.
 *
 * Only the thread that forked is left; what the others had cached goes to the pages.  If one of them was inside an operation, or held a lock,
 * every slab is made anew from what is always whole: the headers in use, the bits of their slots, and the marks in the slots themselves:
 *
 *     free bit |= the slot carries a mark      it was in a magazine, or on its way there
 *     counts, states, lists                    from the bits
 *     magazines, depots                        empty
 *
 * What such a thread was about to hand out is lost to the child: one element for each thread; one page at most that was coming or going.  Pages that
 * become empty here stay until the child uses the slab: it may call nothing at all, and the source may be locked by a handler that has not run yet.
 *
 * A thread that forked in a signal's handler, in the middle of an operation, goes on with that when the handler returns, and what it holds looks like what
 * nobody has.  So the child does the least at first, and the rest when no operation is left to end:
 *
 *     in fork()                             others' locks are free, their gates nobody's; caches that another was changing are empty; a slab whose lock
 *                                           another had is torn: nothing comes from its lists of pages, nor goes there
 *     an operation that was begun           ends with what it holds as it was, or finds no memory, and tries again
 *     the next by the long way, any thread  under the registry's lock, and with that thread outside: the rest
 *
 * Locks: none in fork(): there is one thread; for the rest that, and each slab's.  Not here: the parent, which notices nothing.
 */
#include <string.h>

#include "os/os.h"
#include "pages/source_fork.h"
#include "slab/slab_internal.h"

bool slab_is_repairing;
atomic_u32 slab_fork_is_due;

/* The thread that forked in the middle of something, while the rest is due. */
static struct {
    const char *thread;
    struct slab_walk *const *walks;
    bool inside; /* another was inside of something, too */
} amid;

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
    slab_page_settle(page); /* an empty one stays, whatever the slab's flags are: nothing is given back here */
    size_add_relaxed(&slab->account.mapped_bytes, slab_page_bytes(page));
}

static void lists_begin_anew(struct quire_slab *slab)
{
    for (unsigned lane = 0; lane < SLAB_LANES; lane++)
        slab->lane[lane] = (struct slab_lane){.filled = 0};
    memset(slab->headers.roomy, 0, sizeof slab->headers.roomy);
    slab->empty = NULL;
    slab->empties = slab->empties_low = 0;
    slab->depot = (struct slot_depot){NULL, 0};
    slab->vacant = NULL;
}

bool slab_reset_others(struct quire_slab *slab)
{
    bool held = lock_reset_others(&slab->lock);
    if (held) {
        slab->is_torn = true;
        lists_begin_anew(slab);
    }
    return held;
}

void slab_repair(struct quire_slab *slab)
{
    lists_begin_anew(slab);
    slab_headers_after_fork(slab); /* what was coming or going is sorted out */
    slab->is_torn = false;
    slab->pages = slab->keep = slab->returned = 0;
    slab->held_bytes = slab->slots = slab->free_slots = 0;
    size_store_relaxed(&slab->account.mapped_bytes, size_load_relaxed(&slab->account.meta_bytes));
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        page_repair(page);
    slab_table_anew(slab);
}

/* Nobody else is inside of anything.  True: somebody was. */
static bool others_reset(bool goes_on)
{
    bool lists = lock_is_mine(&slab_registry.lock); /* this thread goes on with what it was doing to the list */
    bool inside = !lists && lock_reset_others(&slab_registry.lock);
    if (!lists)
        slabs_mend(slab_first);
    inside |= slab_threads_after_fork(goes_on);
    inside |= slab_mags_after_fork();
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next)
        inside |= slab_reset_others(slab);
    return inside;
}

/* Of walks there are those of the thread that forked; where that may be gone, all stay that were. */
static void pins_anew(struct quire_slab *slab)
{
    lock_take(&slab->lock);
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        page->pins = 0;
    lock_drop(&slab->lock);
}

/* The thread that forked is outside; walks: its, or NULL. */
static void rest(bool inside, struct slab_walk *const *walks)
{
    slab_is_repairing = true;
    if (inside)
        slab_mags_anew();
    for (struct quire_slab *slab = inside ? slab_first : NULL; slab; slab = slab->next) {
        lock_take(&slab->lock);
        slab_repair(slab);
        lock_drop(&slab->lock);
    }
    slab_threads_adopt(inside);
    bool straight = !bias_works(); /* the child has no barrier */
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next) {
        if (straight && !slab->straight) {
            slab_depot_flush(slab, true);
            slab->straight = true;
            slab->offset = SLAB_OFFSET_NONE;
        }
        slab_gate_set(slab);
        u32_store_relaxed(&slab->pending, 0); /* there is no reaper: the next that has something for it wakes one */
        slab->wakes = false;
        if (walks)
            pins_anew(slab);
    }
    if (walks)
        slab_walks_after_fork(*walks);
    slab_is_repairing = false;
    if (u32_load_relaxed(&slab_fork_is_due) != 0) { /* what a child does not write it need not copy */
        amid.inside = false;
        u32_store_release(&slab_fork_is_due, 0); /* release [slab-fork] */
    }
}

static void rest_visited(struct slab_thread *thread, void *unused)
{
    bool lives = record_is_of(&thread->record, amid.thread) || os_thread_pointer() == amid.thread;
    (void)unused;
    rest(amid.inside, lives ? amid.walks : NULL);
}

void slab_fork_rest(void)
{
    slab_visit(slab_thread_of(amid.thread), rest_visited, NULL, true);
}

void slab_fork_settle(void)
{
    slab_list_lock();
    registry_unlock(&slab_registry);
}

static NOINLINE void slabs_after_fork(void)
{
    struct lock_notes notes;
    bool goes_on = slab_thread_is_amid(), inside = others_reset(goes_on) || amid.inside;
    slots_after_fork();
    if (u32_load_relaxed(&slab_pending) != 0)
        u32_store_relaxed(&slab_pending, 0);
    if (inside)
        source_fork_lose();
    if (goes_on) {
        amid.inside = inside;
        amid.thread = os_thread_pointer();
        amid.walks = slab_walks();
        u32_store_relaxed(&slab_fork_is_due, 1);
        return;
    }
    lock_set_aside(&notes);
    rest(inside, slab_walks());
    lock_take_up(&notes);
}

/* Where there was no slab, and none was being made, the child copies no page for us. */
void slab_after_fork(void)
{
    slab_shared_after_fork();
    if (u32_load_relaxed(&slab_any) != 0 || lock_held(&slab_registry.lock))
        slabs_after_fork();
}
