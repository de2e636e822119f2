// SPDX-License-Identifier: MIT
/*
 * A kernel without membarrier: the same tests, in a process of its own where the call fails from the start.
 *
 * This program runs itself again, with NO_BARRIER in the environment, and a part of the tests named.
 */
#include "race/slab_race.h"

#include <string>

namespace {
const char *const NO_BARRIER = "QUIRE_TEST_NO_BARRIER";
enum { NEVER_ASKED = 9 };

/* Before the first test, so before the first slab; then one, that the library asks here and not only in a child. */
class WithoutBarrier : public ::testing::Environment {
public:
    void SetUp() override
    {
        if (!getenv(NO_BARRIER))
            return;
        os_fault_set(OS_BARRIER, 1, true);
        quire_slab_destroy(quire_slab_create(64, nullptr));
    }
    void TearDown() override
    {
        if (getenv(NO_BARRIER) && os_fault_set(OS_BARRIER, 0, false) == 0)
            _exit(NEVER_ASKED);
    }
};
::testing::Environment *const without_barrier = ::testing::AddGlobalTestEnvironment(new WithoutBarrier);

int status_without_barrier(const std::string &filter, std::string *output)
{
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO), dup2(ends[1], STDERR_FILENO);
        close(ends[0]), close(ends[1]);
        setenv(NO_BARRIER, "1", 1);
        execl("/proc/self/exe", "test_race", ("--gtest_filter=" + filter).c_str(), static_cast<char *>(nullptr));
        _exit(127);
    }
    close(ends[1]);
    char text[4096];
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;)
        output->append(text, size_t(n));
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Part {
    const char *name, *filter;
    bool only_long;
};
const Part parts[] = {
    {"no_element_has_two_owners", "SlabRace.no_element_has_two_owners*"},
    {"everything_at_once", "SlabRace.everything_at_once", true},
    {"pages_come_and_go", "SlabRace.pages_of_one_os_page*:SlabRace.without_decay*", true},
    {"looking_and_limits", "SlabRace.a_walk_visits*:SlabRace.statistics*:SlabRace.a_limit_holds*", true},
    {"threads_end_and_sleep", "SlabThreads.strangers_free*:SlabThreads.*sleeping*:SlabThreads.*cancelled*", true},
    {"ten_thousand_threads", "SlabThreads.ten_thousand*:SlabThreads.destructors*", true},
    {"every_operation_at_every_step", "SlabSeam.every_operation_at_every_step_of_every_other", true},
    {"children_of_busy_processes", "SlabFork.*", true},
    {"double_frees", "SlabDoubleFreeRace.*"},
    {"fairness", "SlabFairness.of_sixty_four*", true},
};
void PrintTo(const Part &part, std::ostream *out) { *out << part.filter; }

class SlabWithoutBarrier : public ::testing::TestWithParam<Part> {};
} // namespace

TEST_P(SlabWithoutBarrier, the_same_holds_for)
{
    if (getenv(NO_BARRIER))
        GTEST_SKIP() << "this is that process";
    if (under_asan() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "who is watched uses no barrier anyway";
    if (GetParam().only_long && !test_long())
        GTEST_SKIP() << "part of the long run (QUIRE_TEST_LONG=1)";
    std::string output;
    int status = status_without_barrier(GetParam().filter, &output);
    EXPECT_NE(status, NEVER_ASKED) << "the library never asked for a barrier: this proves nothing";
    EXPECT_EQ(status, 0) << output;
    EXPECT_NE(output.find("[==========] "), std::string::npos) << output;
    EXPECT_EQ(output.find("] 0 tests from"), std::string::npos) << "no test has such a name: " << GetParam().filter;
}

INSTANTIATE_TEST_SUITE_P(, SlabWithoutBarrier, ::testing::ValuesIn(parts), [](const auto &info) { return std::string(info.param.name); });
