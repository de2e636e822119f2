// SPDX-License-Identifier: MIT
/* On a kernel without membarrier a slab works through locks: its tests once more, in processes that never get one. */
#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>
#include <string>
#include <unistd.h>

#include <quire/slab.h>

#include "model/slab_no_barrier.h"
#include "support.h"

namespace {

std::string folder_of_this_program()
{
    char path[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - 1);
    std::string text(path, size_t(bytes > 0 ? bytes : 0));
    return text.substr(0, text.rfind('/'));
}

/* Some tests of a test program beside this one; its status.  QUIRE_TEST_EMULATOR: what runs programs of this processor on another. */
int run_without_barrier(const std::string &program, const std::string &filter)
{
    std::string path = folder_of_this_program() + "/" + program;
    if (access(path.c_str(), X_OK) != 0)
        return 0; /* not built */
    std::string command = "QUIRE_TEST_NO_BARRIER=1 timeout 200 $QUIRE_TEST_EMULATOR '" + path + "' --gtest_brief=1 --gtest_filter='" + filter + "' 2>&1";
    return system(command.c_str());
}

const char *const WATCHED = "who is watched uses no barrier anyway: these tests themselves have shown it";

} // namespace

TEST(SlabWithoutBarrier, a_process_is_told_so)
{
    ASSERT_EQ(run_without_barrier("test_unit", "SlabWithoutBarrierInside.*"), 0);
}

TEST(SlabWithoutBarrierInside, calls_are_refused)
{
    if (!barrier_is_refused)
        GTEST_SKIP() << "runs inside the test before, and on an old kernel";
    quire_slab *slab = quire_slab_create(64, nullptr);
    EXPECT_NE(quire_slab_alloc(slab), nullptr);
    quire_slab_trim(slab);
    quire_slab_destroy(slab);
    if (getenv("QUIRE_TEST_NO_BARRIER")) { /* else the kernel refuses, and nobody counts */
        EXPECT_GT(os_fault_set(OS_BARRIER, 1, true), 0u) << "somebody asked and was refused";
    }
}

TEST(SlabWithoutBarrier, elements_looks_limits_and_trims_are_the_same)
{
    if (memory_is_watched())
        GTEST_SKIP() << WATCHED;
    EXPECT_EQ(run_without_barrier("test_unit", "Slab.*:SlabLook.*:SlabLimit.*:SlabTrim.*:SlabDecay.*:SlabDefrag.*:SlabMode.*:SlabShared.*"), 0);
}

TEST(SlabWithoutBarrier, random_programs_agree_with_the_model)
{
    if (memory_is_watched())
        GTEST_SKIP() << WATCHED;
    EXPECT_EQ(run_without_barrier("test_model", "SlabModel.*threads*"), 0);
}

TEST(SlabWithoutBarrier, misuse_is_refused_with_the_same_words)
{
    if (memory_is_watched())
        GTEST_SKIP() << WATCHED;
    EXPECT_EQ(run_without_barrier("test_death", "*SlabDeathTest.freed*"), 0);
}

TEST(SlabWithoutBarrier, failures_lose_nothing)
{
    if (memory_is_watched())
        GTEST_SKIP() << WATCHED;
    EXPECT_EQ(run_without_barrier("test_fault", "SlabFault.*span*:SlabFault.*thread*"), 0);
}
