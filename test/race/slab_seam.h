// SPDX-License-Identifier: MIT
/*
 * slab_seam.h - a thread that stops at its k-th atomic step while another does a whole operation.
 *
 *     A:  -- step 0 -- step 1 -- ... -- step k  .........................  go on --
 *     B:                                        -- the other operation --
 *
 * With k from 0 to the last, every interleaving of two operations with one interruption is tried, by name and not by chance.  Where B has to
 * wait for A (a lock that A holds) A goes on after PATIENCE_NS.
 *
 * Only the `check` builds have the steps.
 */
#pragma once

#include "race/slab_race.h"

class Seam {
public:
    static constexpr uint64_t PATIENCE_NS = 3000000;

    static void reset() { state = RUNNING; }
    /* On A: stop at step k of what follows; k < 0: nowhere. */
    static void arm(int k) { countdown = k; }
    /* On A, when the operation is over. */
    static void disarm()
    {
        countdown = -1;
        int running = RUNNING;
        state.compare_exchange_strong(running, PASSED);
    }
    /* On B: until A has stopped at its step, or is past the operation without having come to it. */
    static void wait_for_stop()
    {
        while (state == RUNNING)
            wait_a_moment();
    }
    static void go_on()
    {
        int stopped = STOPPED;
        state.compare_exchange_strong(stopped, GOING);
    }
    /* A's operation has fewer steps than k. */
    static bool is_passed() { return state == PASSED; }
    /* The hook of atomic steps. */
    static void step()
    {
        if (countdown < 0 || countdown-- > 0)
            return;
        state = STOPPED;
        for (uint64_t until_ns = os_time_ns() + PATIENCE_NS; state == STOPPED && os_time_ns() < until_ns;)
            wait_a_moment();
    }

private:
    enum { RUNNING, STOPPED, GOING, PASSED };
    static inline std::atomic<int> state{RUNNING};
    static inline thread_local int countdown = -1;
};
