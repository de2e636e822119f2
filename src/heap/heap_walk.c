// SPDX-License-Identifier: MIT
/*
 * heap_walk.c - every live block of a heap, shown to a function that may use the heap.
 *
 *     headers, chunk by chunk ---> one page, or one large block: what lives in it is noted, and the walk stands on it
 *                                  fn(block) for each, without a lock
 *     stands on it:  a page that becomes empty stays, on its bin's list       gone when the last walk leaves it
 *                    a large block that is freed keeps its memory             the same
 *                    a large block is not moved to get another size           it is copied
 *     on a chunk:    it is pinned, and stays
 *
 * Invariants: W1  what lives from the beginning of a walk to its end has its header in a chunk that was there at the beginning: it is visited once.
 *             W2  a header that a walk stands on is not used anew.
 *
 * Locks: the heaps' while the next page is looked for; its local, or the heap's for a large block; none while fn runs.
 * Not here: statistics and pictures (heap_look.c), what leaving does to a page (heap_page.c) or a large block (heap_large.c).
 */
#include "base/fail.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"

STATIC_ASSERT(HEAP_SLOTS_MAX <= PAGE_LOOK_WORDS * WORD_BITS, "a walk has room for a page");

struct heap_walk {
    struct quire_heap *heap;
    struct heap_walk *outer; /* of the same thread, whose fn called this one */
    struct heap_headers headers; /* up to this one */
    struct heap_page *page; /* stood on */
    struct page_look seen;  /* its live blocks when it was looked at */
};

static THREAD_LOCAL struct heap_walk *walks __attribute__((tls_model("initial-exec")));

struct heap_walk *const *heap_walks(void)
{
    return &walks;
}

/* The child of a fork has only its own thread's walks.  A large block that was freed under one is lost there. */
void heap_walks_after_fork(struct heap_walk *first)
{
    for (struct heap_walk *walk = first; walk; walk = walk->outer) {
        if (walk->headers.chunk)
            walk->headers.chunk->pins++;
        if (walk->page && heap_state(walk->page) == HEAP_UNUSED)
            walk->page = NULL;
        else if (walk->page)
            walk->page->pins++;
    }
}

/* ---- large blocks ---- */

static bool large_enter(struct heap_walk *walk, struct heap_page *page)
{
    if (heap_state(page) != HEAP_LARGE)
        return false;
    lock_take(&walk->heap->lock);
    bool is_there = page->state == HEAP_LARGE && page->pins != HEAP_RESIZED;
    if (is_there) {
        heap_pin(page);
        walk->seen = heap_large_look(page);
    }
    lock_drop(&walk->heap->lock);
    return is_there;
}

void heap_large_unpin(struct quire_heap *heap, struct heap_page *page)
{
    heap_change_begin(heap);
    lock_take(&heap->lock);
    bool is_last = heap_unpin(page) && page->state == HEAP_FULL; /* it was freed meanwhile */
    heap->left_bytes -= is_last ? heap_large_held(page) : 0;
    lock_drop(&heap->lock);
    if (is_last)
        heap_large_leave(heap, page);
    heap_change_end(heap);
}

bool heap_resize_begin(struct heap_page *page)
{
    struct quire_heap *heap = heap_of_page(page);
    lock_take(&heap->lock);
    bool is_free = page->pins == 0;
    if (is_free)
        page->pins = HEAP_RESIZED;
    lock_drop(&heap->lock);
    return is_free;
}

void heap_resize_end(struct heap_page *page, size_t asked_bytes)
{
    struct quire_heap *heap = heap_of_page(page);
    lock_take(&heap->lock);
    page->pins = 0;
    page->asked_bytes = asked_bytes;
    lock_drop(&heap->lock);
}

/* ---- pages ---- */

static bool page_enter(struct heap_walk *walk, struct heap_page *page)
{
    struct heap_local *in = NULL;
    bool any = false;
    if (heap_page_visit(page, &in)) {
        heap_page_look(page, &walk->seen);
        any = page_look_live(&walk->seen, 0) != walk->seen.slots;
        if (any)
            heap_pin(page);
    }
    if (in)
        heap_release(in);
    return any;
}

static void page_exit(struct heap_page *page)
{
    struct heap_local *in = NULL;
    if (likely(heap_page_visit(page, &in)))
        heap_page_unpin(in, page);
    heap_release(in);
}

/* ---- from one to the next ---- */

/* Off what it stands on. */
static void step_off(struct heap_walk *walk)
{
    if (walk->page && heap_is_large(walk->page))
        heap_large_unpin(walk->heap, walk->page);
    else if (walk->page)
        page_exit(walk->page);
    walk->page = NULL;
}

/* Onto the next header with a live block; false: there is none. */
static bool walk_next(struct heap_walk *walk)
{
    heap_list_lock();
    struct heap_page *page = heap_header_next(walk->heap, &walk->headers);
    while (page && !large_enter(walk, page) && !page_enter(walk, page))
        page = heap_header_next(walk->heap, &walk->headers);
    walk->page = page;
    heap_list_unlock();
    heap_thread_outside();
    return walk->page != NULL;
}

static void walk_begin(struct heap_walk *walk)
{
    heap_list_lock();
    heap_all_home(walk->heap);
    heap_list_unlock();
    walk->outer = walks;
    walks = walk;
}

static void walk_end(struct heap_walk *walk)
{
    step_off(walk);
    if (walk->headers.chunk) { /* stopped before the end */
        lock_take(&walk->heap->lock);
        walk->headers.chunk->pins--;
        lock_drop(&walk->heap->lock);
    }
    walks = walk->outer;
    heap_thread_outside();
}

static size_t block_bytes(const struct heap_walk *walk, const void *p)
{
    const struct heap_page *page = walk->page;
    if (heap_is_large(page))
        return page->sample ? page->asked_bytes : walk->seen.bytes; /* what lies behind a sampled block is watched (prof/prof.c) */
    bool is_exact = heap_page_is_secure(page) && !walk->heap->is_watched;
    return is_exact ? heap_secure_asked_roughly(page, p) : walk->seen.slot_bytes - walk->heap->tail_bytes;
}

/* Freed since the page was looked at, by fn itself: a sanitizer lets nobody read it. */
static bool is_refused(const struct heap_walk *walk, const void *p)
{
    return walk->heap->is_watched && !heap_is_large(walk->page) && !quire_heap_owns(walk->heap, p);
}

int quire_heap_walk(struct quire_heap *heap, int (*fn)(void *p, size_t bytes, void *arg), void *arg)
{
    struct heap_walk walk = {.heap = heap};
    int result = 0;
    if (!fn)
        return fail_int(EINVAL);
    walk_begin(&walk);
    while (!result && walk_next(&walk)) {
        for (size_t slot = page_look_live(&walk.seen, 0); slot < walk.seen.slots && !result; slot = page_look_live(&walk.seen, slot + 1)) {
            void *p = page_look_slot(&walk.seen, slot);
            if (is_refused(&walk, p))
                continue;
            if (os_tags_on() && !heap_is_large(walk.page) && walk.page->class != HEAP_ZERO)
                p = os_tagged(p);
            result = fn(p, block_bytes(&walk, p), arg);
        }
        step_off(&walk);
    }
    walk_end(&walk);
    return result;
}
