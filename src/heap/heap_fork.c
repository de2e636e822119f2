// SPDX-License-Identifier: MIT
/*
 * heap_fork.c - the child of a fork puts its heaps in order.
 *
 * Only the thread that forked is left.  Where another had anything of a heap, everything is made anew from the headers and their bits, which are always whole:
 *
 *     magazines, depots      to the bits of the pages (heap_cache.c)
 *     bins, the large list   from the headers' states
 *     sums, unused headers   the same
 *
 * Most children begin another program, and each page that is put in order here is one to copy.  And a thread that forked in a signal's handler, in the
 * middle of an operation, goes on with that when the handler returns, while a header that it has just taken, or is giving back, bears no sign of it.  So
 * the child does the least at first, and the rest when it uses a heap, and no operation is left to end:
 *
 *     in fork()                      others' locks and biases are free; where another was inside of a local, that is torn, and left alone; lists that another
 *                                    was changing begin anew; this thread's short ways are closed
 *     an operation that was begun    ends with what it holds as it was
 *     the next by the long way       by any thread, or this thread's end: all is made anew, the short ways open
 *
 * The handler's own calls meanwhile get what any handler's get: no memory, and nothing is freed.
 *
 * Where no other thread had a local, and nobody held, changed or looked at anything, nothing is done: what a process of one thread leaves is whole.
 *
 * What a vanished thread was about to hand out, or to free, is lost to the child; and a block that the interrupted operation was freeing into a torn local.
 *
 * Locks: the heaps', for the rest.  Not here: locks themselves (base/lock.h), the parent, which notices nothing.
 */
#include <string.h>

#include "heap/heap_cache.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"
#include "os/os.h"
#include "pages/source_fork.h"

atomic_u32 heap_fork_is_due;

/* The thread that forked in the middle of something, while the rest is due. */
static struct {
    const struct heap_tls *tls;
    const struct lock *const *locks;
    struct heap_walk *const *walks;
    struct heap_local *local; /* that it was inside of by the short way; NULL: none */
} amid;

static bool is_mine(const struct heap_local *local)
{
    return addr_load_relaxed(&local->thread) == heap_thread_id();
}

/* ---- everything anew ---- */

/* It was coming, going or moving. */
static bool is_torn(const struct heap_page *page)
{
    const void *start = heap_is_large(page) ? heap_large_start(page) : page->span.start;
    return owner_object(pagemap_find(start)) != page || (heap_is_large(page) && page->state != HEAP_LARGE && page->state != HEAP_CACHED);
}

static void page_repair(struct quire_heap *heap, struct heap_page *page)
{
    page->pins = 0;
    if (is_torn(page)) {
        heap_state_set(page, HEAP_UNUSED);
        return;
    }
    size_add_relaxed(&heap->account.mapped_bytes, heap_is_large(page) ? heap_large_held(page) : page->span.bytes);
    if (heap_is_large(page)) {
        heap_pages_push(&heap->large, page);
        if (page->state == HEAP_CACHED)
            heap_large_adopt(heap, page);
        return;
    }
    struct heap_local *owner = heap_owner(page);
    size_add_relaxed(&heap->of_class[heap_stat_class(page->class)].pages, 1);
    if (owner->is_secure && !is_mine(owner))
        heap_late_to_bits(page);
    page->pins = 1; /* an empty one stays: sources may not be in order yet */
    heap_page_to_partial(owner, page);
    page->pins = 0;
}

static void depots_forget(struct quire_heap *heap)
{
    for (unsigned c = 0; c < HEAP_BINS; c++)
        heap->of_class[c].depot = (struct slot_depot){NULL, 0};
    heap->vacant = NULL;
}

static void magazines_to_bits(struct quire_heap *heap)
{
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *header; (header = heap_header_next(heap, &headers)) != NULL;)
        if (header->state == HEAP_MAGAZINE)
            heap_magazine_to_bits(header);
    depots_forget(heap);
}

static bool is_used(const void *header)
{
    return ((const struct heap_page *)header)->state != HEAP_UNUSED;
}

