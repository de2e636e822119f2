// SPDX-License-Identifier: MIT
/*
 * heap_large.c - blocks with a span of their own.
 *
 *     above 32 KiB           a span of the source, whole OS pages; the page map knows its first page only, so that huge sizes cost no more
 *     grown by realloc       mapped alone (heap_grow.c)
 *     of a secure heap       sealed: mapped alone too, between pages that cannot be touched, some more of these behind; it grows into them, and moves as
 *                            above; its addresses are kept back when it is freed or has moved (heap_sealed.c)
 *
 *     freed                  below 256 KiB it stays with the thread, one of four, until a tick: a block of as many pages is that one again, by no lock
 *
 * Invariant L1: a large block is on its heap's list, and the page map leads from its first page to its header; as one does that is cached.
 *
 * Locks: the heap's.  Not here: small blocks, realloc (heap_grow.c).
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/fail.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/reaper.h"

enum { GUARD_MORE = 8, ALONE_MOST = 8 << 20, ALONE_PART = 4, ZERO_MOST = 32 << 20 };

char *heap_large_start(const struct heap_page *page)
{
    return (char *)page->span.start + heap_guard_bytes(page);
}

size_t heap_large_bytes(const struct heap_page *page)
{
    if (heap_is_sealed(page))
        return align_up(page->asked_bytes, os_page_bytes());
    return page->span.bytes - 2 * heap_guard_bytes(page);
}

size_t heap_large_held(const struct heap_page *page)
{
    return heap_is_sealed(page) ? heap_large_bytes(page) : page->span.bytes;
}

/* ---- memory ---- */

/* A secure block's mapping: all of it reserved, with some pages more behind, what is between the guards usable. */
static int sealed_take(struct quire_heap *heap, struct quire_span *span, size_t guard, size_t bytes)
{
    size_t more = (size_t)(heap_secure_random() % GUARD_MORE) << os_page_shift();
    struct quire_span got = {NULL, span->bytes + more, 0, 0};
    if (!os_would_grant(bytes))
        return -ENOMEM;
    if (guard == os_page_bytes())
        got = heap_sealed_take(heap, span->bytes, more);
    int error = got.start ? 0 : os_reserve(got.bytes, guard, &got.start);
    if (error) {
        heap_sealed_flush(heap);
        error = os_reserve(got.bytes, guard, &got.start);
    }
    if (error)
        return error;
    if (bytes != 0)
        error = heap_sealed_open(heap, &got, (char *)got.start + guard, bytes);
    if (error == -ENOMEM)
        (void)os_unmap(got.start, got.bytes);
    got.flags |= QUIRE_SPAN_ZERO;
    *span = got;
    return error;
}

static void large_give(struct quire_heap *heap, const struct quire_span *span, bool alone)
{
    if (!alone) {
        heap->source->verbs->give(heap->source, span);
        return;
    }
    (void)os_unmap(span->start, span->bytes);
    heap_large_alone(heap, -(ptrdiff_t)span->bytes);
}

/* Guards are advisory: where the system has no more mappings to give, the block is had without.  False: not done. */
static bool guards_set(struct heap_page *page, bool on)
{
    size_t guard = heap_guard_bytes(page);
    if (guard == 0 || page->is_mapped)
        return true;
    bool first = os_guard(page->span.start, guard, on) == 0;
    return os_guard((char *)page->span.start + page->span.bytes - guard, guard, on) == 0 && first;
}

/* ---- the list ---- */

static void enlist(struct quire_heap *heap, struct heap_page *page)
{
    lock_take(&heap->lock);
    heap_pages_push(&heap->large, page);
    heap_state_set(page, HEAP_LARGE);
    lock_drop(&heap->lock);
}

/* Who makes it has freed the block, or has it: of two that try one does. */
static bool state_change(struct heap_page *page, uint8_t from, uint8_t to)
{
    return __atomic_compare_exchange_n(&page->state, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED); /* release [heap-state] */
}

