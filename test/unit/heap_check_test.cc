// SPDX-License-Identifier: MIT
/* quire_heap_check() sees each of its invariants broken: here by hand, and put back. */
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/bias.h"
#include "pages/pagemap.h"
#include "unit/heap_scope.h"

#include "unit/heap_inside.h"

namespace {

/* One value is another until the end of the scope. */
template <typename T> class Instead {
public:
    Instead(T &place_, T value) : place(place_), was(place_) { place = value; }
    ~Instead() { place = was; }

private:
    T &place, was;
};

/* A heap with a page in each state and two large blocks. */
class HeapCheck : public testing::Test {
protected:
    HeapCheck()
    {
        large = heap.alloc(100000), heap.alloc(50000);
        Blocks blocks = heap.alloc_many(2000, 100);
        current = heap_page_find(blocks.back());
        partial = heap_page_find(blocks[0]);
        for (void *p : blocks)
            if (heap_page_find(p) == partial && p != blocks[0])
                quire_heap_free(heap, p);
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        EXPECT_EQ(current->state, HEAP_CURRENT);
        EXPECT_EQ(partial->state, HEAP_PARTIAL);
    }
    Heap heap;
    char *large;
    struct heap_page *current, *partial;
};

} // namespace

TEST_F(HeapCheck, P1_a_free_bit_is_one_of_the_pages_slots)
{
    for (uint32_t less : {1u, 2u}) {
        Instead<uint16_t> slots(partial->slots, uint16_t(partial->slots - less)); /* the last ones are free */
        EXPECT_STREQ(quire_heap_check(heap), "heap P1");
    }
    {
        Instead<uint16_t> slots(partial->slots, uint16_t(partial->slots - 64));
        EXPECT_STREQ(quire_heap_check(heap), "heap P1");
    }
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST_F(HeapCheck, P2_a_partial_page_counts_its_live_blocks)
{
    for (uint16_t until : {uint16_t(0), uint16_t(partial->until + 1)}) {
        Instead<uint16_t> wrong(partial->until, until);
        EXPECT_STREQ(quire_heap_check(heap), "heap P2");
    }
}

TEST_F(HeapCheck, P3_a_bin_has_pages_of_its_own)
{
    {
        Instead<uint8_t> wrong(current->class_idx, uint8_t(current->class_idx + 1));
        EXPECT_STREQ(quire_heap_check(heap), "heap P3") << "another size";
    }
    {
        Instead<uint8_t> wrong(current->state, HEAP_FULL);
        EXPECT_STREQ(quire_heap_check(heap), "heap P3") << "another state";
    }
    {
        Instead<struct heap_page *> wrong(partial->prev, current);
        EXPECT_STREQ(quire_heap_check(heap), "heap P3") << "a list that leads back elsewhere";
    }
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST_F(HeapCheck, P4_the_page_map_leads_to_the_header)
{
    pagemap_clear(current->span.start, os_page_bytes());
    EXPECT_STREQ(quire_heap_check(heap), "heap P4");
    ASSERT_EQ(pagemap_set(current->span.start, os_page_bytes(), owner_make(current, OWNER_HEAP)), 0);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST_F(HeapCheck, P5_what_is_mapped_is_the_sum_of_its_parts)
{
    quire_heap *inside = heap;
    size_add_relaxed(&inside->account.mapped_bytes, 4096);
    EXPECT_STREQ(quire_heap_check(heap), "heap P5");
    size_sub_relaxed(&inside->account.mapped_bytes, 4096);
    {
        Instead<size_t> limit(inside->account.limit_bytes, 4096);
        EXPECT_STREQ(quire_heap_check(heap), "heap P5") << "over the limit";
    }
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST_F(HeapCheck, L1_large_blocks_are_on_the_list)
{
    struct heap_page *page = heap_page_find(large);
    ASSERT_NE(page, nullptr);
    Instead<struct heap_page *> wrong(page->prev, page);
    EXPECT_STREQ(quire_heap_check(heap), "heap L1");
}

TEST(HeapCheckSecure, S1_what_is_free_is_zero_and_S2_what_lives_ends_as_it_was_made)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch forbid the look";
    Heap secure({.flags = QUIRE_HEAP_SECURE});
    char *p = secure.alloc(50), *freed = secure.alloc(50);
    quire_heap_free(secure, freed);
    {
        Instead<char> wrong(unknown(freed)[20], 1);
        EXPECT_STREQ(quire_heap_check(secure), "heap S1");
    }
    for (int behind : {50, 55, 56, 63}) {
        Instead<char> wrong(unknown(p)[behind], char(p[behind] ^ 4));
        EXPECT_STREQ(quire_heap_check(secure), "heap S2") << behind;
    }
    EXPECT_EQ(quire_heap_check(secure), nullptr);
    std::atomic<bool> is_there(false), ends(false);
    std::thread other([&] {
        void *its = secure.alloc(50);
        for (is_there = true; !ends;)
            std::this_thread::yield();
        quire_heap_free(secure, its);
    });
    while (!is_there)
        std::this_thread::yield();
    {
        Instead<char> wrong(unknown(p)[50], 4);
        EXPECT_EQ(quire_heap_check(secure), nullptr) << "the other thread might be about to write a canary";
    }
    ends = true;
    other.join();
    EXPECT_EQ(quire_heap_check(secure), nullptr);
}
