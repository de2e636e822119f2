// SPDX-License-Identifier: MIT
/*
 * heap_sealed.c - the quarantine of addresses: where a secure heap's large blocks were, nothing can be touched, and nothing else comes for a while.
 *
 *     freed ---> no access ---> no memory ---> a random place of `mixed` ---what was there---> the end of `queue` ---its oldest--+
 *                    |                                                                                                          |
 *                    +--- `warm`: its memory moves, zeroed, to the addresses of the next block; or goes, at a tick at the latest |
 *                                                                                                                               |
 *     a block <---one that fits--- a random place of `ready` ---what was there---> unmapped                                     |
 *        ^                                      ^-------------------------------------------------------------------------------+
 *        +---cut off, at either end--- `batch`: addresses reserved for some blocks at once
 *
 * Bounded: 80 ranges, and a sixteenth of the address space that the process may have.  What is larger is unmapped at once: touching it is a fault too,
 * until something else is mapped there.  A block costs two system calls, one that opens its addresses and one that closes them; one of 16 OS pages to
 * 1 MiB most of which was written costs five, but no page faults: a fault is dearer than to zero a page. `warm` is counted in left_bytes.
 *
 * Two ways to close: a mark in the page tables, where the system has them (Linux 6.13), and a mapping without access.  A mark takes half the time, as no
 * mapping is split.  Addresses are marked as a batch, and stay so until their memory was warm, or has moved, or somebody has locked it.
 *
 * Locks: the heap's.  Not here: which blocks these are (heap_large.c).
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "heap/heap_secure.h"
#include "os/os.h"
#include "pages/reaper.h"

enum { PLACES = 32, READY = 16, PART_OF_SPACE = 16, BATCH_PAGES = 512, FROM_BATCH_PAGES_MAX = 64 };
enum { WARM = 8, WARM_PAGES_MIN = 16, WARM_MAX = 1 << 20, WARM_ALL = 4 << 20, COLD_SOME = 8, COLD_EACH = 8 };
#define SPACE_MOST ((size_t)1 << 36)

/* Flag of a span: all of it can be written, but for marks in the page tables (os_mark()).  Else its mapping has no access. */
enum { MARKED = 1 << 30 };

struct sealed_warm {
    struct quire_span memory, all; /* memory: what of it was the block's */
};

struct heap_sealed {
    struct quire_span span;
    struct sealed_warm warm[WARM];
    size_t bytes, bytes_max; /* of all */
    uint32_t next;
    atomic_u32 cold; /* so many in a row were hardly written; a guess */
    struct quire_span mixed[PLACES], queue[PLACES], ready[READY]; /* in this order they are emptied */
    struct quire_span batch;
};

/* Of OS pages: addresses are free, and what warmth saves is a fault for each page. */
static size_t of_pages(size_t pages)
{
    return pages << os_page_shift();
}

/* Made by the first that wants it, whichever thread that is. */
static struct heap_sealed *sealed_now(const struct quire_heap *heap)
{
    return __atomic_load_n(&heap->sealed, __ATOMIC_ACQUIRE); /* acquire [heap-sealed] */
}

static struct heap_sealed *sealed_of(struct quire_heap *heap)
{
    struct quire_span span;
    if (sealed_now(heap) || !heap_meta_take(heap, align_up(sizeof(struct heap_sealed), os_page_bytes()), &span))
        return sealed_now(heap);
    struct heap_sealed *fresh = span.start;
    size_t space = os_address_space_bytes() / PART_OF_SPACE;
    fresh->span = span;
    fresh->bytes_max = space < SPACE_MOST ? space : SPACE_MOST;
    lock_take(&heap->lock);
    bool is_ours = heap->sealed == NULL;
    if (is_ours)
        __atomic_store_n(&heap->sealed, fresh, __ATOMIC_RELEASE); /* release [heap-sealed] */
    lock_drop(&heap->lock);
    if (!is_ours)
        heap_meta_give(heap, &span);
    return sealed_now(heap);
}

/* Out of the ring before it is unmapped: the child of a fork must not unmap it again; where a lost thread was here, there are so many bytes of nothing. */
static struct quire_span exchange(struct quire_span *place, struct quire_span range)
{
    struct quire_span was = *place;
    was.bytes = was.start ? was.bytes : 0;
    place->start = NULL;
    atomic_fence_signal();
    place->bytes = range.bytes;
    place->flags = range.flags;
    atomic_fence_signal();
    place->start = range.start;
    return was;
}

static struct quire_span put_locked(struct heap_sealed *sealed, struct quire_span range)
{
    if (range.bytes > sealed->bytes_max - sealed->bytes)
        return range;
    sealed->bytes += range.bytes;
    struct quire_span out = exchange(&sealed->mixed[heap_secure_random() % PLACES], range);
    if (out.start)
        out = exchange(&sealed->queue[sealed->next++ % PLACES], out);
    if (out.start && out.bytes <= of_pages(FROM_BATCH_PAGES_MAX))
        out = exchange(&sealed->ready[heap_secure_random() % READY], out);
    if (out.start)
        sealed->bytes -= out.bytes;
    return out;
}

