// SPDX-License-Identifier: MIT
/*
 * mangle_test.cc - what reads files that others wrote takes hundreds of damaged ones, under AddressSanitizer.
 *
 * Each file has a process of its own: what the programs leave to the end of theirs goes with it.
 */
#include "mangle/readers.h"
#include "support.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <sys/wait.h>

namespace {

enum { FILES = 100, FOUND = 99, HANGS_S = 120 };

/* How a child that did this ended, as waitpid() says; what the programs print is nobody's. */
template <typename Do> int in_child(Do &&something)
{
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        __sanitizer_set_report_fd(reinterpret_cast<void *>(intptr_t(dup(2))));
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        alarm(HANGS_S);
        _exit(something());
    }
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const char *__asan_default_options();
const char *__asan_default_options() { return "allocator_may_return_null=1:exitcode=99"; }

TEST(Mangle, DamagedTracesProgramsAndPlansBringNoReaderDown)
{
    Readers readers;
    ASSERT_EQ(0, in_child([&] { return readers.read_sound() ? 0 : 1; })) << "the seed itself is refused";
    readers.learn();
    ASSERT_TRUE(readers.has_learnt());
    for (uint64_t seed = 1; seed <= FILES; seed++) {
        int status = in_child([&] {
            Random random(seed);
            readers.step(random);
            return 0;
        });
        ASSERT_TRUE(WIFEXITED(status)) << "seed " << seed << ": signal " << WTERMSIG(status);
        ASSERT_NE(FOUND, WEXITSTATUS(status)) << "seed " << seed;
    }
}
