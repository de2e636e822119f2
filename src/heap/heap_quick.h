// SPDX-License-Identifier: MIT
/*
 * heap_quick.h - the short ways of the heap, in line where they are called.
 *
 *     alloc:  (1) into the thread's local, if its door admits this size (heap_door.h); (2) the size's class; (3) the top of the bin's magazine, whose mark
 *             proves that it is free, or the lowest free bit of the bin's word
 *     free:   (1) the note beside the page map (heap_note.h), or that finds the page's header; (2) it is this heap's; (3) the address lies in what the page
 *             has carved, and a slot begins there, by one multiplication; (4) its first word does not say that it is free; (5) mark it, and put it on the
 *             bin's magazine; or, where that is to stay full, set its bit in the thread's own page
 *
 * Each ends in one of two ways: done, or nothing has changed and the long way is to be gone (heap_alloc.c, heap_free.c).  Nothing is called, so nothing has
 * to be saved.  The magazines: slots/slots.h.
 *
 * Locks: none.  Not here: everything else.
 */
#ifndef QUIRE_HEAP_HEAP_QUICK_H
#define QUIRE_HEAP_HEAP_QUICK_H

#include "heap/heap_cache.h"
#include "heap/heap_note.h"

C_DECLARATIONS_BEGIN

/* The top of the bin's magazine; false: it is empty, or *slot is not as it was left there. */
static ALWAYS_INLINE bool heap_magazine_pop(struct heap_bin *bin, atomic_u64 **slot)
{
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&bin->slots.top) - 1;
    *slot = (atomic_u64 *)addr_load_relaxed(top);
    if (!heap_has_mark(*slot, slots_mark(*slot, bin->slots.key)))
        return false;
    addr_store_relaxed(&bin->slots.top, (uintptr_t)top);
    __builtin_prefetch((void *)addr_load_relaxed(top - MAGAZINE_BELOW), 1); /* of an address that is not mapped it would search all page tables */
    u64_store_relaxed(*slot, 0);
    return true;
}

/* The lowest free slot of the bin's word, which has one: its number in the page. */
static ALWAYS_INLINE size_t heap_word_lowest(const struct heap_bin *bin, uint64_t bits)
{
    return (size_t)(bin->word - bin->page->free) * WORD_BITS + bits_lowest(bits);
}

/* It is handed out.  NULL: it was not carved yet, or is not as it was left; nothing has changed. */
static ALWAYS_INLINE void *heap_word_pop(struct heap_bin *bin, uint64_t bits)
{
    struct heap_page *page = bin->page;
    uint32_t offset = (uint32_t)heap_word_lowest(bin, bits) * bin->slot_bytes;
    char *p = (char *)page->span.start + offset;
    if (unlikely(offset >= u32_load_relaxed(&page->carved)) || unlikely(!heap_has_mark(p, slots_mark(p, slots_key))))
        return NULL;
    heap_bits_set(bin->word, bits & (bits - 1));
    atomic_fence_signal(); /* in the child of a fork no slot is free that is carved and has no mark */
    u64_store_relaxed((atomic_u64 *)(void *)p, 0); /* what was its mark must not be taken for one when it is freed */
    return p;
}

/* Inside.  NULL: not this way. */
static ALWAYS_INLINE void *heap_bin_pop(struct heap_bin *bin)
{
    __asm__("" : "+r"(bin)); /* the address is made once, not for each field */
    atomic_u64 *slot;
    uint64_t bits;
    void *p = NULL;
    if (likely(heap_magazine_pop(bin, &slot))) {
        if ((p = slot) == NULL)
            __builtin_unreachable(); /* it was read: who asks need not compare */
    } else if (likely(slot == &slots_nothing) && likely((bits = *bin->word) != 0)) {
        p = heap_word_pop(bin, bits);
    }
    return p;
}

static ALWAYS_INLINE void *heap_quick_take(struct heap_local *local, size_t class)
{
    if (unlikely(!bias_enter(&local->door.bias)))
        return NULL;
    void *p = heap_bin_pop(&local->bin[class]);
    bias_leave(&local->door.bias);
    return p;
}

/* NULL: not this way. */
static ALWAYS_INLINE void *heap_quick_alloc(struct heap_local *local, size_t bytes)
{
    size_t below = bytes - 1; /* of no bytes: too many */
    struct heap_bin *bin = NULL;
    bias_approach(&local->door.bias);
    if (likely(heap_door_admits(&local->door, below)))
        bin = &local->bin[below / HEAP_SLOT_ALIGN];
    else if (below < local->bytes_max && bias_is_open(&local->door.bias))
        bin = &local->bin[heap_class_above(below)];
    void *p = likely(bin != NULL) ? heap_bin_pop(bin) : NULL;
    bias_leave(&local->door.bias);
    return p;
}

static ALWAYS_INLINE struct heap_bin *heap_bin_of(struct heap_local *local, const struct heap_page *page)
{
    return (struct heap_bin *)(void *)((char *)local + page->bin_at);
}

/* A slot begins here that was carved, and has a short way: heap_slot_of() without the slot. */
static ALWAYS_INLINE bool heap_is_carved(const struct heap_page *page, const void *p)
{
    uint64_t offset = os_untagged(p) - (uintptr_t)page->span.start;
    return likely(offset < u32_load_relaxed(&page->carved)) && likely(page->reciprocal * offset < page->exact);
}

