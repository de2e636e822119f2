// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <quire/source.h>

#include <sys/wait.h>
#include <unistd.h>

#include "os/os.h"
#include "pages/pagemap.h"
#include "support.h"

namespace {
/* So many pages are found by one load; 1: so little address space that nothing was expected. */
size_t near_pages() { return size_load_relaxed(&pagemap_near.mask) + 1; }

const size_t page = os_page_bytes();
alignas(8) char object[8];
const owner_t owner = owner_make(&object, OWNER_ARENA);
char *at(uintptr_t n) { return reinterpret_cast<char *>(n); }
} // namespace

TEST(Pagemap, wild_addresses_belong_to_nobody_and_are_not_touched)
{
    Random random(1);
    EXPECT_EQ(pagemap_find(nullptr), 0u);
    EXPECT_EQ(pagemap_find(at(UINTPTR_MAX)), 0u);
    for (int i = 0; i < 100000; i++)
        EXPECT_EQ(pagemap_find(at(random.next())), 0u);
}

TEST(Pagemap, every_byte_of_a_set_stretch_has_its_ownernd_its_neighbours_have_not)
{
    char *start = at(uintptr_t(0x7a) << 40 | 37 * page);
    ASSERT_EQ(pagemap_set(start, 3 * page, owner), 0);
    EXPECT_EQ(pagemap_find(start - 1), 0u);
    EXPECT_EQ(pagemap_find(start), owner);
    EXPECT_EQ(pagemap_find(start + 3 * page - 1), owner);
    EXPECT_EQ(pagemap_find(start + 3 * page), 0u);
    EXPECT_EQ(owner_kind(owner), OWNER_ARENA);
    EXPECT_EQ(owner_object(owner), static_cast<void *>(&object));
    pagemap_clear(start, 3 * page);
    EXPECT_EQ(pagemap_find(start), 0u);
}

TEST(Pagemap, a_terabyte_costs_a_few_tables)
{
    char *start = at((uintptr_t(0x31) << 40) + 5 * page);
    size_t before = pagemap_meta_bytes(), bytes = size_t(1) << 40;
    ASSERT_EQ(pagemap_set(start, bytes, owner), 0);
    EXPECT_LE(pagemap_meta_bytes() - before, 2 * PAGEMAP_ENTRIES * sizeof(owner_t)) << "one for each end: what lies between has no tables";
    EXPECT_EQ(pagemap_find(start), owner);
    EXPECT_EQ(pagemap_find(start - 1), 0u);
    EXPECT_EQ(pagemap_find(start + bytes / 2), owner);
    EXPECT_EQ(pagemap_find(start + bytes - 1), owner);
    EXPECT_EQ(pagemap_find(start + bytes), 0u);
    pagemap_clear(start, bytes);
    for (int i = 0; i < 64; i++)
        EXPECT_EQ(pagemap_find(start + bytes / 64 * i), 0u);
}

TEST(Pagemap, a_stretch_that_had_one_owners_a_whole_can_be_cut_up_later)
{
    char *start = at(uintptr_t(0x32) << 40);
    size_t whole = page << PAGEMAP_LEVEL_BITS; /* one leaf table's worth */
    ASSERT_EQ(pagemap_set(start, whole, owner), 0);
    pagemap_clear(start, whole);
    ASSERT_EQ(pagemap_set(start + page, page, owner), 0);
    EXPECT_EQ(pagemap_find(start), 0u);
    EXPECT_EQ(pagemap_find(start + page), owner);
    EXPECT_EQ(pagemap_find(start + 2 * page), 0u);
    pagemap_clear(start + page, page);
}

TEST(Pagemap, when_no_table_can_be_had_nothing_has_changed)
{
    char *start = at(uintptr_t(0x33) << 40);
    for (uint64_t nth = 1; nth < PAGEMAP_LEVELS; nth++) {
        Fault fault(OS_MAP, nth);
        EXPECT_EQ(pagemap_set(start, page, owner), -ENOMEM);
        EXPECT_EQ(pagemap_find(start), 0u);
    }
    EXPECT_EQ(pagemap_set(start, page, owner), 0);
    pagemap_clear(start, page);
}

