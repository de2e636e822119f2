// SPDX-License-Identifier: MIT
/*
 * heap_sealed.c - the quarantine of addresses: where a secure heap's large blocks were, nothing can be touched, and nothing else comes for a while.
 *
 *     freed ---> no access, no memory ---> a random place of `mixed` ---what was there---> the end of `queue` ---its oldest---> unmapped
 *
 * Bounded: 64 mappings, and a sixteenth of the address space that the process may have.  What is larger is unmapped at once: touching it is a fault too,
 * until something else is mapped there.
 *
 * Locks: the heap's.  Not here: which blocks these are (heap_large.c).
 */
#include "heap/heap_secure.h"
#include "os/os.h"

enum { PLACES = 32, PART_OF_SPACE = 16 };
#define SPACE_MOST ((size_t)1 << 36)

struct sealed_range {
    void *start;
    size_t bytes;
};

struct heap_sealed {
    struct quire_span span;
    size_t bytes, bytes_max; /* of all */
    uint32_t next;
    struct sealed_range mixed[PLACES], queue[PLACES];
};

static size_t bytes_most(void)
{
    size_t space = os_address_space_bytes() / PART_OF_SPACE;
    return space < SPACE_MOST ? space : SPACE_MOST;
}

static struct heap_sealed *sealed_of(struct quire_heap *heap)
{
    struct quire_span span;
    if (heap->sealed || !heap_meta_take(heap, align_up(sizeof(struct heap_sealed), os_page_bytes()), &span))
        return heap->sealed;
    struct heap_sealed *fresh = span.start;
    fresh->span = span;
    fresh->bytes_max = bytes_most();
    lock_take(&heap->lock);
    bool is_ours = heap->sealed == NULL;
    if (is_ours)
        heap->sealed = fresh;
    lock_drop(&heap->lock);
    if (!is_ours)
        heap_meta_give(heap, &span);
    return heap->sealed;
}

/* Out of the ring before it is unmapped: the child of a fork must not unmap it again. */
static struct sealed_range exchange(struct sealed_range *place, struct sealed_range range)
{
    struct sealed_range was = *place;
    place->start = NULL;
    atomic_fence_signal();
    place->bytes = range.bytes;
    atomic_fence_signal();
    place->start = range.start;
    return was;
}

static struct sealed_range put_locked(struct heap_sealed *sealed, struct sealed_range range)
{
    if (range.bytes > sealed->bytes_max - sealed->bytes)
        return range;
    sealed->bytes += range.bytes;
    struct sealed_range out = exchange(&sealed->mixed[heap_secure_random() % PLACES], range);
    if (out.start)
        out = exchange(&sealed->queue[sealed->next++ % PLACES], out);
    if (out.start)
        sealed->bytes -= out.bytes;
    return out;
}

void heap_sealed_put(struct quire_heap *heap, void *start, size_t bytes)
{
    struct sealed_range out = {start, bytes};
    struct heap_sealed *sealed = sealed_of(heap);
    if (sealed && os_seal(start, bytes) == 0) {
        lock_take(&heap->lock);
        out = put_locked(sealed, out);
        lock_drop(&heap->lock);
    }
    if (out.start)
        (void)os_unmap(out.start, out.bytes);
}

void heap_sealed_flush(struct quire_heap *heap)
{
    struct sealed_range none = {NULL, 0};
    for (unsigned i = 0; i < 2 * PLACES && heap->sealed; i++) {
        lock_take(&heap->lock);
        struct sealed_range out = exchange(i < PLACES ? &heap->sealed->mixed[i] : &heap->sealed->queue[i - PLACES], none);
        heap->sealed->bytes -= out.start ? out.bytes : 0;
        lock_drop(&heap->lock);
        if (out.start)
            (void)os_unmap(out.start, out.bytes);
    }
}

void heap_sealed_destroy(struct quire_heap *heap)
{
    if (!heap->sealed)
        return;
    heap_sealed_flush(heap);
    struct quire_span span = heap->sealed->span;
    heap->sealed = NULL;
    heap_meta_give(heap, &span);
}