static void heap_repair(struct quire_heap *heap)
{
    size_t meta = heap->span.bytes;
    magazines_to_bits(heap);
    for (struct heap_local *local = heap_locals(heap); local; local = local->next) {
        meta += local->span_bytes + (local->late ? local->late->span.bytes : 0);
        if (!is_mine(local))
            heap_late_drop(local);
        heap_caches_to_bits(local);
        heap_bins_clear(local);
        if (local->has_larges)
            memset(local->larges, 0, sizeof local->larges);
    }
    for (unsigned c = 0; c < HEAP_CLASSES; c++)
        size_store_relaxed(&heap->of_class[c].pages, 0);
    account_set(&heap->account, meta + headers_bytes(&heap->headers) + heap_sealed_after_fork(heap));
    size_add_relaxed(&heap->account.mapped_bytes, heap->left_bytes);
    heap->large = NULL;
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *page; (page = heap_header_next(heap, &headers)) != NULL;)
        if (page->state != HEAP_UNUSED && page->state != HEAP_MAGAZINE)
            page_repair(heap, page);
    headers_after_fork(&heap->headers, is_used);
}

/* What others had is idle. */
static void locals_share_out(struct quire_heap *heap)
{
    heap->idle = NULL;
    u32_store_relaxed(&heap->idle_count, 0);
    for (struct heap_local *local = heap_locals(heap); local; local = local->next) {
        (void)heap_door_reset(&local->door);
        local->is_torn = false;
        if (is_mine(local)) {
            bias_open(&local->door.bias);
            heap_door_set(&local->door, bias_works());
        } else if (local != &heap->home && !local->is_sample) {
            addr_store_relaxed(&local->thread, 0);
            local->door.bias.lock.rank = LOCK_HEAP_IDLE;
            heap_out_after_fork(local);
            local->idle_next = heap->idle;
            heap->idle = local;
            u32_add_relaxed(&heap->idle_count, 1);
        }
    }
}

static void all_repair(struct heap_walk *walks)
{
    for (struct quire_heap *heap = heap_first; heap; heap = heap->next) {
        u32_store_relaxed(&heap->changing, 0);
        locals_share_out(heap);
        heap_repair(heap);
    }
    heap_walks_after_fork(walks);
    u32_store_release(&heap_fork_is_due, 0); /* release [heap-fork] */
}

/* ---- in the middle of something ---- */

/* A heap's, or one that may be taken inside of a heap: with that, too, all of a heap's locks are out of reach.  Another thread's are read behind a barrier: it has come outside, or is seen inside. */
static NO_SANITIZE bool holds_any(const struct lock *const *locks)
{
    bool any = false;
    for (int rank = LOCK_HEAPS; rank < LOCK_RANK_COUNT; rank++)
        any |= __atomic_load_n(&locks[rank], __ATOMIC_RELAXED) != NULL;
    return any;
}

static bool is_amid(void)
{
    return amid.tls->held || amid.tls->idle || amid.tls->inside != 0 || (amid.local && u32_load_acquire(&amid.local->door.bias.active) != 0) || /* acquire [bias-active] */
           holds_any(amid.locks);
}

static struct heap_local *local_entered(void)
{
    for (const struct quire_heap *heap = heap_first; heap; heap = heap->next)
        for (struct heap_local *local = heap_locals(heap); local; local = local->next)
            if (is_mine(local) && u32_load_relaxed(&local->door.bias.active) != 0)
                return local;
    return NULL;
}

/* Another had the heap's lock: what the operation may come to is sound, if not all of it. */
static void lists_begin_anew(struct quire_heap *heap)
{
    heap->idle = NULL;
    u32_store_relaxed(&heap->idle_count, 0);
    memset(heap->headers.roomy, 0, sizeof heap->headers.roomy);
    depots_forget(heap);
    heap_pages_mend(heap->large);
}

/* This thread is inside, or on its way in or out.  True: another was inside, or wanted to be. */
static bool mine_keep(struct heap_local *local)
{
    bool other = lock_reset_others(&local->door.bias.lock);
    if (is_mine(local)) { /* where the short way was being closed, this thread may not have seen it yet: then it has not begun */
        heap_door_set(&local->door, false);
        u32_store_relaxed(&local->door.bias.open, 0);
        return other;
    }
    local->is_torn = heap_tls.held != local && u32_load_relaxed(&local->door.bias.active) != 0;
    u32_store_relaxed(&local->door.bias.active, 0);
    return other || local->is_torn;
}

