// SPDX-License-Identifier: MIT
/*
 * heap_sample.c - in a heap that is not secure, some blocks are made and freed as in one that is.
 *
 *     a thread's first blocks of a size -----------.
 *     one of those behind each 64th used-up word --+--> slots of the sample local: canary, wiped at the free, kept back, verified
 *     all others ------------------------------------> the short way, untouched
 *
 * The decision falls only where the short way has ended anyhow, so it costs that nothing.  Code that seldom runs, where mistakes live longest, is watched
 * nearly always; code that allocates all the time, now and then (the idea of adaptive sampling: Hauswirth and Chilimbi, "Low-overhead memory leak detection
 * using adaptive statistical profiling").  What is kept back is verified at each tick, and at each next sample: all of it by the first 128, then an eighth.
 *
 * A profile has all its small samples made here, and is told when they go (heap_watch): no short way meets them, and they share pages.
 *
 * The sample local is nobody's: used by its lock, by whatever thread, but no thread waits for it: where it is busy a block is not sampled, and one that
 * is freed goes its way (heap_remote.c).  Slots of a power of two, so that few pages are begun.
 *
 * Locks: the sample local's.  Not here: canaries (heap_secure.c), the quarantine (heap_late.c).
 */
#include "heap/heap_secure.h"
#include "os/os.h"

enum { FIRST = 16, LATER = 64, OFTEN_MAX = HEAP_SAMPLE_MAX - HEAP_CANARY_BYTES, THREAD = 1 };

/* Pages come to it as to any local; it never ends, and nobody takes pages out of it. */
static struct heap_local *sample_new(struct quire_heap *heap)
{
    struct heap_local *fresh = heap_local_make(heap);
    if (!fresh)
        return NULL;
    fresh->is_secure = fresh->is_sample = true;
    addr_store_relaxed(&fresh->thread, THREAD);
    lock_take(&heap->lock);
    struct heap_local *there = (struct heap_local *)addr_load_relaxed(&heap->sample);
    if (!there) {
        fresh->next = heap_locals(heap);
        addr_store_release(&heap->locals, (uintptr_t)fresh); /* release [heap-locals] */
        addr_store_release(&heap->sample, (uintptr_t)fresh); /* release [heap-sample] */
    }
    lock_drop(&heap->lock);
    if (there) {
        struct quire_span span = heap_local_span(fresh);
        heap_meta_give(heap, &span);
    }
    return there ? there : fresh;
}

/* The thread's own, also for its first block. */
static struct heap_local *mine_or_made(struct quire_heap *heap)
{
    if (unlikely(heap_mine(heap) == &heap_local_none)) {
        struct heap_local *held = heap_hold(heap);
        if (held)
            heap_release(held);
    }
    return heap_mine(heap);
}

static bool is_due(struct heap_bin *bin)
{
    uint16_t seen = bin->sampled;
    bin->sampled = (uint16_t)(seen + 1 < FIRST + LATER ? seen + 1 : FIRST);
    return seen <= FIRST;
}

static void *made(struct quire_heap *heap, size_t bytes, bool looks)
{
    struct heap_local *sample = (struct heap_local *)addr_load_acquire(&heap->sample); /* acquire [heap-sample] */
    if (unlikely(!sample) && !(sample = sample_new(heap)))
        return NULL;
    unsigned class = heap_class_of((size_t)1 << log2_ceil(bytes + HEAP_CANARY_BYTES));
    struct heap_bin *bin = &sample->bin[class];
    void *p = NULL;
    if (unlikely(!heap_visit_try(sample)))
        return NULL; /* another thread's is being made or freed: this one is as all others */
    if (likely(!sample->is_torn)) {
        heap_inbox_drain(sample);
        if (looks)
            heap_late_look(sample);
        p = heap_secure_take(bin);
        if (!p && heap_next_page(sample, class))
            p = heap_secure_take(bin);
    }
    heap_release(sample);
    heap_thread_allocated(heap);
    if (p)
        heap_secure_hand_out(heap, p, class, bytes);
    return p;
}

void *heap_sample_alloc(struct quire_heap *heap, size_t bytes)
{
    struct heap_local *mine = bytes != 0 && bytes <= OFTEN_MAX && !heap_is_inside() ? mine_or_made(heap) : &heap_local_none;
    return mine != &heap_local_none && is_due(&mine->bin[heap_class_of(bytes)]) ? made(heap, bytes, true) : NULL;
}

void *heap_sample_always(struct quire_heap *heap, size_t bytes)
{
    bool is_one = bytes != 0 && bytes <= HEAP_SAMPLE_MAX && !heap_is_secure(heap) && !heap->is_watched && !heap_is_inside();
    return is_one ? made(heap, bytes, false) : NULL;
}
