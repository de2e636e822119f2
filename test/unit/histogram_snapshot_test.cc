// SPDX-License-Identifier: MIT
/* Each sentence of quire/histogram.h about snapshots: what they add up to, percentiles beside those of a sorted array, merging and taking away. */
#include <gtest/gtest.h>

#include <cmath>

#include "unit/histogram_scope.h"

namespace {

/* The smallest value that `percent` of them do not exceed, in whole millionths, by counting. */
uint64_t sorted_percentile(const Values &sorted, double percent)
{
    auto enough = [&](size_t count) { return (unsigned __int128)count * 100000000 >= (unsigned __int128)sorted.size() * (uint64_t)std::llround(percent * 1e6); };
    size_t rank = 1;
    while (!enough(rank))
        rank++;
    return sorted[rank - 1];
}

int snapshot_errno(int result)
{
    return result == -1 ? errno : 0;
}

} // namespace

/* ---- what one says ---- */

TEST(HistogramSnapshot, a_snapshot_without_memory_is_ENOMEM)
{
    Fault map(OS_MAP, 1, true), protect(OS_PROTECT, 1, true), libc(OS_LIBC, 1, true);
    std::vector<quire_histogram_snapshot *> snapshots;
    errno = 0;
    while (snapshots.size() < 100000 && snapshots.emplace_back(quire_histogram_snapshot_create(10))) {
    }
    EXPECT_EQ(snapshots.back(), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    for (quire_histogram_snapshot *snapshot : snapshots)
        quire_histogram_snapshot_destroy(snapshot);
}

TEST(HistogramSnapshot, an_empty_one_says_0_to_everything)
{
    Pool pool;
    Histogram histogram(pool, 7);
    Snapshot snapshot(7, histogram);
    for (double percent : {0.0, 50.0, 100.0})
        EXPECT_EQ(snapshot.percentile(percent), 0u);
    struct quire_histogram_stats stats = snapshot.stats();
    EXPECT_EQ(stats.count, 0u);
    EXPECT_EQ(stats.min, 0u);
    EXPECT_EQ(stats.max, 0u);
    EXPECT_EQ(stats.sum, 0);
    EXPECT_TRUE(snapshot.buckets().empty());
}

TEST(HistogramSnapshot, percentiles_are_those_of_a_sorted_array_within_the_promised_error)
{
    Pool pool;
    for (unsigned bits : {1u, 3u, 7u, 10u})
        for (size_t count : {1u, 2u, 3u, 10u, 999u, 1000u, 20000u}) {
            Histogram histogram(pool, bits);
            Values values = spread(count, count + bits);
            histogram.record(values);
            std::sort(values.begin(), values.end());
            Snapshot snapshot(bits, histogram);
            for (double percent : {0.0, 0.000001, 0.1, 1.0, 10.0, 25.0, 33.333333, 50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999999, 100.0}) {
                uint64_t exact = sorted_percentile(values, percent), got = snapshot.percentile(percent);
                EXPECT_GE(got, exact) << percent << " % of " << count << " values, precision " << bits;
                EXPECT_LE(got - exact, exact >> bits) << percent << " % of " << count << " values, precision " << bits;
            }
            EXPECT_EQ(snapshot.percentile(-5), snapshot.percentile(0));
            EXPECT_EQ(snapshot.percentile(NAN), snapshot.percentile(0));
            EXPECT_EQ(snapshot.percentile(1000), snapshot.percentile(100));
        }
}

TEST(HistogramSnapshot, small_values_are_exact)
{
    Pool pool;
    Histogram histogram(pool, 7);
    Values values;
    double sum = 0;
    Random random(3);
    for (int i = 0; i < 5000; i++)
        sum += double(values.emplace_back(5 + random.below(251)));
    histogram.record(values);
    std::sort(values.begin(), values.end());
    Snapshot snapshot(7, histogram);
    for (int percent = 0; percent <= 100; percent++)
        EXPECT_EQ(snapshot.percentile(percent), sorted_percentile(values, percent));
    struct quire_histogram_stats stats = snapshot.stats();
    EXPECT_EQ(stats.sum, sum);
    EXPECT_EQ(stats.min, values.front());
    EXPECT_EQ(stats.max, values.back());
    EXPECT_EQ(stats.count, values.size());
}

TEST(HistogramSnapshot, sum_and_extremes_are_within_the_promised_error)
{
    Pool pool;
    for (unsigned bits : {1u, 5u, 10u}) {
        Histogram histogram(pool, bits);
        Values values = spread(3000, bits);
        long double sum = 0;
        for (uint64_t value : values)
            sum += (long double)value;
        histogram.record(values);
        struct quire_histogram_stats stats = Snapshot(bits, histogram).stats();
        uint64_t least = *std::min_element(values.begin(), values.end()), most = *std::max_element(values.begin(), values.end());
        EXPECT_LE(stats.min, least);
        EXPECT_LE(least - stats.min, least >> bits);
        EXPECT_GE(stats.max, most);
        EXPECT_LE(stats.max - most, most >> bits);
        EXPECT_NEAR(stats.sum, double(sum), double(sum) / double(2u << bits)) << "half a bucket";
    }
}

TEST(HistogramSnapshot, a_sum_takes_each_value_for_the_middle_of_its_bucket)
{
    Pool pool;
    Histogram histogram(pool, 1);
    histogram.record({96, 100, 127, 2, 5});
    EXPECT_EQ(Snapshot(1, histogram).stats().sum, 3 * (96 + 127) / 2.0 + 2 + (4 + 5) / 2.0);
}

/* ---- between snapshots ---- */

TEST(HistogramSnapshot, merging_two_snapshots_is_recording_both)
{
    Pool pool;
    Histogram one(pool, 6), other(pool, 6), both(pool, 6);
    Values values = spread(1000, 1), more = spread(500, 2);
    one.record(values), other.record(more), both.record(values), both.record(more);
    Snapshot merged(6, one), second(6, other);
    EXPECT_EQ(quire_histogram_snapshot_merge(merged, second), 0);
    EXPECT_TRUE(merged == Snapshot(6, both));
    EXPECT_EQ(merged.percentile(50), Snapshot(6, both).percentile(50));
    EXPECT_EQ(quire_histogram_snapshot_merge(merged, merged), 0) << "also with itself";
    EXPECT_EQ(merged.stats().count, 3000u);
}

TEST(HistogramSnapshot, a_finer_histogram_counts_in_a_coarser_snapshot_as_if_recorded_there)
{
    Pool pool;
    Histogram fine(pool, 10), coarse(pool, 2);
    Values values = spread(5000, 4);
    fine.record(values), coarse.record(values);
    Snapshot direct(2, fine), finest(10, fine), by_merge(2), coarsest(2, coarse);
    EXPECT_TRUE(direct == coarsest);
    EXPECT_EQ(quire_histogram_snapshot_merge(by_merge, finest), 0);
    EXPECT_TRUE(by_merge == coarsest);
    EXPECT_EQ(quire_histogram_snapshot_subtract(by_merge, finest), 0);
    EXPECT_EQ(by_merge.stats().count, 0u);
}

TEST(HistogramSnapshot, a_coarser_one_is_EINVAL_to_a_finer_snapshot_which_stays_as_it_was)
{
    Pool pool;
    Histogram fine(pool, 8), coarse(pool, 7);
    fine.record({1, 2, 3}), coarse.record({4});
    Snapshot snapshot(8, fine), as_it_was(8, fine), other(7, coarse);
    EXPECT_EQ(snapshot_errno(quire_histogram_snapshot_take(snapshot, coarse)), EINVAL);
    EXPECT_EQ(snapshot_errno(quire_histogram_snapshot_merge(snapshot, other)), EINVAL);
    EXPECT_EQ(snapshot_errno(quire_histogram_snapshot_subtract(snapshot, other)), EINVAL);
    EXPECT_TRUE(snapshot == as_it_was);
}

TEST(HistogramSnapshot, an_earlier_snapshot_taken_away_leaves_what_came_between)
{
    Pool pool;
    Histogram histogram(pool, 7), between(pool, 7);
    histogram.record(spread(1000, 1));
    Snapshot earlier(7, histogram);
    Values values = spread(700, 2);
    histogram.record(values), between.record(values);
    Snapshot later(7, histogram);
    EXPECT_EQ(quire_histogram_snapshot_subtract(later, earlier), 0);
    EXPECT_TRUE(later == Snapshot(7, between));
    EXPECT_EQ(later.percentile(99), Snapshot(7, between).percentile(99));
}

TEST(HistogramSnapshot, taking_away_what_is_not_there_is_EINVAL_and_changes_nothing)
{
    Pool pool;
    Histogram histogram(pool, 7);
    histogram.record({1, 2, 2, 300, 70000});
    Snapshot earlier(7, histogram), as_it_was(7, histogram);
    histogram.record({2, 1000000});
    Snapshot later(7, histogram);
    EXPECT_EQ(snapshot_errno(quire_histogram_snapshot_subtract(earlier, later)), EINVAL);
    EXPECT_TRUE(earlier == as_it_was);
    EXPECT_EQ(earlier.stats().count, 5u);
    EXPECT_EQ(earlier.percentile(100), as_it_was.percentile(100));
}

TEST(HistogramSnapshot, a_snapshot_is_empty_after_a_reset_and_is_replaced_by_a_take)
{
    Pool pool;
    Histogram histogram(pool, 7);
    histogram.record({1, 2, 3});
    Snapshot snapshot(7, histogram);
    EXPECT_EQ(quire_histogram_snapshot_take(snapshot, histogram), 0);
    EXPECT_EQ(snapshot.stats().count, 3u) << "not 6";
    quire_histogram_snapshot_reset(snapshot);
    EXPECT_EQ(snapshot.stats().count, 0u);
    EXPECT_EQ(snapshot.percentile(50), 0u);
}

TEST(HistogramSnapshot, a_walk_goes_upwards_and_stops_where_its_function_says)
{
    Pool pool;
    Histogram histogram(pool, 7);
    histogram.record({9, 5, 5, 7});
    Snapshot snapshot(7, histogram);
    auto buckets = snapshot.buckets();
    ASSERT_EQ(buckets.size(), 3u);
    EXPECT_EQ(buckets[0].least, 5u);
    EXPECT_EQ(buckets[0].count, 2u);
    EXPECT_EQ(buckets[1].least, 7u);
    EXPECT_EQ(buckets[2].largest, 9u);
    int calls = 0;
    auto stop_at_7 = [](const quire_histogram_bucket *bucket, void *arg) {
        ++*static_cast<int *>(arg);
        return bucket->least == 7 ? 42 : 0;
    };
    EXPECT_EQ(quire_histogram_snapshot_walk(snapshot, stop_at_7, &calls), 42);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(snapshot_errno(quire_histogram_snapshot_walk(snapshot, nullptr, nullptr)), EINVAL);
}
