// SPDX-License-Identifier: MIT
/*
 * fork_steps.h - a fork while another thread is at any instruction of an operation: the thread runs it one instruction at a time (the processor's trap
 * flag), stops in the signal handler of the trap, and the first thread forks.
 *
 *     thread        -- instruction -- trap, waits ................ -- instruction -- trap ...
 *     first thread                    fork, child uses the object, ends
 *
 * Only operations of the library stand between begin and end: nothing that holds a lock of libc's, for which fork would wait.
 */
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <thread>
#include <ucontext.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "race/slab_race.h"
#include "support.h"
#include "trap_flag.h"

#if QUIRE_CPU_X86_64
class Steps {
public:
    /* Which instructions: the first, then each time that a part of what came before has come; none past the last. */
    struct Which {
        uint64_t first, last;
        unsigned parts;
    };

    /* On the thread: from the next instruction on each is a trap. */
    static void begin(const Which &which)
    {
        count = 0;
        next = which.first;
        last = which.last;
        parts = which.parts;
        trap_begin();
    }
    static void end()
    {
        trap_end();
        state = ENDED;
    }
    static uint64_t counted() { return count; }

    /* On the first thread: until the other has stopped; false: it is past the end. */
    static bool wait_for_stop()
    {
        while (state == RUNNING)
            usleep(20);
        return state == STOPPED;
    }
    static void go_on() { state = RUNNING; }
    static void handle_traps()
    {
        struct sigaction action = {};
        action.sa_sigaction = trap;
        action.sa_flags = SA_SIGINFO;
        EXPECT_EQ(sigaction(SIGTRAP, &action, nullptr), 0);
        state = RUNNING;
    }

private:
    enum { RUNNING, STOPPED, ENDED };
    static inline std::atomic<int> state{RUNNING};
    static inline uint64_t count, next, last, parts; /* the thread's */

    static void trap(int, siginfo_t *, void *context)
    {
        if (++count >= last)
            static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG; /* a trap costs 20 us where a hypervisor sees it first */
        if (count < next)
            return;
        next += 1 + count / parts;
        state = STOPPED;
        while (state == STOPPED)
            usleep(20);
    }
};

/* `run`, on a thread of its own after `set_up`; `child`, which says GOOD as 0, in a child at each stop.  Returns how many there were. */
inline unsigned fork_at_steps(const char *name, const Steps::Which &which, const std::function<void()> &set_up, const std::function<void()> &run,
                              const std::function<int()> &child)
{
    Steps::handle_traps();
    std::atomic<bool> leave{false};
    unsigned forks = 0;
    std::thread thread([&] {
        set_up();
        Steps::begin(which);
        run();
        Steps::end();
        while (!leave)
            usleep(20);
    });
    for (; Steps::wait_for_stop(); Steps::go_on()) {
        uint64_t at = Steps::counted();
        EXPECT_EQ(status_of_child(child), 0) << "fork at instruction " << at << " of: " << name;
        forks++;
    }
    leave = true;
    thread.join();
    signal(SIGTRAP, SIG_DFL);
    return forks;
}
#endif
