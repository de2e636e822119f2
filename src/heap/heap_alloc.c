// SPDX-License-Identifier: MIT
/*
 * heap_alloc.c - allocating a block.
 *
 *     quire_heap_alloc:  (1) the size's class; (2) into the thread's local by its bias; (3) the top of the bin's magazine, whose mark proves that it is
 *                        free, or the lowest free bit of the bin's word
 *     then               (4) another magazine; (5) the next word of the page; (6) the next page, under the local's lock; (7) everybody's free pages,
 *                        and once more
 *
 * Locks: none on the short way.  Not here: pages (heap_page.c), blocks above 32 KiB (heap_large.c).
 */
#include <string.h>

#include "base/fail.h"
#include "heap/heap_quick.h"
#include "heap/heap_secure.h"
#include "os/os.h"
#include "os/sanitize.h"

/* The lowest free slot of the bin's word, if there is one, was not carved yet. */
static bool is_uncarved(const struct heap_bin *bin)
{
    return *bin->word != 0 && heap_word_lowest(bin, *bin->word) * bin->slot_bytes >= u32_load_relaxed(&bin->page->carved);
}

/* A slot of the bin's word; where somebody watches it cannot be touched yet, and nothing was marked.  NULL: *bad is not as it was left. */
static void *word_pop_inside(struct heap_local *local, unsigned class, void **bad)
{
    struct heap_bin *bin = &local->bin[class];
    uint64_t bits = *bin->word;
    void *p = heap_slot_at(bin->page, heap_word_lowest(bin, bits));
    if (unlikely(local->heap->is_watched)) {
        heap_bits_set(bin->word, bits & (bits - 1));
        return p;
    }
    if (is_uncarved(bin))
        heap_page_carve(bin->page, p);
    if (unlikely(!heap_word_pop(bin, bits))) {
        *bad = p;
        return NULL;
    }
    return p;
}

enum { ZERO_INLINE_MAX = 128 };

/* Inside: another magazine of free slots, or the next word of the bin's page.  NULL: there is none; or *bad is not as it was left. */
static void *alloc_next(struct heap_local *local, unsigned class, void **bad)
{
    struct heap_bin *bin = &local->bin[class];
    atomic_u64 *slot;
    if (heap_magazine_pop(bin, &slot))
        return slot;
    if (unlikely(slot != &slots_nothing)) {
        *bad = slot;
        return NULL;
    }
    if (!is_uncarved(bin) && heap_cache_refill(local, class)) {
        if (likely(heap_magazine_pop(bin, &slot)))
            return slot;
        *bad = slot;
        return NULL;
    }
    if (*bin->word == 0 && !heap_next_word(bin))
        return NULL;
    if (!is_uncarved(bin))
        heap_cache_missed(local, class);
    return word_pop_inside(local, class, bad);
}

/* The same by the short way. */
static void *alloc_next_quick(struct quire_heap *heap, unsigned class)
{
    struct heap_local *local = heap_mine(heap);
    void *p = NULL, *bad = NULL;
    if (heap_class_bytes(class) > local->bytes_max || unlikely(!bias_enter(&local->door.bias)))
        return NULL;
    p = alloc_next(local, class, &bad);
    bias_leave(&local->door.bias);
    if (unlikely(bad != NULL))
        heap_refuse_slot(heap, bad);
    return p;
}

/* One request in each page that is opened is looked at, for the estimate of what rounding costs. */
static void rounding_note(struct heap_bin *bin, size_t bytes)
{
    int64_t seen = (int64_t)(bin->slot_bytes - bytes) * 16, mean = bin->rounding16;
    bin->rounding16 = (uint16_t)(mean + (seen - mean) / 8);
}

static void *secure_inside(struct heap_local *local, unsigned class, size_t bytes)
{
    struct heap_bin *bin = &local->bin[class];
    void *p = heap_secure_take(bin);
    if (p || !heap_next_page(local, class))
        return p;
    rounding_note(bin, bytes);
    return heap_secure_take(bin);
}

static void *alloc_inside(struct heap_local *local, unsigned class, size_t bytes)
{
    struct heap_bin *bin = &local->bin[class];
    void *bad = NULL;
    heap_bins_reach(local, class);
    if (local->is_secure)
        return secure_inside(local, class, bytes);
    void *p = alloc_next(local, class, &bad);
    if (!p && !bad && heap_next_page(local, class)) {
        rounding_note(bin, bytes);
        heap_cache_missed(local, class);
        p = word_pop_inside(local, class, &bad);
    }
    if (unlikely(bad != NULL)) {
        heap_let_go(local->heap);
        heap_refuse_slot(local->heap, bad);
    }
    return p;
}

static void handed_out(const struct quire_heap *heap, void *p, unsigned class, size_t bytes)
{
    if (heap_is_secure(heap)) {
        heap_secure_hand_out(heap, p, class, bytes);
        return;
    }
    sanitize_undefined(p, heap_class_bytes(class));
    sanitize_no_access((char *)p + heap_class_bytes(class) - heap->tail_bytes, heap->tail_bytes);
}

/* The last resort: what others hold comes back, and pages with a few free slots that wait for more are asked. */
static COLD void *alloc_desperate(struct quire_heap *heap, unsigned class, size_t bytes)
{
    if (heap_is_inside())
        return NULL;
    (void)heap_make_room(heap, bytes);
    heap_list_lock();
    struct heap_local *local = heap_hold_with_list(heap);
    heap_rejoin_all(local, class);
    void *p = alloc_inside(local, class, bytes);
    heap_release(local);
    heap_list_unlock();
    return p;
}

