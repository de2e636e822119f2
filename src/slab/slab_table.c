// SPDX-License-Identifier: MIT
/*
 * slab_table.c - a slab's own way from an address to its page, shorter than the page map.
 *
 *     address >> step & mask  --->  the header of the page, or of one that has no slots     for any address: the header says whether it is right
 *
 * Direct-mapped by steps of 4 KiB, with a word for each that the slab holds, and up to four times as many where its pages lie so far apart that they meet
 * there.  Where it holds 32 of its largest pages a step is as long as one, so that it has one word for it: what the first, smaller ones lose is little.
 * What a page has lost to another (the newer one wins), the page map finds.  A small slab's lies in its struct.
 *
 * Locks: slab->lock; frees read without one: an old table stays until the slab ends, or serves it again (slab_meta.c).
 * Not here: looking (slab_free.c).
 */
#include "slab/slab_internal.h"

enum { GROWTH = 2, FIRST = 256 /* an OS page with its head */, SPARE = 4, LOST_PARTS = 32, LOST_PARTS_LONG = 16, STEP_LEAST_LOG2 = 12, LONG_FROM_PAGES = 32, ENTRY_LOG2 = 3 };

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

static unsigned step_log2(const struct quire_slab *slab)
{
    return u32_load_relaxed(&slab->shift) + ENTRY_LOG2;
}

/* From `was` (NULL: anything) to `page`, for all addresses of `of`.  Returns how many entries another page has lost. */
static size_t set(struct slab_table *table, unsigned step, const struct slab_page *of, const struct slab_page *was, struct slab_page *page)
{
    size_t lost = 0, entries = entries_of(table);
    uintptr_t first = (uintptr_t)slab_slots(of) >> step, last = ((uintptr_t)slab_slots(of) + slab_slots_bytes(of) - 1) >> step;
    for (size_t n = 0; n < entries && first + n <= last; n++) {
        struct slab_page **entry = &table->entry[(first + n) & (entries - 1)];
        if (was && *entry != was)
            continue;
        lost += *entry != &page_none;
        __atomic_store_n(entry, page, __ATOMIC_RELEASE); /* after the header was cleared; frees that follow it need no more */
    }
    return lost;
}

static void fill(struct quire_slab *slab, struct slab_table *table, unsigned step)
{
    for (size_t i = 0; i < entries_of(table); i++)
        __atomic_store_n(&table->entry[i], &page_none, __ATOMIC_RELAXED);
    slab->table_lost = 0;
    for (struct slab_page *page = NULL; (page = slab_page_after(slab, page)) != NULL;)
        slab->table_lost += set(table, step, page, NULL, page);
}

/* Who still reads the old one, or the old step, finds a page that is not its own, or its own. */
static void publish(struct quire_slab *slab, struct slab_table *table, unsigned step)
{
    fill(slab, table, step);
    addr_store_release(&slab->table, (uintptr_t)table); /* release [slab-table] */
    u32_store_relaxed(&slab->shift, step - ENTRY_LOG2);
}

void slab_table_init(struct quire_slab *slab)
{
    small_of(slab)->mask = (SLAB_TABLE_LEAST - 1) * sizeof(struct slab_page *);
    publish(slab, small_of(slab), STEP_LEAST_LOG2);
}

/* The step that is due; `pages`: of so many large pages on a long one is worth it. */
static unsigned step_due(const struct quire_slab *slab, size_t pages)
{
    size_t most = size_load_relaxed(&slab->page_bytes_most);
    return is_pow2(most) && most >> STEP_LEAST_LOG2 != 0 && slab->held_bytes / most >= pages ? log2_floor(most) : STEP_LEAST_LOG2;
}

static size_t want_of(const struct quire_slab *slab, unsigned step)
{
    return slab->straight ? 0 : slab->held_bytes >> step;
}

/* False: there is no memory for another one, the old one does.  One of the right size is filled anew. */
static bool replace(struct quire_slab *slab, size_t want, unsigned step)
{
    struct slab_table *table = small_of(slab), *now = table_of(slab);
    size_t entries = SLAB_TABLE_LEAST;
    while (entries < want)
        entries *= GROWTH;
    if (entries != SLAB_TABLE_LEAST && entries < FIRST)
        entries = FIRST; /* all stay: few of them */
    if (entries != SLAB_TABLE_LEAST)
        table = entries == entries_of(now) ? now : slab_table_new(slab, entries);
    if (!table)
        return false;
    publish(slab, table, step);
    return true;
}

/* Pages that lost too many entries get them in a larger one, or where their sizes' multiples are not their places, by short steps.  False: it is as good as it gets. */
static bool spread(struct quire_slab *slab)
{
    size_t entries = entries_of(table_of(slab));
    unsigned step = step_log2(slab);
    if (slab->table_lost <= entries / (step == STEP_LEAST_LOG2 ? LOST_PARTS : LOST_PARTS_LONG))
        return false;
    if (entries < SPARE * want_of(slab, step))
        return replace(slab, entries * GROWTH, step);
    if (step == STEP_LEAST_LOG2)
        return false;
    slab->uneven_bytes = slab->held_bytes;
    return replace(slab, want_of(slab, STEP_LEAST_LOG2), STEP_LEAST_LOG2);
}

void slab_table_enter(struct slab_page *page)
{
    struct quire_slab *slab = page->slab;
    unsigned due = slab->held_bytes >= GROWTH * slab->uneven_bytes ? step_due(slab, LONG_FROM_PAGES) : STEP_LEAST_LOG2;
    bool is_in = want_of(slab, step_log2(slab)) > entries_of(table_of(slab)) && replace(slab, want_of(slab, due), due);
    if (!is_in)
        slab->table_lost += set(table_of(slab), step_log2(slab), page, NULL, page);
    while (spread(slab)) {
    }
}

void slab_table_fit(struct quire_slab *slab)
{
    unsigned step = step_due(slab, LONG_FROM_PAGES / GROWTH), now = step_log2(slab);
    step = step < now ? step : now;
    size_t want = want_of(slab, step);
    if (step != now || (table_of(slab) != small_of(slab) && want * SPARE * GROWTH < entries_of(table_of(slab))))
        replace(slab, want, step);
}

void slab_table_leave(const struct slab_page *page)
{
    set(table_of(page->slab), step_log2(page->slab), page, page, &page_none);
}

void slab_table_anew(struct quire_slab *slab)
{
    fill(slab, table_of(slab), step_log2(slab));
}
