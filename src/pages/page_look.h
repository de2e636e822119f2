// SPDX-License-Identifier: MIT
/*
 * page_look.h - what a page of slots looks like from outside: the same for slabs, heaps and per-CPU chunks.
 *
 *     start                                  start + bytes
 *     | slot 0 | slot 1 | slot 2 | ...        |              live: bit i of word i / 64 is slot i
 *
 * A block with a span of its own is a page of one slot.  Of a per-CPU chunk it is one CPU's unit, cut into slots of equal size: live is a slot that any part
 * of an object lies in.
 */
#ifndef QUIRE_PAGES_PAGE_LOOK_H
#define QUIRE_PAGES_PAGE_LOOK_H

#include <stddef.h>
#include <stdint.h>

#include "base/bits.h"

enum { PAGE_LOOK_WORDS = 64 };

struct page_look {
    const void *start;
    size_t bytes, slot_bytes, slots; /* slots: at most 64 * PAGE_LOOK_WORDS */
    uint64_t live[PAGE_LOOK_WORDS];  /* bits behind the last slot are 0 */
};

/* The first live slot from number `slot` on; slots: there is none. */
static inline size_t page_look_live(const struct page_look *page, size_t slot)
{
    return bits_find(page->live, slot, page->slots, true);
}

static inline void *page_look_slot(const struct page_look *page, size_t slot)
{
    return (char *)(uintptr_t)page->start + slot * page->slot_bytes;
}

/* Called with locks held and a thread kept waiting: copies, and does nothing else. */
typedef void page_look_fn(const struct page_look *page, void *arg);

#endif
