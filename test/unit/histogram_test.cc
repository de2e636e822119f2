// SPDX-License-Identifier: MIT
/* Each sentence of quire/histogram.h about recording: what a bucket holds, that nothing is lost, and where memory is used. */
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "percpu/histogram_buckets.h"
#include "unit/histogram_scope.h"

/* ---- buckets ---- */

TEST(HistogramBuckets, each_bucket_has_the_values_between_its_neighbours_and_none_is_wider_than_promised)
{
    for (unsigned bits = 1; bits <= QUIRE_HISTOGRAM_PRECISION_BITS_MAX; bits++) {
        uint64_t next = 0;
        for (size_t i = 0; i < histogram_bucket_count(bits); i++) {
            uint64_t least = histogram_bucket_least(i, bits), largest = histogram_bucket_largest(i, bits);
            ASSERT_EQ(least, next) << "bucket " << i << " of precision " << bits;
            ASSERT_LE((largest - least) >> (64 - bits), 0u);
            ASSERT_LE((largest - least) << bits, least) << "less than 2^-bits of the least";
            ASSERT_EQ(quire_histogram_bucket_of(least, bits), i);
            ASSERT_EQ(quire_histogram_bucket_of(largest, bits), i);
            ASSERT_EQ(quire_histogram_bucket_of(least + (largest - least) / 3, bits), i);
            if (i < size_t(2) << bits) {
                ASSERT_EQ(largest, i) << "small values have one each";
            }
            next = largest + 1;
        }
        EXPECT_EQ(next, 0u) << "the last bucket ends with the largest value";
    }
}

TEST(HistogramBuckets, every_bucket_lies_in_one_of_each_lower_precision)
{
    for (unsigned fine = 2; fine <= QUIRE_HISTOGRAM_PRECISION_BITS_MAX; fine++)
        for (unsigned coarse = 1; coarse < fine; coarse++)
            for (size_t i = 0; i < histogram_bucket_count(fine); i++)
                ASSERT_EQ(quire_histogram_bucket_of(histogram_bucket_least(i, fine), coarse),
                          quire_histogram_bucket_of(histogram_bucket_largest(i, fine), coarse));
}

TEST(HistogramBuckets, the_ranks_of_percentiles_as_a_table)
{
    const uint64_t huge = uint64_t(1) << 63;
    const struct {
        uint64_t count;
        double percent;
        uint64_t rank;
    } rows[] = {
        {1, 0, 1},          {1, 50, 1},          {1, 100, 1},         {2, 50, 1},       {2, 50.000001, 2}, {3, 50, 2},
        {100, 99, 99},      {100, 99.000001, 100}, {1000, 99.9, 999}, {1000, 0.1, 1},   {1000, 0.100001, 2}, {1000000, 99.9999, 999999},
        {huge, 50, huge / 2}, {huge, 100, huge}, {UINT64_MAX, 100, UINT64_MAX}, {10, -1, 1}, {10, 101, 10}, {10, NAN, 1},
        {10, INFINITY, 10}, {10, -INFINITY, 1},  {10, 1e-9, 1},       {1000000000, 8.2, 82000000}, /* 8.2 times a million is a little less in a double */
    };
    for (const auto &row : rows)
        EXPECT_EQ(histogram_rank(row.count, row.percent), row.rank) << row.percent << " % of " << row.count;
}

/* ---- init and fini ---- */

TEST(Histogram, precision_0_and_11_and_no_pool_are_EINVAL_and_leave_it_all_zero)
{
    Pool pool;
    const quire_histogram zero = {};
    for (auto [where, bits] : {std::pair<quire_percpu *, unsigned>{pool, 0}, {pool, 11}, {nullptr, 7}}) {
        quire_histogram histogram;
        memset(&histogram, 7, sizeof histogram);
        errno = 0;
        EXPECT_EQ(quire_histogram_init(&histogram, where, bits), -1);
        EXPECT_EQ(errno, EINVAL);
        EXPECT_EQ(memcmp(&histogram, &zero, sizeof zero), 0);
    }
    for (unsigned bits : {0u, 11u}) {
        errno = 0;
        EXPECT_EQ(quire_histogram_snapshot_create(bits), nullptr);
        EXPECT_EQ(errno, EINVAL);
    }
}

TEST(Histogram, more_buckets_than_a_unit_has_room_for_are_ENOMEM)
{
    quire_percpu_opts opts = {};
    opts.chunk_bytes = 64 << 10;
    Pool pool(opts);
    quire_histogram histogram;
    errno = 0;
    EXPECT_EQ(quire_histogram_init(&histogram, pool, 10), -1);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(histogram.pool, nullptr);
    Histogram smaller(pool, 5);
    smaller.record({1, 2, 3});
    EXPECT_EQ(Snapshot(5, smaller).stats().count, 3u);
}

