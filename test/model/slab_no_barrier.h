// SPDX-License-Identifier: MIT
/*
 * slab_no_barrier.h - with QUIRE_TEST_NO_BARRIER in the environment a test program runs as on a kernel without membarrier, from its start.
 * `barrier_is_refused` is true on such a kernel, too.
 */
#pragma once

#include <cstdlib>

#include "os/os.h"

inline const bool barrier_is_refused = [] {
    bool refused = getenv("QUIRE_TEST_NO_BARRIER") != nullptr;
    if (refused)
        os_fault_set(OS_BARRIER, 1, true);
    return refused || os_barrier_init() != 0;
}();
