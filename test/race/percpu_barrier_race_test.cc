// SPDX-License-Identifier: MIT
/*
 * A kernel without membarrier: the same tests, in a process of its own where the call fails from the start (slab_barrier_race_test.cc sees to that
 * where the environment says so).
 */
#include "race/percpu_race.h"

#include <string>

namespace {
int status_without_barrier(const std::string &filter)
{
    char path[4096] = "";
    EXPECT_GT(readlink("/proc/self/exe", path, sizeof path - 1), 0);
    std::string command = "QUIRE_TEST_NO_BARRIER=1 '" + std::string(path) + "' --gtest_brief=1 --gtest_filter='" + filter + "'";
    int status = system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
} // namespace

TEST(PercpuBarrierRace, without_barriers_everything_is_as_sound)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "ThreadSanitizer only ever sees the locks";
    EXPECT_EQ(status_without_barrier("PercpuRace.chunks_of_one_page*:PercpuRace.a_chunk_that*:PercpuThreads.others_free*:PercpuThreads.what_others*"), 0);
}

TEST(PercpuBarrierRace, and_children_of_forks_too)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    if (!test_long())
        GTEST_SKIP() << "a part of the long run: QUIRE_TEST_LONG=1";
    EXPECT_EQ(status_without_barrier("PercpuFork.a_thread*"), 0);
}
