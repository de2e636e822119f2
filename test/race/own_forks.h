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

#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <pthread.h>
#include <sys/wait.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "race/slab_race.h"
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

/* The same at moments that a signal chooses, of a thread that works on and on. */
class ForksBySignal {
public:
    using Ends = std::function<bool()>;
    /*
     * `work` until it is told to end: false, something was wrong; in the child `rest` times more, then `child` says GOOD as 0.  Returns how many did not.
     * in_handler: what the child does there.
     */
    static int bad_children(int wanted, int rest, const std::function<bool(const Ends &)> &work, const std::function<int(bool good)> &child, void (*in_handler)() = nullptr)
    {
        forks = 0;
        does = in_handler;
        auto before = signal(SIGUSR1, fork_and_return);
        pthread_t here = pthread_self();
        std::thread knocks([&] {
            for (unsigned i = 0; forks < wanted && pthread_kill(here, SIGUSR1) == 0; i++)
                usleep(1000 + i * 37 % 200);
        });
        int bad = 0, status = 0;
        auto ended = [&] {
            bad += status != 0;
            if (status)
                fprintf(stderr, "child: status %#x\n", status);
        };
        bool good = work([&] {
            if (is_child)
                return --rest < 0;
            while (waitpid(-1, &status, WNOHANG) > 0)
                ended();
            return forks >= wanted && !is_child;
        });
        if (is_child)
            exit_now(child(good));
        EXPECT_TRUE(good);
        knocks.join();
        signal(SIGUSR1, before);
        while (waitpid(-1, &status, 0) > 0)
            ended();
        return bad;
    }
    static bool is_in_child() { return is_child; }

private:
    static inline std::atomic<int> forks;
    static inline volatile sig_atomic_t is_child;
    static inline void (*does)();

    static void fork_and_return(int)
    {
        int kept = errno;
        pid_t pid = is_child ? -1 : fork();
        if (pid == 0) {
            alarm(20);
            if (does)
                does();
            is_child = 1;
        }
        forks += pid > 0;
        errno = kept;
    }
};
