// SPDX-License-Identifier: MIT
/* The statistics of the Array Allocator's names: private, the caller's, shared by many arrays. */
#include "netdata_aral_kit.h"

#include <algorithm>

namespace {

struct Sums {
    size_t structures = 0, used = 0, free = 0, padding = 0;
    bool operator==(const Sums &o) const { return structures == o.structures && used == o.used && free == o.free && padding == o.padding; }
};

std::ostream &operator<<(std::ostream &out, const Sums &s)
{
    return out << "structures " << s.structures << " used " << s.used << " free " << s.free << " padding " << s.padding;
}

Sums sums_of(const AralStats *stats)
{
    return {aral_structures_bytes_from_stats(stats), aral_used_bytes_from_stats(stats), aral_free_bytes_from_stats(stats),
            aral_padding_bytes_from_stats(stats)};
}

Sums sums_of(const std::vector<ARAL *> &arrays)
{
    Sums sum;
    for (ARAL *ar : arrays) {
        sum.structures += aral_structures_bytes(ar);
        sum.used += aral_used_bytes(ar);
        sum.free += aral_free_bytes(ar);
        sum.padding += aral_padding_bytes(ar);
    }
    return sum;
}

/* Allocate and free in arrays at random, by every call. */
class Churn {
public:
    Churn(const std::vector<ARAL *> &arrays_, uint64_t seed) : random(seed), arrays(arrays_), live(arrays_.size()) {}
    void steps(int count)
    {
        for (int i = 0; i < count; i++)
            step();
    }
    size_t live_bytes() const
    {
        size_t bytes = 0;
        for (size_t i = 0; i < arrays.size(); i++)
            bytes += live[i].size() * aral_requested_element_size(arrays[i]);
        return bytes;
    }

private:
    void step()
    {
        size_t i = random.below(arrays.size());
        growing ^= random.below(3000) == 0;
        if (live[i].empty() || random.below(100) < (growing ? 60 : 40)) {
            static void *(*const calls[])(ARAL *) = {aral_mallocz, aral_callocz, aral_mallocz_marked, aral_callocz_marked};
            live[i].push_back(calls[random.below(4)](arrays[i]));
            return;
        }
        std::swap(live[i][random.below(live[i].size())], live[i].back());
        if (random.below(3) == 0)
            aral_unmark_allocation(arrays[i], live[i].back());
        if (random.below(10) == 0)
            return;
        aral_freez(arrays[i], live[i].back());
        live[i].pop_back();
    }
    Random random;
    bool growing = true;
    std::vector<ARAL *> arrays;
    std::vector<std::vector<void *>> live;
};

} // namespace

TEST(AralStatistics, each_group_has_a_cache_line_of_its_own)
{
    EXPECT_EQ(alignof(AralStats), 64u);
    EXPECT_EQ(offsetof(AralStats, malloc), 64u);
    EXPECT_EQ(offsetof(AralStats, mmap), 128u);
    EXPECT_EQ(sizeof(AralStats), 192u);
}

TEST(AralStatistics, no_statistics_are_nothing)
{
    EXPECT_EQ(sums_of(static_cast<AralStats *>(nullptr)), Sums{});
}

TEST(AralStatistics, the_callers_are_current_after_every_call)
{
    AralStats stats = {};
    ARAL *ar = array_of(100, {.stats = &stats});
    EXPECT_EQ(aral_get_statistics(ar), &stats);
    EXPECT_EQ(stats.structures.allocations, 1u + stats.malloc.allocations);
    EXPECT_GT(stats.structures.allocated_bytes, 0u);
    std::vector<void *> all;
    for (size_t i = 1; i <= 1000; i++) {
        all.push_back(aral_mallocz(ar));
        ASSERT_EQ(stats.malloc.used_bytes, i * 100);
        ASSERT_EQ(stats.malloc.used_bytes, aral_used_bytes(ar));
        ASSERT_GE(stats.malloc.allocated_bytes, stats.malloc.used_bytes);
    }
    EXPECT_EQ(stats.structures.allocations, 1u + stats.malloc.allocations);
    EXPECT_GT(stats.malloc.padding_bytes, all.size() * 12 - 1) << "112 bytes for 100";
    for (size_t i = 1000; i-- > 0;) {
        aral_freez(ar, all[i]);
        ASSERT_EQ(stats.malloc.used_bytes, i * 100);
    }
    EXPECT_EQ(stats.mmap.allocations + stats.mmap.allocated_bytes + stats.mmap.used_bytes + stats.mmap.padding_bytes, 0u);
    aral_destroy(ar);
    EXPECT_TRUE(is_zero(stats));
}

