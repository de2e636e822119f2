// SPDX-License-Identifier: MIT
/*
 * heap_quick.h - the short ways of the heap, in line where they are called.
 *
 *     alloc:  (1) the size's class; (2) into the thread's local by its bias; (3) the top of the bin's magazine, whose mark proves that it is free, or
 *             the lowest free bit of the bin's word
 *     free:   (1) the page map finds the page's header; (2) it is this heap's; (3) the slot, and that one begins there, by one multiplication;
 *             (4) neither its bit nor its first word says that it is free; (5) mark it, and put it on the bin's magazine
 *
 * Each ends in one of two ways: done, or nothing has changed and the long way is to be gone (heap_alloc.c, heap_free.c).  Nothing is called, so nothing has
 * to be saved.  The magazines: slots/slots.h.
 *
 * Locks: none.  Not here: everything else.
 */
#ifndef QUIRE_HEAP_HEAP_QUICK_H
#define QUIRE_HEAP_HEAP_QUICK_H

#include "heap/heap_cache.h"
#include "pages/pagemap.h"

C_DECLARATIONS_BEGIN

/* The top of the bin's magazine; false: it is empty, or *slot is not as it was left there. */
static ALWAYS_INLINE bool heap_magazine_pop(struct heap_bin *bin, atomic_u64 **slot)
{
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&bin->slots.top) - 1;
    *slot = (atomic_u64 *)addr_load_relaxed(top);
    if (!heap_has_mark(*slot, slots_mark(*slot, bin->slots.key)))
        return false;
    addr_store_relaxed(&bin->slots.top, (uintptr_t)top);
    u64_store_relaxed(*slot, 0);
    return true;
}

/* The lowest free slot of the bin's word, which has one.  What was its mark must not be taken for one when it is freed. */
static ALWAYS_INLINE void *heap_word_pop(struct heap_bin *bin, uint64_t bits)
{
    heap_bits_set(bin->word, bits & (bits - 1));
    char *p = bin->base + (size_t)bits_lowest(bits) * bin->slot_bytes;
    u64_store_relaxed((atomic_u64 *)(void *)p, 0);
    return p;
}

/* NULL: not this way. */
static ALWAYS_INLINE void *heap_quick_take(struct heap_local *local, size_t class)
{
    struct heap_bin *bin = &local->bin[class];
    __asm__("" : "+r"(bin)); /* the address is made once, not for each field */
    if (unlikely(!bias_enter(&local->bias)))
        return NULL;
    atomic_u64 *slot;
    uint64_t bits;
    void *p = NULL;
    if (likely(heap_magazine_pop(bin, &slot))) {
        if ((p = slot) == NULL)
            __builtin_unreachable(); /* it was read: who asks need not compare */
    } else if (likely(slot == &slots_nothing) && likely((bits = *bin->word) != 0)) {
        p = heap_word_pop(bin, bits);
    }
    bias_leave(&local->bias);
    return p;
}

static ALWAYS_INLINE void *heap_quick_alloc(struct heap_local *local, size_t bytes)
{
    size_t below = bytes - 1; /* of no bytes: too many */
    return likely(below < local->bytes_max) ? heap_quick_take(local, heap_class_above(below)) : NULL;
}

/* The same of a local that a thread has: its near bins are ready, so no load is needed for their sizes. */
static ALWAYS_INLINE void *heap_quick_alloc_own(struct heap_local *local, size_t bytes)
{
    size_t below = bytes - 1;
    if (unlikely(below >= HEAP_NEAR * HEAP_SLOT_ALIGN) && below >= local->bytes_max)
        return NULL;
    return heap_quick_take(local, heap_class_above(below));
}

static ALWAYS_INLINE struct heap_bin *heap_bin_of(struct heap_local *local, const struct heap_page *page)
{
    return (struct heap_bin *)(void *)((char *)local + page->bin_at);
}

/* A live block begins here, as far as one can see. */
static ALWAYS_INLINE bool heap_seems_live(const struct heap_bin *bin, const struct heap_page *page, const void *p)
{
    size_t slot = heap_slot_of(page, p);
    return likely(slot != SIZE_MAX) && likely(!heap_bit_is_set(page, slot)) &&
           likely((uint32_t)u64_load_relaxed((const atomic_u64 *)p) != (uint32_t)slots_mark(p, bin->slots.key));
}

static ALWAYS_INLINE void heap_magazine_push(struct heap_bin *bin, atomic_addr *top, void *p)
{
    heap_mark(p, slots_mark(p, bin->slots.key));
    addr_store_relaxed(top, (uintptr_t)p);
    addr_store_relaxed(&bin->slots.top, (uintptr_t)(top + 1));
}

enum { HEAP_KIND_BITS = 7 };

/* The header of a page that the page map says is a heap's; of any other owner: with bits of HEAP_KIND_BITS. */
static ALWAYS_INLINE struct heap_page *heap_page_of(owner_t found)
{
    return (struct heap_page *)(found - OWNER_HEAP);
}

/* One whose blocks of this heap have a short way. */
static ALWAYS_INLINE bool heap_is_quick(const struct heap_page *page, const struct quire_heap *heap)
{
    return likely(((uintptr_t)page & HEAP_KIND_BITS) == 0) && likely(page->quick_of == heap);
}

/* What a live block of the heap has room for; 0: not this way.  Some programs ask at every allocation and every free. */
static ALWAYS_INLINE size_t heap_quick_usable(const struct quire_heap *heap, const void *p)
{
    const struct heap_page *page = heap_page_of(pagemap_find(p));
    size_t slot = likely(heap_is_quick(page, heap)) ? heap_slot_of(page, p) : SIZE_MAX;
    bool seems_live = likely(slot != SIZE_MAX) && likely(!heap_bit_is_set(page, slot)) && likely(!slots_is_marked(p));
    return likely(seems_live) ? page->slot_bytes : 0;
}

/* True: freed.  Whose page it is does not matter. */
static ALWAYS_INLINE bool heap_quick_free(struct heap_local *local, const struct heap_page *page, void *p)
{
    struct heap_bin *bin = heap_bin_of(local, page);
    if (unlikely(!bias_enter(&local->bias)))
        return false;
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&bin->slots.top);
    bool done = heap_seems_live(bin, page, p) && likely(top < bin->slots.end);
    if (likely(done))
        heap_magazine_push(bin, top, p);
    bias_leave(&local->bias);
    return done;
}

/* A small block that gets another size stays where it is: its slot is not too small, and not much too large. */
static ALWAYS_INLINE bool heap_stays(size_t slot_bytes, size_t bytes)
{
    return bytes <= slot_bytes && (bytes >= slot_bytes / 2 || slot_bytes <= HEAP_SLOT_ALIGN);
}

/* A block that was asked for with so many bytes, or with others that its class serves, too. */
static ALWAYS_INLINE bool heap_page_serves(const struct heap_page *page, size_t bytes)
{
    return page->slot_bytes - bytes < page->sizes;
}

C_DECLARATIONS_END
#endif
