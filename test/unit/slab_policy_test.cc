// SPDX-License-Identifier: MIT
/* What a slab decides, as tables. */
#include <gtest/gtest.h>

#include "slab/slab_policy.h"

namespace {
const size_t kib = 1024, mib = 1024 * kib;
struct slab_sizes sizes(size_t slot_bytes, size_t page_bytes_max = 0, size_t os_page_bytes = 4096)
{
    struct slab_sizes s = {};
    s.slot_bytes = slot_bytes, s.page_bytes_max = page_bytes_max, s.os_page_bytes = os_page_bytes;
    return s;
}
} // namespace

TEST(SlabPolicy, the_largest_page_is_a_table)
{
    struct {
        size_t slot, asked, expected;
    } rows[] = {
        {64, 0, 64 * kib},          {8, 0, 32 * kib} /* 4096 slots */, {16, 0, 64 * kib},        {1024, 0, 64 * kib},
        {64, 1, 4 * kib},           {64, 4 * kib, 4 * kib},            {64, 20000, 16 * kib},    {64, mib, 256 * kib} /* 4096 slots */,
        {5008, 4 * kib, 8 * kib} /* one element */, {mib, 0, mib},     {3 * mib, 0, 3 * mib},    {mib + 16, 4 * kib, mib + 4 * kib},
        {8192, 0, 64 * kib},
    };
    for (auto &row : rows)
        EXPECT_EQ(slab_page_bytes_most(sizes(row.slot, row.asked)), row.expected) << row.slot << " asked " << row.asked;
}

TEST(SlabPolicy, page_sizes_of_every_slot_are_whole_pages_hold_one_and_waste_little)
{
    for (size_t os_page : {4 * kib, 16 * kib, 64 * kib})
        for (size_t slot = 1; slot < 2 * mib; slot += slot < 10000 ? 1 : 997)
            for (size_t asked : {size_t(0), size_t(1), 16 * kib, 100 * kib, mib}) {
                struct slab_sizes s = sizes(slot, asked, os_page);
                size_t most = slab_page_bytes_most(s), least = slab_page_bytes_least(s, most);
                ASSERT_EQ(most % os_page, 0u) << slot;
                ASSERT_EQ(least % os_page, 0u) << slot;
                ASSERT_GE(least, slot);
                ASSERT_LE(least, most);
                ASSERT_LE(most, std::max({asked, mib, (slot + os_page - 1) / os_page * os_page, os_page})) << slot;
                /* What is asked for is no more than that, but for one element. */
                ASSERT_TRUE(asked == 0 || most <= std::max({asked, os_page, (slot + os_page - 1) / os_page * os_page})) << slot << " " << asked;
                size_t held = 0;
                for (int i = 0; i < 40; i++) {
                    size_t next = slab_page_bytes_next(held, least, most);
                    ASSERT_TRUE(next >= least && next <= most && next % os_page == 0) << slot << " after " << held;
                    ASSERT_LE(next / slot, size_t(SLAB_SLOTS_MAX) + os_page / slot);
                    held += next;
                }
                ASSERT_EQ(slab_page_bytes_next(held + 2 * most, least, most), most);
            }
}

TEST(SlabPolicy, a_set_of_pages_grows_twofold)
{
    EXPECT_EQ(slab_page_bytes_next(0, 4 * kib, 64 * kib), 4 * kib);
    EXPECT_EQ(slab_page_bytes_next(4 * kib, 4 * kib, 64 * kib), 4 * kib);
    EXPECT_EQ(slab_page_bytes_next(8 * kib, 4 * kib, 64 * kib), 8 * kib);
    EXPECT_EQ(slab_page_bytes_next(31 * kib, 4 * kib, 64 * kib), 16 * kib);
    EXPECT_EQ(slab_page_bytes_next(mib, 4 * kib, 64 * kib), 64 * kib);
}

TEST(SlabPolicy, buckets_rise_with_fullness_and_never_leave_the_table)
{
    for (uint32_t slots : {1u, 2u, 7u, 63u, 64u, 65u, 1000u, 4096u}) {
        unsigned last = 0;
        for (uint32_t used = 0; used <= slots; used++) {
            unsigned bucket = slab_bucket(used, slots);
            ASSERT_GE(bucket, last);
            ASSERT_LT(bucket, unsigned(SLAB_BUCKETS));
            last = bucket;
        }
        EXPECT_EQ(slab_bucket(0, slots), 0u);
        EXPECT_EQ(slab_bucket(slots, slots), unsigned(SLAB_BUCKETS) - 1);
    }
}

TEST(SlabPolicy, fuller_compares_parts_of_pages_of_different_sizes)
{
    struct {
        uint32_t used, slots, than, than_slots;
        bool fuller;
    } rows[] = {{1, 2, 1, 3, true}, {1, 3, 1, 2, false}, {5, 10, 5, 10, false}, {64, 64, 4095, 4096, true}, {0, 64, 0, 1, false}, {4095, 4096, 63, 64, true}};
    for (auto &row : rows)
        EXPECT_EQ(slab_fuller(row.used, row.slots, row.than, row.than_slots), row.fuller) << row.used << "/" << row.slots;
}
