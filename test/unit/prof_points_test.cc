// SPDX-License-Identifier: MIT
/* Where sample points lie: no byte more likely than another, and in each stretch one. */
#include "prof_kit.h"

namespace {

struct prof_points begun(uint64_t every, uint64_t seed)
{
    struct prof_points points;
    prof_points_begin(&points, every, seed);
    return points;
}

TEST(ProfPoints, each_byte_of_a_stretch_is_as_likely_as_any_other)
{
    constexpr uint64_t every = 16, turns = 16000;
    uint64_t hits[every] = {};
    struct prof_points points = begun(every, 7);
    for (uint64_t i = 0; i < every * turns; i++)
        hits[i % every] += prof_points_in(&points, every, 1);
    for (uint64_t hit : hits)
        EXPECT_NEAR(double(hit), double(turns) / every, 160); /* five times the standard deviation */
}

TEST(ProfPoints, each_stretch_has_one_point)
{
    constexpr uint64_t every = 1000;
    struct prof_points points = begun(every, 3);
    for (int i = 0; i < 1000; i++) {
        uint64_t sum = 0;
        for (uint64_t left = every, take; left != 0; left -= take) {
            take = std::min<uint64_t>(left, 1 + uint64_t(i) * 37 % 90);
            sum += prof_points_in(&points, every, take);
        }
        EXPECT_EQ(sum, 1u);
    }
}

TEST(ProfPoints, blocks_that_come_in_step_with_the_stretches_are_sampled_as_often_as_others)
{
    constexpr uint64_t every = 1024;
    uint64_t first = 0, second = 0;
    struct prof_points points = begun(every, 5);
    for (int i = 0; i < 20000; i++) {
        first += prof_points_in(&points, every, 256);
        second += prof_points_in(&points, every, 768);
    }
    EXPECT_EQ(first + second, 20000u);
    EXPECT_NEAR(double(first), 5000, 310);
}

TEST(ProfPoints, a_block_of_many_stretches_has_as_many_points_and_takes_no_time)
{
    struct prof_points points = begun(512 << 10, 9);
    uint64_t sum = 0, bytes = 0;
    for (uint64_t size : {uint64_t(1) << 20, uint64_t(10) << 20, (uint64_t(1) << 40) + 12345, uint64_t(PTRDIFF_MAX)}) {
        uint64_t found = prof_points_in(&points, 512 << 10, size);
        sum += found;
        bytes += size;
        EXPECT_NEAR(double(found), double(size) / (512 << 10), 1 + double(size) * 1e-12);
    }
    EXPECT_NEAR(double(sum), double(bytes) / (512 << 10), 2 + double(sum) * 1e-12);
}

TEST(ProfPoints, two_threads_have_other_places)
{
    struct prof_points a = begun(1 << 20, 1), b = begun(1 << 20, 2);
    EXPECT_NE(a.left_bytes, b.left_bytes);
}

TEST(ProfPoints, a_sample_stands_for_the_blocks_that_its_bytes_are)
{
    EXPECT_EQ(prof_blocks16(1, 512 << 10, 512), uint64_t(1024) << 16);
    EXPECT_EQ(prof_blocks16(2, 1000, 2000), uint64_t(1) << 16);
    EXPECT_EQ(prof_blocks16(1, 512 << 10, uint64_t(1) << 20), uint64_t(1) << 15);
}

} // namespace
