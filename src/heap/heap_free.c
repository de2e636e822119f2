// SPDX-License-Identifier: MIT
/*
 * heap_free.c - giving a block back.
 *
 *     quire_heap_free:  (1) the page map finds the page's header; (2) it is this thread's; (3) the slot, and that one begins there, by one
 *                       multiplication; (4) its bit is not set: set it; (5) count down
 *     another's:        heap_remote.c       large: heap_large.c       what is no live block: one line, and the process stops
 *
 * Locks: none on the short way.  Not here: what becomes of the page (heap_page.c).
 */
#include <errno.h>

#include "heap/heap_secure.h"
#include "os/os.h"
#include "os/sanitize.h"

void heap_slot_free(struct heap_local *local, struct heap_page *page, size_t slot)
{
    uint64_t *word = &page->free[slot / WORD_BITS], bit = UINT64_C(1) << slot % WORD_BITS;
    if (unlikely(*word & bit) || unlikely(heap_warm_has(&local->warm[page->class], heap_slot_at(page, slot))))
        heap_refuse(local->heap, HEAP_E1, heap_slot_at(page, slot));
    heap_bits_set(word, *word | bit);
    if (unlikely(--page->until == 0))
        heap_page_due(local, page);
}

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
    if (unlikely(is_large ? p != heap_large_start(page) : *slot >= page->slots))
        heap_refuse(heap_of_page(page), HEAP_E3, p);
    return page;
}

NO_SANITIZE bool heap_slot_is_free_in(const struct heap_local *owner, const struct heap_page *page, size_t slot)
{
    uint64_t bits = __atomic_load_n(&page->free[slot / WORD_BITS], __ATOMIC_RELAXED);
    if (owner->is_secure)
        bits |= __atomic_load_n(&page->free[page->words + slot / WORD_BITS], __ATOMIC_RELAXED);
    bool is_warm = false;
    for (int i = 0; i < HEAP_WARM; i++)
        is_warm |= __atomic_load_n(&owner->warm[page->class].p[i], __ATOMIC_RELAXED) == heap_slot_at(page, slot);
    return is_warm || (bits >> slot % WORD_BITS & 1);
}

const struct heap_strangers *heap_strangers;

COLD bool heap_is_strangers(const struct quire_heap *heap, const void *p)
{
    return heap_strangers && heap == &heap_of_process && !heap_large_is_gone(heap, p) && heap_strangers->has(p);
}

bool heap_slot_is_free(const struct heap_page *page, size_t slot)
{
    return !heap_is_large(page) && heap_slot_is_free_in(heap_owner(page), page, slot);
}

/* With its owner at rest and nothing on its way: exact, and nothing is written into the block. */
static void free_visiting(struct heap_page *page, const void *p, size_t slot)
{
    struct quire_heap *heap = heap_of_page(page);
    heap_change_begin(heap);
    for (bool done = false; !done;) {
        struct heap_local *owner = heap_owner(page);
        heap_visit(owner);
        heap_inbox_drain(owner);
        bool is_owner = heap_page_find(p) == page && heap_owner(page) == owner;
        if (is_owner && owner->is_secure)
            heap_secure_free(owner, page, slot);
        else if (is_owner)
            heap_slot_free(owner, page, slot);
        heap_release(owner);
        done = is_owner;
        if (!done && heap_page_find(p) != page)
            heap_refuse(heap, HEAP_E1, p); /* its page went meanwhile: somebody else has freed it too */
    }
    heap_change_end(heap);
}

/* A block that looks as if it were on its way: it is, or its memory was once, under another heap, and was never written since. */
static void free_doubtful(struct quire_heap *heap, struct heap_page *page, const void *p, size_t slot)
{
    struct heap_local *local = heap_hold(heap);
    if (unlikely(!local))
        return;
    heap_out_flush(local);
    heap_release(local);
    free_visiting(page, p, slot);
}

static bool is_sampled(const struct heap_page *page)
{
    return heap_page_is_secure(page) && heap_owner(page)->is_sample;
}

/* One that has no room for a link is freed by a visit, too. */
static bool is_doubtful(const struct heap_page *page, const void *p, size_t slot)
{
    if (page->class == HEAP_ZERO)
        return true;
    return heap_out_is_twice(p) || (heap_page_is_secure(page) && heap_slot_is_free(page, slot));
}

