// SPDX-License-Identifier: MIT
/*
 * align.h - sizes and alignments, computed so that overflow cannot pass unseen.
 *
 * Not here: the OS page size, which is known at run time only (os/os.h).
 */
#ifndef QUIRE_BASE_ALIGN_H
#define QUIRE_BASE_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool is_pow2(size_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* Round down or up to a power of two.  align_up() wraps: use align_up_checked() on sizes that a caller chose. */
static inline size_t align_down(size_t n, size_t align)
{
    return n & ~(align - 1);
}

static inline size_t align_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

static inline bool align_up_checked(size_t n, size_t align, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(n, align - 1, &sum))
        return false;
    *out = sum & ~(align - 1);
    return true;
}

static inline bool add_checked(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool mul_checked(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* The smallest k with 2^k >= n, and the largest with 2^k <= n; n > 0. */
static inline unsigned log2_ceil(size_t n)
{
    return n <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(n - 1);
}

static inline unsigned log2_floor(size_t n)
{
    return 63 - (unsigned)__builtin_clzll(n);
}

#endif
