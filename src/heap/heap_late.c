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

static struct heap_late_block ring_get(struct heap_late_ring *ring)
{
    for (uint32_t i = 0; i < 2 * ring->places; i++) {
        struct heap_late_block *place = i < ring->places ? &ring->queue[i] : &ring->mixed[i - ring->places], found = *place;
        place->page = NULL;
        if (found.page)
            return found;
    }
    return (struct heap_late_block){NULL, 0};
}

struct heap_late_block heap_late_get(struct heap_local *local)
{
    struct heap_late_block found = {NULL, 0};
    for (int i = 0; i < 2 && local->late && !found.page; i++)
        found = ring_get(&local->late->ring[i]);
    return found;
}

enum { LOOKS_WHOLE = 128, LOOK_PARTS = 8 };

/* One of so many parts. */
static void rings_verify(const struct heap_local *local, uint32_t part, uint32_t parts)
{
    for (const struct heap_late_ring *ring = local->late->ring; ring < local->late->ring + 2; ring++)
        for (uint32_t i = part; i < 2 * ring->places; i += parts) {
            const struct heap_late_block *place = i < ring->places ? &ring->queue[i] : &ring->mixed[i - ring->places];
            if (place->page && unlikely(!heap_secure_is_clean(place->page, place->slot)))
                heap_refuse(local->heap, HEAP_E6, heap_slot_at(place->page, place->slot));
        }
}

void heap_late_verify(const struct heap_local *local)
{
    if (local->late && !local->heap->is_watched)
        rings_verify(local, 0, 1);
}

void heap_late_look(struct heap_local *local)
{
    if (!local->late || local->heap->is_watched)
        return;
    uint32_t looks = local->late->ring[0].looks++, parts = looks < LOOKS_WHOLE ? 1 : LOOK_PARTS;
    rings_verify(local, looks % parts, parts);
}

/* In the child of a fork: what another thread kept back is free; its rings may be torn. */
void heap_late_drop(struct heap_local *local)
{
    for (int i = 0; i < 2 && local->late; i++) {
        memset(local->late->ring[i].mixed, 0, sizeof local->late->ring[i].mixed);
        memset(local->late->ring[i].queue, 0, sizeof local->late->ring[i].queue);
    }
}

void heap_late_to_bits(struct heap_page *page)
{
    for (unsigned w = 0; w < page->words; w++) {
        page->free[w] |= page->free[page->words + w];
        page->free[page->words + w] = 0;
    }
}

uint32_t heap_late_count(const struct heap_page *page)
{
    uint32_t count = 0;
    for (unsigned w = 0; w < page->words && heap_page_is_secure(page); w++)
        count += bits_count(page->free[page->words + w]);
    return count;
}

void heap_late_destroy(struct heap_local *local)
{
    if (!local->late)
        return;
    struct quire_span span = local->late->span;
    local->late = NULL;
    heap_meta_give(local->heap, &span);
}
