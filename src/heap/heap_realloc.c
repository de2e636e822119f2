// SPDX-License-Identifier: MIT
/*
 * heap_realloc.c - a block gets another size.
 *
 *     fits where it is, and would not leave half of it empty ----> the same block
 *     large, and its OS pages will do ----> the same block, without a lock
 *     large to large ----> heap_large_resize(): in place, or moved by the system
 *     otherwise ----> a new block, a copy, the old one freed
 *
 * Locks: none of its own.
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_large.h"
#include "heap/heap_quick.h"
#include "heap/heap_secure.h"
#include "os/sanitize.h"

/* What was asked for, exactly; SIZE_MAX: only the class is known. */
static size_t asked_exactly(const struct heap_page *page, const void *p)
{
    if (heap_is_large(page))
        return page->asked_bytes;
    return heap_page_is_secure(page) && !heap_of_page(page)->is_watched ? heap_secure_asked(page, p) : SIZE_MAX;
}

static size_t usable(const struct heap_page *page, const void *p)
{
    if (heap_is_large(page) && !page->sample) /* what lies behind a sampled block is watched (prof/prof.c) */
        return heap_large_bytes(page);
    size_t asked = asked_exactly(page, p);
    return asked != SIZE_MAX ? asked : page->slot_bytes - heap_of_page(page)->tail_bytes;
}

static NOINLINE size_t usable_slow(const void *p)
{
    size_t slot;
    if (!p)
        return 0;
    struct heap_page *page = heap_page_verify(NULL, p, &slot);
    if (unlikely(heap_slot_is_free(page, slot)))
        heap_refuse(heap_of_page(page), HEAP_E1, p);
    return usable(page, p);
}

NO_SANITIZE size_t quire_heap_usable_bytes(const void *p)
{
    size_t bytes = heap_quick_usable(&heap_of_process, p);
    return likely(bytes != 0) ? bytes : usable_slow(p);
}

/* The page of a live block; NULL: it is none. */
static const struct heap_page *page_if_live(const void *p)
{
    const struct heap_page *page = heap_page_find(p);
    size_t slot = page && !heap_is_large(page) ? heap_slot_of(page, p) : SIZE_MAX;
    bool is_live = page && (heap_is_large(page) ? p == heap_large_start(page) && heap_state(page) == HEAP_LARGE : slot != SIZE_MAX && heap_tag_is_right(page, p) && !heap_slot_is_free(page, slot));
    return is_live ? page : NULL;
}

bool heap_size_fits(const void *p, size_t bytes, size_t align_bytes)
{
    const struct heap_page *page = page_if_live(p);
    size_t asked = page ? asked_exactly(page, p) : bytes, tail = page ? heap_of_page(page)->tail_bytes : 0;
    if ((asked != SIZE_MAX && asked != bytes) || bytes > HEAP_SMALL_MAX - tail)
        return asked == bytes;
    if (!page || heap_is_large(page) || (asked == bytes && align_bytes <= HEAP_SLOT_ALIGN))
        return true;
    return page->class == (align_bytes > HEAP_SLOT_ALIGN ? heap_class_aligned(bytes + tail, align_bytes) : heap_class_of(bytes + tail));
}

bool heap_size_may_fit(const void *p, size_t bytes)
{
    const struct heap_page *page = page_if_live(p);
    size_t asked = page ? asked_exactly(page, p) : bytes;
    if (asked != SIZE_MAX)
        return asked == bytes;
    return heap_stays(page->slot_bytes - heap_of_page(page)->tail_bytes, bytes);
}

void *heap_move(struct quire_heap *heap, void *p, size_t had, size_t bytes)
{
    int kept = errno;
    void *fresh = quire_heap_alloc(heap, bytes);
    if (unlikely(!fresh)) {
        if (bytes > had)
            return NULL;
        errno = kept;
        return p; /* what gets smaller has its room already */
    }
    memcpy(fresh, p, had < bytes ? had : bytes);
    quire_heap_free(heap, p);
    return fresh;
}

static NOINLINE void *realloc_slow(struct quire_heap *heap, void *p, size_t bytes)
{
    if (!p)
        return quire_heap_alloc(heap, bytes);
    if (unlikely(!heap_page_find(p)) && heap_is_strangers(heap, p))
        return heap_strangers->realloc(p, bytes);
    size_t slot;
    struct heap_page *page = heap_page_verify(heap, p, &slot);
    if (unlikely(heap_slot_is_free(page, slot)))
        heap_refuse(heap, HEAP_E1, p);
    size_t had = usable(page, p);
    if (heap_is_large(page)) {
        int kept = errno;
        void *same = heap_large_resize(page, bytes);
        heap_thread_outside();
        errno = kept;
        if (same)
            return same;
    } else if (heap_page_is_secure(page)) {
        if (heap_secure_resize(page, p, bytes))
            return p;
    } else if (heap_stays(had, bytes)) {
        return p;
    }
    return heap_move(heap, p, had, bytes);
}

/* A small live block with a short way: its page is looked up once. */
void *quire_heap_realloc(struct quire_heap *heap, void *p, size_t bytes)
{
    size_t had = heap_quick_usable(heap, p);
    if (unlikely(had == 0))
        return heap_large_stays(heap, p, bytes) ? p : realloc_slow(heap, p, bytes);
    return heap_stays(had, bytes) ? p : heap_move(heap, p, had, bytes);
}
