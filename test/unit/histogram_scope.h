// SPDX-License-Identifier: MIT
/*
 * histogram_scope.h - a histogram and a snapshot for the length of a test, and values to record.
 */
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include <quire/histogram.h>

#include "unit/percpu_scope.h"

using Values = std::vector<uint64_t>;
const uint64_t largest_value = std::numeric_limits<uint64_t>::max();

/* A histogram, and a snapshot, for the length of a scope. */
class Histogram {
public:
    Histogram(quire_percpu *pool, unsigned bits) { EXPECT_EQ(quire_histogram_init(&histogram, pool, bits), 0) << "errno " << errno; }
    Histogram(const Histogram &) = delete;
    Histogram &operator=(const Histogram &) = delete;
    ~Histogram() { quire_histogram_fini(&histogram); }
    operator quire_histogram *() { return &histogram; }
    void record(const Values &values)
    {
        for (uint64_t value : values)
            quire_histogram_record(&histogram, value);
    }

private:
    quire_histogram histogram;
};

class Snapshot {
public:
    explicit Snapshot(unsigned bits) : snapshot(quire_histogram_snapshot_create(bits)) { EXPECT_NE(snapshot, nullptr) << "errno " << errno; }
    Snapshot(unsigned bits, quire_histogram *histogram) : Snapshot(bits) { EXPECT_EQ(quire_histogram_snapshot_take(snapshot, histogram), 0); }
    Snapshot(const Snapshot &) = delete;
    Snapshot &operator=(const Snapshot &) = delete;
    ~Snapshot() { quire_histogram_snapshot_destroy(snapshot); }
    operator quire_histogram_snapshot *() const { return snapshot; }
    uint64_t percentile(double percent) const { return quire_histogram_snapshot_percentile(snapshot, percent); }
    struct quire_histogram_stats stats() const
    {
        struct quire_histogram_stats stats = {.struct_bytes = sizeof stats};
        quire_histogram_snapshot_stats(snapshot, &stats);
        return stats;
    }
    std::vector<quire_histogram_bucket> buckets() const
    {
        std::vector<quire_histogram_bucket> seen;
        auto keep = [](const quire_histogram_bucket *bucket, void *arg) {
            static_cast<decltype(seen) *>(arg)->push_back(*bucket);
            return 0;
        };
        EXPECT_EQ(quire_histogram_snapshot_walk(snapshot, keep, &seen), 0);
        return seen;
    }

private:
    quire_histogram_snapshot *snapshot;
};

inline bool operator==(const Snapshot &a, const Snapshot &b)
{
    auto x = a.buckets(), y = b.buckets();
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin(), [](const auto &p, const auto &q) {
               return p.least == q.least && p.largest == q.largest && p.count == q.count;
           });
}

/* Values of every size: about as many in each octave. */
inline Values spread(size_t count, uint64_t seed)
{
    Random random(seed);
    Values values;
    for (size_t i = 0; i < count; i++)
        values.push_back(random.next() >> random.below(64));
    return values;
}
