// SPDX-License-Identifier: MIT
/*
 * pagemap.c - a radix tree of two levels over all OS pages of the address space.
 *
 *     address  |  root 18 bits  |  leaf 18 bits  |  offset in page  |
 *                    |                |
 *               root[2^18] ----> leaf[2^18] = owner          (with 4 KiB pages: 48 bits; a leaf for each gigabyte)
 *
 * Tables are 2 MiB of address space each, touched as far as they are used: two loads find an owner, and the upper levels stay in the cache.
 * An entry of the root is a leaf's address, or an owner (kind bits not zero) when the whole gigabyte below it has one owner: a span of a
 * hundred gigabytes costs a hundred stores and two tables at most, and no table at all inside.
 *
 * The leaves of the addresses that most pages are cut from (region.c) lie side by side, so that an address, modulo all of them, is its entry's place:
 *
 *     page & mask  ----> tables[] = owner              (64 GiB: 128 MiB of addresses, readable as zeros, made writable a leaf at a time)
 *     page - first ----> notes[] = what the owner says (as much again, behind them)
 *
 * A note is found without the owner's object, whose memory is another to wait for: heap/heap_note.h.
 *
 * Invariants:
 *   M1  an entry is 0, a table (low bits 0), or an owner (low bits 1 .. 7)
 *   M2  a table, once linked, is never unlinked or unmapped: readers need no lock; where it says nothing it may be without memory
 *   M3  an entry of the root for expected addresses is 0 or the table at its place
 *
 * Locks: linking a table takes pagemap_lock; entries of different pages are written by the owners of the pages, readers are free.
 * Not here: what an owner is.
 */
#include <errno.h>

#include "base/align.h"
#include "base/atomic.h"
#include "base/layout.h"
#include "base/lock.h"
#include "os/os.h"
#include "pages/pagemap.h"

enum { LEVEL_BITS = PAGEMAP_LEVEL_BITS, LEVEL_ENTRIES = PAGEMAP_ENTRIES, LEVELS = PAGEMAP_LEVELS };

struct pagemap_table pagemap_root;
uint32_t pagemap_shift;
static atomic_addr nobody;
struct pagemap_near pagemap_near = {.tables = {(uintptr_t)&nobody}};
static struct lock pagemap_lock = LOCK_INIT(LOCK_PAGEMAP);
static atomic_size tables;

/* The tables are data of ours: a pointer kept as a number so that one word can be an owner as well. */
static struct pagemap_table *as_table(uintptr_t entry)
{
    return (struct pagemap_table *)entry;
}

/* Where the table below this entry of the root has its place, when its addresses are expected ones; else NULL. */
static struct pagemap_table *near_table(const atomic_addr *slot)
{
    size_t at = (size_t)(slot - pagemap_root.entry), mask = size_load_relaxed(&pagemap_near.mask);
    bool is_near = mask != 0 && at - (addr_load_relaxed(&pagemap_near.first) >> LEVEL_BITS) <= mask >> LEVEL_BITS;
    return is_near ? as_table(addr_load_relaxed(&pagemap_near.tables)) + (at & mask >> LEVEL_BITS) : NULL;
}

/* The notes beside it, as large as it is. */
static void *near_notes(const atomic_addr *slot)
{
    return pagemap_note(((uintptr_t)(slot - pagemap_root.entry) << LEVEL_BITS) - addr_load_relaxed(&pagemap_near.first));
}
STATIC_ASSERT(PAGEMAP_NOTE_BYTES == sizeof(atomic_addr), "what is about the same pages goes back together");

static int table_map(const atomic_addr *slot, struct pagemap_table **out)
{
    size_t bytes = align_up(sizeof(struct pagemap_table), os_page_bytes());
    void *fresh;
    if ((*out = near_table(slot)) != NULL)
        return os_commit(near_notes(slot), bytes) == 0 ? os_commit(*out, bytes) : -ENOMEM;
    int error = os_map(bytes, os_page_bytes(), &fresh);
    if (!error)
        (void)os_advise_nohuge(fresh, bytes); /* it is touched here and there */
    *out = fresh;
    return error;
}

