// SPDX-License-Identifier: MIT
/*
 * slab_table.c - a slab's own way from an address to its page, shorter than the page map.
 *
 *     address >> 12 & mask  --->  the header of the page, or of one that has no slots       for any address: the header says whether it is right
 *
 * Direct-mapped by 4 KiB, with a word for each 4 KiB that the slab holds, and up to four times as many where its pages lie so far apart that they meet
 * there.  What a page has lost to another (the newer one wins), the page map finds.  A small slab's lies in its struct.
 *
 * Locks: slab->lock; frees read without one: an old table stays until every thread has been seen outside (slab_meta.c).
 * Not here: looking (slab_free.c).
 */
#include "slab/slab_internal.h"

enum { GROWTH = 2, SPARE = 4, LOST_PARTS = 8 };

static struct slab_page page_none;

static struct slab_table *small_of(struct quire_slab *slab)
{
    return (struct slab_table *)(void *)slab->small_table;
}

static struct slab_table *table_of(const struct quire_slab *slab)
{
    return (struct slab_table *)addr_load_relaxed(&slab->table);
}

static size_t entries_of(const struct slab_table *table)
{
    return table->mask / sizeof table->entry[0] + 1;
}

/* From `was` (NULL: anything) to `page`, for all addresses of `of`.  Returns how many entries another page has lost. */
static size_t set(struct slab_table *table, const struct slab_page *of, const struct slab_page *was, struct slab_page *page)
{
    size_t lost = 0;
    const uintptr_t step = (uintptr_t)1 << SLAB_TABLE_SHIFT, from = (uintptr_t)slab_slots(of) & -step, to = (uintptr_t)slab_slots(of) + slab_slots_bytes(of);
    for (size_t n = 0; n < entries_of(table) && from + n * step < to; n++) {
        struct slab_page **entry = slab_table_entry(table, from + n * step);
        if (was && *entry != was)
            continue;
        lost += *entry != &page_none;
        __atomic_store_n(entry, page, __ATOMIC_RELEASE); /* after the header was cleared; frees that follow it need no more */
    }
    return lost;
}

static void fill(struct quire_slab *slab, struct slab_table *table)
{
    for (size_t i = 0; i < entries_of(table); i++)
        __atomic_store_n(&table->entry[i], &page_none, __ATOMIC_RELAXED);
    slab->table_lost = 0;
    for (struct slab_page *page = slab->all; page; page = page->all_next)
        slab->table_lost += set(table, page, NULL, page);
}

void slab_table_init(struct quire_slab *slab)
{
    struct slab_table *table = small_of(slab);
    table->mask = (SLAB_TABLE_LEAST - 1) * sizeof table->entry[0];
    fill(slab, table);
    addr_store_release(&slab->table, (uintptr_t)table); /* release [slab-table] */
}

static size_t want_of(const struct quire_slab *slab)
{
    return slab->straight ? 0 : slab->held_bytes >> SLAB_TABLE_SHIFT;
}

/* Where there is no memory for another one, the old one does. */
static void replace(struct quire_slab *slab, size_t want)
{
    struct slab_table *old = table_of(slab), *table = small_of(slab);
    size_t entries = SLAB_TABLE_LEAST;
    while (entries < want)
        entries *= GROWTH;
    if (entries != SLAB_TABLE_LEAST && !(table = slab_table_new(slab, entries)))
        return;
    table->mask = (entries - 1) * sizeof table->entry[0];
    fill(slab, table);
    addr_store_release(&slab->table, (uintptr_t)table); /* release [slab-table] */
    if (old != small_of(slab))
        slab_table_drop(slab, old);
}

void slab_table_enter(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    size_t want = want_of(slab);
    size_t entries = entries_of(table_of(slab));
    if (want > entries)
        replace(slab, want);
    else if (slab->table_lost > entries / LOST_PARTS && entries < SPARE * want)
        replace(slab, entries * GROWTH);
    slab->table_lost += set(table_of(slab), page, NULL, page);
}

void slab_table_fit(struct quire_slab *slab)
{
    size_t want = want_of(slab);
    if (table_of(slab) != small_of(slab) && want * SPARE * GROWTH < entries_of(table_of(slab)))
        replace(slab, want);
}

void slab_table_leave(const struct slab_page *page)
{
    set(table_of(page->slab), page, page, &page_none);
}

void slab_table_anew(struct quire_slab *slab)
{
    fill(slab, table_of(slab));
}