/* Nobody else is inside of anything.  True: somebody was, or may have had something in his hands. */
static bool others_reset(struct quire_heap *heap, bool goes_on)
{
    bool lost = lock_reset_others(&heap->lock);
    if (lost && goes_on)
        lists_begin_anew(heap);
    for (struct heap_local *local = heap_locals(heap); local; local = local->next) {
        bool in = is_mine(local) && u32_load_relaxed(&local->door.bias.active) != 0;
        if (goes_on && (in || heap_tls.held == local || heap_tls.idle == local || lock_is_mine(&local->door.bias.lock))) {
            lost |= mine_keep(local);
            continue;
        }
        bool inside = heap_door_reset(&local->door), is_home = local == &heap->home;
        lost |= inside || (!is_home && !local->is_sample && !is_mine(local) && !heap_is_idle(local)); /* a large block's span is taken outside of all locks */
        local->is_torn |= inside && !is_home;
        if (inside && is_home && goes_on)
            heap_bins_clear(local); /* its pages come back with the rest */
    }
    return lost;
}

/* ---- nothing to do ---- */

static bool is_quiet(struct quire_heap *heap)
{
    if (u32_load_relaxed(&heap->changing) != 0 || lock_held(&heap->lock))
        return false;
    for (const struct heap_local *local = heap_locals(heap); local; local = local->next) {
        bool is_alone = is_mine(local) || heap_is_idle(local) || local == &heap->home || local->is_sample;
        if (!is_alone || lock_held(&local->door.bias.lock) || u32_load_relaxed(&local->door.bias.active) != 0)
            return false;
    }
    for (const struct header_chunk *chunk = heap->headers.chunks; chunk; chunk = chunk->next)
        if (chunk->pins != 0) /* somebody looked, or walked */
            return false;
    return true;
}

/* No other thread had anything of any heap, or in its hands: all is as it was.  Most that fork have one thread, and their children should copy no page for our sake. */
static bool all_are_quiet(void)
{
    bool quiet = bias_works();
    for (struct quire_heap *heap = heap_first; heap && quiet; heap = heap->next)
        quiet = is_quiet(heap);
    return quiet;
}

/* What was interrupted may have read whose a place is already, and then reads the local: one that has nothing. */
static void seen_forget(void)
{
    for (unsigned i = 0; i < HEAP_SEEN; i++) {
        heap_tls.seen[i].serial = 0;
        heap_tls.seen[i].local = &heap_local_none;
    }
}

void heap_fork_in_child(bool was_locked)
{
    bool lost = false;
    amid.tls = &heap_tls;
    amid.locks = lock_mine;
    amid.walks = heap_walks();
    amid.local = local_entered();
    bool goes_on = is_amid();
    if (!goes_on && !was_locked && all_are_quiet())
        return;
    for (struct quire_heap *heap = heap_first; heap; heap = heap->next)
        lost |= others_reset(heap, goes_on);
    if (lost)
        source_fork_lose();
    heap_tls.quick_bytes = -1;
    heap_tls.quick_free = HEAP_LOCAL_CLOSED;
    heap_tls.self = &heap_local_none;
    seen_forget();
    u32_store_relaxed(&heap_fork_is_due, 1);
    heap_thread_watch_end();
}

/* While the rest is due; NULL: this thread was inside of none by the short way when it forked. */
static struct heap_local *local_amid(void)
{
    return unlikely(u32_load_relaxed(&heap_fork_is_due) != 0) && amid.tls == &heap_tls ? amid.local : NULL;
}

void heap_fork_let_go(void)
{
    struct heap_local *local = local_amid();
    if (local)
        bias_leave(&local->door.bias);
}

bool heap_is_in_local(void)
{
    const struct heap_local *local = local_amid();
    return heap_tls.held != NULL || u32_load_relaxed(&heap_tls.self->door.bias.active) != 0 || (local && u32_load_relaxed(&local->door.bias.active) != 0);
}

bool heap_fork_settle(void)
{
    if (likely(u32_load_acquire(&heap_fork_is_due) == 0)) /* acquire [heap-fork] */
        return true;
    if (heap_tls.held || heap_tls.inside != 0)
        return false;
    if (amid.tls != &heap_tls)
        os_barrier(); /* that thread has come outside, or is seen inside */
    if (is_amid())
        return false;
    heap_tls.inside++;
    heap_list_lock();
    if (u32_load_relaxed(&heap_fork_is_due) != 0)
        all_repair(*amid.walks);
    heap_list_unlock();
    heap_tls.inside--;
    return true;
}
