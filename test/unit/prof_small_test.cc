// SPDX-License-Identifier: MIT
/* Sampled blocks in slots: the table of their addresses, and what becomes of one that is resized, overrun or freed. */
#include "prof_kit.h"

#include <map>

#include "os/sanitize.h"

#include "unit/heap_inside.h"

namespace {

#define SKIP_WATCHED()       \
    if (memory_is_watched()) \
    GTEST_SKIP() << "its samples have pages of their own there"

bool is_known(const void *p)
{
    return prof_small_find(p).token != 0;
}

/* The next block of so many bytes that is a sample. */
unsigned char *sample_of(size_t bytes)
{
    for (;;) {
        auto *p = static_cast<unsigned char *>(profiled_malloc(bytes));
        if (is_known(p))
            return p;
        profiled_free(p);
    }
}

TEST(ProfSmall, the_table_is_what_a_map_is)
{
    Random random(7);
    std::map<uintptr_t, prof_small> model;
    prof_small_reset();
    for (int step = 0; step < 200000; step++) {
        uintptr_t p = 16 * (1 + random.below(step < 100000 ? 300 : 20000));
        auto *address = reinterpret_cast<void *>(p);
        auto at = model.find(p);
        struct prof_small small = {1 + random.below(1000), uint32_t(random.below(100)), 0}, found = {0, 0, 0};
        if (random.below(3) == 0) {
            ASSERT_TRUE(prof_small_put(address, small));
            model[p] = small;
        } else if (random.below(2) == 0) {
            found = prof_small_take(address);
            ASSERT_EQ(found.token, at == model.end() ? 0 : at->second.token);
            model.erase(p);
        } else {
            found = prof_small_find(address);
            ASSERT_EQ(found.token, at == model.end() ? 0 : at->second.token);
            ASSERT_EQ(found.bytes, at == model.end() ? 0 : at->second.bytes);
        }
        EXPECT_TRUE(step != 99999 || prof_small_table_bytes() <= size_t(48) << 10) << "300 are there at once, at most, however many were";
        ASSERT_TRUE(step % 1000 != 0 || prof_small_check() == nullptr);
    }
    for (auto &entry : model)
        EXPECT_EQ(prof_small_take(reinterpret_cast<void *>(entry.first)).token, entry.second.token);
    EXPECT_EQ(prof_small_check(), nullptr);
    prof_small_reset();
    EXPECT_EQ(prof_small_table_bytes(), 0u);
}

TEST(ProfSmall, samples_share_pages_and_are_as_large_as_asked_for)
{
    SKIP_WATCHED();
    Profile profile(1024);
    std::vector<unsigned char *> blocks;
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int i = 0; i < 200; i++) {
        blocks.push_back(sample_of(40));
        EXPECT_EQ(quire_heap_usable_bytes(blocks.back()), 40u);
        low = std::min(low, uintptr_t(blocks.back()));
        high = std::max(high, uintptr_t(blocks.back()));
    }
    EXPECT_LT(high - low, 200 * os_page_bytes() / 2) << "with pages of their own they would lie further apart";
    for (auto *p : blocks)
        profiled_free(p);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
    EXPECT_EQ(prof_check(), nullptr);
}

TEST(ProfSmall, a_sample_is_kept_where_a_block_like_it_stays_in_its_slot_and_ends_where_that_moves)
{
    SKIP_WATCHED();
    for (size_t bytes : {100, 500, 900, 1010}) {
        Profile profile(1 << 20);
        auto *p = sample_of(bytes);
        uint64_t live = Profile::stats().live_bytes;
        size_t room = heap_class_bytes(heap_class_of(bytes));
        memset(p, 0x5a, bytes);
        for (size_t to : {bytes - 1, room, bytes, room - 1, bytes * 2 / 3, room}) { /* between the two ends a slot's block stays */
            p = static_cast<unsigned char *>(profiled_realloc(p, to));
            EXPECT_EQ(Profile::stats().live_bytes, live) << bytes << " to " << to;
            EXPECT_EQ(quire_heap_usable_bytes(p), to);
            EXPECT_EQ(p[bytes * 2 / 3 - 1], 0x5a);
            EXPECT_NEAR(double(Profile::stats().live_blocks), double(live / to), 1.5);
        }
        p = static_cast<unsigned char *>(profiled_realloc(p, room + 1)); /* its next point is a long way off */
        EXPECT_EQ(Profile::stats().live_bytes, 0u);
        EXPECT_FALSE(is_known(p));
        EXPECT_FALSE(heap_page_is_secure(heap_page_find(p))) << "it moves when all others do from now on";
        EXPECT_EQ(p[bytes * 2 / 3 - 1], 0x5a);
        profiled_free(p);
        EXPECT_EQ(prof_check(), nullptr);
    }
}

TEST(ProfSmall, what_was_zeroed_is_zero)
{
    SKIP_WATCHED();
    Profile profile(1024);
    for (int i = 0, samples = 0; samples < 300; i++) {
        auto *p = static_cast<unsigned char *>(prof_alloc_zero(200, PROF_CALLER));
        samples += is_known(p);
        for (size_t at = 0; at < 200; at++)
            ASSERT_EQ(p[at], 0);
        memset(p, 0xff, 200);
        profiled_free(p);
    }
}

TEST(ProfSmallDeathTest, a_sample_that_was_overrun_or_is_used_or_freed_after_its_free_is_refused)
{
    SKIP_WATCHED();
    Profile profile(1024);
    EXPECT_DEATH(
        {
            auto *p = sample_of(100);
            p[100] = 1;
            profiled_free(p);
        },
        "E7");
    EXPECT_DEATH(
        {
            auto *p = sample_of(100);
            p[107] = 1;
            (void)profiled_realloc(p, 105);
        },
        "E7");
    EXPECT_DEATH(
        {
            auto *p = sample_of(100);
            profiled_free(p);
            profiled_free(p);
        },
        "E1");
    EXPECT_DEATH(
        {
            auto *p = sample_of(100);
            profiled_free(p);
            p[3] = 1;
            for (int i = 0; i < 1000; i++)
                profiled_free(sample_of(100));
        },
        "E6");
    EXPECT_EQ(prof_check(), nullptr);
}

TEST(ProfSmall, without_memory_for_the_table_a_sample_has_pages_of_its_own)
{
    SKIP_WATCHED();
    Profile profile(1024);
    profiled_free(sample_of(50)); /* slots and stacks have their memory */
    prof_small_reset();
    std::vector<void *> blocks;
    uint64_t samples = Profile::stats().samples;
    {
        Fault fault(OS_MAP, 1, true);
        while (Profile::stats().samples == samples)
            blocks.push_back(profiled_malloc(50));
        EXPECT_GE(os_fault_failed(OS_MAP), 1u);
    }
    EXPECT_TRUE(heap_is_large(heap_page_find(blocks.back())));
    EXPECT_GT(Profile::stats().live_bytes, 0u);
    for (void *p : blocks)
        profiled_free(p);
    EXPECT_EQ(Profile::stats().live_bytes, 0u);
    EXPECT_EQ(quire_heap_check(quire_heap_default()), nullptr);
}

} // namespace
