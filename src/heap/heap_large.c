// SPDX-License-Identifier: MIT
/*
 * heap_large.c - blocks with a span of their own.
 *
 *     above 32 KiB           a span of the source, whole OS pages; the page map knows its first page only, so that huge sizes cost no more
 *     grown by realloc       mapped alone: grows, shrinks and moves by the system's page tables, without a copy
 *     of a secure heap       sealed: mapped alone too, between pages that cannot be touched, some more of these behind; it grows into them, and moves as
 *                            above; its addresses are kept back when it is freed or has moved (heap_sealed.c)
 *
 * Invariant L1: a large block is on its heap's list, and the page map leads from its first page to its header.
 *
 * Locks: the heap's.  Not here: small blocks.
 */
#include <stdint.h>
#include <string.h>

#include "base/fail.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/region.h"

/*
 * Blocks that have grown this large by realloc are likely to go on; unless one as large has been freed: such a size comes and goes, and the source has
 * its pages warm, where a mapping faults each one in anew (glibc's threshold for mmap moves likewise).  Above ALONE_MOST pages are moved, never copied;
 * and below again when blocks are copied many times before their caller frees them, as those that grow by small steps.
 */
enum { ALONE_BYTES = 256 << 10, ALONE_MOST = 8 << 20, COPIES_SOME = 16, COPIES_EACH = 8, GUARD_MORE = 8, GROW_MAX = 1 << 30 };

static inline size_t guard_bytes(const struct heap_page *page)
{
    return page->guard_shift ? (size_t)1 << page->guard_shift : 0;
}

/* Mapped alone, and with guards. */
static inline bool is_sealed(const struct heap_page *page)
{
    return page->is_mapped && page->guard_shift;
}

char *heap_large_start(const struct heap_page *page)
{
    return (char *)page->span.start + guard_bytes(page);
}

size_t heap_large_bytes(const struct heap_page *page)
{
    if (is_sealed(page))
        return align_up(page->asked_bytes + (page->asked_bytes == 0), os_page_bytes());
    return page->span.bytes - 2 * guard_bytes(page);
}

size_t heap_large_held(const struct heap_page *page)
{
    return is_sealed(page) ? heap_large_bytes(page) : page->span.bytes;
}

/* ---- memory ---- */

/* A secure block's mapping: all of it reserved, with some pages more behind, what is between the guards usable. */
static int sealed_take(struct quire_heap *heap, struct quire_span *span, size_t guard, size_t bytes)
{
    size_t more = (size_t)(heap_secure_random() % GUARD_MORE) << os_page_shift();
    struct quire_span got = {NULL, span->bytes + more, 0, 0};
    if (guard == os_page_bytes())
        got = heap_sealed_take(heap, span->bytes, more);
    int error = got.start ? 0 : os_reserve(got.bytes, guard, &got.start);
    if (error) {
        heap_sealed_flush(heap);
        error = os_reserve(got.bytes, guard, &got.start);
    }
    if (error)
        return error;
    error = heap_sealed_open(heap, &got, (char *)got.start + guard, bytes);
    if (error == -ENOMEM)
        (void)os_unmap(got.start, got.bytes);
    got.flags |= QUIRE_SPAN_ZERO;
    *span = got;
    return error;
}

/* So much more, or less, is mapped alone; a secure heap's addresses go their own ways. */
static void alone_count(const struct quire_heap *heap, ptrdiff_t change_bytes)
{
    if (!heap_is_secure(heap))
        region_alone(change_bytes);
}

static void memory_give(struct quire_heap *heap, const struct quire_span *span, bool alone)
{
    if (!alone) {
        heap->source->verbs->give(heap->source, span);
        return;
    }
    (void)os_unmap(span->start, span->bytes);
    alone_count(heap, -(ptrdiff_t)span->bytes);
}

