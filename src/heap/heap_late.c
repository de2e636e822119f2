// SPDX-License-Identifier: MIT
/*
 * heap_late.c - the quarantine of a secure heap's small blocks: freed, wiped, and not handed out before others were freed.
 *
 *     freed ---> a random place of `mixed` ---what was there---> the end of `queue` ---its oldest---> a free bit
 *
 * The queue gives the least time, the random places make it unknown which block comes next.  Large slots have a shorter one: what is kept back
 * is bounded by bytes, too.  A second row of bits in the page says which slots are here, so that the child of a fork, and those who look, need no queue.
 *
 * Locks: inside the local.  Not here: what is verified, and when (heap_secure.c).
 */
#include <string.h>

#include "heap/heap_secure.h"
#include "os/os.h"

bool heap_late_is_there(struct heap_local *local)
{
    struct quire_span span;
    if (likely(local->late != NULL))
        return true;
    if (heap_is_idle(local) || !heap_meta_take(local->heap, align_up(sizeof(struct heap_late), os_page_bytes()), &span))
        return false;
    struct heap_late *late = span.start;
    if (!(span.flags & QUIRE_SPAN_ZERO))
        memset(late, 0, sizeof *late);
    late->span = span;
    late->ring[0].places = HEAP_LATE_MANY;
    late->ring[1].places = HEAP_LATE_FEW;
    local->late = late;
    return true;
}

static struct heap_late_block row_get(struct heap_late_row *row)
{
    if (row->taken == 0)
        return (struct heap_late_block){NULL, 0};
    struct heap_late_block *place = &row->block[bits_lowest(row->taken)], found = *place;
    row->taken &= row->taken - 1;
    place->page = NULL;
    return found;
}

struct heap_late_block heap_late_get(struct heap_local *local)
{
    struct heap_late_block found = {NULL, 0};
    for (int i = 0; i < 2 && local->late && !found.page; i++)
        if (!(found = row_get(&local->late->ring[i].queue)).page)
            found = row_get(&local->late->ring[i].mixed);
    return found;
}

enum { LOOKS_WHOLE = 128, LOOK_PARTS = 8 };
#define EACH_EIGHTH UINT64_C(0x0101010101010101)

static void row_verify(const struct quire_heap *heap, const struct heap_late_row *row, uint64_t places)
{
    for (uint64_t left = row->taken & places; left != 0; left &= left - 1) {
        const struct heap_late_block *place = &row->block[bits_lowest(left)];
        if (unlikely(!heap_secure_is_clean(place->page, place->slot)))
            heap_refuse(heap, HEAP_E6, heap_slot_at(place->page, place->slot));
    }
}

static void rings_verify(const struct heap_local *local, uint64_t places)
{
    for (const struct heap_late_ring *ring = local->late->ring; ring < local->late->ring + 2; ring++) {
        row_verify(local->heap, &ring->queue, places);
        row_verify(local->heap, &ring->mixed, places);
    }
}

void heap_late_verify(const struct heap_local *local)
{
    if (local->late && !local->heap->is_watched)
        rings_verify(local, UINT64_MAX);
}

void heap_late_verify_all(struct quire_heap *heap)
{
    heap_list_lock();
    HEAP_EACH_VISITED(heap, local)
        heap_late_verify(local);
    heap_list_unlock();
    heap_thread_outside();
}

void heap_late_look(struct heap_local *local)
{
    if (!local->late || local->heap->is_watched)
        return;
    uint32_t looks = local->late->ring[0].looks++;
    rings_verify(local, looks < LOOKS_WHOLE ? UINT64_MAX : EACH_EIGHTH << looks % LOOK_PARTS);
}

/* In the child of a fork: what another thread kept back is free; its rings may be torn. */
void heap_late_drop(struct heap_local *local)
{
    for (int i = 0; i < 2 && local->late; i++) {
        memset(&local->late->ring[i].mixed, 0, sizeof local->late->ring[i].mixed);
        memset(&local->late->ring[i].queue, 0, sizeof local->late->ring[i].queue);
    }
}

void heap_late_to_bits(struct heap_page *page)
{
    for (unsigned w = 0; w < page->words; w++) {
        page->free[w] |= page->free[page->words + w];
        page->free[page->words + w] = 0;
    }
}

void heap_late_destroy(struct heap_local *local)
{
    if (!local->late)
        return;
    struct quire_span span = local->late->span;
    local->late = NULL;
    heap_meta_give(local->heap, &span);
}
