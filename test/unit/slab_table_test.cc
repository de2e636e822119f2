// SPDX-License-Identifier: MIT
/* A slab's own way from an address to its page: how long it is, and how much of it leads there. */
#include <gtest/gtest.h>

#include <cstring>

#include "unit/slab_scope.h"

#define class class_ /* a field's name there */
#include "slab/slab_internal.h"
#undef class

namespace {
struct Table {
    size_t pages = 0, found = 0, entries = 0, step_bytes = 0;
};

/* Of how many pages the last address leads to the page itself. */
Table look(quire_slab *slab)
{
    Table seen;
    slab_lock(slab);
    auto *table = reinterpret_cast<slab_table *>(addr_load_relaxed(&slab->table));
    for (slab_page *page = nullptr; (page = slab_page_after(slab, page)) != nullptr; seen.pages++)
        seen.found += *slab_table_entry(slab, table, uintptr_t(slab_slots(page)) + slab_slots_bytes(page) - 1) == page;
    seen.entries = table->mask / sizeof(void *) + 1;
    seen.step_bytes = size_t(8) << u32_load_relaxed(&slab->shift);
    slab_unlock(slab);
    return seen;
}
const size_t LARGE_PAGE = 64 << 10;
} // namespace

/* The defragmenter's slabs begin with more small pages, of which a long step leads to one of each stretch. */
TEST(SlabTable, of_many_large_pages_has_a_word_for_each_with_the_defragmenter_too)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there frees ask the page map";
    for (uint32_t flags : {0u, QUIRE_SLAB_DEFRAG}) {
        Slab slab(1024, {.flags = flags});
        Elements elements = slab.alloc(BUILT_WITH_TSAN ? 10000 : 40000);
        Table full = look(slab);
        EXPECT_EQ(full.step_bytes, LARGE_PAGE) << flags;
        EXPECT_LE(full.entries, 8 * full.pages) << flags;
        EXPECT_GE(full.found * 10, full.pages * 9) << full.found << " of " << full.pages;
        slab.free(elements);
        quire_slab_trim(slab);
        Table empty = look(slab);
        EXPECT_LE(empty.entries, size_t(SLAB_TABLE_LEAST)) << "what it is now";
    }
}

TEST(SlabTable, of_few_pages_leads_to_most)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there frees ask the page map";
    for (uint32_t flags : {0u, QUIRE_SLAB_DEFRAG}) {
        Slab slab(256, {.flags = flags});
        Elements elements = slab.alloc(2000);
        Table table = look(slab);
        EXPECT_GE(table.found * 8, table.pages * 7) << table.found << " of " << table.pages;
        slab.free(elements);
    }
}
