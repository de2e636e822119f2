// SPDX-License-Identifier: MIT
/*
 * random.h - numbers that cannot be guessed: Marsaglia's xorshift64, its upper half, from a seed of the system's.
 *
 * Not here: whose sequence it is; a state is used by one thread at a time.
 */
#ifndef QUIRE_BASE_RANDOM_H
#define QUIRE_BASE_RANDOM_H

#include <stdint.h>

#include "base/compiler.h"

/* Not 0.  Where the system has no entropy to give, of the time and of where things lie. */
uint64_t random_seed(void);

/* 32 bits.  A state of 0 gets a seed first. */
static ALWAYS_INLINE uint32_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    if (unlikely(x == 0))
        x = random_seed();
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    *state = x;
    return (uint32_t)(x >> 32);
}

#endif