/* The same by its note, which says where its page begins and what size it is of. */
static ALWAYS_INLINE bool heap_is_noted(const struct heap_note *note, const struct heap_bin *bin, const void *p)
{
    return likely((pagemap_offset(p) + u32_load_relaxed(&note->before)) * bin->reciprocal < bin->reciprocal);
}

/* Nor does its first word say that it is free: a live block, as far as one can see. */
static ALWAYS_INLINE bool heap_is_unmarked(const struct heap_bin *bin, const void *p)
{
    return likely((uint32_t)u64_load_relaxed((const atomic_u64 *)p) != (uint32_t)slots_mark(p, bin->slots.key));
}

static ALWAYS_INLINE void heap_magazine_push(struct heap_bin *bin, atomic_addr *top, void *p)
{
    heap_mark(p, slots_mark(p, bin->slots.key));
    addr_store_relaxed(top, (uintptr_t)p);
    addr_store_relaxed(&bin->slots.top, (uintptr_t)(top + 1));
}

/* From what the page map says.  NULL: blocks there have no short way, or they are not this heap's. */
static ALWAYS_INLINE struct heap_page *heap_quick_page(owner_t found, const struct quire_heap *heap)
{
    struct heap_page *page = (struct heap_page *)owner_object(found);
    if (heap == &heap_of_process)
        return likely(owner_kind(found) == OWNER_MALLOC) ? page : NULL;
    return likely(owner_kind(found) == OWNER_HEAP) && likely(page->quick_of == heap) ? page : NULL;
}

/* What a live block of the heap has room for; 0: not this way.  Some programs ask at every allocation and every free. */
static ALWAYS_INLINE size_t heap_quick_usable(const struct quire_heap *heap, const void *p)
{
    const struct heap_page *page = heap_quick_page(pagemap_find(p), heap);
    return likely(page != NULL) && likely(heap_is_carved(page, p)) && likely(!slots_is_marked(p)) ? page->slot_bytes : 0;
}

/* A block that was asked for with so many bytes, or with others that its class serves, too. */
static ALWAYS_INLINE bool heap_bin_serves(const struct heap_bin *bin, size_t bytes)
{
    return bin->slot_bytes - bytes < bin->sizes;
}

/* Inside, where the magazines stay full: to its page, past them.  False: it is another's, or due. */
static ALWAYS_INLINE bool heap_quick_drain(struct heap_local *local, struct heap_bin *bin, void *p)
{
    struct heap_page *page = (struct heap_page *)owner_object(pagemap_find(p));
    if (unlikely(!page) || unlikely(addr_load_relaxed(&page->owner) != (uintptr_t)local) || unlikely(page->until <= 1))
        return false;
    size_t number = (size_t)((unsigned __int128)page->reciprocal * (os_untagged(p) - (uintptr_t)page->span.start) >> 64); /* a slot begins here */
    uint64_t *word = &page->free[number / WORD_BITS], bits = *word, more = bits | UINT64_C(1) << number % WORD_BITS;
    if (unlikely(more == bits))
        return false;
    heap_mark(p, slots_mark(p, slots_key));
    atomic_fence_signal();
    heap_bits_set(word, more);
    page->until--;
    bin->slots.drained++;
    return true;
}

/* Inside.  True: freed.  Whose page it is does not matter. */
static ALWAYS_INLINE bool heap_quick_put(struct heap_local *local, struct heap_bin *bin, void *p)
{
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&bin->slots.top);
    if (!heap_is_unmarked(bin, p))
        return false;
    if (likely(top < bin->slots.end)) {
        heap_magazine_push(bin, top, p);
        return true;
    }
    return bin->slots.drains && heap_quick_drain(local, bin, p);
}

static ALWAYS_INLINE bool heap_quick_free(struct heap_local *local, const struct heap_page *page, void *p)
{
    if (unlikely(!bias_enter(&local->door.bias)))
        return false;
    bool done = heap_is_carved(page, p) && heap_quick_put(local, heap_bin_of(local, page), p);
    bias_leave(&local->door.bias);
    return done;
}

/* By the local's door, which bias_leave() closes in either case: the bin of a block of the process's heap that has a note.  NULL: not this way. */
static ALWAYS_INLINE struct heap_bin *heap_approach_noted(struct heap_local *local, const void *p)
{
    uintptr_t near_page = pagemap_near_page(p);
    bias_approach(&local->door.bias);
    if (unlikely(!heap_door_admits_free(&local->door, near_page)))
        return NULL;
    const struct heap_note *note = heap_note(near_page);
    struct heap_bin *bin = (struct heap_bin *)(void *)((char *)local + u32_load_relaxed(&note->bin_at));
    return likely(heap_is_noted(note, bin, p)) ? bin : NULL;
}

/* Such a block, whose size `said` says, if it is_said. */
static ALWAYS_INLINE bool heap_quick_free_noted(struct heap_local *local, void *p, bool is_said, size_t said)
{
    struct heap_bin *bin = heap_approach_noted(local, p);
    bool done = likely(bin != NULL) && (!is_said || likely(heap_bin_serves(bin, said))) && heap_quick_put(local, bin, p);
    bias_leave(&local->door.bias);
    return done;
}

/* A small block that gets another size stays where it is: its slot is not too small, and not much too large. */
static ALWAYS_INLINE bool heap_stays(size_t slot_bytes, size_t bytes)
{
    return bytes <= slot_bytes && (bytes >= slot_bytes / 2 || slot_bytes <= HEAP_SLOT_ALIGN);
}

C_DECLARATIONS_END
#endif