TEST(Pagemap, addresses_beyond_the_table_are_refused)
{
    EXPECT_EQ(pagemap_set(at(uintptr_t(1) << 62), page, owner), -ENOMEM);
}

TEST(Pagemap, random_stretches_agree_with_a_plain_model)
{
    enum { PAGES = 3 << 12 };
    static owner_t model[PAGES];
    char *base = at((uintptr_t(0x34) << 40) - 5000 * page); /* across a boundary of all levels */
    Random random(7);
    memset(model, 0, sizeof model);
    struct { size_t first, pages; } live[64] = {};
    for (int step = 0; step < 4000; step++) {
        auto &slot = live[random.below(64)];
        if (slot.pages) {
            pagemap_clear(base + slot.first * page, slot.pages * page);
            std::fill(model + slot.first, model + slot.first + slot.pages, 0);
            slot.pages = 0;
        } else {
            size_t first = random.below(PAGES), pages = 1 + random.below(random.below(2) ? 8 : 5000);
            bool free = first + pages <= PAGES;
            for (size_t i = first; free && i < first + pages; i++)
                free = model[i] == 0;
            if (!free)
                continue;
            slot = {first, pages};
            owner_t other = reinterpret_cast<uintptr_t>(&object) + (step + 1) * 8 + OWNER_SLAB;
            ASSERT_EQ(pagemap_set(base + first * page, pages * page, other), 0);
            std::fill(model + first, model + first + pages, other);
        }
        for (int i = 0; i < 20; i++) {
            size_t p = random.below(PAGES);
            ASSERT_EQ(pagemap_find(base + p * page + random.below(page)), model[p]) << "page " << p << " step " << step;
        }
    }
    for (auto &slot : live)
        if (slot.pages)
            pagemap_clear(base + slot.first * page, slot.pages * page);
}

/* The default source's first range is what most is cut from: fresh, and found by one load. */
TEST(Pagemap, expected_addresses_are_found_in_their_place_and_by_the_root)
{
    quire_span span;
    ASSERT_EQ(quire_source_default()->verbs->take(quire_source_default(), 4 * page, page, &span), 0);
    char *start = static_cast<char *>(span.start);
    uintptr_t first = addr_load_relaxed(&pagemap_near.first), at_page = uintptr_t(start) / page, place = at_page - first;
    if (near_pages() == 1)
        GTEST_SKIP() << "so little address space that nothing was expected";
    ASSERT_LT(place, near_pages());
    auto *tables = reinterpret_cast<atomic_addr *>(addr_load_relaxed(&pagemap_near.tables));
    ASSERT_EQ(pagemap_set(start, 4 * page, owner), 0);
    EXPECT_EQ(pagemap_find(start + 3 * page), owner);
    size_t near = near_pages();
    EXPECT_EQ(addr_load_relaxed(&tables[at_page % near]), owner);
    EXPECT_EQ(pagemap_near_page(start + 3 * page), place + 3);
    EXPECT_GE(pagemap_near_page(start + 3 * page + near * page), pagemap_noted()) << "what lies elsewhere has no note";
    EXPECT_GE(pagemap_near_page(at((first - 1) * page)), pagemap_noted());
    auto *leaf = reinterpret_cast<pagemap_table *>(addr_load_relaxed(&pagemap_root.entry[at_page >> PAGEMAP_LEVEL_BITS]));
    EXPECT_EQ(reinterpret_cast<char *>(leaf), reinterpret_cast<char *>(tables) + (at_page % near >> PAGEMAP_LEVEL_BITS) * sizeof *leaf);
    pagemap_clear(start, 4 * page);
    EXPECT_EQ(pagemap_find(start), 0u);
    quire_source_default()->verbs->give(quire_source_default(), &span);
    /* The last expected gigabyte, of which nothing is used: nobody's, and read without a fault. */
    char *last = at((first + near_pages() - 1) * page);
    EXPECT_EQ(pagemap_find(last), 0u);
}

