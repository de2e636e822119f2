// SPDX-License-Identifier: MIT
/* The explorer itself: small programs of which it is known what they may come to (RC11, Lahav et al. 2017; without load buffering). */
#include <gtest/gtest.h>

#include "explorer.h"

using namespace orders;

namespace {
atomic_u32 x, y, z;
uint32_t plain;
const std::vector<Word> all = {{"x", &x, 0}, {"y", &y, 0}, {"z", &z, 0}, {"plain", &plain, 0}};

/* Whether the program may end with these notes.  None of these may fail. */
bool may(const std::vector<std::function<void()>> &threads, const Notes &notes)
{
    Result result = explore({all, threads, nullptr});
    EXPECT_EQ(result.wrong, "");
    return result.outcomes.count(notes) != 0;
}
std::string wrong(const std::vector<std::function<void()>> &threads) { return explore({all, threads, nullptr}).wrong; }
} // namespace

TEST(OrdersLitmus, store_buffering_is_seen_without_fences_and_not_with_two)
{
    auto side = [](atomic_u32 &mine, atomic_u32 &other, bool fenced) {
        return [&mine, &other, fenced] {
            u32_store_release(&mine, 1);
            if (fenced)
                atomic_fence_seq_cst();
            note(u32_load_acquire(&other));
        };
    };
    EXPECT_TRUE(may({side(x, y, false), side(y, x, false)}, {0, 0}));
    EXPECT_TRUE(may({side(x, y, true), side(y, x, false)}, {0, 0}));
    EXPECT_FALSE(may({side(x, y, true), side(y, x, true)}, {0, 0}));
    EXPECT_TRUE(may({side(x, y, true), side(y, x, true)}, {1, 1}));
}

TEST(OrdersLitmus, a_barrier_by_one_thread_is_a_fence_in_both)
{
    auto quick = [] { u32_store_relaxed(&x, 1), note(u32_load_relaxed(&y)); };
    auto slow = [] { u32_store_relaxed(&y, 1), barrier(), note(u32_load_relaxed(&x)); };
    EXPECT_FALSE(may({quick, slow}, {0, 0}));
    EXPECT_TRUE(may({quick, slow}, {0, 1}));
}

TEST(OrdersLitmus, a_message_is_passed_by_release_and_acquire_alone)
{
    auto send = [](bool releases) {
        return [releases] {
            u32_store_relaxed(&x, 1);
            releases ? u32_store_release(&y, 1) : u32_store_relaxed(&y, 1);
        };
    };
    auto receive = [](bool acquires) {
        return [acquires] {
            uint32_t seen = acquires ? u32_load_acquire(&y) : u32_load_relaxed(&y);
            note(seen), note(u32_load_relaxed(&x));
        };
    };
    EXPECT_FALSE(may({send(true), receive(true)}, {1, 0}));
    EXPECT_TRUE(may({send(false), receive(true)}, {1, 0}));
    EXPECT_TRUE(may({send(true), receive(false)}, {1, 0}));
}

TEST(OrdersLitmus, a_message_is_passed_by_fences_and_through_an_rmw)
{
    auto send = [] { u32_store_relaxed(&x, 1), atomic_fence_release(), u32_store_relaxed(&y, 1); };
    auto receive = [] { note(u32_load_acquire(&y)), note(u32_load_relaxed(&x)); };
    EXPECT_FALSE(may({send, receive}, {1, 0}));
    auto pass_on = [] { u32_add_relaxed(&y, 1); };
    EXPECT_FALSE(may({send, pass_on, receive}, {2, 0})) << "an RMW carries on the release that it has read";
    auto overwrite = [] {
        if (u32_load_relaxed(&y) == 1)
            u32_store_relaxed(&y, 2);
    };
    EXPECT_TRUE(may({send, overwrite, receive}, {2, 0})) << "a store does not";
}

TEST(OrdersLitmus, two_readers_may_see_two_stores_in_different_orders_unless_they_fence)
{
    auto reader = [](atomic_u32 &first, atomic_u32 &second, bool fenced) {
        return [&first, &second, fenced] {
            note(u32_load_acquire(&first));
            if (fenced)
                atomic_fence_seq_cst();
            note(u32_load_acquire(&second));
        };
    };
    auto one = [] { u32_store_release(&x, 1); };
    auto two = [] { u32_store_release(&y, 1); };
    EXPECT_TRUE(may({one, two, reader(x, y, false), reader(y, x, false)}, {1, 0, 1, 0}));
    EXPECT_FALSE(may({one, two, reader(x, y, true), reader(y, x, true)}, {1, 0, 1, 0}));
}

