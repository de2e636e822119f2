// SPDX-License-Identifier: MIT
/*
 * heap_sealed.c - the quarantine of addresses: where a secure heap's large blocks were, nothing can be touched, and nothing else comes for a while.
 *
 *     freed ---> no access, no memory ---> a random place of `mixed` ---what was there---> the end of `queue` ---its oldest--+
 *                                                                                                                           |
 *     a block <---one that fits--- a random place of `ready` ---what was there---> unmapped                                 |
 *        ^                                      ^---------------------------------------------------------------------------+
 *        +---cut off, at either end--- `batch`: addresses reserved for some blocks at once
 *
 * Bounded: 80 ranges, and a sixteenth of the address space that the process may have.  What is larger is unmapped at once: touching it is a fault too,
 * until something else is mapped there.  A block costs two system calls, one that opens its addresses and one that closes them.
 *
 * Locks: the heap's.  Not here: which blocks these are (heap_large.c).
 */
#include <stddef.h>

#include "heap/heap_secure.h"
#include "os/os.h"

enum { PLACES = 32, READY = 16, PART_OF_SPACE = 16, BATCH_BYTES = 2 << 20, FROM_BATCH_MAX = 256 << 10 };
#define SPACE_MOST ((size_t)1 << 36)

struct sealed_range {
    void *start;
    size_t bytes;
};

struct heap_sealed {
    struct quire_span span;
    size_t bytes, bytes_max; /* of all */
    uint32_t next;
    struct sealed_range mixed[PLACES], queue[PLACES], ready[READY]; /* in this order they are emptied */
    struct sealed_range batch;
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
    if (out.start && out.bytes <= FROM_BATCH_MAX)
        out = exchange(&sealed->ready[heap_secure_random() % READY], out);
    if (out.start)
        sealed->bytes -= out.bytes;
    return out;
}

/* ---- for the next block ---- */

/* From a random place on, so that nobody can say which it is; at most twice as large. */
static struct sealed_range ready_take_locked(struct heap_sealed *sealed, size_t bytes)
{
    struct sealed_range none = {NULL, 0};
    unsigned turn = heap_secure_random();
    for (unsigned i = 0; i < READY; i++) {
        struct sealed_range *place = &sealed->ready[(turn + i) % READY];
        if (place->start && place->bytes >= bytes && place->bytes / 2 <= bytes) {
            sealed->bytes -= place->bytes;
            return exchange(place, none);
        }
    }
    return none;
}

static struct sealed_range batch_cut_locked(struct heap_sealed *sealed, size_t bytes)
{
    struct sealed_range *batch = &sealed->batch, cut = {NULL, bytes};
    if (batch->bytes >= bytes) {
        bool at_end = heap_secure_random() & 1;
        batch->bytes -= bytes;
        cut.start = (char *)batch->start + (at_end ? batch->bytes : 0);
        batch->start = (char *)batch->start + (at_end ? 0 : bytes);
    }
    return cut;
}

/* What is left of the one before is too small for this block: it goes, if it was not two threads that came here. */
static void batch_reserve(struct quire_heap *heap)
{
    struct sealed_range fresh = {NULL, BATCH_BYTES};
    if (os_reserve(fresh.bytes, os_page_bytes(), &fresh.start) != 0)
        return;
    lock_take(&heap->lock);
    struct sealed_range left = exchange(&heap->sealed->batch, fresh);
    lock_drop(&heap->lock);
    if (left.bytes)
        (void)os_unmap(left.start, left.bytes);
}

void *heap_sealed_take(struct quire_heap *heap, size_t *bytes, size_t more)
{
    struct sealed_range range = {NULL, 0};
    struct heap_sealed *sealed = *bytes <= FROM_BATCH_MAX - more ? sealed_of(heap) : NULL;
    for (int tries = 0; tries < 2 && sealed && !range.start && sealed->bytes_max >= BATCH_BYTES; tries++) {
        if (tries)
            batch_reserve(heap);
        lock_take(&heap->lock);
        range = ready_take_locked(sealed, *bytes);
        if (!range.start)
            range = batch_cut_locked(sealed, *bytes + more);
        lock_drop(&heap->lock);
    }
    if (range.start)
        *bytes = range.bytes;
    return range.start;
}

/* ---- all of it goes ---- */

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
    enum { ALL = 2 * PLACES + READY + 1 };
    STATIC_ASSERT(offsetof(struct heap_sealed, batch) == offsetof(struct heap_sealed, mixed) + (ALL - 1) * sizeof(struct sealed_range), "in one row");
    struct sealed_range none = {NULL, 0};
    for (unsigned i = 0; i < ALL && heap->sealed; i++) {
        lock_take(&heap->lock);
        struct sealed_range out = exchange((struct sealed_range *)(void *)((char *)heap->sealed + offsetof(struct heap_sealed, mixed)) + i, none);
        heap->sealed->bytes -= i < ALL - 1 ? out.bytes : 0; /* the batch is nobody's memory yet */
        lock_drop(&heap->lock);
        if (out.bytes)
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