/* No owner of the root's: a reader of expected addresses does not look there. */
TEST(Pagemap, a_whole_table_of_expected_addresses_is_written_in_the_table)
{
    size_t pages = near_pages(), whole = page << PAGEMAP_LEVEL_BITS;
    if (pages < 2u << PAGEMAP_LEVEL_BITS)
        GTEST_SKIP() << "so little address space that nothing was expected";
    char *last = at((addr_load_relaxed(&pagemap_near.first) + pages) * page - whole);
    {
        Fault fault(OS_PROTECT, 1);
        EXPECT_EQ(pagemap_set(last, whole, owner), -ENOMEM);
        EXPECT_EQ(pagemap_find(last), 0u);
    }
    ASSERT_EQ(pagemap_set(last, whole, owner), 0);
    EXPECT_EQ(pagemap_find(last), owner);
    EXPECT_EQ(pagemap_find(last + whole - 1), owner);
    pagemap_clear(last, whole);
    EXPECT_EQ(pagemap_find(last), 0u);
}

TEST(Pagemap, only_the_first_stretch_is_expected)
{
    quire_span span;
    ASSERT_EQ(quire_source_default()->verbs->take(quire_source_default(), page, page, &span), 0);
    size_t pages = near_pages();
    uintptr_t first = addr_load_relaxed(&pagemap_near.first);
    if (pages == 1)
        GTEST_SKIP() << "so little address space that nothing was expected";
    pagemap_expect(at(uintptr_t(0x34) << 40), page << PAGEMAP_LEVEL_BITS);
    EXPECT_EQ(near_pages(), pages);
    EXPECT_EQ(addr_load_relaxed(&pagemap_near.first), first);
    quire_source_default()->verbs->give(quire_source_default(), &span);
}

static uint64_t &note(const void *address)
{
    return *static_cast<uint64_t *>(pagemap_note(pagemap_near_page(address)));
}

/* Beside each entry, and of no other page's; zeros, once the tables' page went back that holds it. */
TEST(Pagemap, each_expected_page_has_a_note_that_goes_back_with_its_entry)
{
    const size_t stretch = pagemap_stretch_pages();
    quire_span span;
    ASSERT_EQ(quire_source_default()->verbs->take(quire_source_default(), 2 * stretch * page, stretch * page, &span), 0);
    char *start = static_cast<char *>(span.start);
    if (pagemap_near_page(start) >= pagemap_noted())
        GTEST_SKIP() << "so little address space that nothing was expected, or OS pages so large that the span is mapped by itself";
    ASSERT_EQ(pagemap_set(start, 2 * stretch * page, owner), 0);
    for (size_t i = 0; i < 2 * stretch; i++) {
        EXPECT_EQ(note(start + i * page), 0u) << "nobody wrote there";
        note(start + i * page + page - 1) = i + 1;
    }
    for (size_t i = 0; i < 2 * stretch; i++)
        EXPECT_EQ(note(start + i * page), i + 1);
    EXPECT_EQ(pagemap_find(start), owner) << "and no entry was written over";
    pagemap_clear(start, stretch * page);
    pagemap_forget(start);
    for (size_t i = 0; i < 2 * stretch; i++)
        EXPECT_EQ(note(start + i * page), i < stretch ? 0 : i + 1) << i;
    for (size_t i = stretch; i < 2 * stretch; i++)
        note(start + i * page) = 0;
    pagemap_clear(start + stretch * page, stretch * page);
    quire_source_default()->verbs->give(quire_source_default(), &span);
}

