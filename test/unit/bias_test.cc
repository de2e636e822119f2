// SPDX-License-Identifier: MIT
/* Who is let in, by which way, and when; who meets whom inside is race/bias_race_test.cc. */
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/bias.h"
#include "support.h"

namespace {
/* A lock that favours the thread of the test, where the system can. */
struct Favouring {
    struct bias bias = BIAS_INIT(LOCK_FILE);
    Favouring() { bias_take(&bias), bias_drop(&bias, true); }
};
const char *const ONE_WAY = "there is only the lock where no barrier works";
} // namespace

TEST(Bias, nobody_is_favoured_at_first)
{
    struct bias bias = BIAS_INIT(LOCK_FILE);
    EXPECT_FALSE(bias_enter(&bias));
    EXPECT_EQ(u32_load_relaxed(&bias.active), 0u) << "whoever is not let in is not inside";
    bias_take(&bias);
    EXPECT_FALSE(bias_enter(&bias));
    bias_drop(&bias, false);
    EXPECT_FALSE(bias_enter(&bias));
}

TEST(Bias, the_short_way_opens_when_the_lock_is_dropped_in_favour_of_a_thread_and_only_where_barriers_work)
{
    Favouring f;
    EXPECT_EQ(bias_enter(&f.bias), bias_works());
    bias_leave(&f.bias);
    EXPECT_EQ(bias_enter(&f.bias), bias_works()) << "it stays open";
    bias_leave(&f.bias);
    bias_take(&f.bias);
    bias_drop(&f.bias, false);
    EXPECT_FALSE(bias_enter(&f.bias));
}

TEST(Bias, a_sanitizer_sees_only_the_lock)
{
    if (memory_is_watched() && !under_asan()) {
        EXPECT_FALSE(bias_works());
    }
}

TEST(Bias, while_a_visitor_is_inside_the_short_way_is_closed)
{
    Favouring f;
    std::atomic<int> stage{0};
    std::thread visitor([&] {
        bias_visit(&f.bias);
        stage = 1;
        while (stage == 1)
            sched_yield();
        bias_drop(&f.bias, true);
    });
    while (stage == 0)
        sched_yield();
    EXPECT_FALSE(bias_enter(&f.bias));
    EXPECT_FALSE(lock_try(&f.bias.lock)) << "and so is the long one";
    stage = 2;
    visitor.join();
    EXPECT_EQ(bias_enter(&f.bias), bias_works());
    bias_leave(&f.bias);
}

TEST(Bias, a_visitor_waits_until_the_favoured_thread_is_outside)
{
    Favouring f;
    if (!bias_enter(&f.bias))
        GTEST_SKIP() << ONE_WAY;
    std::atomic<bool> inside{false};
    std::thread visitor([&] {
        bias_visit(&f.bias);
        inside = true;
        bias_drop(&f.bias, true);
    });
    for (int i = 0; i < 20; i++) { /* long past the visitor's patience to spin */
        sleep_ms(1);
        EXPECT_FALSE(inside);
    }
    bias_leave(&f.bias);
    visitor.join();
    EXPECT_TRUE(inside);
}

TEST(Bias, after_a_fork_it_is_a_free_lock_and_says_whether_somebody_was_inside)
{
    Favouring f;
    EXPECT_FALSE(bias_reset(&f.bias));
    EXPECT_FALSE(bias_enter(&f.bias)) << "nobody is favoured now";
    if (!BUILT_WITH_TSAN) { /* which has the holder of a lock for ever */
        std::thread([&] { bias_visit(&f.bias); }).join();
        EXPECT_TRUE(bias_reset(&f.bias));
        EXPECT_FALSE(lock_held(&f.bias.lock));
    }
    bias_take(&f.bias);
    bias_drop(&f.bias, true);
    if (bias_enter(&f.bias)) {
        EXPECT_TRUE(bias_reset(&f.bias));
        EXPECT_EQ(u32_load_relaxed(&f.bias.active), 0u);
    }
}
