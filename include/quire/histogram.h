// SPDX-License-Identifier: MIT
/*
 * quire/histogram.h - how often each value occurs, recorded by many threads.
 *
 * Use it for what has a distribution: response times, sizes, queue lengths.  Any uint64_t may be recorded, in whatever unit; nothing is configured but
 * the precision.  Recording is one quire_percpu_add().  Memory is used only by the CPUs that record, and only where their values lie.
 *
 *     static struct quire_histogram times_ns;
 *     if (quire_histogram_init(&times_ns, pool, 7) != 0) ...                       // within 1/128 of each value
 *     quire_histogram_record(&times_ns, end_ns - begin_ns);                        // from any thread
 *     struct quire_histogram_snapshot *seen = quire_histogram_snapshot_create(7);
 *     quire_histogram_snapshot_take(seen, &times_ns);
 *     printf("p99 %lu ns\n", (unsigned long)quire_histogram_snapshot_percentile(seen, 99));
 *
 * Buckets: values below 2^(precision_bits + 1) have one each; above, every octave [2^k, 2^(k+1)) is cut into 2^precision_bits buckets of equal
 * width.  So two values in one bucket differ by less than 2^-precision_bits of the smaller, and everything read from a histogram is as exact as that.
 *
 *     precision_bits                    1      3      5      7      8     10
 *     the error is less than         50 %   12.5 %  3.2 %  0.8 %  0.4 %  0.1 %
 *     buckets, of 8 bytes             128    496   1920   7424  14592  56320
 *
 * Threads: record and take may be called from any thread at any time.  A snapshot is for one thread at a time.
 * Signals and fork: record may be called from a signal handler, the others not.  A child goes on with counts of its own, which begin at
 * the parent's (but see quire/percpu.h on file and memfd sources).
 */
#ifndef QUIRE_HISTOGRAM_H
#define QUIRE_HISTOGRAM_H

#include <quire/percpu.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { QUIRE_HISTOGRAM_PRECISION_BITS_MAX = 10 };

/* Yours to place; all zero: not yet made, or ended.  The fields are public so that recording is inline; do not use them otherwise. */
struct quire_histogram {
    struct quire_percpu *pool;
    struct quire_percpu_ref ref; /* an intptr_t for each bucket */
    unsigned precision_bits;
};

/* What a snapshot adds up to; all zero when nothing was recorded. */
struct quire_histogram_stats {
    size_t struct_bytes; /* sizeof, set by the caller */
    uint64_t count; /* values recorded */
    uint64_t min;   /* the least value of the lowest bucket that has any */
    uint64_t max;   /* the largest value of the highest bucket that has any */
    double sum;     /* of all values, each taken for the middle of its bucket; exact for values below 2^(precision_bits + 1) */
};

/* Some values of a snapshot: `count` of them lie in [least, largest]. */
struct quire_histogram_bucket {
    uint64_t least, largest;
    uint64_t count;
};

/*
 * Begin an empty histogram, in a pool that must outlive it.  Returns 0, or -1 with errno: ENOMEM (as quire_percpu_alloc(); also a pool whose units are
 * smaller than the buckets), EINVAL (pool NULL, precision_bits 0 or more than 10); the histogram is then all zero.  Cost: one quire_percpu_alloc().
 * MT-Unsafe race:histogram.
 */
QUIRE_API int quire_histogram_init(struct quire_histogram *histogram, struct quire_percpu *pool, unsigned precision_bits);

/*
 * End a histogram; nobody may be using it.  NULL, and one that is all zero, is left alone; errno is kept.  Cost: one quire_percpu_free().
 * MT-Unsafe race:histogram.
 */
QUIRE_API void quire_histogram_fini(struct quire_histogram *histogram);

/* Count a value.  Nothing is ever lost or counted twice.  Cost: as quire_percpu_add(), and finding the bucket, about 1 ns.  MT-Safe. */
QUIRE_API void quire_histogram_record(struct quire_histogram *histogram, uint64_t value);

/* The number of a value's bucket: an order-preserving map from uint64_t to 0 .. (65 - bits) * 2^bits - 1; bits 1 to 10. */
extern inline __attribute__((__gnu_inline__, __always_inline__)) size_t quire_histogram_bucket_of(uint64_t value, unsigned bits)
{
    unsigned shift = 63U - (unsigned)__builtin_clzll(value | UINT64_C(1) << bits) - bits;
    return ((size_t)shift << bits) + (value >> shift);
}