/* A slot of a class; NULL: there is no memory. */
static void *alloc_class(struct quire_heap *heap, unsigned class, size_t bytes)
{
    bool is_secure = heap_is_secure(heap);
    void *p = is_secure ? heap_secure_take_quick(heap_mine(heap), class) : alloc_next_quick(heap, class);
    if (likely(p != NULL)) {
        if (is_secure)
            heap_secure_hand_out(heap, p, class, bytes);
        return p;
    }
    struct heap_local *local = heap_hold(heap);
    if (likely(local != NULL)) {
        p = alloc_inside(local, class, bytes);
        heap_release(local);
    }
    if (unlikely(!p))
        p = alloc_desperate(heap, class, bytes);
    heap_thread_allocated(heap);
    if (!p)
        errno = ENOMEM;
    else if (unlikely(heap->tail_bytes != 0))
        handed_out(heap, p, class, bytes);
    return p;
}

static NOINLINE void *alloc_slow(struct quire_heap *heap, size_t bytes)
{
    if (heap == &heap_of_process)
        (void)quire_heap_default();
    if (bytes > HEAP_SMALL_MAX || bytes + heap->tail_bytes > HEAP_SMALL_MAX)
        return heap_large_alloc(heap, bytes, HEAP_SLOT_ALIGN, false);
    if (unlikely(bytes == 0) && heap_is_secure(heap) && !heap->is_watched)
        return alloc_class(heap, HEAP_ZERO, 0);
    void *sampled = heap->samples ? heap_sample_alloc(heap, bytes) : NULL;
    if (unlikely(sampled != NULL))
        return sampled;
    return alloc_class(heap, heap_class_of(bytes + heap->tail_bytes), bytes);
}

void *quire_heap_alloc(struct quire_heap *heap, size_t bytes)
{
    void *p = heap_quick_alloc(heap_mine(heap), bytes);
    return likely(p != NULL) ? p : alloc_slow(heap, bytes);
}

CACHE_ALIGNED void *heap_malloc(size_t bytes) /* what is linked before it would move it within its lines: a tenth of its time */
{
    void *p = heap_quick_alloc(heap_tls.self, bytes);
    return likely(p != NULL) ? p : alloc_slow(&heap_of_process, bytes);
}

void *heap_malloc_slow(size_t bytes)
{
    return alloc_slow(&heap_of_process, bytes);
}

typedef uint64_t unit __attribute__((vector_size(HEAP_SLOT_ALIGN), may_alias));

/* Of an ordinary slot, by the short way: whole units of it, in line where they are few. */
static ALWAYS_INLINE void *slot_zero(void *p, size_t bytes)
{
    if (bytes > ZERO_INLINE_MAX)
        return memset(p, 0, bytes);
    for (size_t at = 0; at < bytes; at += sizeof(unit)) {
        *(unit *)(void *)((char *)p + at) = (unit){0};
        atomic_fence_signal(); /* or the compiler makes it a call of memset */
    }
    return p;
}

static NOINLINE void *zero_slow(struct quire_heap *heap, size_t bytes)
{
    if (bytes > HEAP_SMALL_MAX)
        return heap_large_alloc(heap, bytes, HEAP_SLOT_ALIGN, true);
    void *p = alloc_slow(heap, bytes);
    bool is_zero = heap_is_secure(heap) && !heap->is_watched; /* S1 */
    return likely(p != NULL) && !is_zero ? memset(p, 0, bytes) : p;
}

static ALWAYS_INLINE void *alloc_zero(struct quire_heap *heap, struct heap_local *local, size_t bytes)
{
    void *p = heap_quick_alloc(local, bytes);
    return likely(p != NULL) ? slot_zero(p, bytes) : zero_slow(heap, bytes);
}

void *heap_malloc_zero(size_t bytes)
{
    return alloc_zero(&heap_of_process, heap_tls.self, bytes);
}

void *quire_heap_alloc_zero(struct quire_heap *heap, size_t count, size_t bytes)
{
    size_t all;
    if (unlikely(!mul_checked(count, bytes, &all)))
        return fail_null(ENOMEM);
    return alloc_zero(heap, heap_mine(heap), all);
}

void *quire_heap_alloc_aligned(struct quire_heap *heap, size_t bytes, size_t align_bytes)
{
    if (!is_pow2(align_bytes))
        return fail_null(EINVAL);
    if (align_bytes <= HEAP_SLOT_ALIGN)
        return quire_heap_alloc(heap, bytes);
    if (heap == &heap_of_process)
        (void)quire_heap_default();
    unsigned class = HEAP_CLASSES;
    bool is_alone = bytes == 0 && heap_is_secure(heap) && !heap->is_watched; /* nothing of it can be touched */
    if (align_bytes <= os_page_bytes() && bytes <= HEAP_SMALL_MAX && likely(!is_alone))
        class = heap_class_aligned(bytes + heap->tail_bytes, align_bytes);
    if (class == HEAP_CLASSES)
        return heap_large_alloc(heap, bytes, align_bytes, false);
    struct heap_local *local = heap_mine(heap);
    void *p = heap_is_secure(heap) || heap_class_bytes(class) > local->bytes_max ? NULL : heap_quick_take(local, class);
    return likely(p != NULL) ? p : alloc_class(heap, class, bytes);
}

void *heap_malloc_aligned(size_t bytes, size_t align_bytes)
{
    return quire_heap_alloc_aligned(&heap_of_process, bytes, align_bytes);
}
