// SPDX-License-Identifier: MIT
/* heap_large.h - what heap_large.c and heap_grow.c both know of large blocks. */
#ifndef QUIRE_HEAP_HEAP_LARGE_H
#define QUIRE_HEAP_HEAP_LARGE_H

#include "heap/heap_internal.h"
#include "os/os.h"
#include "pages/region.h"

enum { HEAP_ALONE_BYTES = 256 << 10 };

void *heap_large_resize(struct heap_page *page, size_t bytes); /* NULL: not this way */
bool heap_large_keep(struct heap_page *page, size_t bytes); /* so many bytes from now on, on the pages that it has; false: they do not do, or a walk stands on it */
size_t heap_large_bytes(const struct heap_page *page);
char *heap_large_start(const struct heap_page *page);
size_t heap_large_held(const struct heap_page *page); /* what it counts in mapped_bytes */
bool heap_large_is_gone(const struct quire_heap *heap, const void *p);
void heap_larges_destroy(struct quire_heap *heap);
void heap_larges_flush(struct heap_local *local); /* inside: what this thread has freed and kept */
void heap_large_adopt(struct quire_heap *heap, struct heap_page *page); /* the child of a fork: it was some thread's, which had it freed and kept */
void heap_large_leave(struct quire_heap *heap, struct heap_page *page); /* what is on no list, and nobody stands on */

static inline size_t heap_guard_bytes(const struct heap_page *page)
{
    return page->guard_shift ? (size_t)1 << page->guard_shift : 0;
}

/* Mapped alone, and with guards. */
static inline bool heap_is_sealed(const struct heap_page *page)
{
    return page->is_mapped && page->guard_shift;
}

/* So much more, or less, is mapped alone; a secure heap's addresses go their own ways. */
static inline void heap_large_alone(const struct quire_heap *heap, ptrdiff_t change_bytes)
{
    if (!heap_is_secure(heap))
        region_alone(change_bytes);
}

/*
 * How much of the source a block needs; 0: it cannot be.  Spans of whole huge pages are backed by such, however little of them is touched: a program that has
 * not asked for that gets an OS page more.
 */
static inline size_t heap_large_all(size_t bytes, size_t guard)
{
    size_t all, page = os_page_bytes(), huge = os_huge_bytes();
    if (bytes > PTRDIFF_MAX - 2 * page || guard > PTRDIFF_MAX / 4 || !align_up_checked(bytes + (bytes == 0), page, &all))
        return 0;
    if (guard == 0 && huge != 0 && all % huge == 0)
        all += page;
    return all + 2 * guard <= PTRDIFF_MAX ? all + 2 * guard : 0;
}

/* Of any address.  True: a large block, which has this size from now on, where it is. */
bool heap_large_stays(const struct quire_heap *heap, const void *p, size_t bytes);
/* Whose an address is, with the heaps' lock.  The header may have become another block's; without one all of the heap's large blocks are looked at. */
bool heap_large_has(struct quire_heap *heap, const struct heap_page *page, const void *p);
bool heap_large_owns(struct quire_heap *heap, const void *p);

#endif
