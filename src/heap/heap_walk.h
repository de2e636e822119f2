// SPDX-License-Identifier: MIT
/* heap_walk.h - for who looks at a heap from outside: its headers, and headers with pins. */
#ifndef QUIRE_HEAP_HEAP_WALK_H
#define QUIRE_HEAP_HEAP_WALK_H

#include "heap/heap_internal.h"

/* One after the other all headers that were ever used, in chunks that were there when each was come to; NULL at the end.  With the heaps' lock; the chunk is
 * pinned, so that it stays where that is dropped in between. */
struct heap_headers {
    struct header_chunk *chunk;
    uint32_t at, cut;
};
struct heap_page *heap_header_next(struct quire_heap *heap, struct heap_headers *headers); /* heap_meta.c */

/* A page that is pinned stays when it becomes empty, the memory of a large block when it is freed.  Inside the local, or under the heap's lock. */
static inline void heap_pin(struct heap_page *page)
{
    if (page->pins < HEAP_PINS_MAX)
        page->pins++;
}

/* True: that was the last one. */
static inline bool heap_unpin(struct heap_page *page)
{
    if (page->pins == HEAP_PINS_MAX)
        return false;
    return --page->pins == 0;
}

/* heap_look.c: true when it is a page of small blocks, and then inside its local.  *in: the local that is visited, NULL at first; the caller releases the last. */
bool heap_page_visit(const struct heap_page *page, struct heap_local **in);
struct page_look heap_large_look(const struct heap_page *page);

void heap_large_unpin(struct quire_heap *heap, struct heap_page *page); /* the last one: if it was freed meanwhile, it goes */
/* A large block gets another size, or another place; false: a walk stands on it. */
bool heap_resize_begin(struct heap_page *page);
void heap_resize_end(struct heap_page *page, size_t asked_bytes);
void heap_page_unpin(struct heap_local *local, struct heap_page *page); /* heap_page.c, inside the local: an empty one goes */
struct heap_walk;
struct heap_walk *const *heap_walks(void); /* this thread's */
void heap_walks_after_fork(struct heap_walk *first); /* after every heap's headers; of the thread that forked */

#endif