/* Where there is no memory for the notes there is no table either. */
TEST(Pagemap, notes_that_cannot_be_written_are_no_owner)
{
    size_t pages = near_pages();
    if (pages < 2u << PAGEMAP_LEVEL_BITS)
        GTEST_SKIP() << "so little address space that hardly anything was expected";
    char *last = at((addr_load_relaxed(&pagemap_near.first) + pages - 1) * page);
    if (addr_load_relaxed(&pagemap_root.entry[uintptr_t(last) / page >> PAGEMAP_LEVEL_BITS]) != 0)
        GTEST_SKIP() << "another test of this process has made that table";
    for (int nth : {1, 2}) {
        Fault fault(OS_PROTECT, nth);
        EXPECT_EQ(pagemap_set(last, page, owner), -ENOMEM) << nth;
        EXPECT_EQ(pagemap_find(last), 0u);
    }
    ASSERT_EQ(pagemap_set(last, page, owner), 0);
    note(last) = 1;
    EXPECT_EQ(pagemap_find(last), owner);
    note(last) = 0;
    pagemap_clear(last, page);
}

/* Tables of so many gigabytes are made (with small pages), and no more is expected. */
static void expect_less(size_t used)
{
    size_t near = near_pages(), whole = size_t(1) << PAGEMAP_LEVEL_BITS;
    uintptr_t first = addr_load_relaxed(&pagemap_near.first);
    auto place = [=](size_t i) { return at((first + i * whole + 5 + i) * page); };
    for (size_t i = 0; i < used; i++) {
        ASSERT_EQ(pagemap_set(place(i), page, owner + (i << 8)), 0);
        note(place(i)) = i + 1;
    }
    pagemap_expect_less(place(used - 1) + page);
    EXPECT_LE(near_pages(), near);
    EXPECT_EQ(pagemap_noted(), near_pages());
    EXPECT_TRUE(near_pages() >= used * whole && (near_pages() & (near_pages() - 1)) == 0) << near_pages() / whole;
    EXPECT_TRUE(used != 1 || near_pages() == whole) << "the first gigabyte alone";
    for (size_t i = 0; i < used; i++) {
        EXPECT_EQ(pagemap_find(place(i)), owner + (i << 8)) << i << " of " << used;
        EXPECT_EQ(note(place(i)), i + 1) << i << " of " << used;
        note(place(i)) = 0;
        pagemap_clear(place(i), page);
    }
    for (size_t i : {size_t(0), used, near / whole - 1}) { /* what is no longer expected is found by the root */
        ASSERT_EQ(pagemap_set(place(i), page, owner), 0);
        EXPECT_EQ(pagemap_find(place(i)), owner);
        pagemap_clear(place(i), page);
        EXPECT_EQ(pagemap_find(place(i)), 0u);
    }
    size_t made = near_pages();
    pagemap_expect_less(place(0) + page);
    EXPECT_TRUE(used == 1 || near_pages() == made) << "not less than the tables that were made";
}

TEST(Pagemap, less_is_expected_and_what_was_set_is_found_in_its_place)
{
    quire_span span;
    ASSERT_EQ(quire_source_default()->verbs->take(quire_source_default(), page, page, &span), 0);
    if (near_pages() < size_t(16) << PAGEMAP_LEVEL_BITS)
        GTEST_SKIP() << "so little address space that hardly anything was expected";
    uintptr_t root = addr_load_relaxed(&pagemap_near.first) >> PAGEMAP_LEVEL_BITS;
    for (size_t i = 1; i < near_pages() >> PAGEMAP_LEVEL_BITS; i++)
        if (addr_load_relaxed(&pagemap_root.entry[root + i]) != 0)
            GTEST_SKIP() << "another test of this process has made a table, which stays";
    for (size_t used : {size_t(1), size_t(2), size_t(3), size_t(7), near_pages() >> PAGEMAP_LEVEL_BITS}) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            expect_less(used);
            _exit(testing::Test::HasFailure());
        }
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0) << used;
    }
    quire_source_default()->verbs->give(quire_source_default(), &span);
}