/* False: somebody else has freed it.  Where walks stand on it this free does, too. */
static bool delist(struct quire_heap *heap, struct heap_page *page, const void *p, uint8_t from, bool *is_pinned)
{
    lock_take(&heap->lock);
    bool found = heap_page_find(p) == page && state_change(page, from, HEAP_FULL); /* no longer on the list, and not unused yet */
    *is_pinned = found && page->pins != 0;
    if (found) {
        if (*is_pinned) {
            heap_pin(page);
            heap->left_bytes += heap_large_held(page);
        }
        heap_pages_remove(&heap->large, page);
        heap->gone[heap->gone_next++ % HEAP_GONE] = (uintptr_t)p;
    }
    lock_drop(&heap->lock);
    return found;
}

bool heap_large_is_gone(const struct quire_heap *heap, const void *p)
{
    bool gone = false;
    for (int i = 0; i < HEAP_GONE; i++)
        gone |= __atomic_load_n(&heap->gone[i], __ATOMIC_RELAXED) == (uintptr_t)p;
    return gone && p != NULL;
}

/* ---- coming and going ---- */

static int block_publish(struct quire_heap *heap, struct heap_page *page, size_t asked_bytes)
{
    page->asked_bytes = asked_bytes;
    page->sample = 0;
    page->slots = 1;
    page->words = 0;
    page->slot_bytes = 0;
    page->class = HEAP_BINS;
    addr_store_release(&page->owner, (uintptr_t)heap | LARGE_OWNER); /* release [heap-owner] */
    int error = pagemap_set(heap_large_start(page), os_page_bytes(), owner_make(page, OWNER_HEAP));
    if (error)
        return error;
    (void)guards_set(page, true);
    enlist(heap, page);
    sanitize_root(heap_large_start(page), heap_large_bytes(page), true);
    return 0;
}

/* Before a block and behind it; as large as its alignment. */
static size_t guard_wanted(const struct quire_heap *heap, size_t align_bytes)
{
    size_t page = os_page_bytes();
    return !heap_is_secure(heap) ? 0 : align_bytes > page ? align_bytes : page;
}

static void *large_try(struct quire_heap *heap, size_t bytes, size_t align_bytes, bool *is_zero)
{
    size_t os_page = os_page_bytes(), guard = guard_wanted(heap, align_bytes), all = heap_large_all(bytes, guard), usable = align_up(bytes, os_page);
    bool alone = heap_is_secure(heap) && heap->own_memory && !heap->is_watched; /* sealed, where nobody else has the memory, or looks at it */
    size_t held = alone ? usable : all;
    if (all == 0 || align_bytes > PTRDIFF_MAX || !account_charge(&heap->account, held, heap))
        return NULL;
    struct quire_span span = {.bytes = all};
    struct heap_page *page = heap_header_new(heap, 0);
    align_bytes = align_bytes > os_page ? align_bytes : os_page;
    int error = !page ? -ENOMEM : alone ? sealed_take(heap, &span, guard, usable) : heap->source->verbs->take(heap->source, all, align_bytes, &span);
    if (error == 0) {
        page->span = span;
        page->is_mapped = alone;
        page->guard_shift = guard ? (uint8_t)log2_floor(guard) : 0;
        error = block_publish(heap, page, bytes);
        if (error)
            large_give(heap, &span, alone);
    }
    if (!account_settle(&heap->account, held, error == 0)) {
        if (page)
            heap_header_delete(heap, page);
        return NULL;
    }
    *is_zero = (span.flags & QUIRE_SPAN_ZERO) != 0;
    return heap_large_start(page);
}

/* What is not touched afterwards is no memory, and much of so large a block may not be (glibc maps each block above this size anew).  False: not this way. */
static bool zero_by_pages(const struct quire_heap *heap, void *p, size_t bytes)
{
    return bytes > ZERO_MOST && heap->own_memory && !heap->is_watched && os_discard(p, align_up(bytes, os_page_bytes())) == 0;
}

/* ---- freed, and kept by a thread ---- */

static bool caches(const struct quire_heap *heap, size_t all)
{
    return all < HEAP_ALONE_BYTES && heap == &heap_of_process && !heap_is_secure(heap) && !heap->is_watched && !reaper_keeps_nothing();
}

static void large_free(struct heap_page *page, void *p, uint8_t from);

/* False: not this way.  A signal's handler that interrupts this thread inside gets no memory, and frees nothing. */
static bool larges_enter(struct heap_local *local)
{
    heap_tls.inside++;
    if (likely(bias_enter(&local->door.bias)))
        return true;
    heap_tls.inside--;
    return false;
}

