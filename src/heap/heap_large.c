// SPDX-License-Identifier: MIT
/*
 * heap_large.c - blocks with a span of their own.
 *
 *     above 32 KiB           a span of the source, whole OS pages; the page map knows its first page only, so that huge sizes cost no more
 *     grown by realloc       mapped alone: grows, shrinks and moves by the system's page tables, without a copy
 *     of a secure heap       a page that cannot be touched before it and behind it
 *
 * Invariant L1: a large block is on its heap's list, and the page map leads from its first page to its header.
 *
 * Locks: the heap's.  Not here: small blocks.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "heap/heap_internal.h"
#include "os/os.h"
#include "os/sanitize.h"

/* Blocks that have grown this large by realloc are likely to go on. */
enum { ALONE_BYTES = 256 << 10 };

static inline size_t guard_bytes(const struct heap_page *page)
{
    return page->guard_shift ? (size_t)1 << page->guard_shift : 0;
}

char *heap_large_start(const struct heap_page *page)
{
    return (char *)page->span.start + guard_bytes(page);
}

size_t heap_large_bytes(const struct heap_page *page)
{
    return page->span.bytes - 2 * guard_bytes(page);
}

/* ---- memory ---- */

static bool is_alone(const struct heap_page *page)
{
    return page->is_mapped != 0;
}

static int memory_take(struct quire_heap *heap, struct quire_span *span, size_t bytes, size_t align_bytes)
{
    return heap->source->verbs->take(heap->source, bytes, align_bytes, span);
}

static void memory_give(struct quire_heap *heap, const struct quire_span *span, bool alone)
{
    if (alone)
        (void)os_unmap(span->start, span->bytes);
    else
        heap->source->verbs->give(heap->source, span);
}

/* Guards are advisory: where the system has no more mappings to give, the block is had without.  False: not done. */
static bool guards_set(struct heap_page *page, bool on)
{
    size_t guard = guard_bytes(page);
    if (guard == 0)
        return true;
    bool first = os_guard(page->span.start, guard, on) == 0;
    return os_guard((char *)page->span.start + page->span.bytes - guard, guard, on) == 0 && first;
}

/* ---- the list ---- */

static void enlist(struct quire_heap *heap, struct heap_page *page)
{
    lock_take(&heap->lock);
    page->prev = NULL;
    page->next = heap->large;
    if (heap->large)
        heap->large->prev = page;
    heap->large = page;
    heap_state_set(page, HEAP_LARGE);
    lock_drop(&heap->lock);
}