/* ---- for the next block ---- */

/* From a random place on, so that nobody can say which it is; at most twice as large. */
static struct quire_span ready_take_locked(struct heap_sealed *sealed, size_t bytes)
{
    struct quire_span none = {NULL, 0, 0, 0};
    unsigned turn = heap_secure_random();
    for (unsigned i = 0; i < READY; i++) {
        struct quire_span *place = &sealed->ready[(turn + i) % READY];
        if (place->start && place->bytes >= bytes && place->bytes / 2 <= bytes) {
            sealed->bytes -= place->bytes;
            return exchange(place, none);
        }
    }
    return none;
}

static struct quire_span batch_cut_locked(struct heap_sealed *sealed, size_t bytes)
{
    struct quire_span *batch = &sealed->batch, cut = {NULL, bytes, 0, 0};
    if (batch->start && batch->bytes >= bytes) {
        bool at_end = heap_secure_random() & 1;
        batch->bytes -= bytes;
        atomic_fence_signal(); /* in the child of a fork it ends where it did */
        cut.flags = batch->flags;
        cut.start = (char *)batch->start + (at_end ? batch->bytes : 0);
        batch->start = (char *)batch->start + (at_end ? 0 : bytes);
    }
    return cut;
}

/* What is left of the one before is too small for this block: it goes, if it was not two threads that came here. */
static void batch_reserve(struct quire_heap *heap)
{
    struct quire_span fresh = {NULL, of_pages(BATCH_PAGES), MARKED, 0};
    if (os_reserve(fresh.bytes, os_page_bytes(), &fresh.start) != 0)
        return;
    if (os_commit(fresh.start, fresh.bytes) != 0 || os_mark(fresh.start, fresh.bytes, true) != 0) {
        fresh.flags = 0;
        if (os_seal(fresh.start, fresh.bytes) != 0) {
            (void)os_unmap(fresh.start, fresh.bytes);
            return;
        }
    }
    lock_take(&heap->lock);
    struct quire_span left = exchange(&heap->sealed->batch, fresh);
    lock_drop(&heap->lock);
    if (left.bytes)
        (void)os_unmap(left.start, left.bytes);
}

struct quire_span heap_sealed_take(struct quire_heap *heap, size_t bytes, size_t more)
{
    struct quire_span range = {NULL, bytes + more, 0, 0};
    struct heap_sealed *sealed = bytes + more <= of_pages(FROM_BATCH_PAGES_MAX) ? sealed_of(heap) : NULL;
    for (int tries = 0; tries < 2 && sealed && !range.start && sealed->bytes_max >= of_pages(BATCH_PAGES); tries++) {
        if (tries)
            batch_reserve(heap);
        lock_take(&heap->lock);
        range = ready_take_locked(sealed, bytes);
        if (!range.start)
            range = batch_cut_locked(sealed, bytes + more);
        lock_drop(&heap->lock);
    }
    return range;
}

/* ---- parts of a block's addresses ---- */

int heap_sealed_extend(const struct quire_span *span, void *start, size_t bytes)
{
    return span->flags & MARKED ? os_mark(start, bytes, false) : os_commit(start, bytes);
}

bool heap_sealed_close(const struct quire_span *span, void *start, size_t bytes)
{
    return (span->flags & MARKED ? os_mark(start, bytes, true) : os_seal(start, bytes)) == 0;
}

void heap_sealed_room(void *start, size_t bytes)
{
    if (bytes == 0)
        return;
    bool is_locked = os_resident_bytes(start, os_page_bytes()) != 0; /* the system has given it memory already */
    if (is_locked || os_guard(start, bytes, true) != 0)
        (void)os_seal(start, bytes);
}

/* ---- freed ---- */

/* What cannot be touched and has no memory. */
static void put_sealed(struct quire_heap *heap, struct quire_span out)
{
    lock_take(&heap->lock);
    out = put_locked(heap->sealed, out);
    lock_drop(&heap->lock);
    if (out.start)
        (void)os_unmap(out.start, out.bytes);
}

void heap_sealed_put(struct quire_heap *heap, struct quire_span span)
{
    if ((span.flags & MARKED) && !heap_sealed_close(&span, span.start, span.bytes))
        span.flags = 0; /* somebody locked it into memory */
    if (sealed_of(heap) && ((span.flags & MARKED) || os_seal(span.start, span.bytes) == 0))
        put_sealed(heap, span);
    else
        (void)os_unmap(span.start, span.bytes);
}

static const struct sealed_warm warm_none;

/* As exchange(). */
static struct sealed_warm warm_exchange_locked(struct quire_heap *heap, struct sealed_warm *place, struct sealed_warm warm)
{
    struct sealed_warm was = *place;
    place->memory.start = NULL;
    atomic_fence_signal();
    place->all = warm.all;
    (void)exchange(&place->memory, warm.memory);
    heap->left_bytes += warm.memory.bytes - (was.memory.start ? was.memory.bytes : 0);
    return was;
}

static void warm_drop(struct quire_heap *heap, struct sealed_warm warm)
{
    if (!warm.memory.start)
        return; /* none */
    heap_sealed_put(heap, warm.all);
    account_discharge(&heap->account, warm.memory.bytes);
}

