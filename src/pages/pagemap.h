// SPDX-License-Identifier: MIT
/*
 * pagemap.h - whose is this address?  For any address, also a wild one, without touching it.
 */
#ifndef QUIRE_PAGES_PAGEMAP_H
#define QUIRE_PAGES_PAGEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "os/os_tags.h"

C_DECLARATIONS_BEGIN

/*
 * An owner is a pointer to one of the library's objects with its kind in the low bits.
 */
enum owner_kind { OWNER_NONE, OWNER_ARENA, OWNER_SLAB, OWNER_PERCPU, OWNER_HEAP, OWNER_STEER, OWNER_MALLOC /* a heap's, too: small blocks of the process's */, OWNER_HEAP_HEAD };
typedef uintptr_t owner_t;
static inline owner_t owner_make(const void *object, enum owner_kind kind) { return (uintptr_t)object | kind; }
static inline enum owner_kind owner_kind(owner_t owner) { return (enum owner_kind)(owner & 7); }
static inline bool owner_is_heap(owner_t owner) { return owner_kind(owner) == OWNER_HEAP || owner_kind(owner) == OWNER_MALLOC; }
static inline void *owner_object(owner_t owner) { return (void *)(owner & ~(uintptr_t)7); }

/* Whole OS pages belong to `owner` from now on; -ENOMEM (nothing has changed then).  The pages must be the caller's. */
int pagemap_set(const void *start, size_t bytes, owner_t owner);
/* They belong to nobody; only for pages that pagemap_set() took. */
void pagemap_clear(const void *start, size_t bytes);
/* So many pages, from a multiple of it on, are what one OS page of the tables is about. */
size_t pagemap_stretch_pages(void);
/* Such a stretch, whose pages are nobody's and cannot become anybody's meanwhile: that OS page goes back to the system, until it is written again. */
void pagemap_forget(const void *start);
/* Much of what will be set lies in these fresh addresses: finding it there is to take one load.  Only the first such stretch counts, of whole
 * tables' addresses; where there is no room nothing changes. */
void pagemap_expect(const void *start, size_t bytes);
/* No more of it than what lies before `end`: the tables' addresses for the rest go back to the system.  The caller is the process's only thread. */
void pagemap_expect_less(const void *end);
/* So many of the first expected pages have a note (pagemap_note()). */
size_t pagemap_noted(void);
/* ---- how it is made, so that looking costs no call (pagemap.c) ---- */
enum { PAGEMAP_NOTE_BYTES = 8, PAGEMAP_LEVEL_BITS = 18, PAGEMAP_LEVELS = 2, PAGEMAP_ENTRIES = 1 << PAGEMAP_LEVEL_BITS, PAGEMAP_KIND_MASK = 7 };
struct pagemap_table {
    atomic_addr entry[PAGEMAP_ENTRIES];
};
extern struct pagemap_table pagemap_root;
struct pagemap_near {
    atomic_addr first; /* page */
    atomic_size mask;  /* so many pages, less one: all bits of a number.  0: none yet, but page 0, which is nobody's; written last */
    atomic_addr tables; /* side by side: the entry of a page is at its number & mask */
    atomic_addr notes;  /* PAGEMAP_NOTE_BYTES for page `first`, and for each behind it */
};
extern struct pagemap_near pagemap_near;
extern uint32_t pagemap_shift; /* 0 before the first entry is made */

static inline bool pagemap_is_table(uintptr_t entry)
{
    return entry != 0 && (entry & PAGEMAP_KIND_MASK) == 0;
}

static ALWAYS_INLINE uintptr_t pagemap_page_of(const void *address)
{
    return os_untagged(address) >> (CPU_X86_64 && !QUIRE_CHECK ? 12 : __atomic_load_n(&pagemap_shift, __ATOMIC_RELAXED));
}

/* Where in its page. */
static ALWAYS_INLINE size_t pagemap_offset(const void *address)
{
    return os_untagged(address) & (((uintptr_t)1 << (CPU_X86_64 && !QUIRE_CHECK ? 12 : __atomic_load_n(&pagemap_shift, __ATOMIC_RELAXED))) - 1);
}

/* The owner of any address, whatever its tag, 0 when nobody's.  One load where most of ours lies, elsewhere two that depend on each other. */
static ALWAYS_INLINE owner_t pagemap_find(const void *address)
{
    uintptr_t page = pagemap_page_of(address);
    size_t mask = size_load_acquire(&pagemap_near.mask); /* acquire [pagemap-near] */
    if (likely(page - addr_load_relaxed(&pagemap_near.first) <= mask))
        return addr_load_acquire(&((const atomic_addr *)addr_load_relaxed(&pagemap_near.tables))[page & mask]); /* acquire [pagemap-owner] */
    if (unlikely(page >> (PAGEMAP_LEVELS * PAGEMAP_LEVEL_BITS)))
        return 0;
    uintptr_t entry = addr_load_acquire(&pagemap_root.entry[page >> PAGEMAP_LEVEL_BITS]); /* acquire [pagemap-table] acquire [pagemap-owner] */
    if (unlikely(!pagemap_is_table(entry)))
        return entry;
    const struct pagemap_table *leaf = (const struct pagemap_table *)entry;
    return addr_load_acquire(&leaf->entry[page & (PAGEMAP_ENTRIES - 1)]); /* acquire [pagemap-owner] */
}

/* The number of its page, counted from the first expected one: below pagemap_noted() it has a note. */
static ALWAYS_INLINE uintptr_t pagemap_near_page(const void *address)
{
    return pagemap_page_of(address) - addr_load_relaxed(&pagemap_near.first);
}

/*
 * What the owner of a page that has an entry writes down beside it, for whoever comes by a short way and asks nothing else.  Zeros where nobody did; he makes
 * it so again before the entry goes.
 */
static ALWAYS_INLINE void *pagemap_note(uintptr_t near_page)
{
    return (char *)addr_load_relaxed(&pagemap_near.notes) + near_page * PAGEMAP_NOTE_BYTES;
}

/* Bytes of memory that the table may hold. */
size_t pagemap_meta_bytes(void);
void pagemap_after_fork(void);

C_DECLARATIONS_END
#endif
