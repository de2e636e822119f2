// SPDX-License-Identifier: MIT
/*
 * heap_note.h - all that `free` has to know of a block's page, beside the page map.
 *
 *     p ----> OS page ----> note: before, bin_at        a load, whatever the page's header does meanwhile
 *                             |      |
 *     where its page begins <-+      +-> the bin of its size, of the thread's own local: what divides by that size is there, too
 *
 * Only pages that have a short way are noted: small ones of the process's heap, in expected addresses (pages/pagemap.h).  Elsewhere the note is all zeros:
 * where the bin would be then, the thread's local itself, stands a number by which nothing can be divided.
 *
 * Invariant N1: of an OS page that is noted all that begins there where a slot could was carved: it is live, or bears a mark.
 *
 * Locks: the page's owner writes, inside its local.  Readers are whoever frees a block there, which holds the page; else what they find may be of no use.
 */
#ifndef QUIRE_HEAP_HEAP_NOTE_H
#define QUIRE_HEAP_HEAP_NOTE_H

#include "pages/pagemap.h"

C_DECLARATIONS_BEGIN

struct heap_note {
    atomic_u32 before; /* bytes from the page's first slot to this OS page */
    atomic_u32 bin_at; /* where in a local the bin of its size is */
};
STATIC_ASSERT(sizeof(struct heap_note) == PAGEMAP_NOTE_BYTES, "a note is as large as an entry");

static ALWAYS_INLINE struct heap_note *heap_note(uintptr_t near_page)
{
    return (struct heap_note *)pagemap_note(near_page);
}

C_DECLARATIONS_END
#endif
