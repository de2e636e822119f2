// SPDX-License-Identifier: MIT
/* The nth system call cannot be had: the heap serves, or it is NULL + ENOMEM; nothing is lost.  For every n until none fails. */
#include "steer_kit.h"

#include <cerrno>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>

namespace {

/* In a process of its own, with the nth call of a kind failing from the start of the plan on: 0, or what was wrong; 100: no call failed. */
int run_with_fault(enum os_call kind, uint64_t nth, bool onwards)
{
    PlanFile file(steer_test_plan());
    pid_t child = fork();
    if (child == 0) {
        char why[STEER_WHY_BYTES] = "";
        struct steer_opts opts = {};
        opts.counts = true;
        void *warm = quire_heap_alloc(quire_heap_default(), 10); /* the heap has what it needs to begin */
        quire_heap_free(quire_heap_default(), warm);
        os_fault_set(kind, nth, onwards);
        bool is_up = steer_start(file.path.c_str(), &opts, why);
        if (!is_up && why[0] == 0)
            _exit(1);
        std::vector<unsigned char *> blocks;
        auto work = [&] {
            for (size_t i = 0; i < 30000; i++) {
                errno = 0;
                auto *p = static_cast<unsigned char *>(steer_alloc_zero(40 + i % 50, call_from(1 + i % 3)));
                if (!p && errno != ENOMEM)
                    _exit(2);
                if (p && (p[0] != 0 || p[39 + i % 50] != 0))
                    _exit(3);
                if (p) {
                    memset(p, int(i), 40 + i % 50);
                    blocks.push_back(p);
                }
            }
        };
        work();
        std::thread(work).join();
        uint64_t calls = os_fault_set(kind, 0, false);
        if (is_up && steer_check())
            _exit(4);
        for (auto *p : blocks) {
            if (p[0] != p[39])
                _exit(5);
            steer_free(p);
        }
        void *p = alloc_at(1, 10); /* the next success works */
        if (!p)
            _exit(6);
        steer_free(p);
        _exit(calls < nth ? 100 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void all_of(enum os_call kind, bool onwards)
{
    for (uint64_t nth = 1; nth < 300; nth++) {
        int said = run_with_fault(kind, nth, onwards);
        if (said == 100)
            return;
        ASSERT_EQ(said, 0) << "call " << nth;
    }
}

} // namespace

TEST(SteerFault, the_nth_mapping_fails_once_or_from_then_on)
{
    all_of(OS_MAP, false);
    all_of(OS_MAP, true);
}

TEST(SteerFault, the_nth_protection_or_advice_fails_once_or_from_then_on)
{
    for (enum os_call kind : {OS_PROTECT, OS_ADVISE}) {
        all_of(kind, false);
        all_of(kind, true);
    }
}
