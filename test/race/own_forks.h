// SPDX-License-Identifier: MIT
/*
 * own_forks.h - a handler forks in the middle of its own thread's operation, at any instruction, and returns: the child ends what was begun.
 *
 *     thread   -- instruction -- trap: forks, waits ............ goes on --
 *     child                           \ returns -- the rest of the operation -- looks, and ends
 *
 * Only operations of the library stand in between, and nothing that calls malloc, in which a handler must not fork.
 */
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support.h"
#include "trap_flag.h"

#if QUIRE_CPU_X86_64
class OwnForks {
public:
    /* On the calling thread; `child` says GOOD as 0.  Forks at the first instruction, and each time that a part of what came before has come; not past the last. */
    static void during(const char *name, uint64_t last_, unsigned parts_, const std::function<void()> &run, const std::function<int()> &child)
    {
        struct sigaction action = {}, before;
        action.sa_sigaction = fork_here;
        action.sa_flags = SA_SIGINFO;
        ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
        count = 0, next = 1, last = last_, parts = parts_, forks = worst = 0;
        trap_begin();
        run();
        trap_end();
        if (is_child)
            exit_now(child());
        sigaction(SIGTRAP, &before, nullptr);
        EXPECT_EQ(worst, 0) << "fork at instruction " << worst_at << " of " << count << ": " << name;
        EXPECT_GT(forks, 10) << name;
    }

private:
    static inline uint64_t count, next, last, worst_at;
    static inline unsigned parts, forks;
    static inline int worst; /* the first status that is not good */
    static inline volatile sig_atomic_t is_child;

    static void fork_here(int, siginfo_t *, void *context)
    {
        greg_t &flags_there = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL];
        if (++count >= last)
            flags_there &= ~TRAP_FLAG; /* a trap costs 20 us where a hypervisor sees it first */
        if (count < next)
            return;
        next += 1 + count / parts;
        int kept = errno, status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            is_child = 1;
            flags_there &= ~TRAP_FLAG;
        } else {
            waitpid(pid, &status, 0);
            forks++;
        }
        if (status != 0 && worst == 0)
            worst = status, worst_at = count;
        errno = kept;
    }
};
#endif
