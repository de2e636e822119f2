// SPDX-License-Identifier: MIT
/*
 * histogram_snapshot.c - a histogram's counts at one moment, in memory of their own, and what they say.
 *
 *     one span of the default source
 *     +----------------------+----+----+----+-- - --+----+
 *     | precision, sum of all|  0 |  3 |  0 |       | 17 |   one count a bucket
 *     +----------------------+----+----+----+-- - --+----+
 *
 * Invariant:  S1  count is the sum of counts[]
 *
 * Locks: none: one thread at a time.
 * Not here: recording (histogram.c).
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/fail.h"
#include "pages/source_internal.h"
#include "percpu/histogram_buckets.h"

struct quire_histogram_snapshot {
    struct quire_span span;
    uint64_t count;
    unsigned bits;
    uint64_t counts[];
};

static size_t buckets_of(const struct quire_histogram_snapshot *snapshot)
{
    return histogram_bucket_count(snapshot->bits);
}

/* May counts of `bits` be brought into the snapshot?  H2 */
static int refuse_coarser(const struct quire_histogram_snapshot *snapshot, unsigned bits)
{
    if (bits >= snapshot->bits)
        return 0;
    return fail_int(EINVAL);
}

/* Where the snapshot counts what a bucket of `bits` counts. */
static uint64_t *place_of(struct quire_histogram_snapshot *snapshot, size_t bucket, unsigned bits)
{
    return &snapshot->counts[quire_histogram_bucket_of(histogram_bucket_least(bucket, bits), snapshot->bits)];
}

struct quire_histogram_snapshot *quire_histogram_snapshot_create(unsigned precision_bits)
{
    if (!histogram_precision_is_valid(precision_bits))
        return fail_null(EINVAL);
    struct quire_span span;
    struct quire_histogram_snapshot *snapshot = source_own_take(sizeof *snapshot + histogram_bucket_count(precision_bits) * sizeof(uint64_t), &span);
    if (!snapshot)
        return NULL;
    snapshot->span = span;
    snapshot->bits = precision_bits;
    return snapshot;
}

void quire_histogram_snapshot_destroy(struct quire_histogram_snapshot *snapshot)
{
    if (!snapshot)
        return;
    int kept = errno;
    source_own_give(snapshot->span);
    errno = kept;
}

void quire_histogram_snapshot_reset(struct quire_histogram_snapshot *snapshot)
{
    memset(snapshot->counts, 0, buckets_of(snapshot) * sizeof snapshot->counts[0]);
    snapshot->count = 0;
}

int quire_histogram_snapshot_take(struct quire_histogram_snapshot *snapshot, const struct quire_histogram *histogram)
{
    if (refuse_coarser(snapshot, histogram->precision_bits) != 0)
        return -1;
    quire_histogram_snapshot_reset(snapshot);
    for (size_t i = 0; i < histogram_bucket_count(histogram->precision_bits); i++) {
        struct quire_percpu_ref ref = {histogram->ref.bits + i * sizeof(intptr_t)};
        uint64_t count = (uint64_t)quire_percpu_sum(histogram->pool, ref);
        *place_of(snapshot, i, histogram->precision_bits) += count;
        snapshot->count += count;
    }
    return 0;
}

int quire_histogram_snapshot_merge(struct quire_histogram_snapshot *snapshot, const struct quire_histogram_snapshot *other)
{
    if (refuse_coarser(snapshot, other->bits) != 0)
        return -1;
    for (size_t i = 0; i < buckets_of(other); i++)
        *place_of(snapshot, i, other->bits) += other->counts[i];
    snapshot->count += other->count;
    return 0;
}

/* Subtract the first buckets of `earlier`; stops before one that has more than there is.  Returns how many were subtracted. */
static size_t subtract_first(struct quire_histogram_snapshot *snapshot, const struct quire_histogram_snapshot *earlier, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t *place = place_of(snapshot, i, earlier->bits);
        if (*place < earlier->counts[i])
            return i;
        *place -= earlier->counts[i];
    }
    return count;
}

int quire_histogram_snapshot_subtract(struct quire_histogram_snapshot *snapshot, const struct quire_histogram_snapshot *earlier)
{
    if (refuse_coarser(snapshot, earlier->bits) != 0)
        return -1;
    size_t all = buckets_of(earlier), done = subtract_first(snapshot, earlier, all);
    if (done != all) {
        while (done-- > 0)
            *place_of(snapshot, done, earlier->bits) += earlier->counts[done];
        return fail_int(EINVAL);
    }
    snapshot->count -= earlier->count;
    return 0;
}

uint64_t quire_histogram_snapshot_percentile(const struct quire_histogram_snapshot *snapshot, double percent)
{
    if (snapshot->count == 0)
        return 0;
    uint64_t rank = histogram_rank(snapshot->count, percent), passed = 0;
    size_t i = 0;
    while ((passed += snapshot->counts[i]) < rank)
        i++;
    return histogram_bucket_largest(i, snapshot->bits);
}

/* A walk's step: add a bucket, the next higher one, to what the statistics say so far. */
static int add_to_stats(const struct quire_histogram_bucket *bucket, void *arg)
{
    struct quire_histogram_stats *stats = arg;
    if (stats->count == 0)
        stats->min = bucket->least;
    stats->max = bucket->largest;
    stats->count += bucket->count;
    stats->sum += ((double)bucket->least + (double)(bucket->largest - bucket->least) / 2) * (double)bucket->count;
    return 0;
}

void quire_histogram_snapshot_stats(const struct quire_histogram_snapshot *snapshot, struct quire_histogram_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_histogram_stats, sum);
    struct quire_histogram_stats own = {0};
    (void)quire_histogram_snapshot_walk(snapshot, add_to_stats, &own);
    abi_write(&layout, &own, out);
}

int quire_histogram_snapshot_walk(const struct quire_histogram_snapshot *snapshot,
                                  int (*fn)(const struct quire_histogram_bucket *bucket, void *arg), void *arg)
{
    if (!fn)
        return fail_int(EINVAL);
    int result = 0;
    for (size_t i = 0; i < buckets_of(snapshot) && result == 0; i++) {
        if (snapshot->counts[i] == 0)
            continue;
        struct quire_histogram_bucket bucket = {histogram_bucket_least(i, snapshot->bits), histogram_bucket_largest(i, snapshot->bits),
                                                snapshot->counts[i]};
        result = fn(&bucket, arg);
    }
    return result;
}
