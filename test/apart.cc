// SPDX-License-Identifier: MIT
/*
 * apart.cc - the test programs' main(): GoogleTest's own, and with --apart=I/N every Nth test, each in a child of its own.
 *
 *   test_unit --apart=3/48      start, once        fork -> test 3 -> exit
 *                                                  fork -> test 51 -> exit
 *                                                  ...
 *
 * A sanitizer's start takes longer than most tests.  A test still has a process that no other test has touched: the parent only starts children.
 * --gtest_filter holds (patterns with : between them), and QUIRE_TEST_ONLY, a regular expression, as ctest -R would.
 * --turns=M/K: where QUIRE_TEST_TURN is set, as ./quire test does, every Mth of the tests, and others in another run (turn.h); all that somebody asks
 * for by name.  With another K others in the same run: of two builds each has what the other leaves out.
 * Invariants: A1  a test whose child ends by a signal, or with any status but those two, has failed: a leak found at the end is one.
 *             A2  each test that failed has a line of its own, and the counts are the last line.
 * Not here: the environment of tests (still_clock.cc), the parts (CMakeLists.txt).
 */
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fnmatch.h>
#include <functional>
#include <regex.h>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "turn.h"

namespace {
constexpr int SKIPPED = 77;

bool is_asked_for(const std::string &name, const std::string &kind)
{
    static const char *const only = getenv("QUIRE_TEST_ONLY");
    static regex_t compiled;
    static const bool narrowed = only && regcomp(&compiled, only, REG_EXTENDED | REG_NOSUB) == 0;
    std::istringstream patterns(::testing::GTEST_FLAG(filter));
    bool wanted = false;
    for (std::string pattern; getline(patterns, pattern, ':');)
        wanted = wanted || fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    return wanted && (!narrowed || regexec(&compiled, (kind + "." + name).c_str(), 0, nullptr, 0) == 0);
}

/* Of M tests one. */
struct Turns {
    unsigned count = 1, first = 0;
};

/* Whether it is this test's turn: of a hash, so that a new test moves no other. */
bool is_its_turn(const std::string &name, Turns turns)
{
    return !getenv("QUIRE_TEST_TURN") || getenv("QUIRE_TEST_ONLY") || is_of_this_run(unsigned(std::hash<std::string>()(name) >> 40) + turns.first, turns.count);
}

std::vector<std::string> names_of_part(const std::string &kind, unsigned index, unsigned parts, Turns turns)
{
    const ::testing::UnitTest &all = *::testing::UnitTest::GetInstance();
    std::vector<std::string> names;
    unsigned number = 0;
    for (int i = 0; i < all.total_test_suite_count(); i++) {
        const ::testing::TestSuite &suite = *all.GetTestSuite(i);
        for (int j = 0; j < suite.total_test_count(); j++) {
            std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(j)->name();
            if (is_asked_for(name, kind) && number++ % parts == index && is_its_turn(name, turns))
                names.push_back(name);
        }
    }
    return names;
}

uint64_t ms(const struct timeval &time) { return uint64_t(time.tv_sec) * 1000 + uint64_t(time.tv_usec) / 1000; }

/* What waitpid() says of the child, and what it used. */
int status_of_one(const std::string &name, struct rusage *used)
{
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        ::testing::GTEST_FLAG(filter) = name;
        int failed = RUN_ALL_TESTS();
        exit(failed ? 1 : ::testing::UnitTest::GetInstance()->skipped_test_count() ? SKIPPED : 0);
    }
    int status = -1;
    wait4(child, &status, 0, used);
    return status;
}

int run_part(const std::string &kind, unsigned index, unsigned parts, Turns turns)
{
    int passed = 0, failed = 0, skipped = 0;
    for (const std::string &name : names_of_part(kind, index, parts, turns)) {
        struct rusage used = {};
        printf("test %s\n", name.c_str());
        int status = status_of_one(name, &used);
        printf("cpu %llu + %llu ms\n", (unsigned long long)ms(used.ru_utime), (unsigned long long)ms(used.ru_stime));
        if (status == 0)
            passed++;
        else if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
            skipped++;
        else {
            printf("FAILED %s: %s %d\n", name.c_str(), WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            failed++;
        }
    }
    printf("apart: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
} // namespace

int main(int argc, char **argv)
{
    ::testing::InitGoogleTest(&argc, argv);
    unsigned index, parts;
    Turns turns;
    const char *kind = strstr(argv[0], "test_");
    if (argc > 2)
        sscanf(argv[2], "--turns=%u/%u", &turns.count, &turns.first);
    if (argc > 1 && sscanf(argv[1], "--apart=%u/%u", &index, &parts) == 2 && index < parts && turns.count > 0)
        return run_part(kind ? kind + strlen("test_") : "", index, parts, turns);
    return RUN_ALL_TESTS();
}