/* The table below `slot` is made, if nobody just did; a whole-stretch owner that it had is handed down to all entries.  NULL: out of memory. */
static COLD struct pagemap_table *table_make(atomic_addr *slot)
{
    struct pagemap_table *fresh;
    lock_take(&pagemap_lock);
    uintptr_t entry = addr_load_relaxed(slot);
    if (!pagemap_is_table(entry) && table_map(slot, &fresh) == 0) {
        for (size_t i = 0; entry != 0 && i < LEVEL_ENTRIES; i++)
            addr_store_relaxed(&fresh->entry[i], entry);
        size_add_relaxed(&tables, 1);
        entry = (uintptr_t)fresh;
        addr_store_release(slot, entry); /* release [pagemap-table] */
    }
    lock_drop(&pagemap_lock);
    return pagemap_is_table(entry) ? as_table(entry) : NULL;
}

/* Readers know from now on how large a page is. */
static unsigned shift_told(void)
{
    unsigned shift = os_page_shift();
    __atomic_store_n(&pagemap_shift, shift, __ATOMIC_RELAXED);
    return shift;
}

/* A gigabyte after the other.  Clearing makes no table: where there is none, nothing was set, or the whole gigabyte was. */
static int stretch_write(const void *start, size_t bytes, owner_t owner)
{
    unsigned shift = shift_told();
    uintptr_t page = (uintptr_t)start >> shift, stop = page + (bytes >> shift);
    if (stop >> (LEVELS * LEVEL_BITS))
        return -ENOMEM;
    for (uintptr_t end; page < stop; page = end) {
        atomic_addr *slot = &pagemap_root.entry[page >> LEVEL_BITS];
        uintptr_t entry = addr_load_acquire(slot), next = ((page >> LEVEL_BITS) + 1) << LEVEL_BITS; /* acquire [pagemap-table] */
        end = next < stop ? next : stop;
        struct pagemap_table *leaf = pagemap_is_table(entry) ? as_table(entry) : NULL; /* the usual case, a few pages of it */
        if (unlikely(!leaf) && (owner == 0 || (end - page == LEVEL_ENTRIES && !near_table(slot)))) {
            if (entry != owner) /* where it is 0 and stays so, another's table may come at this moment */
                addr_store_release(slot, owner); /* release [pagemap-owner] */
            continue;
        }
        if (unlikely(!leaf) && (leaf = table_make(slot)) == NULL)
            return -ENOMEM;
        atomic_addr *at = &leaf->entry[page & (LEVEL_ENTRIES - 1)];
        for (const atomic_addr *past = at + (end - page); at < past; at++)
            addr_store_release(at, owner); /* release [pagemap-owner] */
    }
    return 0;
}

int pagemap_set(const void *start, size_t bytes, owner_t owner)
{
    int error = stretch_write(start, bytes, owner);
    if (error)
        pagemap_clear(start, bytes);
    return error;
}

void pagemap_clear(const void *start, size_t bytes)
{
    (void)stretch_write(start, bytes, 0); /* of a length that somebody has written over nothing was set */
}

size_t pagemap_stretch_pages(void)
{
    return os_page_bytes() / sizeof(atomic_addr);
}

void pagemap_forget(const void *start)
{
    uintptr_t page = (uintptr_t)start >> os_page_shift();
    atomic_addr *slot = &pagemap_root.entry[page >> LEVEL_BITS];
    uintptr_t entry = addr_load_acquire(slot); /* acquire [pagemap-table] */
    if (!pagemap_is_table(entry))
        return;
    (void)os_discard(&as_table(entry)->entry[page & (LEVEL_ENTRIES - 1)], os_page_bytes());
    if (near_table(slot) == as_table(entry))
        (void)os_discard(pagemap_note(pagemap_near_page(start)), os_page_bytes());
}

static bool is_fresh(uintptr_t first, uintptr_t end)
{
    for (uintptr_t i = first >> LEVEL_BITS; i < end >> LEVEL_BITS; i++)
        if (addr_load_relaxed(&pagemap_root.entry[i]) != 0)
            return false;
    return true;
}

