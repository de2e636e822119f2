// SPDX-License-Identifier: MIT
/*
 * slab_clock.h - the default source's clock, which gives empty pages back on its own: stopped, but for the programs that set it.
 *
 *     set -----------------------------> stopped ----- a while -----> quiet: nothing goes but what the program gives
 *
 * A while is one of the process's CPU time: a machine that stops the process stops the thread that gives pages back, too.
 */
#pragma once

#include <cstdint>

#include <ctime>

#include <quire/source.h>

#include "support.h"

class SlabClock {
public:
    SlabClock()
    {
        if (changed_ns == 0)
            stop();
    }
    ~SlabClock()
    {
        if (mine)
            stop();
    }
    void set(uint64_t decay_ns)
    {
        mine = true;
        quire_source_set_decay(quire_source_default(), decay_ns);
    }
    bool quiet() const { return !mine && cpu_ns() > changed_ns + A_WHILE_NS; }

private:
    static constexpr uint64_t A_WHILE_NS = 300000000;
    static uint64_t cpu_ns()
    {
        struct timespec now;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
    }
    static void stop()
    {
        quire_source_set_decay(quire_source_default(), DECAY_STILL_NS);
        changed_ns = cpu_ns();
    }
    inline static uint64_t changed_ns;
    bool mine = false;
};