TEST(AralStatistics, private_ones_are_current_from_the_first_time_they_are_asked_for)
{
    ARAL *ar = array_of(100);
    std::vector<void *> all;
    for (int i = 0; i < 500; i++)
        all.push_back(aral_mallocz(ar));
    const AralStats *stats = aral_get_statistics(ar);
    EXPECT_EQ(stats->malloc.used_bytes, size_t(50000));
    for (int i = 0; i < 250; i++) {
        aral_freez(ar, all[i]);
        ASSERT_EQ(stats->malloc.used_bytes, size_t(49900 - 100 * i));
    }
    EXPECT_EQ(aral_get_statistics(ar), stats);
    EXPECT_EQ(stats->malloc.used_bytes, size_t(25000));
    EXPECT_EQ(sums_of(stats), sums_of({ar}));
    aral_destroy(ar);
}

TEST(AralStatistics, of_an_array_add_up_after_any_operations)
{
    for (size_t size : {0, 1, 16, 48, 100, 1000, 5000}) {
        ARAL *ar = array_of(size, {.page_bytes = 16 << 10});
        Churn churn({ar}, size + 1);
        for (int round = 0; round < 20; round++) {
            churn.steps(500);
            EXPECT_EQ(aral_used_bytes(ar), churn.live_bytes());
            expect_sound(ar);
        }
        aral_destroy(ar);
    }
}

TEST(AralStatistics, shared_by_many_arrays_are_their_sum_and_exactly_nothing_when_all_are_gone)
{
    AralStats stats = {};
    for (int round = 0; round < 3; round++) {
        std::vector<ARAL *> arrays;
        for (size_t size : {1, 24, 100, 1024, 3000})
            arrays.push_back(array_of(size, {.stats = &stats, .lockless = size == 24}));
        Churn churn(arrays, round + 1);
        for (int part = 0; part < 10; part++) {
            churn.steps(2000);
            for (ARAL *ar : arrays)
                EXPECT_EQ(aral_get_statistics(ar), &stats);
            EXPECT_EQ(sums_of(&stats), sums_of(arrays));
            EXPECT_EQ(stats.malloc.used_bytes, churn.live_bytes());
        }
        EXPECT_GT(stats.malloc.used_bytes, 0u);
        while (!arrays.empty()) { /* each takes off what it had, its live elements too */
            aral_destroy(arrays.back());
            arrays.pop_back();
            EXPECT_EQ(sums_of(&stats), sums_of(arrays));
        }
        EXPECT_TRUE(is_zero(stats));
    }
}

TEST(AralStatistics, the_callers_have_bookkeeping_as_it_comes_and_goes)
{
    AralStats stats = {};
    AralOpts opts;
    opts.stats = &stats;
    ARAL *ar = array_of(1000, opts);
    std::vector<void *> live(100000, nullptr);
    for (void *&element : live) {
        element = aral_mallocz(ar);
        if (stats.structures.allocated_bytes != aral_structures_bytes(ar))
            break;
    }
    EXPECT_EQ(stats.structures.allocated_bytes, aral_structures_bytes(ar)) << "with its pages";
    for (void *element : live)
        aral_freez(ar, element);
    size_t before = aral_structures_bytes(ar);
    quire_slab_trim(aral_slab(ar));
    EXPECT_LT(aral_structures_bytes(ar), before) << "headers of pages that are no more";
    EXPECT_EQ(stats.structures.allocated_bytes, aral_structures_bytes(ar));
    aral_destroy(ar);
    EXPECT_TRUE(is_zero(stats));
}