/* A block that was hardly written has no memory worth to be kept.  Where many in a row were so, one in some is asked, which is a system call. */
static bool is_worth_warmth(struct heap_sealed *sealed, struct quire_span memory)
{
    if (!sealed || memory.bytes < of_pages(WARM_PAGES_MIN) || memory.bytes > WARM_MAX || reaper_keeps_nothing())
        return false;
    uint32_t cold = u32_load_relaxed(&sealed->cold);
    if (cold >= COLD_SOME && cold % COLD_EACH != 0) {
        u32_store_relaxed(&sealed->cold, cold + 1);
        return false;
    }
    bool is_worth = os_resident_bytes(memory.start, memory.bytes) >= memory.bytes / 4 * 3;
    u32_store_relaxed(&sealed->cold, is_worth ? 0 : cold + 1);
    return is_worth;
}

void heap_sealed_free(struct quire_heap *heap, const struct quire_span *span, void *start, size_t bytes)
{
    struct sealed_warm warm = {{start, bytes, 0, 0}, *span};
    if (is_worth_warmth(sealed_of(heap), warm.memory) && os_guard(start, bytes, true) == 0) {
        warm.memory.flags = warm.all.flags; /* what is around it may be marked */
        warm.all.flags = 0;                 /* its mapping has changed */
        lock_take(&heap->lock);
        struct sealed_warm *place = &heap->sealed->warm[heap_secure_random() % WARM];
        if (heap->left_bytes - (place->memory.start ? place->memory.bytes : 0) + bytes <= WARM_ALL)
            warm = warm_exchange_locked(heap, place, warm);
        lock_drop(&heap->lock);
    }
    warm_drop(heap, warm); /* it, or what lay in its place */
}

void heap_sealed_cool(struct quire_heap *heap)
{
    for (unsigned i = 0; i < WARM && sealed_now(heap); i++) {
        lock_take(&heap->lock);
        struct sealed_warm out = warm_exchange_locked(heap, &heap->sealed->warm[i], warm_none);
        lock_drop(&heap->lock);
        warm_drop(heap, out);
    }
}

static struct sealed_warm warm_take(struct quire_heap *heap, size_t bytes)
{
    struct sealed_warm found = warm_none;
    if (!sealed_now(heap) || bytes < of_pages(WARM_PAGES_MIN))
        return found;
    lock_take(&heap->lock);
    for (unsigned i = 0; i < WARM && !found.memory.start; i++) {
        struct sealed_warm *place = &heap->sealed->warm[i];
        if (place->memory.start && place->memory.bytes >= bytes && place->memory.bytes / 2 <= bytes)
            found = warm_exchange_locked(heap, place, warm_none);
    }
    lock_drop(&heap->lock);
    return found;
}

int heap_sealed_open(struct quire_heap *heap, const struct quire_span *span, void *start, size_t bytes)
{
    struct sealed_warm warm = warm_take(heap, bytes);
    if (!warm.memory.start)
        return heap_sealed_extend(span, start, bytes);
    if (os_remap(warm.memory.start, bytes, bytes, start) != 0) {
        warm_drop(heap, warm);
        return -EEXIST;
    }
    size_t had = warm.memory.bytes;
    if (os_reserve_at(warm.memory.start, bytes) != 0) { /* somebody has it: there is nothing to keep back, but what is around it */
        (void)os_unmap(warm.all.start, (size_t)((char *)warm.memory.start - (char *)warm.all.start));
        char *rest = (char *)warm.memory.start + bytes;
        (void)os_unmap(rest, (size_t)((char *)warm.all.start + warm.all.bytes - rest));
    } else if (bytes == had && !(warm.memory.flags & MARKED)) {
        put_sealed(heap, warm.all);
    } else {
        heap_sealed_put(heap, warm.all);
    }
    account_discharge(&heap->account, had);
    int error = os_commit(start, bytes);
    if (error == 0)
        memset(start, 0, bytes);
    return error;
}

/* ---- all of it goes ---- */

size_t heap_sealed_after_fork(struct quire_heap *heap)
{
    heap->left_bytes = 0;
    for (unsigned i = 0; i < WARM && heap->sealed; i++)
        heap->left_bytes += heap->sealed->warm[i].memory.start ? heap->sealed->warm[i].memory.bytes : 0;
    return heap->sealed ? heap->sealed->span.bytes : 0;
}

void heap_sealed_flush(struct quire_heap *heap)
{
    enum { ALL = 2 * PLACES + READY + 1 };
    STATIC_ASSERT(offsetof(struct heap_sealed, batch) == offsetof(struct heap_sealed, mixed) + (ALL - 1) * sizeof(struct quire_span), "in one row");
    struct quire_span none = {NULL, 0, 0, 0};
    heap_sealed_cool(heap);
    for (unsigned i = 0; i < ALL && heap->sealed; i++) {
        lock_take(&heap->lock);
        struct quire_span out = exchange((struct quire_span *)(void *)((char *)heap->sealed + offsetof(struct heap_sealed, mixed)) + i, none);
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