TEST(Histogram, fini_gives_the_memory_back_and_may_come_twice_or_to_nothing)
{
    Pool pool;
    quire_histogram histogram;
    ASSERT_EQ(quire_histogram_init(&histogram, pool, 7), 0);
    EXPECT_EQ(pool.stats().live_objects, 1u);
    errno = 77;
    quire_histogram_fini(&histogram);
    quire_histogram_fini(&histogram);
    quire_histogram_fini(nullptr);
    quire_histogram_snapshot_destroy(nullptr);
    EXPECT_EQ(errno, 77);
    EXPECT_EQ(pool.stats().live_objects, 0u);
    Histogram again(pool, 7);
    EXPECT_EQ(Snapshot(7, again).stats().count, 0u) << "a new one is empty";
}

/* ---- what is in it ---- */

TEST(Histogram, the_smallest_and_the_largest_values_have_their_buckets)
{
    Pool pool;
    for (unsigned bits : {1u, 7u, 10u}) {
        Histogram histogram(pool, bits);
        histogram.record({0, 1, largest_value >> 1, largest_value});
        auto buckets = Snapshot(bits, histogram).buckets();
        ASSERT_EQ(buckets.size(), 4u);
        EXPECT_EQ(buckets[0].largest, 0u);
        EXPECT_EQ(buckets[1].least, 1u);
        EXPECT_EQ(buckets[1].largest, 1u);
        EXPECT_EQ(buckets[2].largest, largest_value >> 1);
        EXPECT_EQ(buckets[3].largest, largest_value);
        EXPECT_EQ(Snapshot(bits, histogram).percentile(100), largest_value);
    }
}

TEST(Histogram, the_function_in_the_library_records_as_the_inlined_one)
{
    Pool pool;
    Histogram one(pool, 4), other(pool, 4);
    void (*volatile record)(quire_histogram *, uint64_t) = quire_histogram_record;
    Values values = spread(2000, 9);
    one.record(values);
    for (uint64_t value : values)
        record(other, value);
    EXPECT_TRUE(Snapshot(4, one) == Snapshot(4, other));
}

/* ---- threads and copies ---- */

TEST(Histogram, eight_threads_lose_nothing_and_counts_never_go_back)
{
    for (os_rseq_mode mode : {OS_RSEQ_AUTO, OS_RSEQ_OFF}) {
        Mode scope(mode);
        Pool pool;
        Histogram histogram(pool, 3), plain(pool, 3);
        const Values values = spread(test_long() ? 1000000 : 20000, 1);
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; i++)
            threads.emplace_back([&] { histogram.record(values); });
        for (uint64_t last = 0; last < 8 * values.size();) {
            uint64_t count = Snapshot(3, histogram).stats().count;
            ASSERT_GE(count, last);
            last = count;
        }
        for (std::thread &thread : threads)
            thread.join();
        for (int i = 0; i < 8; i++)
            plain.record(values);
        EXPECT_TRUE(Snapshot(3, histogram) == Snapshot(3, plain));
    }
}

TEST(Histogram, only_cpus_that_record_have_memory_and_a_snapshot_changes_nothing_about_it)
{
    Mode mode(OS_RSEQ_FAKE);
    quire_percpu_opts opts = {};
    opts.cpus = 64;
    Pool pool(opts);
    os_cpu_fake_set(3);
    Histogram histogram(pool, 10);
    histogram.record({1000});
    os_cpu_fake_set(50);
    histogram.record({5});
    EXPECT_EQ(Snapshot(10, histogram).stats().count, 2u);
    EXPECT_EQ(pool.stats().copies_written, 2u);
    size_t before = rss_bytes();
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(Snapshot(10, histogram).stats().count, 2u);
    EXPECT_EQ(pool.stats().copies_written, 2u);
    if (!memory_is_watched()) {
        const size_t looked_at = 64 * (os_page_bytes() - 4096); /* a page a copy, on larger pages than it was counted on */
        EXPECT_LT(rss_bytes(), before + (1 << 20) + looked_at) << "64 copies of the buckets are 28 MB";
    }
}

TEST(Histogram, its_end_clears_what_was_written_and_commits_nothing)
{
    Mode mode(OS_RSEQ_FAKE);
    quire_percpu_opts opts = {};
    opts.cpus = 64;
    Pool pool(opts);
    quire_histogram histogram;
    ASSERT_EQ(quire_histogram_init(&histogram, pool, 10), 0);
    for (unsigned cpu = 0; cpu < 64; cpu++) {
        os_cpu_fake_set(int(cpu));
        quire_histogram_record(&histogram, 0);
        quire_histogram_record(&histogram, largest_value);
    }
    size_t before = rss_bytes();
    quire_histogram_fini(&histogram);
    if (!memory_is_watched()) {
        const size_t looked_at = 64 * (os_page_bytes() - 4096); /* a page a copy, on larger pages than it was counted on */
        EXPECT_LT(rss_bytes(), before + (1 << 20) + looked_at) << "64 copies of the buckets are 28 MB";
    }
    Histogram again(pool, 10);
    EXPECT_EQ(Snapshot(10, again).stats().count, 0u);
}
