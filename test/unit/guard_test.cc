// SPDX-License-Identifier: MIT
/* Guarded blocks: where they lie, how long a place stays closed, what happens when all are taken. */
#include "prof_kit.h"

#include <set>

#include "prof/guard.h"

namespace {

struct Guard : testing::Test {
    static void SetUpTestSuite()
    {
        if (guard_pool_bytes == 0) {
            ASSERT_EQ(guard_start(), 0);
        }
    }
};

void *guarded(size_t bytes, size_t align = 16)
{
    return guard_alloc(bytes, align, 0, PROF_CALLER);
}

void give(void *p)
{
    guard_free(p, PROF_CALLER);
}

TEST_F(Guard, a_block_lies_at_an_end_of_its_page_and_is_aligned_and_zero)
{
    size_t page = os_page_bytes(), at_end = 0;
    for (size_t i = 0; i < 2000; i++) {
        size_t bytes = i % (page + 1), align = size_t(16) << (i % 5);
        auto *p = static_cast<unsigned char *>(guarded(bytes, align));
        ASSERT_NE(p, nullptr);
        uintptr_t in_page = uintptr_t(p) % page;
        EXPECT_EQ(uintptr_t(p) % align, 0u);
        EXPECT_TRUE(in_page == 0 || page - in_page - bytes < align + 16) << bytes << " " << in_page;
        at_end += in_page != 0;
        EXPECT_TRUE(std::all_of(p, p + bytes, [](unsigned char c) { return c == 0; }));
        EXPECT_EQ(guard_bytes(p), bytes);
        memset(p, 0xff, bytes);
        give(p);
    }
    EXPECT_GT(at_end, 1200u);
    EXPECT_LT(at_end, 1700u);
}

TEST_F(Guard, what_is_larger_than_a_page_is_not_guarded)
{
    EXPECT_EQ(guarded(os_page_bytes() + 1), nullptr);
    EXPECT_EQ(guarded(10, 2 * os_page_bytes()), nullptr);
}

TEST_F(Guard, a_place_stays_closed_until_all_others_were_used)
{
    void *first = guarded(100);
    uintptr_t page = uintptr_t(first) / os_page_bytes();
    give(first);
    for (int i = 0; i < GUARD_SLOTS - 1; i++) {
        void *p = guarded(100);
        ASSERT_NE(uintptr_t(p) / os_page_bytes(), page);
        give(p);
    }
    void *again = guarded(100);
    EXPECT_EQ(uintptr_t(again) / os_page_bytes(), page);
    give(again);
}

TEST_F(Guard, when_all_places_are_taken_there_is_none_and_then_again)
{
    std::vector<void *> blocks;
    std::set<uintptr_t> pages;
    for (void *p; (p = guarded(50)) != nullptr; pages.insert(uintptr_t(p) / os_page_bytes()))
        blocks.push_back(p);
    EXPECT_EQ(blocks.size(), size_t(GUARD_SLOTS));
    EXPECT_EQ(pages.size(), blocks.size());
    size_t seen = 0;
    guard_walk([](void *, size_t bytes, void *arg) { return *static_cast<size_t *>(arg) += bytes == 50, 0; }, &seen);
    EXPECT_EQ(seen, blocks.size());
    for (void *p : blocks)
        give(p);
    void *p = guarded(50);
    EXPECT_NE(p, nullptr);
    give(p);
}

TEST_F(Guard, a_block_is_guarded_once_in_so_many_whatever_its_size)
{
    const struct prof_opts none = {};
    for (uint64_t every : {3, 200, 900}) {
        struct prof_opts opts = {};
        opts.guard_every = every;
        prof_start(&opts);
        for (size_t bytes : {1, 40, 1000, 4096}) {
            double blocks = 100.0 * double(every), seen = 0;
            for (double i = 0; i < blocks; i++) {
                void *p = prof_alloc(bytes, PROF_CALLER);
                seen += guard_has(p);
                guard_has(p) ? guard_free(p, PROF_CALLER) : quire_heap_free(quire_heap_default(), p);
            }
            EXPECT_NEAR(seen, 100, 58) << bytes << " bytes, one in " << every; /* nearly six times the standard deviation */
        }
    }
    prof_start(&none);
}

TEST_F(Guard, a_page_that_cannot_be_opened_or_closed_costs_no_more_than_its_guard)
{
    os_fault_set(OS_PROTECT, 1, true);
    EXPECT_EQ(guarded(40), nullptr);
    EXPECT_GE(os_fault_failed(OS_PROTECT), 1u);
    os_fault_set(OS_PROTECT, 0, false);
    std::vector<void *> blocks;
    for (int i = 0; i < GUARD_SLOTS; i++) {
        blocks.push_back(guarded(40));
        ASSERT_NE(blocks.back(), nullptr);
        memset(blocks.back(), 7, 40);
    }
    os_fault_set(OS_MARK, 1, true);
    os_fault_set(OS_SEAL, 1, true);
    for (void *p : blocks)
        give(p);
    EXPECT_GE(os_fault_failed(OS_SEAL), uint64_t(GUARD_SLOTS));
    os_fault_failed(OS_MARK);
    os_fault_set(OS_MARK, 0, false);
    os_fault_set(OS_SEAL, 0, false);
    for (int i = 0; i < GUARD_SLOTS; i++) {
        auto *p = static_cast<unsigned char *>(guarded(40));
        ASSERT_NE(p, nullptr);
        ASSERT_TRUE(std::all_of(p, p + 40, [](unsigned char c) { return c == 0; }));
        give(p);
    }
}

TEST_F(Guard, a_page_that_cannot_be_marked_is_closed_by_a_mapping_and_opened_again)
{
    if (!system_has_marks())
        GTEST_SKIP() << "this system has no marks: all pages are closed so";
    char *p = static_cast<char *>(guarded(40));
    os_fault_set(OS_MARK, 1, false);
    give(p);
    EXPECT_EQ(os_fault_failed(OS_MARK), 1u);
    os_fault_set(OS_MARK, 0, false);
    EXPECT_FALSE(os_is_readable(p));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < GUARD_SLOTS; i++) {
            char *again = static_cast<char *>(guarded(40));
            ASSERT_NE(again, nullptr);
            ASSERT_TRUE(std::all_of(again, again + 40, [](char c) { return c == 0; }));
            memset(again, 7, 40);
            give(again);
            ASSERT_FALSE(os_is_readable(again));
        }
}

} // namespace
