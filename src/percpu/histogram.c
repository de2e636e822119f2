// SPDX-License-Identifier: MIT
/*
 * histogram.c - a row of counts, of which every CPU has a copy.
 *
 *     value --bucket_of()--> the ref, moved by 8 bytes a bucket --quire_percpu_add()--> this CPU's copy
 *
 *            bucket  0    1    2    3    4    ...
 *     CPU 0        [  0 |  3 |  0 |  0 | 17 | ...            pages on which nothing was recorded do not exist
 *     CPU 1        [  1 |  0 |  0 |  0 |  9 | ...
 *
 * Locks: none.
 * Not here: which values a bucket has (histogram_buckets.h), reading (histogram_snapshot.c).
 */
#define QUIRE_PERCPU_INLINE 0 /* here is the function itself */
#include "base/fail.h"
#include "percpu/histogram_buckets.h"

int quire_histogram_init(struct quire_histogram *histogram, struct quire_percpu *pool, unsigned precision_bits)
{
    *histogram = (struct quire_histogram){0};
    if (!pool || !histogram_precision_is_valid(precision_bits))
        return fail_int(EINVAL);
    struct quire_percpu_ref ref = quire_percpu_alloc(pool, histogram_bucket_count(precision_bits) * sizeof(intptr_t), 0);
    if (!ref.bits)
        return -1;
    *histogram = (struct quire_histogram){pool, ref, precision_bits};
    return 0;
}

void quire_histogram_fini(struct quire_histogram *histogram)
{
    if (!histogram || !histogram->pool)
        return;
    quire_percpu_free(histogram->pool, histogram->ref);
    *histogram = (struct quire_histogram){0};
}

void quire_histogram_record(struct quire_histogram *histogram, uint64_t value)
{
    size_t bucket = quire_histogram_bucket_of(value, histogram->precision_bits);
    struct quire_percpu_ref ref = {histogram->ref.bits + bucket * sizeof(intptr_t)};
    quire_percpu_add(histogram->pool, ref, 1);
}