static void larges_leave(struct heap_local *local)
{
    bias_leave(&local->door.bias);
    heap_tls.inside--;
}

void heap_larges_flush(struct heap_local *local)
{
    for (int i = 0; i < HEAP_LARGES && local->has_larges; i++) {
        struct heap_page *page = local->larges[i];
        local->larges[i] = NULL;
        if (page)
            large_free(page, page->span.start, HEAP_CACHED);
    }
    __atomic_store_n(&local->has_larges, false, __ATOMIC_RELAXED);
}

/* NULL: none of as many pages. */
static void *cache_take(struct quire_heap *heap, size_t bytes, size_t align_bytes)
{
    size_t all = heap_large_all(bytes, 0);
    struct heap_local *local = heap_mine(heap);
    void *p = NULL;
    if (heap != &heap_of_process || !__atomic_load_n(&local->has_larges, __ATOMIC_RELAXED) || !larges_enter(local)) /* a visitor may be flushing it */
        return NULL;
    if (all >= HEAP_ALONE_BYTES) /* what is kept may lie where so much would fit */
        heap_larges_flush(local);
    for (int i = 0; i < HEAP_LARGES && !p && local->has_larges; i++) {
        struct heap_page *page = local->larges[i];
        if (!page || page->span.bytes != all || align_bytes > os_page_bytes())
            continue;
        local->larges[i] = NULL;
        __atomic_store_n(&page->asked_bytes, bytes, __ATOMIC_RELAXED);
        heap_state_set(page, HEAP_LARGE);
        p = page->span.start;
    }
    larges_leave(local);
    return p;
}

/* In front of the others; the last makes way before, so that no more are cached at any moment than there is room for in the child of a fork.  False: it is not to be kept, or is no live block any more. */
static bool cache_put(struct quire_heap *heap, struct heap_page *page, const void *p)
{
    if (!caches(heap, page->span.bytes) || page->is_mapped || page->sample != 0)
        return false;
    if (unlikely(heap_mine(heap) == &heap_local_none) && heap_hold(heap)) /* a thread that had no small block yet */
        heap_release(heap_tls.held);
    struct heap_local *local = heap_mine(heap);
    if (!larges_enter(local))
        return false;
    size_t at = 0;
    while (at < HEAP_LARGES - 1 && local->larges[at])
        at++;
    struct heap_page *last = local->larges[at];
    local->larges[at] = NULL;
    if (last)
        large_free(last, last->span.start, HEAP_CACHED);
    memmove(&local->larges[1], &local->larges[0], at * sizeof local->larges[0]);
    local->larges[0] = NULL;
    bool done = state_change(page, HEAP_LARGE, HEAP_CACHED);
    if (unlikely(done && heap_page_find(p) != page)) { /* it went meanwhile, and the header is another's */
        heap_state_set(page, HEAP_LARGE);
        done = false;
    }
    if (likely(done)) {
        local->larges[0] = page;
        __atomic_store_n(&local->has_larges, true, __ATOMIC_RELAXED);
    }
    larges_leave(local);
    return done;
}

void heap_large_adopt(struct quire_heap *heap, struct heap_page *page)
{
    for (struct heap_local *local = heap_locals(heap); local; local = local->next)
        for (int i = 0; i < HEAP_LARGES && local != &heap->home && !local->is_sample; i++)
            if (!local->larges[i]) {
                local->larges[i] = page;
                local->has_larges = true;
                return;
            }
}

/* ---- for all ---- */

