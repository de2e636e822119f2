// SPDX-License-Identifier: MIT
/*
 * heap_grow.c - large blocks by realloc: by the system's page tables, without a copy.
 *
 *     of the source   has what is free behind it, where it is; or its pages leave the span, which goes back empty, for a mapping of the block's own; also
 *                     where much of it is no longer wanted
 *     mapped alone    grows and shrinks where it is, or moves as it is
 *     sealed          (of a secure heap) grows into what is reserved behind it, or moves onto addresses with more
 *
 * A block that moves is charged what it grows by, not all of it again.  Where the system cannot move pages so (Linux before 5.7, emulators, and a block of
 * several mappings, as in the child of a fork), what leaves the source is copied.
 *
 * Locks: the heap's.  Not here: blocks that end (heap_large.c).
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/source_internal.h"

/*
 * Blocks that have grown this large by realloc are likely to go on; unless one as large has been freed, or nearly: such a size comes and goes, each
 * time a bit larger perhaps, and the source has its pages warm, where a mapping faults each one in anew (glibc's threshold for mmap moves likewise).
 * Above ALONE_MOST (heap_large.c) pages are moved, never copied; and below again when blocks are copied many times before their caller frees them, as
 * those that grow by small steps, less than a quarter.
 */
enum { LONG_STEP_PART = 4, COPIES_SOME = 16, COPIES_EACH = 8, GROW_MAX = 1 << 30, LEAVE_BYTES = 64 << 10, COPY_BYTES = 256 << 10, SPARE_BYTES = 1 << 20, SPARE_PART = 8, SPARE_PART_ALONE = 16 };

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
    return os_would_grant(bytes) && (account_charge(&heap->account, bytes, heap) ||
                                     (heap_make_room(heap, bytes) != 0 && account_charge(&heap->account, bytes, heap)));
}

/*
 * The system moves the pages onto addresses, `all` of them, that have an owner already.  The old ones are nobody's before they go: the moment they are free
 * another thread may have them.  Where the addresses begin; NULL: it is as it was.  What is several mappings is not even tried: it fails each time, and
 * whether the addresses for it are then still ours no kernel tells.
 */
static void *pages_move(struct heap_page *page, size_t had, size_t bytes, size_t all)
{
    owner_t owner = owner_make(page, OWNER_HEAP);
    size_t guard = heap_guard_bytes(page);
    char *from = heap_large_start(page);
    void *start;
    if (!os_is_one_mapping(from, had) || os_reserve(all, guard ? guard : os_page_bytes(), &start) != 0)
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
        pagemap_clear(to, os_page_bytes()); /* and no unmapping: the system may have done that before it failed, and given it to another; but not the guards */
    if (guard) {
        (void)os_unmap(start, guard);
        (void)os_unmap(to + bytes, all - guard - bytes);
    }
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
    heap_large_alone(heap, (ptrdiff_t)(bytes - old_bytes));
    return moved(heap, page, start, bytes);
}

/* By the system's page tables: the first `kept` bytes of it.  NULL: not this way. */
static void *pages_leave(struct quire_heap *heap, struct heap_page *page, size_t kept, size_t bytes)
{
    owner_t owner = owner_make(page, OWNER_HEAP);
    void *to;
    if (kept < LEAVE_BYTES || !charge_more(heap, bytes - kept))
        return NULL;
    int error = os_reserve(bytes, os_page_bytes(), &to);
    if (error == 0) {
        error = pagemap_set(to, os_page_bytes(), owner);
        if (error == 0 && (error = os_leave(page->span.start, kept, bytes, to)) != 0 && pagemap_find(to) == owner)
            pagemap_clear(to, os_page_bytes());
        if (error && error != -EFAULT)
            (void)os_unmap(to, bytes);
    }
    return account_settle(&heap->account, bytes - kept, error == 0) ? to : NULL;
}

/* The same by a copy.  What has been copied goes back piece by piece: there are never two of it. */
static void *pages_copy(struct quire_heap *heap, struct heap_page *page, size_t kept, size_t bytes)
{
    char *from = page->span.start;
    void *to;
    if (!charge_more(heap, bytes - kept))
        return NULL;
    int error = os_map(bytes, os_page_bytes(), &to);
    if (error == 0 && (error = pagemap_set(to, os_page_bytes(), owner_make(page, OWNER_HEAP))) != 0)
        (void)os_unmap(to, bytes);
    if (!account_settle(&heap->account, bytes - kept, error == 0))
        return NULL;
    for (size_t at = 0, part; at < kept; at += part) {
        part = kept - at < COPY_BYTES ? kept - at : COPY_BYTES;
        memcpy((char *)to + at, from + at, part);
        (void)os_discard(from + at, part);
    }
    os_make_plain(from, kept);
    return to;
}

/* A block of the source has more of it, where it is. */
static bool extend(struct quire_heap *heap, struct heap_page *page, size_t all)
{
    size_t more = all - page->span.bytes;
    if (heap_is_secure(heap) || !charge_more(heap, more))
        return false;
    lock_take(&heap->lock); /* who walks the list */
    bool done = source_extend(heap->source, &page->span, more);
    lock_drop(&heap->lock);
    return account_settle(&heap->account, more, done);
}

