// SPDX-License-Identifier: MIT
/*
 * pagemap.c - a radix tree of three levels over all OS pages of the address space.
 *
 *     address  |  root 12 bits  |  mid 12 bits  |  leaf 12 bits  |  offset in page  |
 *                    |                |                |
 *               root[4096] -> mid[4096] -> leaf[4096] = owner          (with 4 KiB pages: 48 bits)
 *
 * An entry of root or mid is a table's address, or an owner (kind bits not zero) when the whole stretch below it has one owner: a span of a
 * hundred gigabytes costs a few thousand stores and three tables at most, and no table at all inside.
 *
 * Invariants:
 *   M1  an entry is 0, a table (low bits 0), or an owner (low bits 1 .. 7)
 *   M2  a table, once linked, is never unlinked or freed: readers need no lock
 *
 * Locks: linking a table takes pagemap_lock; entries of different pages are written by the owners of the pages, readers are free.
 * Not here: what an owner is.
 */
#include <errno.h>

#include "base/align.h"
#include "base/atomic.h"
#include "base/lock.h"
#include "os/os.h"
#include "pages/pagemap.h"

enum { LEVEL_BITS = 12, LEVEL_ENTRIES = 1 << LEVEL_BITS, LEVELS = 3, KIND_MASK = 7 };

struct table {
    atomic_addr entry[LEVEL_ENTRIES];
};

static struct table root;
static struct lock pagemap_lock = LOCK_INIT(LOCK_PAGEMAP);
static atomic_size tables;

static bool is_table(uintptr_t entry)
{
    return entry != 0 && (entry & KIND_MASK) == 0;
}

/* The tables are data of ours: a pointer kept as a number so that one word can be an owner as well. */
static struct table *as_table(uintptr_t entry)
{
    return (struct table *)entry;
}

owner_t pagemap_find(const void *address)
{
    uintptr_t page = (uintptr_t)address >> os_page_shift();
    if (unlikely(page >> (LEVELS * LEVEL_BITS)))
        return 0;
    const struct table *table = &root;
    for (int level = LEVELS - 1;; level--) {
        uintptr_t entry = addr_load_acquire(&table->entry[page >> (level * LEVEL_BITS) & (LEVEL_ENTRIES - 1)]); /* acquire [pagemap-table] acquire [pagemap-owner] */
        if (level == 0 || !is_table(entry))
            return entry;
        table = as_table(entry);
    }
}

/* The table below `slot`, made if there is none; a whole-stretch owner that it had is handed down to all entries.  NULL: out of memory. */
static struct table *table_below(atomic_addr *slot)
{
    uintptr_t entry = addr_load_acquire(slot); /* acquire [pagemap-table] */
    if (likely(is_table(entry)))
        return as_table(entry);
    void *fresh;
    lock_take(&pagemap_lock);
    entry = addr_load_relaxed(slot);
    if (!is_table(entry) && os_map(align_up(sizeof(struct table), os_page_bytes()), os_page_bytes(), &fresh) == 0) {
        for (size_t i = 0; entry != 0 && i < LEVEL_ENTRIES; i++)
            addr_store_relaxed(&as_table((uintptr_t)fresh)->entry[i], entry);
        size_add_relaxed(&tables, 1);
        entry = (uintptr_t)fresh;
        addr_store_release(slot, entry); /* release [pagemap-table] */
    }
    lock_drop(&pagemap_lock);
    return is_table(entry) ? as_table(entry) : NULL;
}

/* One table's part of a stretch of pages. */
struct stretch {
    uintptr_t first, end; /* pages */
    owner_t owner;
};

