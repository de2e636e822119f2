// SPDX-License-Identifier: MIT
/* The nth system call cannot be had: blocks are served, or NULL + ENOMEM; a sample without a stack is counted as lost.  For every n until none fails. */
#include "prof_kit.h"

#include <cerrno>
#include <sys/wait.h>

namespace {

/* 0, or what was wrong; 100: no call failed. */
int run_with_fault(enum os_call kind, uint64_t nth, bool onwards)
{
    pid_t child = fork();
    if (child == 0) {
        Profile profile(1024);
        void *warm = profiled_malloc(10);
        os_fault_set(kind, nth, onwards);
        std::vector<unsigned char *> blocks;
        for (size_t i = 0; i < 3000; i++) {
            size_t bytes = i % 1000 == 999 ? 6 << 20 : 100 + i % 1000; /* large ones are mapped each: how often regions are is a matter of where the first lies */
            errno = 0;
            auto *p = static_cast<unsigned char *>(profiled_malloc(bytes));
            if (p && i % 3 == 0)
                if (auto *fresh = static_cast<unsigned char *>(profiled_realloc(p, bytes + 100)))
                    p = fresh;
            if (!p && errno != ENOMEM)
                _exit(2);
            if (p) {
                memset(p, int(i), bytes);
                blocks.push_back(p);
            }
        }
        uint64_t calls = os_fault_set(kind, 0, false);
        struct prof_stats stats = Profile::stats();
        if (prof_check() || quire_heap_check(quire_heap_default()))
            _exit(3);
        if (stats.samples < 1000 && !onwards)
            _exit(4);
        for (auto *p : blocks) {
            if (p[0] != p[99])
                _exit(5);
            profiled_free(p);
        }
        profiled_free(warm);
        if (Profile::stats().live_bytes != 0 || Profile::stats().live_blocks != 0)
            _exit(6);
        _exit(calls < nth ? 100 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void each_nth(enum os_call kind, uint64_t at_least)
{
    for (bool onwards : {false, true}) {
        uint64_t nth = 1;
        for (int said = 0; said == 0 && nth < 400; nth++)
            if ((said = run_with_fault(kind, nth, onwards)) != 0) {
                EXPECT_EQ(said, 100) << nth << onwards;
            }
        EXPECT_GE(nth, at_least);
    }
}

TEST(ProfFault, no_mapping_can_be_had)
{
    each_nth(OS_MAP, 4);
}

TEST(ProfFault, no_entropy_can_be_had)
{
    Profile profile(1024);
    os_fault_set(OS_ENTROPY, 1, true);
    void *p = profiled_malloc(100000);
    EXPECT_GE(os_fault_failed(OS_ENTROPY), 1u); /* the heap may ask, too */
    os_fault_set(OS_ENTROPY, 0, false);
    EXPECT_GE(Profile::stats().live_bytes, 96u << 10);
    profiled_free(p);
}

} // namespace
