// SPDX-License-Identifier: MIT
/*
 * random.c - where unguessable numbers begin.
 *
 * Locks: none.
 */
#include "base/random.h"

#include "os/os.h"

COLD uint64_t random_seed(void)
{
    uint64_t seed;
    if (os_entropy(&seed, sizeof seed) != 0)
        seed = (os_time_ns() ^ (uintptr_t)&seed) * UINT64_C(0x9e3779b97f4a7c15);
    return seed | 1;
}
