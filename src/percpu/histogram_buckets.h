// SPDX-License-Identifier: MIT
/*
 * histogram_buckets.h - which values a bucket has: the way back from quire_histogram_bucket_of().
 *
 *     precision 1   bucket   0   1   2   3   4     5     6     7     8       ...  127
 *                   values   0   1   2   3   4-5   6-7   8-11  12-15 16-23   ...  3 * 2^62 - (2^64 - 1)
 *                            '--linear--'  '-octave-'    '-octave-'
 *
 * Invariants:
 *   H1  bucket_of(least(i)) == bucket_of(largest(i)) == i, and largest(i) + 1 == least(i + 1)
 *   H2  every bucket of a higher precision lies in one bucket of a lower: counts go from fine to coarse exactly
 */
#ifndef QUIRE_PERCPU_HISTOGRAM_BUCKETS_H
#define QUIRE_PERCPU_HISTOGRAM_BUCKETS_H

#include <quire/histogram.h>

static inline bool histogram_precision_is_valid(unsigned bits)
{
    return bits >= 1 && bits <= QUIRE_HISTOGRAM_PRECISION_BITS_MAX;
}

static inline size_t histogram_bucket_count(unsigned bits)
{
    return (size_t)(65 - bits) << bits;
}

/* How many low bits of a value its bucket does not keep. */
static inline unsigned histogram_bucket_shift(size_t bucket, unsigned bits)
{
    return bucket >> bits ? (unsigned)(bucket >> bits) - 1 : 0;
}

static inline uint64_t histogram_bucket_least(size_t bucket, unsigned bits)
{
    unsigned shift = histogram_bucket_shift(bucket, bits);
    return (uint64_t)(bucket - ((size_t)shift << bits)) << shift;
}

static inline uint64_t histogram_bucket_largest(size_t bucket, unsigned bits)
{
    return histogram_bucket_least(bucket, bits) + ((UINT64_C(1) << histogram_bucket_shift(bucket, bits)) - 1);
}

/* The value of that rank, from 1, is the `percent`-th percentile of `count` values: ceil(count * percent / 100), at least 1. */
static inline uint64_t histogram_rank(uint64_t count, double percent)
{
    const uint64_t whole = UINT64_C(100000000); /* millionths of a percent: whole numbers, so that 99.9 % of 1000 is 999 and not 1000 */
    uint64_t part = !(percent > 0) ? 0 : percent >= 100 ? whole : (uint64_t)(percent * 1e6 + 0.5);
    uint64_t rank = count / whole * part + (count % whole * part + whole - 1) / whole;
    return rank ? rank : 1;
}

#endif