/* Guards are advisory: where the system has no more mappings to give, the block is had without.  False: not done. */
static bool guards_set(struct heap_page *page, bool on)
{
    size_t guard = guard_bytes(page);
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

/* False: somebody else has freed it.  Where walks stand on it this free does, too. */
static bool delist(struct quire_heap *heap, struct heap_page *page, const void *p, bool *is_pinned)
{
    lock_take(&heap->lock);
    bool found = page->state == HEAP_LARGE && heap_page_find(p) == page;
    *is_pinned = found && page->pins != 0;
    if (found) {
        if (*is_pinned) {
            heap_pin(page);
            heap->left_bytes += heap_large_held(page);
        }
        heap_state_set(page, HEAP_FULL); /* no longer on the list, and not unused yet */
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

/* How much of the source a block needs; 0: it cannot be. */
static size_t all_bytes(size_t bytes, size_t guard)
{
    size_t all, page = os_page_bytes();
    if (bytes > PTRDIFF_MAX - page || guard > PTRDIFF_MAX / 4 || !align_up_checked(bytes + (bytes == 0), page, &all))
        return 0;
    return all + 2 * guard <= PTRDIFF_MAX ? all + 2 * guard : 0;
}

static void *large_try(struct quire_heap *heap, size_t bytes, size_t align_bytes, bool *is_zero)
{
    size_t os_page = os_page_bytes(), guard = guard_wanted(heap, align_bytes), all = all_bytes(bytes, guard), usable = all - 2 * guard;
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
            memory_give(heap, &span, alone);
    }
    if (!account_settle(&heap->account, held, error == 0)) {
        if (page)
            heap_header_delete(heap, page);
        return NULL;
    }
    *is_zero = (span.flags & QUIRE_SPAN_ZERO) != 0;
    return heap_large_start(page);
}

void *heap_large_alloc(struct quire_heap *heap, size_t bytes, size_t align_bytes, bool zero)
{
    bool is_zero = false;
    if (unlikely(heap_is_inside()))
        return fail_null(ENOMEM);
    if (heap == &heap_of_process)
        (void)quire_heap_default();
    heap_change_begin(heap);
    void *p = large_try(heap, bytes, align_bytes, &is_zero);
    if (!p && all_bytes(bytes, guard_wanted(heap, align_bytes)) != 0 && heap_trim_all() + quire_source_trim(heap->source) != 0)
        p = large_try(heap, bytes, align_bytes, &is_zero);
    heap_change_end(heap);
    heap_thread_allocated(heap);
    if (!p)
        return fail_null(ENOMEM);
    sanitize_undefined(p, align_up(bytes, os_page_bytes()));
    if ((zero || heap_is_secure(heap)) && !is_zero)
        memset(p, 0, bytes);
    heap_work_is_due();
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
    bool alone = page->is_mapped, sealed = is_sealed(page), usable = guards_set(page, false);
    sanitize_undefined(start, heap_large_bytes(page));
    heap_header_delete(heap, page);
    if (sealed) {
        heap_sealed_free(heap, &span, start, held);
    } else if (usable) {
        memory_give(heap, &span, alone);
        account_discharge(&heap->account, held);
    } else {
        size_add_relaxed(&heap->account.meta_bytes, span.bytes); /* nobody could touch the guards: lost, and counted */
    }
}

void heap_large_free(struct heap_page *page, void *p)
{
    struct quire_heap *heap = heap_of_page(page);
    bool is_pinned;
    heap_change_begin(heap);
    if (!delist(heap, page, p, &is_pinned))
        heap_refuse(heap, HEAP_E1, p);
    if (unlikely(page->sample != 0))
        heap_watch->gone(page->sample, p, page->asked_bytes);
    pagemap_clear(p, os_page_bytes());
    sanitize_root(p, heap_large_bytes(page), false);
    size_t bytes = page->span.bytes;
    size_add_relaxed(&heap->ends, bytes >= ALONE_BYTES);
    if (page->is_mapped && bytes > size_load_relaxed(&heap->alone_bytes) && bytes <= ALONE_MOST)
        size_store_relaxed(&heap->alone_bytes, bytes);
    if (unlikely(is_pinned))
        heap_large_unpin(heap, page);
    else
        heap_large_leave(heap, page);
    heap_change_end(heap);
    heap_work_is_due();
}

void heap_larges_destroy(struct quire_heap *heap)
{
    while (heap->large)
        heap_large_free(heap->large, heap_large_start(heap->large));
}

/* ---- realloc ---- */

/* The block by other addresses, or another size, under the same header. */
static void *moved(struct quire_heap *heap, struct heap_page *page, void *start, size_t bytes)
{
    size_t asked = page->asked_bytes;
    lock_take(&heap->lock); /* who walks the list sees the one or the other */
    page->span.start = start;
    page->span.bytes = bytes;
    page->span.flags = 0;
    page->is_mapped = 1;
    page->asked_bytes = asked < bytes ? asked : bytes; /* until the caller says what it is now */
    lock_drop(&heap->lock);
    return start;
}

/* So much more; under a limit what lies idle, or in caches, goes first. */
static bool charge_more(struct quire_heap *heap, size_t bytes)
{
    return account_charge(&heap->account, bytes, heap) ||
           (heap_trim_all() + quire_source_trim(heap->source) != 0 && account_charge(&heap->account, bytes, heap));
}

/*
 * The system moves the pages onto addresses, `all` of them, that have an owner already.  The old ones are nobody's before they go: the moment they are free
 * another thread may have them.  Where the addresses begin; NULL: it is as it was.
 */
static void *pages_move(struct heap_page *page, size_t had, size_t bytes, size_t all)
{
    owner_t owner = owner_make(page, OWNER_HEAP);
    size_t guard = guard_bytes(page);
    char *from = heap_large_start(page);
    void *start;
    if (os_reserve(all, guard ? guard : os_page_bytes(), &start) != 0)
        return NULL;
    char *to = (char *)start + guard;
    if (pagemap_set(to, os_page_bytes(), owner) != 0) {
        (void)os_unmap(start, all);
        return NULL;
    }
    pagemap_clear(from, os_page_bytes());
    if (os_remap(from, had, bytes, to) == 0)
        return start;
    (void)pagemap_set(from, os_page_bytes(), owner); /* its table is there */
    if (pagemap_find(to) == owner)
        pagemap_clear(to, os_page_bytes()); /* and no unmapping: the system may have done that before it failed, and given it to another; guards are only addresses */
    return NULL;
}

/* A block that is mapped alone: in place where that is possible, as for all that shrink. */
static void *remap(struct quire_heap *heap, struct heap_page *page, size_t bytes)
{
    size_t old_bytes = page->span.bytes;
    void *start = page->span.start;
    if (bytes > old_bytes && !charge_more(heap, bytes - old_bytes))
        return NULL;
    if (os_remap(start, old_bytes, bytes, NULL) != 0)
        start = bytes > old_bytes ? pages_move(page, old_bytes, bytes, bytes) : NULL;
    if (bytes > old_bytes)
        account_settle(&heap->account, bytes - old_bytes, start != NULL);
    if (!start)
        return NULL;
    if (bytes < old_bytes)
        account_discharge(&heap->account, old_bytes - bytes);
    alone_count(heap, (ptrdiff_t)(bytes - old_bytes));
    return moved(heap, page, start, bytes);
}

/* A block of the source grows into a mapping of its own. */
static void *to_alone(struct quire_heap *heap, struct heap_page *page, size_t bytes)
{
    struct quire_span old = page->span;
    void *start;
    if (!charge_more(heap, bytes))
        return NULL;
    int error = os_map(bytes, os_page_bytes(), &start);
    if (error == 0 && (error = pagemap_set(start, os_page_bytes(), owner_make(page, OWNER_HEAP))) != 0)
        (void)os_unmap(start, bytes);
    if (!account_settle(&heap->account, bytes, error == 0))
        return NULL;
    alone_count(heap, (ptrdiff_t)bytes);
    memcpy(start, old.start, old.bytes < bytes ? old.bytes : bytes);
    pagemap_clear(old.start, os_page_bytes());
    moved(heap, page, start, bytes);
    heap->source->verbs->give(heap->source, &old);
    account_discharge(&heap->account, old.bytes);
    return start;
}

/*
 * A sealed block moves onto addresses with as much again to grow into, which are of its mapping: what changes its size must be one mapping, and what is
 * opened behind moved pages would stay another.  Where it was is kept back, if nobody else is there already.
 */
static void *sealed_move(struct quire_heap *heap, struct heap_page *page, size_t had, size_t usable)
{
    size_t guard = guard_bytes(page), least = usable + 2 * guard, all = usable < GROW_MAX ? least + usable : least;
    struct quire_span old = page->span;
    char *from = heap_large_start(page), *start = pages_move(page, had, all - 2 * guard, all);
    if (!start && all != least) /* so much more may be over a limit of the system's, until it is closed */
        start = pages_move(page, had, usable, all = least);
    if (!start)
        return NULL;
    heap_sealed_room(start + guard + usable, all - least);
    lock_take(&heap->lock);
    page->span = (struct quire_span){start, all, 0, 0};
    page->asked_bytes = usable;
    lock_drop(&heap->lock);
    if (os_reserve_at(from, had) == 0) {
        old.flags = 0; /* what it was in has gone with it */
        heap_sealed_put(heap, old);
    } else {
        (void)os_unmap(old.start, guard);
        (void)os_unmap(from + had, (size_t)((char *)old.start + old.bytes - (from + had)));
    }
    return start + guard;
}

/* Whether a block of the source had better be copied, as it grows, than mapped alone. */
static bool is_to_be_copied(struct quire_heap *heap, size_t bytes)
{
    if (bytes > size_load_relaxed(&heap->alone_bytes))
        return false;
    size_t copies = size_add_relaxed(&heap->copies, 1) + 1, ends = size_load_relaxed(&heap->ends);
    if (copies <= COPIES_SOME + COPIES_EACH * (ends > copies ? ends - copies : 0))
        return true;
    size_store_relaxed(&heap->alone_bytes, 0);
    size_store_relaxed(&heap->copies, 0);
    size_store_relaxed(&heap->ends, 0);
    return false;
}

/* NULL: not this way. */
static void *sealed_resize(struct quire_heap *heap, struct heap_page *page, size_t bytes)
{
    size_t had = heap_large_bytes(page), usable = align_up(bytes, os_page_bytes());
    char *start = heap_large_start(page), *end = (char *)page->span.start + page->span.bytes - guard_bytes(page);
    if (usable < had) {
        if (!heap_sealed_close(&page->span, start + usable, had - usable))
            return NULL;
        account_discharge(&heap->account, had - usable);
    } else if (usable > had) {
        if (!charge_more(heap, usable - had))
            return NULL;
        if (usable > (size_t)(end - start))
            start = sealed_move(heap, page, had, usable);
        else if (heap_sealed_extend(&page->span, start + had, usable - had) != 0)
            start = NULL;
        account_settle(&heap->account, usable - had, start != NULL);
    }
    return start;
}

void *heap_large_resize(struct heap_page *page, size_t bytes)
{
    struct quire_heap *heap = heap_of_page(page);
    size_t all = all_bytes(bytes, guard_bytes(page)), had = page->span.bytes;
    void *p = NULL;
    if (all == 0 || bytes <= HEAP_SMALL_MAX || sanitize_watched() || unlikely(heap_is_inside()))
        return NULL;
    heap_change_begin(heap);
    bool is_ours = heap_resize_begin(page);
    if (!is_ours)
        ; /* a walk stands on it: it is copied */
    else if (is_sealed(page))
        p = sealed_resize(heap, page, bytes);
    else if (all == had || (!page->is_mapped && all < had && all >= had / 2))
        p = heap_large_start(page);
    else if (page->is_mapped)
        p = remap(heap, page, all);
    else if (all > had && all >= ALONE_BYTES && heap->own_memory && !heap_is_secure(heap) && !is_to_be_copied(heap, all))
        p = to_alone(heap, page, all);
    if (is_ours)
        heap_resize_end(page, p ? bytes : page->asked_bytes);
    heap_change_end(heap);
    return p;
}

bool heap_large_keep(struct heap_page *page, size_t bytes)
{
    struct quire_heap *heap = heap_of_page(page);
    size_t room = heap_large_bytes(page);
    if (is_sealed(page) ? align_up(bytes, os_page_bytes()) != room : bytes > room)
        return false;
    heap_change_begin(heap);
    bool is_ours = heap_resize_begin(page);
    if (is_ours)
        heap_resize_end(page, bytes);
    heap_change_end(heap);
    return is_ours;
}

/* ---- looking ---- */

bool heap_large_owns(struct quire_heap *heap, const void *p)
{
    bool owns = false;
    lock_take(&heap->lock);
    for (const struct heap_page *page = heap->large; page && !owns; page = page->next)
        owns = (size_t)((const char *)p - heap_large_start(page)) < heap_large_bytes(page);
    lock_drop(&heap->lock);
    return owns;
}
