// SPDX-License-Identifier: MIT
/*
 * One favoured thread and several visitors change the same plain words, with a pause in the middle: whoever meets another inside loses a count
 * or sees the two words differ.
 */
#include "race/slab_race.h"

#include <chrono>

#include "base/bias.h"

namespace {
struct Guarded {
    struct bias bias = BIAS_INIT(LOCK_FILE);
    volatile uint64_t first = 0, second = 0; /* equal while nobody is inside */
    std::atomic<uint64_t> met{0};
    uint64_t short_ways = 0; /* the favoured thread's */

    void change(bool pause)
    {
        if (first != second)
            met++;
        first = first + 1;
        if (pause)
            sched_yield();
        second = second + 1;
    }
};

/* A busy machine takes a tenth of a second for each of many handovers: who waited so long has seen enough of them. */
std::chrono::seconds enough()
{
    return std::chrono::seconds(test_long() ? 1000 : 10);
}

/* Until others have been inside `visits_min` times, and `steps_min` times itself, or for long; returns how often it was. */
uint64_t be_favoured(Guarded &g, uint64_t steps_min, uint64_t visits_min, const std::atomic<uint64_t> &visits)
{
    Random random(1);
    uint64_t steps = 0;
    auto end = std::chrono::steady_clock::now() + enough();
    for (; steps < steps_min || visits < visits_min; steps++) {
        if (steps % 64 == 0 && visits != 0 && std::chrono::steady_clock::now() > end)
            break;
        bool pause = random.below(512) == 0;
        if (bias_enter(&g.bias)) {
            g.change(pause);
            g.short_ways++;
            bias_leave(&g.bias);
            continue;
        }
        bias_take(&g.bias);
        g.change(pause);
        bias_drop(&g.bias, true);
    }
    return steps;
}

void visit(Guarded &g, uint64_t seed, const std::atomic<bool> &stop, std::atomic<uint64_t> &visits)
{
    Random random(seed);
    while (!stop) {
        bias_visit(&g.bias);
        g.change(random.below(8) == 0);
        visits++;
        bias_drop(&g.bias, random.below(4) != 0); /* sometimes the favoured thread has to open its way itself */
        for (uint64_t n = random.below(3); n > 0; n--)
            sched_yield();
    }
}

struct Outcome {
    uint64_t met, missing, short_ways, steps, visits;
};

Outcome favoured_against(unsigned visitors, uint64_t visits_min)
{
    Guarded g;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> visits{0};
    std::vector<std::thread> threads;
    for (unsigned v = 0; v < visitors; v++)
        threads.emplace_back([&, v] { visit(g, v + 2, stop, visits); });
    uint64_t steps = 0;
    std::thread([&] { steps = be_favoured(g, 100000, visitors ? visits_min : 0, visits); }).join();
    stop = true;
    for (auto &thread : threads)
        thread.join();
    return {g.met, (steps + visits - g.first) + (steps + visits - g.second), g.short_ways, steps, visits};
}

void expect_exclusion(unsigned visitors, uint64_t visits_min)
{
    Outcome o = favoured_against(visitors, visits_min);
    EXPECT_EQ(o.met, 0u) << "with " << visitors << " visitors, " << o.visits << " visits";
    EXPECT_EQ(o.missing, 0u) << "with " << visitors << " visitors, " << o.visits << " visits";
    if (bias_works()) {
        EXPECT_GT(o.short_ways, 0u);
    } else {
        EXPECT_EQ(o.short_ways, 0u);
    }
    if (bias_works() && visitors == 0) {
        EXPECT_EQ(o.short_ways + 1, o.steps) << "who is alone takes the lock once";
    }
}
} // namespace

TEST(BiasRace, the_favoured_thread_and_visitors_are_never_inside_together)
{
    for (unsigned visitors : {0u, 1u, 3u, 8u})
        expect_exclusion(visitors, scaled(6000));
}

TEST(BiasRace, nor_with_noise_at_every_step)
{
    Noise on;
    for (unsigned visitors : {1u, 3u})
        expect_exclusion(visitors, scaled(2000));
}

TEST(BiasRace, nor_where_the_system_has_no_barrier)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "ThreadSanitizer only ever sees the lock";
    int status = status_of_child([] {
        os_fault_set(OS_BARRIER, 1, true);
        bias_after_fork(); /* asks again, if the answer was yes */
        if (bias_works())
            return 10;
        for (unsigned visitors : {1u, 3u, 8u}) {
            Outcome o = favoured_against(visitors, scaled(5000));
            if (o.met || o.missing || o.short_ways)
                return 11;
        }
        return 0;
    });
    EXPECT_EQ(status, 0);
}

TEST(BiasRace, another_thread_may_be_the_favoured_one_after_a_drop_that_says_so)
{
    Guarded g;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> visits{0};
    std::vector<std::thread> visitors;
    for (unsigned v = 0; v < 2; v++)
        visitors.emplace_back([&, v] { visit(g, v + 2, stop, visits); });
    uint64_t steps = 0;
    for (unsigned t = 0; t < scaled(200); t++) {
        std::thread([&] { steps += be_favoured(g, 200, visits + 10, visits); }).join();
        bias_visit(&g.bias); /* it has ended */
        bias_drop(&g.bias, false);
    }
    stop = true;
    for (auto &thread : visitors)
        thread.join();
    EXPECT_EQ(g.met, 0u);
    EXPECT_EQ(g.first, steps + visits);
    EXPECT_EQ(g.second, g.first);
}
