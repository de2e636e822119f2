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
#include <ucontext.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "support.h"

#if QUIRE_CPU_X86_64
class Steps {
public:
    /* On the thread: from the next instruction on each is a trap.  It stops at the first'th, and then when a part of what came before has come; not past the last. */
    static void begin(uint64_t last_, uint64_t first = 1, unsigned part = test_long() ? 100 : 4)
    {
        count = 0;
        next = first;
        last = last_;
        parts = part;
        __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\torq $0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" ::: "memory", "cc");
    }
    static void end()
    {
        __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpushfq\n\tandq $~0x100, (%%rsp)\n\tpopfq\n\tlea 128(%%rsp), %%rsp" ::: "memory", "cc");
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
            static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] &= ~0x100; /* a trap costs 20 us where a hypervisor sees it first */
        if (count < next)
            return;
        next += 1 + count / parts;
        state = STOPPED;
        while (state == STOPPED)
            usleep(20);
    }
};
#endif
