// SPDX-License-Identifier: MIT
/*
 * A kernel without membarrier: the same tests, in a process of its own where the call fails from the start (slab_barrier_race_test.cc sees to that
 * where the environment says so); everything goes by locks then.
 */
#include "race/heap_race.h"

namespace {
int status_without_barrier(const std::string &filter)
{
    char path[4096] = "";
    EXPECT_GT(readlink("/proc/self/exe", path, sizeof path - 1), 0);
    std::string command = "QUIRE_TEST_NO_BARRIER=1 '" + std::string(path) + "' --gtest_brief=1 --gtest_filter='" + filter + "'";
    int status = system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool is_watched_anyway() { return BUILT_WITH_TSAN || under_asan(); } /* and then never has a barrier */
} // namespace

TEST(HeapBarrierRace, without_barriers_everything_is_as_sound)
{
    if (is_watched_anyway())
        GTEST_SKIP() << "sanitizers only ever see the locks";
    EXPECT_EQ(status_without_barrier("HeapRace.no_block*:HeapRemote.producers*:HeapRemote.two_that*:HeapRemote.strangers*"), 0);
}

TEST(HeapBarrierRace, and_so_are_double_frees_ends_of_threads_and_forks)
{
    if (is_watched_anyway())
        GTEST_SKIP() << "sanitizers only ever see the locks";
    if (!test_long())
        GTEST_SKIP() << "a part of the long run: QUIRE_TEST_LONG=1";
    EXPECT_EQ(status_without_barrier("HeapDoubleFree*:HeapThreads.*:HeapFork.*:HeapRace.*"), 0);
}