/* False: somebody else has freed it. */
static bool delist(struct quire_heap *heap, struct heap_page *page, const void *p)
{
    lock_take(&heap->lock);
    bool found = page->state == HEAP_LARGE && heap_page_find(p) == page;
    if (found) {
        heap_state_set(page, HEAP_FULL); /* no longer on the list, and not unused yet */
        if (page->prev)
            page->prev->next = page->next;
        else
            heap->large = page->next;
        if (page->next)
            page->next->prev = page->prev;
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
    page->slots = 1;
    page->words = 0;
    page->slot_bytes = 0;
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
    size_t os_page = os_page_bytes(), guard = guard_wanted(heap, align_bytes), all = all_bytes(bytes, guard);
    if (all == 0 || align_bytes > PTRDIFF_MAX || !heap_charge(heap, all))
        return NULL;
    struct quire_span span;
    struct heap_page *page = heap_header_new(heap, 0);
    int error = page ? memory_take(heap, &span, all, align_bytes > os_page ? align_bytes : os_page) : -ENOMEM;
    if (error == 0) {
        page->span = span;
        page->is_mapped = 0;
        page->guard_shift = guard ? (uint16_t)log2_floor(guard) : 0;
        error = block_publish(heap, page, bytes);
        if (error)
            heap->source->verbs->give(heap->source, &span);
    }
    if (error) {
        if (page)
            heap_header_delete(heap, page);
        heap_discharge(heap, all);
        return NULL;
    }
    *is_zero = (span.flags & QUIRE_SPAN_ZERO) != 0;
    return heap_large_start(page);
}

void *heap_large_alloc(struct quire_heap *heap, size_t bytes, size_t align_bytes, bool zero)
{
    bool is_zero = false;
    if (unlikely(heap_is_inside())) {
        errno = ENOMEM;
        return NULL;
    }
    heap_change_begin(heap);
    void *p = large_try(heap, bytes, align_bytes, &is_zero);
    if (!p && all_bytes(bytes, guard_wanted(heap, align_bytes)) != 0 && heap_trim_all() + quire_source_trim(heap->source) != 0)
        p = large_try(heap, bytes, align_bytes, &is_zero);
    heap_change_end(heap);
    heap_thread_allocated(heap);
    if (!p) {
        errno = ENOMEM;
        return NULL;
    }
    sanitize_undefined(p, align_up(bytes, os_page_bytes()));
    if ((zero || heap_is_secure(heap)) && !is_zero)
        memset(p, 0, bytes);
    heap_work_is_due();
    return p;
}

void heap_large_free(struct heap_page *page, void *p)
{
    struct quire_heap *heap = heap_of_page(page);
    heap_change_begin(heap);
    if (!delist(heap, page, p))
        heap_refuse(heap, HEAP_E1, p);
    struct quire_span span = page->span;
    bool alone = is_alone(page);
    bool usable = guards_set(page, false);
    pagemap_clear(p, os_page_bytes());
    sanitize_root(p, heap_large_bytes(page), false);
    sanitize_undefined(p, heap_large_bytes(page));
    heap_header_delete(heap, page);
    if (usable) {
        memory_give(heap, &span, alone);
        heap_discharge(heap, span.bytes);
    } else {
        size_add_relaxed(&heap->meta_bytes, span.bytes); /* nobody could touch the guards: lost, and counted */
    }
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

/*
 * The system moves the pages onto addresses that have an owner already.  The old ones are nobody's before they go: the moment they are free another
 * thread may have them.  NULL: it is as it was.
 */
static void *move_alone(struct heap_page *page, size_t bytes)
{
    owner_t owner = owner_make(page, OWNER_HEAP);
    void *from = page->span.start, *to;
    if (os_reserve(bytes, os_page_bytes(), &to) != 0)
        return NULL;
    if (pagemap_set(to, os_page_bytes(), owner) != 0) {
        (void)os_unmap(to, bytes);
        return NULL;
    }
    pagemap_clear(from, os_page_bytes());
    if (os_remap(from, page->span.bytes, bytes, to) == 0)
        return to;
    (void)pagemap_set(from, os_page_bytes(), owner); /* its table is there */
    if (pagemap_find(to) == owner)
        pagemap_clear(to, os_page_bytes()); /* and no unmapping: the system may have done that before it failed, and given it to another */
    return NULL;
}

/* A block that is mapped alone: in place where that is possible, as for all that shrink. */
static void *remap(struct quire_heap *heap, struct heap_page *page, size_t bytes)
{
    size_t old_bytes = page->span.bytes;
    void *start = page->span.start;
    if (bytes > old_bytes && !heap_charge(heap, bytes - old_bytes))
        return NULL;
    if (os_remap(start, old_bytes, bytes, NULL) != 0)
        start = bytes > old_bytes ? move_alone(page, bytes) : NULL;
    if (!start && bytes > old_bytes)
        heap_discharge(heap, bytes - old_bytes);
    if (!start)
        return NULL;
    if (bytes < old_bytes)
        heap_discharge(heap, old_bytes - bytes);
    return moved(heap, page, start, bytes);
}

/* A block of the source grows into a mapping of its own. */
static void *to_alone(struct quire_heap *heap, struct heap_page *page, size_t bytes)
{
    struct quire_span old = page->span;
    void *start;
    if (!heap_charge(heap, bytes))
        return NULL;
    int error = os_map(bytes, os_page_bytes(), &start);
    if (error == 0 && (error = pagemap_set(start, os_page_bytes(), owner_make(page, OWNER_HEAP))) != 0)
        (void)os_unmap(start, bytes);
    if (error) {
        heap_discharge(heap, bytes);
        return NULL;
    }
    memcpy(start, old.start, old.bytes < bytes ? old.bytes : bytes);
    pagemap_clear(old.start, os_page_bytes());
    moved(heap, page, start, bytes);
    heap->source->verbs->give(heap->source, &old);
    heap_discharge(heap, old.bytes);
    return start;
}

void *heap_large_resize(struct heap_page *page, size_t bytes)
{
    struct quire_heap *heap = heap_of_page(page);
    size_t all = all_bytes(bytes, guard_bytes(page)), had = page->span.bytes;
    void *p = NULL;
    if (all == 0 || bytes <= HEAP_SMALL_MAX || sanitize_watched())
        return NULL;
    heap_change_begin(heap);
    if (all == had || (!is_alone(page) && all < had && all >= had / 2))
        p = heap_large_start(page);
    else if (is_alone(page))
        p = remap(heap, page, all);
    else if (all > had && all >= ALONE_BYTES && heap->own_memory && !heap_is_secure(heap))
        p = to_alone(heap, page, all);
    heap_change_end(heap);
    if (p) {
        lock_take(&heap->lock);
        page->asked_bytes = bytes;
        lock_drop(&heap->lock);
    }
    return p;
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