/* Write the owner over the entries of `table` that lie in the stretch; whole entries at once, the ends one level down. */
static int table_set(struct table *table, int level, struct stretch s)
{
    unsigned shift = (unsigned)level * LEVEL_BITS;
    for (uintptr_t page = s.first; page < s.end;) {
        atomic_addr *slot = &table->entry[page >> shift & (LEVEL_ENTRIES - 1)];
        uintptr_t next = ((page >> shift) + 1) << shift, end = next < s.end ? next : s.end;
        bool whole = end - page == (uintptr_t)1 << shift;
        if (whole && (level == 0 || !is_table(addr_load_relaxed(slot)))) {
            addr_store_release(slot, s.owner); /* release [pagemap-owner] */
        } else {
            struct table *below = table_below(slot);
            if (!below)
                return -ENOMEM;
            int error = table_set(below, level - 1, (struct stretch){page, end, s.owner});
            if (error)
                return error;
        }
        page = end;
    }
    return 0;
}

static struct stretch stretch_of(const void *start, size_t bytes, owner_t owner)
{
    unsigned shift = os_page_shift();
    uintptr_t first = (uintptr_t)start >> shift;
    return (struct stretch){first, first + (bytes >> shift), owner};
}

/* The leaf that holds all of the stretch, when there is one already: the usual case, a few pages. */
static struct table *leaf_of(struct stretch s)
{
    if (unlikely(s.first >> LEVEL_BITS != (s.end - 1) >> LEVEL_BITS || s.end >> (LEVELS * LEVEL_BITS)))
        return NULL;
    uintptr_t mid = addr_load_acquire(&root.entry[s.first >> (2 * LEVEL_BITS)]); /* acquire [pagemap-table] */
    if (unlikely(!is_table(mid)))
        return NULL;
    uintptr_t leaf = addr_load_acquire(&as_table(mid)->entry[s.first >> LEVEL_BITS & (LEVEL_ENTRIES - 1)]); /* acquire [pagemap-table] */
    return is_table(leaf) ? as_table(leaf) : NULL;
}

static void leaf_fill(struct table *leaf, struct stretch s)
{
    atomic_addr *entry = &leaf->entry[s.first & (LEVEL_ENTRIES - 1)];
    for (uintptr_t i = 0; i < s.end - s.first; i++)
        addr_store_release(&entry[i], s.owner); /* release [pagemap-owner] */
}

int pagemap_set(const void *start, size_t bytes, owner_t owner)
{
    struct stretch s = stretch_of(start, bytes, owner);
    struct table *leaf = leaf_of(s);
    if (likely(leaf != NULL)) {
        leaf_fill(leaf, s);
        return 0;
    }
    if (s.end >> (LEVELS * LEVEL_BITS))
        return -ENOMEM;
    int error = table_set(&root, LEVELS - 1, s);
    if (error)
        pagemap_clear(start, bytes);
    return error;
}

/* Clearing makes no table: where there is none, nothing was set, or a whole entry was. */
static void table_clear(struct table *table, int level, struct stretch s)
{
    unsigned shift = (unsigned)level * LEVEL_BITS;
    for (uintptr_t page = s.first; page < s.end;) {
        atomic_addr *slot = &table->entry[page >> shift & (LEVEL_ENTRIES - 1)];
        uintptr_t next = ((page >> shift) + 1) << shift, end = next < s.end ? next : s.end;
        uintptr_t entry = addr_load_relaxed(slot);
        if (level > 0 && is_table(entry))
            table_clear(as_table(entry), level - 1, (struct stretch){page, end, 0});
        else if (entry != 0)
            addr_store_relaxed(slot, 0);
        page = end;
    }
}

void pagemap_clear(const void *start, size_t bytes)
{
    struct stretch s = stretch_of(start, bytes, 0);
    struct table *leaf = leaf_of(s);
    if (likely(leaf != NULL))
        leaf_fill(leaf, s);
    else
        table_clear(&root, LEVELS - 1, s);
}

size_t pagemap_meta_bytes(void)
{
    return size_load_relaxed(&tables) * align_up(sizeof(struct table), os_page_bytes());
}

/* A table that was being linked is lost at most: the link is one store. */
void pagemap_after_fork(void)
{
    lock_reset(&pagemap_lock);
}
