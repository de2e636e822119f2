// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include <quire/quire.h>

#include "base/lock.h"
#include "support.h"

TEST(Lock, one_holder_at_a_time_among_many_that_sleep_for_it)
{
    static struct lock lock = LOCK_INIT(LOCK_FILE);
    static long shared;
    shared = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([] {
            for (int i = 0; i < 3000; i++) {
                lock_take(&lock);
                long seen = shared;
                if (i % 100 == 0)
                    sched_yield(); /* the others run out of spins and give their turns away */
                if (i % 1000 == 0)
                    std::this_thread::sleep_for(std::chrono::milliseconds(1)); /* and of these too: they sleep */
                shared = seen + 1;
                lock_drop(&lock);
            }
        });
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(shared, 8 * 3000);
    EXPECT_FALSE(lock_held(&lock));
}

TEST(Lock, trying_fails_while_somebody_holds_it)
{
    struct lock lock = LOCK_INIT(LOCK_FILE);
    ASSERT_TRUE(lock_try(&lock));
    std::thread([&] { EXPECT_FALSE(lock_try(&lock)); }).join();
    lock_drop(&lock);
    std::thread([&] {
        EXPECT_TRUE(lock_try(&lock));
        lock_drop(&lock);
    }).join();
}

TEST(Lock, in_zeroed_memory_it_gets_its_rank_when_it_is_first_taken)
{
    struct lock lock = {};
    EXPECT_FALSE(lock_is_ranked(&lock));
    ASSERT_TRUE(lock_try_fresh(&lock, LOCK_FILE));
    EXPECT_TRUE(lock_is_ranked(&lock));
    EXPECT_TRUE(lock_is_mine(&lock));
    std::thread([&] { EXPECT_FALSE(lock_try_fresh(&lock, LOCK_FILE)); }).join();
    lock_drop(&lock);
    EXPECT_TRUE(lock_is_ranked(&lock));
    lock_take(&lock);
    lock_drop(&lock);
}

TEST(Lock, after_a_fork_it_is_free_and_says_whether_it_was_held)
{
    struct lock lock = LOCK_INIT(LOCK_FILE);
    EXPECT_FALSE(lock_reset(&lock));
    std::thread([&] { lock_take(&lock); }).join();
    EXPECT_TRUE(lock_reset(&lock));
    EXPECT_FALSE(lock_held(&lock));
}

TEST(Lock, after_a_fork_what_the_forking_thread_holds_stays_its_own)
{
    struct lock mine = LOCK_INIT(LOCK_FILE), another = LOCK_INIT(LOCK_REGIONS), free = LOCK_INIT(LOCK_PAGEMAP);
    std::thread([&] { lock_take(&another); }).join();
    lock_take(&mine);
    EXPECT_TRUE(lock_is_mine(&mine));
    EXPECT_FALSE(lock_is_mine(&another));
    EXPECT_FALSE(lock_reset_others(&mine));
    EXPECT_TRUE(lock_held(&mine));
    EXPECT_TRUE(lock_reset_others(&another));
    EXPECT_FALSE(lock_held(&another));
    EXPECT_FALSE(lock_reset_others(&free));
    lock_rerank(&mine, LOCK_SHARD);
    EXPECT_TRUE(lock_is_mine(&mine));
    lock_drop(&mine);
    EXPECT_FALSE(lock_is_mine(&mine));
}

TEST(LockDeathTest, ranks_rise_and_only_the_holder_drops)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build looks";
    struct lock low = LOCK_INIT(LOCK_FILE), high = LOCK_INIT(LOCK_REGIONS);
    lock_take(&high);
    EXPECT_DEATH(lock_take(&low), "^quire: lock: L1 ranks rise: address 0x[0-9a-f]+\n");
    lock_drop(&high);
    EXPECT_DEATH(lock_drop(&low), "^quire: lock: L2 dropped by its holder: address 0x[0-9a-f]+\n");
}

TEST(Version, the_library_says_what_the_headers_say)
{
    std::string numbers = std::to_string(QUIRE_VERSION_MAJOR) + "." + std::to_string(QUIRE_VERSION_MINOR) + "." + std::to_string(QUIRE_VERSION_PATCH);
    EXPECT_EQ(numbers, quire_version());
}