#if QUIRE_PERCPU_INLINE
extern inline __attribute__((__gnu_inline__, __always_inline__)) void quire_histogram_record(struct quire_histogram *histogram, uint64_t value)
{
    size_t bucket = quire_histogram_bucket_of(value, histogram->precision_bits);
    struct quire_percpu_ref ref = {histogram->ref.bits + bucket * sizeof(intptr_t)};
    quire_percpu_add(histogram->pool, ref, 1);
}
#endif

/* The counts of a histogram at one moment, in memory of their own: to read, to add up, to keep. */
struct quire_histogram_snapshot;

/*
 * A new snapshot, empty.  NULL with errno: ENOMEM, EINVAL (precision_bits 0 or more than 10).  Cost: a span of the default source for 8 bytes a bucket.
 * MT-Safe.
 */
QUIRE_API struct quire_histogram_snapshot *quire_histogram_snapshot_create(unsigned precision_bits);

/* End a snapshot.  NULL is left alone; errno is kept.  MT-Unsafe race:snapshot. */
QUIRE_API void quire_histogram_snapshot_destroy(struct quire_histogram_snapshot *snapshot);

/* Make a snapshot empty again.  Cost: clearing it.  MT-Unsafe race:snapshot. */
QUIRE_API void quire_histogram_snapshot_reset(struct quire_histogram_snapshot *snapshot);

/*
 * Replace what the snapshot holds by the histogram's counts now: exact when nobody records, else each value recorded meanwhile is in it or is not.
 * Returns 0, or -1 with errno EINVAL: the histogram is less precise than the snapshot (a more precise one is fine); the snapshot is as it was.
 * Cost: one quire_percpu_sum() for each bucket.  MT-Unsafe race:snapshot.
 */
QUIRE_API int quire_histogram_snapshot_take(struct quire_histogram_snapshot *snapshot, const struct quire_histogram *histogram);

/*
 * Add another snapshot's counts, as if its values had been recorded here too.  Returns 0, or -1 with errno EINVAL: the other is less precise (a more
 * precise one is fine).  Cost: a step for each bucket.  MT-Unsafe race:snapshot.
 */
QUIRE_API int quire_histogram_snapshot_merge(struct quire_histogram_snapshot *snapshot, const struct quire_histogram_snapshot *other);

/*
 * Take an earlier snapshot of the same histogram away: what was recorded between the two is left.  Returns 0, or -1 with errno EINVAL: `earlier` is less
 * precise, or has more in some bucket and so is no earlier one; the snapshot is as it was.  Cost: two steps for each bucket.  MT-Unsafe race:snapshot.
 */
QUIRE_API int quire_histogram_snapshot_subtract(struct quire_histogram_snapshot *snapshot, const struct quire_histogram_snapshot *earlier);

/*
 * The least value that `percent` of all values do not exceed (the nearest rank), rounded up to the largest value of its bucket: never less than the
 * exact one, and less than 2^-precision_bits of it too large.  `percent` counts to the nearest millionth; 0 or less, or NaN: the lowest value; 100 or
 * more: the highest.  0 when the snapshot is empty.  Cost: a step for each bucket.  MT-Unsafe race:snapshot.
 */
QUIRE_API uint64_t quire_histogram_snapshot_percentile(const struct quire_histogram_snapshot *snapshot, double percent);

/* Fill `out`, whose struct_bytes is set.  Cost: a step for each bucket.  MT-Unsafe race:snapshot. */
QUIRE_API void quire_histogram_snapshot_stats(const struct quire_histogram_snapshot *snapshot, struct quire_histogram_stats *out);

/*
 * Call fn with every bucket that is not empty, lowest first, until it returns something else than 0, and return that; 0 at the end.  EINVAL (returns -1
 * with errno): fn NULL.  Cost: a step for each bucket.  MT-Unsafe race:snapshot.
 */
QUIRE_API int quire_histogram_snapshot_walk(const struct quire_histogram_snapshot *snapshot,
                                            int (*fn)(const struct quire_histogram_bucket *bucket, void *arg), void *arg);

#ifdef __cplusplus
}
#endif
#endif