static void free_held(struct quire_heap *heap, struct heap_page *page, void *p, size_t slot)
{
    struct heap_local *local = heap_hold(heap), *owner = heap_owner(page);
    if (owner == local && local->is_secure) {
        (void)heap_late_is_there(local);
        heap_secure_free(local, page, slot);
    } else if (owner == local) {
        heap_slot_free(local, page, slot);
    } else {
        if (owner->is_secure)
            heap_secure_wipe(page, slot);
        heap_out_add(local, owner, p);
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
    } else if (heap->is_watched || is_sampled(page)) {
        if (heap->is_watched)
            sanitize_no_access(p, page->slot_bytes);
        free_visiting(page, p, slot);
    } else if (is_doubtful(page, p, slot)) {
        free_doubtful(heap, page, p, slot);
    } else {
        free_held(heap, page, p, slot);
    }
    heap_thread_outside();
    errno = kept;
}

/* Another's page. */
static NOINLINE void free_other(struct quire_heap *heap, struct heap_local *local, struct heap_page *page, void *p)
{
    struct heap_local *owner = heap_owner(page);
    if (heap_page_is_secure(page)) {
        if (unlikely(!heap_secure_free_quick(heap, local, page, p)))
            free_slow(heap, p);
        return;
    }
    if (heap_is_large(page) || owner->heap != heap || heap_slot_of(page, p) >= page->slots || heap->is_watched || heap_out_is_twice(p) ||
        !bias_enter(&local->bias)) {
        free_slow(heap, p);
        return;
    }
    heap_out_add(local, owner, p);
    bias_leave(&local->bias);
}

static NOINLINE void due_and_leave(struct heap_local *local, struct heap_page *page)
{
    heap_tls.inside++;
    heap_page_due(local, page);
    heap_tls.inside--;
    bias_leave(&local->bias);
    int kept = errno;
    heap_thread_outside();
    errno = kept;
}

enum { KIND_BITS = 7 };

/* True: freed; false: not by the short way. */
static ALWAYS_INLINE bool free_mine(struct heap_local *local, struct heap_page *page, void *p)
{
    size_t slot = heap_slot_of(page, p);
    if (unlikely(slot >= page->slots) || unlikely(!bias_enter(&local->bias)))
        return false;
    uint64_t *word = &page->free[slot / WORD_BITS], bits = *word;
    struct heap_warm *warm = heap_warm_of(local, page);
    if (unlikely(bits >> slot % WORD_BITS & 1) || unlikely(heap_warm_has(warm, p))) {
        bias_leave(&local->bias);
        return false;
    }
    if (warm->count < HEAP_WARM) {
        __atomic_store_n(&warm->p[warm->count++], p, __ATOMIC_RELAXED);
        bias_leave(&local->bias);
        return true;
    }
    heap_bits_set(word, bits | UINT64_C(1) << slot % WORD_BITS);
    if (likely(--page->until != 0))
        bias_leave(&local->bias);
    else
        due_and_leave(local, page);
    return true;
}

/* `found`: the owner that the page map knows; of an address that cannot be mapped, one outside of which it lies. */
static ALWAYS_INLINE void free_quick(struct quire_heap *heap, struct heap_local *local, owner_t found, void *p)
{
    struct heap_page *page = (struct heap_page *)(found - OWNER_HEAP);
    if (unlikely(((uintptr_t)page & KIND_BITS) != 0)) { /* another's, or nobody's */
        free_slow(heap, p);
        return;
    }
    if (unlikely(addr_load_relaxed(&page->owner) != (uintptr_t)local)) {
        free_other(heap, local, page, p);
        return;
    }
    if (unlikely(!free_mine(local, page, p)))
        free_slow(heap, p);
}

/* The same for a block whose size is told: one more compare, in a line that is read anyhow. */
bool heap_free_sized(void *p, size_t bytes)
{
    struct heap_local *local = heap_tls.self;
    struct heap_page *page = (struct heap_page *)(pagemap_find_mappable(p) - OWNER_HEAP);
    if (unlikely(((uintptr_t)page & KIND_BITS) != 0) || unlikely(addr_load_relaxed(&page->owner) != (uintptr_t)local))
        return false;
    return likely(bytes <= HEAP_SMALL_MAX) && likely(page->class == heap_class_of(bytes)) && likely(free_mine(local, page, p));
}

void quire_heap_free(struct quire_heap *heap, void *p)
{
    free_quick(heap, heap_mine(heap), pagemap_find_mappable(p), p);
}

void heap_free_any(void *p)
{
    free_quick(&heap_of_process, heap_tls.self, pagemap_find_mappable(p), p);
}

void heap_free_found(uintptr_t found, void *p)
{
    free_quick(&heap_of_process, heap_tls.self, found, p);
}
