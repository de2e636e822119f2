// SPDX-License-Identifier: MIT
/*
 * bitmap_test.cc - what one call does, what is refused, and what the checker sees.
 *
 * Not here: long operation programs (model/bitmap_model_test.cc).
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/bitmap_hint.h"

namespace {

struct Map {
    explicit Map(size_t bits) : memory(bitmap_memory_bytes(bits) / 8, 0) {
        bitmap_init(&map, memory.data(), bits);
    }
    size_t take(size_t run, unsigned align_log2 = 0) {
        return bitmap_alloc(&map, run, align_log2);
    }
    size_t give(size_t idx) {
        return bitmap_free(&map, idx);
    }
    std::vector<uint64_t> memory;
    struct bitmap map;
};

constexpr size_t kSmall = 64, kLarge = 100000;

TEST(Bitmap, a_fresh_map_is_one_free_run) {
    for (size_t bits : {size_t(1), size_t(63), size_t(64), size_t(65), size_t(1024), size_t(1025),
                        kLarge, size_t(1) << 20}) {
        Map m(bits);
        size_t run = 0;
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
        EXPECT_EQ(bitmap_longest_hint(&m.map), bits);
        EXPECT_EQ(bitmap_next_free(&m.map, 0, &run), 0u);
        EXPECT_EQ(run, bits);
        EXPECT_EQ(bitmap_next_taken(&m.map, 0, &run), BITMAP_NONE);
        EXPECT_EQ(m.take(bits), 0u);
        EXPECT_EQ(bitmap_longest_hint(&m.map), 0u);
        EXPECT_EQ(m.take(1), BITMAP_NONE);
        EXPECT_EQ(m.give(0), bits);
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
    }
}

TEST(Bitmap, a_run_of_zero_or_of_more_than_the_map_is_refused) {
    for (size_t bits : {kSmall, kLarge}) {
        Map m(bits);
        EXPECT_EQ(m.take(0), BITMAP_NONE);
        EXPECT_EQ(m.take(bits + 1), BITMAP_NONE);
        EXPECT_EQ(m.take(SIZE_MAX), BITMAP_NONE);
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
    }
}

TEST(Bitmap, freeing_what_is_no_start_changes_nothing) {
    for (size_t bits : {kSmall, kLarge}) {
        Map m(bits);
        EXPECT_EQ(m.take(10), 0u);
        std::vector<uint64_t> before = m.memory;
        for (size_t idx : {size_t(1), size_t(9), size_t(10), bits - 1, bits, bits + 64, SIZE_MAX})
            EXPECT_EQ(m.give(idx), 0u) << idx;
        EXPECT_EQ(m.memory, before);
        EXPECT_EQ(m.give(0), 10u);
        EXPECT_EQ(m.give(0), 0u);
    }
}

TEST(Bitmap, freeing_tells_the_run_that_the_bits_are_a_part_of_now) {
    for (size_t bits : {kSmall, size_t(300), size_t(1024), kLarge}) {
        Map m(bits);
        size_t merged = 77, third = bits / 3;
        for (size_t run : {third, third, third, bits - 3 * third})
            m.take(run);
        EXPECT_EQ(bitmap_free_merged(&m.map, 1, &merged), 0u) << "no start";
        EXPECT_EQ(merged, 0u);
        EXPECT_EQ(bitmap_free_merged(&m.map, bits, &merged), 0u);
        EXPECT_EQ(bitmap_free_merged(&m.map, third, &merged), third);
        EXPECT_EQ(merged, third) << "alone";
        EXPECT_EQ(bitmap_free_merged(&m.map, third, &merged), 0u) << "twice";
        EXPECT_EQ(merged, 0u);
        EXPECT_EQ(bitmap_free_merged(&m.map, 0, &merged), third);
        EXPECT_EQ(merged, 2 * third) << "with what is behind it";
        m.give(3 * third);
        EXPECT_EQ(bitmap_free_merged(&m.map, 2 * third, &merged), third);
        EXPECT_EQ(merged, bits) << "with both neighbours, to both ends of the map";
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
    }
}

TEST(Bitmap, any_power_of_two_is_an_alignment) {
    Map m(kLarge);
    EXPECT_EQ(m.take(1), 0u);
    for (unsigned align_log2 = 0; align_log2 <= 15; align_log2++) {
        size_t at = m.take(3, align_log2);
        ASSERT_NE(at, BITMAP_NONE);
        EXPECT_EQ(at % (size_t(1) << align_log2), 0u);
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
    }
    for (unsigned align_log2 : {16u, 17u, 31u, 32u, 63u, 64u, 1000u})
        EXPECT_EQ(m.take(1, align_log2), BITMAP_NONE) << align_log2;
    EXPECT_EQ(m.give(0), 1u);
    EXPECT_EQ(m.take(1, 1000), 0u) << "0 is a multiple of everything";
}

TEST(Bitmap, neighbouring_runs_of_any_length_are_told_apart) {
    Map m(kLarge);
    std::vector<size_t> at;
    for (size_t run = 1; run <= 200; run++)
        at.push_back(m.take(run));
    for (size_t run = 1; run <= 200; run++)
        EXPECT_EQ(bitmap_run(&m.map, at[run - 1]), run);
    for (size_t i = 0; i < 200; i += 2)
        EXPECT_EQ(m.give(at[i]), i + 1);
    for (size_t i = 1; i < 200; i += 2)
        EXPECT_EQ(m.give(at[i]), i + 1);
    EXPECT_EQ(bitmap_longest_hint(&m.map), kLarge);
}

TEST(Bitmap, a_map_needs_two_bits_for_each_and_a_little_more) {
    EXPECT_LE(bitmap_memory_bytes(64), 16u + 600);
    EXPECT_LE(bitmap_memory_bytes(1024), 256u + 600);
    EXPECT_LE(sizeof(struct bitmap), 32u);
    EXPECT_LT(bitmap_memory_bytes(1 << 20), size_t(1 << 20) / 8 * 5 / 2);
}

// Breaks one thing and sees that exactly its invariant is reported, and that rebuilding mends it.
struct Broken : testing::Test {
    Broken() : m(kLarge) {
        for (size_t i = 0; i < 300; i++)
            at.push_back(m.take(i % 7 ? i % 97 + 1 : 1 + i, i % 5 ? 0 : unsigned(i % 4)));
        for (size_t i = 0; i < 300; i += 3)
            m.give(at[i]);
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
        longest = bitmap_longest_hint(&m.map);
    }
    void expect(const char *invariant, bool bits_survive = true) {
        EXPECT_STREQ(bitmap_check(&m.map), invariant);
        bitmap_rebuild(&m.map);
        EXPECT_STREQ(bitmap_check(&m.map), nullptr);
        if (bits_survive) {
            EXPECT_EQ(bitmap_longest_hint(&m.map), longest);
            for (size_t i = 0; i < 300; i++)
                EXPECT_EQ(bitmap_run(&m.map, at[i]) != 0, i % 3 != 0);
        }
    }
    struct bitmap_hints *hints() {
        return m.map.hints;
    }
    Map m;
    std::vector<size_t> at;
    size_t longest = 0;
};

TEST_F(Broken, a_start_over_a_free_bit_is_B1) {
    size_t run, free_bit = bitmap_next_free(&m.map, 0, &run);
    ASSERT_NE(m.map.taken[free_bit / 64], 0u);
    bits_set_one(m.map.starts, free_bit);
    expect("bitmap B1");
}

TEST_F(Broken, a_run_without_a_start_is_B1) {
    size_t run, free_bit = bitmap_next_free(&m.map, 0, &run);
    bits_set_one(m.map.taken, free_bit);
    expect("bitmap B1", false);
    EXPECT_NE(bitmap_run(&m.map, free_bit), 0u) << "somebody might hold it: it stays taken";
}

TEST_F(Broken, free_padding_is_B1) {
    m.map.taken[kLarge / 64] = 0;
    expect("bitmap B1");
}

TEST_F(Broken, a_wrong_end_of_a_long_run_is_B2) {
    m.map.starts[kLarge / 64 - 1] ^= 1;
    expect("bitmap B2");
}

TEST_F(Broken, a_promise_of_too_much_is_B3) {
    size_t w = at[1] / 64;
    tree_set(&hints()->shape, hints()->promises, w, uint16_t(hints()->promises[w] + 1));
    expect("bitmap B3");
}

TEST_F(Broken, a_promise_of_too_little_is_B3) {
    tree_set(&hints()->shape, hints()->promises, tree_first(&hints()->shape, hints()->promises, 0, 1),
             0);
    expect("bitmap B3");
}

TEST_F(Broken, a_ceiling_that_is_too_low_is_B4) {
    ASSERT_GT(hints()->nslots, 0u);
    memset(hints()->slot[0].ceilings, 0, hints()->stripes.cells * 2);
    expect("bitmap B4");
}

TEST_F(Broken, a_maximum_that_is_none_is_B5) {
    hints()->promises[hints()->shape.offset[1]]++;
    expect("bitmap B5");
}

TEST_F(Broken, a_cursor_past_a_free_run_is_B6) {
    hints()->cursor = {1, hints()->shape.count[0]};
    expect("bitmap B6");
}

TEST_F(Broken, an_aligned_cursor_past_a_place_is_B7) {
    ASSERT_GT(hints()->nslots, 0u);
    hints()->slot[0].word = hints()->shape.count[0];
    hints()->slot[0].run = 1;
    expect("bitmap B7");
}

TEST(BitmapBits, the_longest_row_of_ones_is_that_of_a_plain_count) {
    uint64_t x = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < 100000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t word = i % 3 == 0 ? x : i % 3 == 1 ? x | x << 9 | x >> 20 : x & x << 1;
        unsigned most = 0, row = 0;
        for (int bit = 0; bit < 64; bit++) {
            row = word >> bit & 1 ? row + 1 : 0;
            most = row > most ? row : most;
        }
        ASSERT_EQ(bits_longest(word), most) << word;
    }
    EXPECT_EQ(bits_longest(~UINT64_C(0)), 64u);
    EXPECT_EQ(bits_longest(~UINT64_C(0) << 1), 63u);
    EXPECT_EQ(bits_longest(0), 0u);
}

TEST(BitmapTree, both_ways_to_search_a_group_agree) {
    alignas(64) uint16_t group[TREE_FAN];
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        for (auto &cell : group) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            cell = uint16_t(x % 3 ? x >> 49 : x >> 60);
        }
        for (auto &cell : group)
            cell &= 0x7fff;
        uint16_t most = *std::max_element(group, group + TREE_FAN);
        ASSERT_EQ(tree_group_max(group), most);
        ASSERT_EQ(tree_group_max_portable(group), most);
        for (unsigned code : {1u, 2u, 15u, unsigned(group[i % TREE_FAN]), 0x7fffu}) {
            uint32_t want = 0;
            for (int k = 0; k < TREE_FAN; k++)
                want |= uint32_t(group[k] >= code) << k;
            ASSERT_EQ(tree_group_enough(group, uint16_t(code)), want);
            ASSERT_EQ(tree_group_enough_portable(group, uint16_t(code)), want);
        }
    }
}

TEST(BitmapTree, codes_are_exact_below_16384_and_never_change_order) {
    for (size_t run = 0; run < CODE_EXACT; run++)
        ASSERT_EQ(code_of(run), run);
    uint16_t before = 0;
    for (size_t run = CODE_EXACT - 1; run < BITMAP_BITS_MAX; run += run / 1000) {
        ASSERT_GE(code_of(run), before);
        ASSERT_LT(code_of(run), 0x8000);
        before = code_of(run);
    }
}

} // namespace