TEST(OrdersLitmus, one_word_is_read_in_one_order_and_stores_may_cross)
{
    auto one = [] { u32_store_relaxed(&x, 1), u32_store_relaxed(&x, 2); };
    auto reads = [] { note(u32_load_relaxed(&x)), note(u32_load_relaxed(&x)); };
    EXPECT_FALSE(may({one, reads}, {2, 1}));
    EXPECT_FALSE(may({one, reads}, {1, 0}));
    EXPECT_TRUE(may({one, reads}, {0, 2}));
    auto crossing = [](atomic_u32 &first, atomic_u32 &second) {
        return [&first, &second] { u32_store_relaxed(&first, 1), u32_store_relaxed(&second, 2), note(u32_load_relaxed(&second)); };
    };
    auto settled = [](atomic_u32 &word) { return [&word] { note(u32_load_relaxed(&word)), note(u32_load_relaxed(&word)); }; };
    EXPECT_TRUE(may({crossing(x, y), crossing(y, x), settled(x), settled(y)}, {2, 2, 2, 1, 2, 1})) << "2+2W: each word ends with its 1";
}

TEST(OrdersLitmus, load_buffering_is_not_explored)
{
    auto side = [](atomic_u32 &first, atomic_u32 &second) {
        return [&first, &second] { note(u32_load_relaxed(&first)), u32_store_relaxed(&second, 1); };
    };
    EXPECT_FALSE(may({side(x, y), side(y, x)}, {1, 1})) << "explorer.h says so";
}

TEST(OrdersLitmus, of_two_swaps_one_fails_and_none_is_lost_between)
{
    auto swap = [] {
        uint32_t none = 0;
        note(u32_cas_relaxed(&x, &none, 1));
    };
    EXPECT_FALSE(may({swap, swap}, {1, 1}));
    EXPECT_FALSE(may({swap, swap}, {0, 0}));
    auto add = [] { note(u32_add_relaxed(&x, 1)); };
    EXPECT_FALSE(may({add, add}, {0, 0}));
}

TEST(OrdersLitmus, a_race_at_a_plain_word_is_found_and_an_ordered_access_is_none)
{
    auto send = [] { write(&plain, 5), u32_store_release(&x, 1); };
    auto receive = [](bool acquires) {
        return [acquires] {
            if ((acquires ? u32_load_acquire(&x) : u32_load_relaxed(&x)) == 1)
                must(read(&plain) == 5, "what was sent");
        };
    };
    EXPECT_EQ(wrong({send, receive(true)}), "");
    EXPECT_NE(wrong({send, receive(false)}).find("a race at plain"), std::string::npos);
    EXPECT_NE(wrong({send, [] { note(read(&plain)); }}).find("a race at plain"), std::string::npos);
    EXPECT_EQ(wrong({[] { note(read(&plain)); }, [] { note(read(&plain)); }}), "");
}

TEST(OrdersLitmus, who_waits_for_nobody_is_stuck_and_who_waits_for_somebody_is_not)
{
    auto wait = [] {
        while (u32_load_relaxed(&x) == 0)
            cpu_pause();
    };
    EXPECT_NE(wrong({wait}).find("stuck"), std::string::npos);
    EXPECT_EQ(wrong({wait, [] { u32_store_relaxed(&x, 1); }}), "");
    auto sleep = [] {
        while (u32_load_relaxed(&x) == 0)
            orders_step(ORDERS_WAIT, ORDERS_RELAXED, &x, 0, 0);
    };
    EXPECT_NE(wrong({sleep, [] { u32_store_relaxed(&x, 1); }}).find("stuck"), std::string::npos) << "nobody wakes it";
    EXPECT_EQ(wrong({sleep, [] { u32_store_relaxed(&x, 1), orders_step(ORDERS_WAKE, ORDERS_RELAXED, &x, 0, 0); }}), "");
}