void *heap_large_alloc(struct quire_heap *heap, size_t bytes, size_t align_bytes, bool zero)
{
    bool is_zero = false;
    if (unlikely(heap_is_inside()))
        return fail_null(ENOMEM);
    if (heap == &heap_of_process)
        (void)quire_heap_default();
    void *p = cache_take(heap, bytes, align_bytes);
    if (p)
        return zero ? memset(p, 0, bytes) : p;
    heap_change_begin(heap);
    p = large_try(heap, bytes, align_bytes, &is_zero);
    if (!p && heap_large_all(bytes, guard_wanted(heap, align_bytes)) != 0 && heap_make_room(heap, bytes) != 0)
        p = large_try(heap, bytes, align_bytes, &is_zero);
    heap_change_end(heap);
    if (p)
        heap_work_is_due(); /* before somebody is woken for it */
    heap_thread_allocated(heap);
    if (!p)
        return fail_null(ENOMEM);
    size_t usable = align_up(bytes, os_page_bytes());
    sanitize_undefined(p, usable);
    if ((zero || heap_is_secure(heap)) && !is_zero && !zero_by_pages(heap, p, bytes))
        memset(p, 0, heap_is_secure(heap) ? usable : bytes);
    return p;
}

const struct heap_watch *heap_watch;

void *heap_malloc_sampled(size_t bytes, size_t align_bytes, bool zero, uint64_t sample)
{
    void *p = heap_large_alloc(&heap_of_process, bytes, align_bytes, zero);
    if (p)
        heap_page_find(p)->sample = sample;
    return p;
}

/* What is no longer on the list goes. */
void heap_large_leave(struct quire_heap *heap, struct heap_page *page)
{
    struct quire_span span = page->span;
    size_t held = heap_large_held(page);
    void *start = heap_large_start(page);
    bool alone = page->is_mapped, sealed = heap_is_sealed(page), usable = guards_set(page, false);
    sanitize_undefined(start, heap_large_bytes(page));
    if (heap_is_secure(heap) && !sealed && usable)
        memset(start, 0, heap_large_bytes(page)); /* others take from the same source */
    heap_header_delete(heap, page);
    if (sealed) {
        heap_sealed_free(heap, &span, start, held);
    } else if (usable) {
        large_give(heap, &span, alone);
        account_discharge(&heap->account, held);
    } else {
        size_add_relaxed(&heap->account.meta_bytes, span.bytes); /* nobody could touch the guards: lost, and counted */
    }
}

static void large_free(struct heap_page *page, void *p, uint8_t from)
{
    struct quire_heap *heap = heap_of_page(page);
    bool is_pinned;
    heap_change_begin(heap);
    if (!delist(heap, page, p, from, &is_pinned))
        heap_refuse(heap, HEAP_E1, p);
    if (unlikely(page->sample != 0))
        heap_watch->gone(page->sample, p, page->asked_bytes);
    pagemap_clear(p, os_page_bytes());
    sanitize_root(p, heap_large_bytes(page), false);
    size_t bytes = page->span.bytes;
    size_add_relaxed(&heap->ends, bytes >= HEAP_ALONE_BYTES);
    size_t more = bytes + bytes / ALONE_PART, alone = more < ALONE_MOST ? more : ALONE_MOST;
    if (page->is_mapped && alone > size_load_relaxed(&heap->alone_bytes) && bytes <= ALONE_MOST)
        size_store_relaxed(&heap->alone_bytes, alone);
    if (unlikely(is_pinned))
        heap_large_unpin(heap, page);
    else
        heap_large_leave(heap, page);
    heap_change_end(heap);
    heap_work_is_due();
}

void heap_large_free(struct heap_page *page, void *p)
{
    if (cache_put(heap_of_page(page), page, p))
        heap_work_is_due();
    else
        large_free(page, p, HEAP_LARGE);
}

void heap_larges_destroy(struct quire_heap *heap)
{
    while (heap->large)
        heap_large_free(heap->large, heap_large_start(heap->large));
}

/* ---- looking ---- */

static bool holds(const struct heap_page *page, const void *p)
{
    size_t bytes = heap_large_bytes(page);
    return (size_t)((const char *)p - heap_large_start(page)) < bytes + (bytes == 0);
}

bool heap_large_has(struct quire_heap *heap, const struct heap_page *page, const void *p)
{
    lock_take(&heap->lock);
    bool has = page->state == HEAP_LARGE && holds(page, p);
    lock_drop(&heap->lock);
    return has;
}

bool heap_large_owns(struct quire_heap *heap, const void *p)
{
    bool owns = false;
    lock_take(&heap->lock);
    for (const struct heap_page *page = heap->large; page && !owns; page = page->next)
        owns = page->state == HEAP_LARGE && holds(page, p);
    lock_drop(&heap->lock);
    return owns;
}
