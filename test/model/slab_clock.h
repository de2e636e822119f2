// SPDX-License-Identifier: MIT
/*
 * slab_clock.h - the default source's clock, which gives empty pages back on its own: stopped, but for the programs that set it.
 *
 *     set -----------------------------> set to an hour ----- a while -----> quiet: nothing goes but what the program gives
 */
#pragma once

#include <cstdint>

#include <quire/source.h>

#include "os/os.h"

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
    bool quiet() const { return !mine && os_time_ns() > changed_ns + A_WHILE_NS; }

private:
    static constexpr uint64_t HOUR_NS = UINT64_C(3600) * 1000000000, A_WHILE_NS = 300000000;
    static void stop()
    {
        quire_source_set_decay(quire_source_default(), HOUR_NS);
        changed_ns = os_time_ns();
    }
    inline static uint64_t changed_ns;
    bool mine = false;
};