/*
 * A page more is asked for than there are tables: addresses for a multiple of a huge page the system begins at one, and what the program maps next, which
 * comes to lie below, begins at multiples of its own size.  Python's arenas of 1 MiB then come and go half as often again.
 */
void pagemap_expect(const void *start, size_t bytes)
{
    unsigned shift = shift_told();
    uintptr_t first = (uintptr_t)start >> shift, pages = bytes >> shift, end = first + pages;
    size_t tables_bytes = (pages >> LEVEL_BITS) * sizeof(struct pagemap_table);
    void *at;
    if (!is_pow2(pages) || tables_bytes == 0 || (first | end) % LEVEL_ENTRIES || end >> (LEVELS * LEVEL_BITS))
        return;
    lock_take(&pagemap_lock);
    if (size_load_relaxed(&pagemap_near.mask) == 0 && is_fresh(first, end) && os_reserve(2 * tables_bytes + os_page_bytes(), os_page_bytes(), &at) == 0) {
        if (os_show(at, 2 * tables_bytes) == 0) {
            (void)os_advise_nohuge(at, 2 * tables_bytes); /* they are touched here and there */
            (void)os_advise_dontdump((char *)at + tables_bytes, tables_bytes); /* who reads a core file goes by the owners */
            addr_store_relaxed(&pagemap_near.first, first);
            addr_store_relaxed(&pagemap_near.tables, (uintptr_t)at);
            addr_store_relaxed(&pagemap_near.notes, (uintptr_t)at + tables_bytes);
            size_store_release(&pagemap_near.mask, pages - 1); /* release [pagemap-near] */
        } else {
            (void)os_unmap(at, 2 * tables_bytes + os_page_bytes()); /* addresses only */
        }
    }
    lock_drop(&pagemap_lock);
}

/*
 * Tables stay at their places, so what is left is a part, of a power of two of them and beginning at a multiple of it, in which all that were made lie:
 *
 *     | . . . . | . T T . | . . . . | . . . . |   ->   | . T T . |
 */
void pagemap_expect_less(const void *end)
{
    size_t mask = size_load_relaxed(&pagemap_near.mask), all = (mask + 1) >> LEVEL_BITS, count = 1;
    uintptr_t first = addr_load_relaxed(&pagemap_near.first) >> LEVEL_BITS, past = (((uintptr_t)end >> os_page_shift()) + LEVEL_ENTRIES - 1) >> LEVEL_BITS;
    if (mask == 0 || past <= first || past - first > all)
        return;
    while (count < all && first / count != (past - 1) / count)
        count *= 2;
    size_t before = (first & (all - 1)) & ~(count - 1);
    for (uintptr_t at = first; at < first + all; at++)
        if ((at & (all - 1)) - before >= count && addr_load_relaxed(&pagemap_root.entry[at]) != 0)
            return; /* a table has its place there */
    struct pagemap_table *had = as_table(addr_load_relaxed(&pagemap_near.tables)), *kept = had + before;
    addr_store_relaxed(&pagemap_near.tables, (uintptr_t)kept);
    size_store_release(&pagemap_near.mask, count * LEVEL_ENTRIES - 1); /* release [pagemap-near] */
    if (before != 0)
        (void)os_unmap(had, before * sizeof *had); /* addresses only, that are found nowhere else */
    if (before + count < all)
        (void)os_unmap(kept + count, (all - before - count) * sizeof *had);
    if (count < all)
        (void)os_unmap(pagemap_note(count * LEVEL_ENTRIES), (all - count) * LEVEL_ENTRIES * PAGEMAP_NOTE_BYTES);
}

size_t pagemap_noted(void)
{
    size_t mask = size_load_acquire(&pagemap_near.mask); /* acquire [pagemap-near] */
    return mask ? mask + 1 : 0;
}

size_t pagemap_meta_bytes(void)
{
    return size_load_relaxed(&tables) * align_up(sizeof(struct pagemap_table), os_page_bytes());
}

/* A table that was being linked is lost at most: the link is one store. */
void pagemap_after_fork(void)
{
    (void)lock_reset_others(&pagemap_lock);
}

static const ANCHORS struct layout_anchor anchors[] = {{"pagemap_root", &pagemap_root}, {"pagemap_shift", &pagemap_shift}};