/* A block of the source gets a mapping of its own, and another size. */
static void *to_alone(struct quire_heap *heap, struct heap_page *page, size_t bytes)
{
    struct quire_span old = page->span;
    size_t kept = bytes < old.bytes ? bytes : old.bytes;
    void *start = pages_leave(heap, page, kept, bytes);
    if (!start && !(start = pages_copy(heap, page, kept, bytes)))
        return NULL;
    if (kept < old.bytes) {
        os_make_plain((char *)old.start + kept, old.bytes - kept);
        account_discharge(&heap->account, old.bytes - kept);
    }
    heap_large_alone(heap, (ptrdiff_t)bytes);
    pagemap_clear(old.start, os_page_bytes());
    moved(heap, page, start, bytes);
    source_give_cold(heap->source, &old);
    return start;
}

/*
 * A sealed block moves onto addresses with as much again to grow into, which are of its mapping: what changes its size must be one mapping, and what is
 * opened behind moved pages would stay another.  Where it was is kept back, if nobody else is there already.
 */
static void *sealed_move(struct quire_heap *heap, struct heap_page *page, size_t had, size_t usable)
{
    size_t guard = heap_guard_bytes(page), least = usable + 2 * guard, all = usable < GROW_MAX ? least + usable : least;
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
static bool is_to_be_copied(struct quire_heap *heap, size_t had, size_t bytes)
{
    if (bytes > size_load_relaxed(&heap->alone_bytes))
        return false;
    if (bytes - had >= had / LONG_STEP_PART)
        return true;
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
    if (had == 0) /* of no bytes, aligned */
        return NULL;
    char *start = heap_large_start(page), *end = (char *)page->span.start + page->span.bytes - heap_guard_bytes(page);
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

/* The OS pages that it has will do: those that it does not need are few. */
static bool stays(const struct heap_page *page, size_t all)
{
    size_t had = page->span.bytes, spare = had - all;
    if (all > had || all < had / 2)
        return false;
    return page->is_mapped ? spare <= had / SPARE_PART_ALONE : spare <= SPARE_BYTES || spare <= had / SPARE_PART;
}

static bool goes_alone(struct quire_heap *heap, size_t had, size_t all)
{
    if (all < HEAP_ALONE_BYTES || !heap->own_memory || heap_is_secure(heap))
        return false;
    return all > had ? !is_to_be_copied(heap, had, all) : all > size_load_relaxed(&heap->alone_bytes);
}

/* A sampled block's last bytes are watched, and a sealed one's pages are as many as it asks for. */
bool heap_large_stays(const struct quire_heap *heap, const void *p, size_t bytes)
{
    struct heap_page *page = heap_page_find(p);
    if (!page || !heap_is_large(page) || heap_of_page(page) != heap || page->guard_shift || page->sample || heap->is_watched)
        return false;
    if (p != page->span.start || bytes <= HEAP_SMALL_MAX || !stays(page, heap_large_all(bytes, 0)) || heap_state(page) != HEAP_LARGE)
        return false;
    __atomic_store_n(&page->asked_bytes, bytes, __ATOMIC_RELAXED); /* somebody may be making sums */
    return true;
}

void *heap_large_resize(struct heap_page *page, size_t bytes)
{
    struct quire_heap *heap = heap_of_page(page);
    size_t all = heap_large_all(bytes, heap_guard_bytes(page)), had = page->span.bytes;
    void *p = NULL;
    if (all == 0 || bytes <= HEAP_SMALL_MAX || sanitize_watched() || unlikely(heap_is_inside()))
        return NULL;
    heap_change_begin(heap);
    bool is_ours = heap_resize_begin(page);
    if (!is_ours)
        ; /* a walk stands on it: it is copied */
    else if (heap_is_sealed(page))
        p = sealed_resize(heap, page, bytes);
    else if (stays(page, all))
        p = heap_large_start(page);
    else if (page->is_mapped)
        p = remap(heap, page, all);
    else if (all > had && extend(heap, page, all))
        p = heap_large_start(page);
    else if (goes_alone(heap, had, all))
        p = to_alone(heap, page, all);
    if (is_ours && !p && !page->is_mapped && all < had && all >= had / 2)
        p = heap_large_start(page); /* better than a copy */
    if (is_ours)
        heap_resize_end(page, p ? bytes : page->asked_bytes);
    heap_change_end(heap);
    return p;
}

bool heap_large_keep(struct heap_page *page, size_t bytes)
{
    struct quire_heap *heap = heap_of_page(page);
    size_t room = heap_large_bytes(page);
    if (heap_is_sealed(page) ? align_up(bytes, os_page_bytes()) != room : bytes > room)
        return false;
    heap_change_begin(heap);
    bool is_ours = heap_resize_begin(page);
    if (is_ours)
        heap_resize_end(page, bytes);
    heap_change_end(heap);
    return is_ours;
}

