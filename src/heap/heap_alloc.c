// SPDX-License-Identifier: MIT
/*
 * heap_alloc.c - allocating a block.
 *
 *     quire_heap_alloc:  (1) the size's class; (2) into the thread's local by its bias; (3) the lowest free bit of the bin's word
 *     then               (4) the next word of the page; (5) the next page, under the local's lock; (6) everybody's free pages, and once more
 *
 * Locks: none on the short way.  Not here: pages (heap_page.c), blocks above 32 KiB (heap_large.c).
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_secure.h"
#include "os/os.h"
#include "os/sanitize.h"

/* NULL: not this way, nothing has changed.  Calls nothing, so that nothing has to be saved. */
static ALWAYS_INLINE void *alloc_quick(struct heap_local *local, unsigned class)
{
    struct heap_bin *bin = &local->bin[class];
    if (unlikely(!bias_enter(&local->bias)))
        return NULL;
    void *p = NULL;
    uint64_t bits;
    if (likely(local->warm[class].count != 0)) {
        p = heap_warm_pop(&local->warm[class]);
    } else if (likely((bits = *bin->word) != 0)) {
        heap_bits_set(bin->word, bits & (bits - 1));
        p = bin->base + (size_t)bits_lowest(bits) * bin->slot_bytes;
    }
    bias_leave(&local->bias);
    return p;
}

/* The next word of the bin's page, still by the short way. */
static void *alloc_next_word(struct heap_local *local, unsigned class)
{
    struct heap_bin *bin = &local->bin[class];
    void *p = NULL;
    if (unlikely(!bias_enter(&local->bias)))
        return NULL;
    if (heap_next_word(bin)) {
        uint64_t bits = *bin->word;
        heap_bits_set(bin->word, bits & (bits - 1));
        p = bin->base + (size_t)bits_lowest(bits) * bin->slot_bytes;
    }
    bias_leave(&local->bias);
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
    if (local->is_secure)
        return secure_inside(local, class, bytes);
    if (local->warm[class].count != 0)
        return heap_warm_pop(&local->warm[class]);
    if (*bin->word == 0 && !heap_next_word(bin)) {
        if (!heap_next_page(local, class))
            return NULL;
        rounding_note(bin, bytes);
    }
    unsigned bit = bits_lowest(*bin->word);
    heap_bits_set(bin->word, *bin->word & (*bin->word - 1));
    return bin->base + (size_t)bit * bin->slot_bytes;
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

static void *alloc_held(struct quire_heap *heap, unsigned class, size_t bytes)
{
    struct heap_local *local = heap_hold(heap);
    if (unlikely(!local))
        return NULL;
    void *p = alloc_inside(local, class, bytes);
    heap_release(local);
    return p;
}

/* The last resort: what others hold comes back, and pages with a few free slots that wait for more are asked. */
static COLD void *alloc_desperate(struct quire_heap *heap, unsigned class, size_t bytes)
{
    if (heap_is_inside())
        return NULL;
    heap_trim_all();
    quire_source_trim(heap->source);
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
    void *p = is_secure ? heap_secure_take_quick(heap_mine(heap), class) : alloc_next_word(heap_mine(heap), class);
    if (likely(p != NULL)) {
        if (is_secure)
            heap_secure_hand_out(heap, p, class, bytes);
        return p;
    }
    p = alloc_held(heap, class, bytes);
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
    if (likely(bytes <= HEAP_SMALL_MAX)) {
        void *p = alloc_quick(heap_mine(heap), heap_class_of(bytes));
        if (likely(p != NULL))
            return p;
    }
    return alloc_slow(heap, bytes);
}

CACHE_ALIGNED void *heap_malloc(size_t bytes) /* what is linked before it would move it within its lines: a tenth of its time */
{
    if (likely(bytes <= HEAP_SMALL_MAX)) {
        void *p = alloc_quick(heap_tls.self, heap_class_of(bytes));
        if (likely(p != NULL))
            return p;
    }
    return alloc_slow(&heap_of_process, bytes);
}

void *heap_malloc_slow(size_t bytes)
{
    return alloc_slow(&heap_of_process, bytes);
}

static NOINLINE void *zero_large(struct quire_heap *heap, size_t bytes)
{
    if (heap == &heap_of_process)
        (void)quire_heap_default();
    return heap_large_alloc(heap, bytes, HEAP_SLOT_ALIGN, true);
}

static ALWAYS_INLINE void *alloc_zero(struct quire_heap *heap, struct heap_local *local, size_t bytes)
{
    if (unlikely(bytes > HEAP_SMALL_MAX))
        return zero_large(heap, bytes);
    void *p = alloc_quick(local, heap_class_of(bytes));
    if (unlikely(p == NULL))
        p = alloc_slow(heap, bytes);
    bool is_zero = heap_is_secure(heap) && !heap->is_watched; /* S1 */
    return likely(p != NULL) && !is_zero ? memset(p, 0, bytes) : p;
}

void *heap_malloc_zero(size_t bytes)
{
    return alloc_zero(&heap_of_process, heap_tls.self, bytes);
}

void *quire_heap_alloc_zero(struct quire_heap *heap, size_t count, size_t bytes)
{
    size_t all;
    if (unlikely(!mul_checked(count, bytes, &all))) {
        errno = ENOMEM;
        return NULL;
    }
    return alloc_zero(heap, heap_mine(heap), all);
}

void *quire_heap_alloc_aligned(struct quire_heap *heap, size_t bytes, size_t align_bytes)
{
    if (!is_pow2(align_bytes)) {
        errno = EINVAL;
        return NULL;
    }
    if (align_bytes <= HEAP_SLOT_ALIGN)
        return quire_heap_alloc(heap, bytes);
    if (heap == &heap_of_process)
        (void)quire_heap_default();
    unsigned class = HEAP_CLASSES;
    if (align_bytes <= os_page_bytes() && bytes <= HEAP_SMALL_MAX)
        class = heap_class_aligned(bytes + heap->tail_bytes, align_bytes);
    if (class == HEAP_CLASSES)
        return heap_large_alloc(heap, bytes, align_bytes, false);
    void *p = heap_is_secure(heap) ? NULL : alloc_quick(heap_mine(heap), class);
    return likely(p != NULL) ? p : alloc_class(heap, class, bytes);
}

void *heap_malloc_aligned(size_t bytes, size_t align_bytes)
{
    return quire_heap_alloc_aligned(&heap_of_process, bytes, align_bytes);
}
