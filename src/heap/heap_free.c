// SPDX-License-Identifier: MIT
/*
 * heap_free.c - giving a block back.
 *
 *     quire_heap_free:  (1) the page map finds the page's header; (2) it is this heap's; (3) the slot, and that one begins there, by one
 *                       multiplication; (4) its first word does not say that it is free; (5) mark it, and put it on the bin's magazine
 *     a doubt:          the word says that it is free, which a live block's may by chance: all magazines are looked through
 *     secure:           heap_secure.c       large: heap_large.c       what is no live block: one line, and the process stops
 *
 * Locks: none on the short way.  Not here: full magazines (heap_cache.c), what becomes of the page (heap_page.c).
 */
#include <errno.h>

#include "heap/heap_quick.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "os/os.h"
#include "os/sanitize.h"

/* Slot 0 of a large block stands for all of it. */
struct heap_page *heap_page_verify(const struct quire_heap *heap, const void *p, size_t *slot)
{
    struct heap_page *page = heap_page_find(p);
    if (unlikely(!page))
        heap_refuse(heap, heap && heap_large_is_gone(heap, p) ? HEAP_E1 : HEAP_E2, p);
    if (unlikely(heap && heap_of_page(page) != heap))
        heap_refuse(heap, HEAP_E4, p);
    bool is_large = heap_is_large(page);
    *slot = is_large ? 0 : heap_slot_of(page, p);
    if (unlikely(is_large ? p != heap_large_start(page) : *slot == SIZE_MAX))
        heap_refuse(heap_of_page(page), HEAP_E3, p);
    if (unlikely(is_large && heap_state(page) == HEAP_CACHED) || unlikely(!heap_tag_is_right(page, p)))
        heap_refuse(heap_of_page(page), HEAP_E1, p);
    return page;
}

const struct heap_strangers *heap_strangers;

COLD bool heap_is_strangers(const struct quire_heap *heap, const void *p)
{
    return heap_strangers && heap == &heap_of_process && !heap_large_is_gone(heap, p) && heap_strangers->has(p);
}

/* As far as another than its owner can see it: exact for a block that nobody frees this moment. */
bool heap_slot_is_free(const struct heap_page *page, size_t slot)
{
    if (heap_is_large(page))
        return false;
    if (heap_bit_is_set(page, slot))
        return true;
    if (heap_page_is_secure(page))
        return __atomic_load_n(&page->free[page->words + slot / WORD_BITS], __ATOMIC_RELAXED) >> slot % WORD_BITS & 1;
    if (!heap_is_marked(heap_slot_at(page, slot)))
        return false;
    bool is_cached = heap_cached(heap_of_page(page), page->class, heap_slot_at(page, slot)) != 0;
    return is_cached || heap_bit_is_set(page, slot); /* a tick sent it from a magazine to its page between the two looks */
}

/* With its owner at rest and nothing on its way: exact, and nothing is written into the block.  False, and only if it does not wait: another is there. */
static bool free_visiting(struct heap_page *page, const void *p, size_t slot, bool waits)
{
    struct quire_heap *heap = heap_of_page(page);
    bool came = true;
    heap_change_begin(heap);
    for (bool done = false; !done;) {
        struct heap_local *owner = heap_owner(page);
        if (waits || !owner->is_sample) /* not: its page is another's by now */
            heap_visit(owner);
        else if (!(came = heap_visit_try(owner)))
            break;
        if (unlikely(owner->is_torn)) { /* the block is lost */
            heap_release(owner);
            break;
        }
        heap_inbox_drain(owner);
        bool is_owner = heap_page_find(p) == page && heap_owner(page) == owner;
        if (is_owner && owner->is_secure)
            heap_secure_free(owner, page, slot);
        else if (is_owner)
            (void)heap_slot_free(owner, page, heap_slot_at(page, slot), slot);
        heap_release(owner);
        done = is_owner;
        if (!done && heap_page_find(p) != page)
            heap_refuse(heap, HEAP_E1, p); /* its page went meanwhile: somebody else has freed it too */
    }
    heap_change_end(heap);
    return came;
}

/* A block that looks as if it were in a magazine, or on its way: it is, or it says so by chance. */
static void free_doubtful(struct quire_heap *heap, struct heap_page *page, const void *p, size_t slot)
{
    struct heap_local *local = heap_hold(heap);
    if (unlikely(!local))
        return;
    heap_out_flush(local);
    heap_release(local);
    if (page->quick_of && unlikely(heap_cached(heap, page->class, p) != 0))
        heap_refuse(heap, HEAP_E1, p);
    (void)free_visiting(page, p, slot, true);
}

/* One that has no room for a link is freed by a visit, too. */
static bool is_doubtful(const struct heap_page *page, const void *p, size_t slot)
{
    if (page->class == HEAP_ZERO)
        return true;
    return heap_is_marked(p) || heap_bit_is_set(page, slot) || (heap_page_is_secure(page) && heap_slot_is_free(page, slot));
}

