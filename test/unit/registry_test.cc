// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "owner/registry.h"
#include "support.h"

namespace {

/* How long it takes to have it 40 times, while another thread has it nearly all the time. */
std::chrono::steady_clock::duration forty_times(struct registry *registry)
{
    std::atomic<bool> done{false};
    std::thread looker([&] {
        while (!done) {
            registry_lock(registry);
            auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
            while (std::chrono::steady_clock::now() < until) {
            }
            registry_unlock(registry);
        }
    });
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 40; i++) {
        registry_lock(registry);
        registry_unlock(registry);
        sleep_ms(1);
    }
    auto took = std::chrono::steady_clock::now() - began;
    done = true;
    looker.join();
    return took;
}

} // namespace

TEST(Registry, who_has_woken_somebody_waits_until_it_is_taken_or_a_tenth_of_a_millisecond)
{
    static struct registry registry;
    registry.lock = LOCK_INIT(LOCK_FILE);
    bool woke = false;
    for (int i = 0; i < 100 && !woke; i++) { /* again where the other had no CPU in which to fall asleep */
        std::atomic<bool> done{false};
        registry_lock(&registry);
        std::thread sleeper([&] {
            registry_lock(&registry);
            while (!done)
                sleep_ms(1);
            registry_unlock(&registry);
        });
        while (u32_load_relaxed(&registry.lock.word) != LOCK_SLEPT_FOR)
            sleep_ms(1);
        sleep_ms(5);
        woke = lock_drop(&registry.lock);
        auto began = std::chrono::steady_clock::now();
        registry_leave_to(&registry, woke);
        EXPECT_TRUE(!woke || lock_held(&registry.lock) || std::chrono::steady_clock::now() - began >= std::chrono::microseconds(100));
        done = true;
        sleeper.join();
    }
    EXPECT_TRUE(woke);
    EXPECT_FALSE(lock_held(&registry.lock));
}

TEST(Registry, nobody_is_waited_for_where_nobody_slept)
{
    static struct registry registry;
    registry.lock = LOCK_INIT(LOCK_FILE);
    registry_lock(&registry);
    EXPECT_FALSE(lock_drop(&registry.lock));
    registry_lock(&registry);
    u32_store_relaxed(&registry.lock.word, LOCK_SLEPT_FOR); /* as who was woken leaves it */
    EXPECT_FALSE(lock_drop(&registry.lock));
}

TEST(Registry, who_has_it_nearly_all_the_time_keeps_nobody_out)
{
    if (!test_long())
        GTEST_SKIP() << "whoever is woken on a busy machine may have no CPU in time";
    static struct registry registry;
    registry.lock = LOCK_INIT(LOCK_FILE);
    EXPECT_LT(forty_times(&registry), std::chrono::seconds(1)) << "it was three";
}