static void free_held(struct quire_heap *heap, struct heap_page *page, void *p, size_t slot)
{
    struct heap_local *local = heap_hold(heap), *owner = heap_owner(page);
    if (owner == local && local->is_secure) {
        (void)heap_late_is_there(local);
        heap_secure_free(local, page, slot);
    } else if (owner == local) {
        (void)heap_slot_free(local, page, p, slot);
    } else {
        heap_out_add(local, owner, owner->is_secure ? heap_secure_wipe(page, slot) : p);
    }
    heap_release(local);
}

static NOINLINE void free_slow(struct quire_heap *heap, void *p)
{
    if (!p || heap_is_inside())
        return;
    if (unlikely(!heap_page_find(p)) && heap_is_strangers(heap, p)) {
        heap_strangers->free(p);
        return;
    }
    int kept = errno;
    size_t slot;
    struct heap_page *page = heap_page_verify(heap, p, &slot);
    if (heap_is_large(page)) {
        heap_large_free(page, p);
    } else if (heap->is_watched) {
        sanitize_no_access(p, page->slot_bytes);
        (void)free_visiting(page, p, slot, true);
    } else if (heap_page_is_sample(page)) {
        if (unlikely(heap_watch != NULL))
            heap_watch->slot_gone(p);
        if (unlikely(!free_visiting(page, p, slot, false)))
            free_held(heap, page, p, slot);
    } else if (is_doubtful(page, p, slot)) {
        free_doubtful(heap, page, p, slot);
    } else {
        free_held(heap, page, p, slot);
    }
    heap_thread_outside();
    errno = kept;
}

/* Inside, where the bin's magazine is full, or there is none yet; and outside.  True: it was a live block, and is freed. */
static ALWAYS_INLINE bool put_far(struct heap_local *local, struct heap_bin *bin, void *p, bool is_carved)
{
    bool is_live = is_carved && heap_is_unmarked(bin, p);
    if (likely(is_live)) {
        heap_tls.inside++;
        if (heap_cache_make_room(local, (unsigned)(bin - local->bin), p))
            heap_magazine_push(bin, (atomic_addr *)addr_load_relaxed(&bin->slots.top), p);
        heap_tls.inside--;
    }
    bias_leave(&local->door.bias);
    if (unlikely(heap_tls.has_work))
        heap_thread_outside();
    return is_live;
}

/* Into another magazine.  False: not this way. */
static NOINLINE bool free_far(struct heap_local *local, struct heap_page *page, void *p)
{
    struct heap_bin *bin = heap_bin_of(local, page);
    if (unlikely(!bias_enter(&local->door.bias)))
        return false;
    heap_bins_reach(local, page->class);
    return put_far(local, bin, p, heap_is_carved(page, p));
}

/* The same for a block that is noted: its page's header is nothing to wait for. */
static ALWAYS_INLINE bool free_far_noted(struct heap_local *local, void *p)
{
    struct heap_bin *bin = heap_approach_noted(local, p);
    if (likely(bin != NULL))
        heap_bins_reach(local, (unsigned)(bin - local->bin));
    return put_far(local, bin, p, bin != NULL);
}

/* By no short way: into another magazine, of a secure page, large, or none of the heap's. */
static NOINLINE void free_long(struct quire_heap *heap, struct heap_local *local, owner_t found, void *p)
{
    struct heap_page *page = owner_object(found);
    bool done = false; /* of what is another's, or nobody's */
    if (likely(owner_is_heap(found)))
        done = likely(page->quick_of == heap) ? free_far(local, page, p) : heap_page_is_secure(page) && heap_secure_free_quick(heap, local, page, p);
    if (unlikely(!done))
        free_slow(heap, p);
}

/* `found`: the owner that the page map knows. */
static ALWAYS_INLINE void free_quick(struct quire_heap *heap, struct heap_local *local, owner_t found, void *p)
{
    const struct heap_page *page = heap_quick_page(found, heap);
    if (unlikely(!page) || unlikely(!heap_quick_free(local, page, p)))
        free_long(heap, local, found, p);
}

void quire_heap_free(struct quire_heap *heap, void *p)
{
    free_quick(heap, heap_mine(heap), pagemap_find(p), p);
}

void heap_free_any(void *p)
{
    free_quick(&heap_of_process, heap_tls.self, pagemap_find(p), p);
}

void heap_free_found(uintptr_t found, void *p)
{
    free_quick(&heap_of_process, heap_tls.self, found, p);
}

void heap_free_long(void *p)
{
    if (!free_far_noted(heap_tls.quick_free, p))
        free_long(&heap_of_process, heap_tls.self, pagemap_find(p), p);
}
