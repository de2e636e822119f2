// SPDX-License-Identifier: MIT
/* What a pool says of itself: each figure of the statistics, with the fragmentation of a layout that was counted by hand. */
#include <gtest/gtest.h>

#include <thread>

#include "model/slab_worker.h"
#include "unit/percpu_scope.h"

namespace {
const size_t kib = 1024;
} // namespace

TEST(PercpuLook, objects_are_counted_and_the_peak_stays)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs = pool.alloc_many(100, 24);
    pool.free(Refs(refs.begin(), refs.begin() + 70));
    struct quire_percpu_stats stats = pool.stats();
    EXPECT_EQ(stats.live_objects, 30u);
    EXPECT_EQ(stats.live_objects_peak, 100u);
    EXPECT_EQ(stats.allocs, 100u);
    EXPECT_EQ(stats.frees, 70u);
    quire_percpu_alloc(pool, SIZE_MAX, 0);
    quire_percpu_alloc(pool, 8, 3);
    quire_percpu_free(pool, {0});
    EXPECT_EQ(pool.stats().allocs, 100u) << "successful ones";
    EXPECT_EQ(pool.stats().frees, 70u);
}

TEST(PercpuLook, live_bytes_are_rounded_up_to_words_and_counted_for_every_copy)
{
    for (unsigned cpus : {1u, 2u, 7u}) {
        Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = cpus});
        pool.alloc(1), pool.alloc(4), pool.alloc(5), pool.alloc(100), pool.alloc(0);
        struct quire_percpu_stats stats = pool.stats();
        EXPECT_EQ(stats.live_bytes, (4 + 4 + 8 + 100 + 4) * size_t(cpus + 1)) << "and for the one that CPUs without a copy share";
        EXPECT_EQ(stats.mapped_bytes - stats.meta_bytes - stats.live_bytes, stats.free_bytes);
        EXPECT_EQ(stats.free_bytes, stats.unit_free_bytes * (cpus + 1));
    }
}

TEST(PercpuLook, the_figures_of_fragmentation_are_those_counted_by_hand)
{
    Pool pool({.chunk_bytes = unit_of(std::max(64 * kib, 4 * os_page_bytes())), .cpus = 2});
    struct quire_percpu_stats none = pool.stats();
    EXPECT_EQ(none.unit_free_bytes + none.longest_free_bytes + none.fragments + none.fragments_bytes + none.fragment_bytes_max, 0u);
    EXPECT_EQ(none.object_bytes_min + none.object_bytes_median + none.object_bytes_max, 0u);

    /*  | not for objects | 100 | 200 | 52 | large | 40 | 8 | free: less than the largest object ...  */
    size_t large = os_page_bytes() + 1000;
    Ref refs[] = {pool.alloc(100, 4), pool.alloc(200, 4), pool.alloc(50, 4), pool.alloc(large, 4), pool.alloc(40, 4), pool.alloc(8, 4)};
    struct quire_percpu_stats full = pool.stats();
    size_t unit = full.unit_free_bytes + 400 + large, first = full.unit_free_bytes - full.longest_free_bytes;
    EXPECT_EQ(unit, std::max(64 * kib, 4 * os_page_bytes()));
    EXPECT_GE(unit - first, full.unit_bytes);
    EXPECT_EQ(full.mapped_bytes - full.meta_bytes, unit * 3);
    EXPECT_EQ(full.fragments, 0u);
    EXPECT_EQ(full.object_bytes_min, 8u);
    EXPECT_EQ(full.object_bytes_max, large);
    EXPECT_TRUE(full.object_bytes_median == 52 || full.object_bytes_median == 100) << "of 8 40 52 100 200 and a large one";

    pool.free(refs[1]), pool.free(refs[4]);
    struct quire_percpu_stats two = pool.stats();
    EXPECT_EQ(two.fragments, 2u);
    EXPECT_EQ(two.fragments_bytes, 240u);
    EXPECT_EQ(two.fragment_bytes_max, 200u);
    EXPECT_EQ(two.unit_free_bytes, full.unit_free_bytes + 240);
    EXPECT_EQ(two.longest_free_bytes, full.longest_free_bytes);

    pool.free(refs[2]); /* together with its neighbour */
    struct quire_percpu_stats merged = pool.stats();
    EXPECT_EQ(merged.fragments, 2u);
    EXPECT_EQ(merged.fragments_bytes, 292u);
    EXPECT_EQ(merged.fragment_bytes_max, 252u);

    pool.free(refs[5]); /* the last: what is behind it, and the fragment before it, is the end */
    struct quire_percpu_stats ended = pool.stats();
    EXPECT_EQ(ended.fragments, 1u);
    EXPECT_EQ(ended.fragments_bytes, 252u);
    EXPECT_EQ(ended.longest_free_bytes, full.longest_free_bytes + 48);
    EXPECT_EQ(ended.object_bytes_min, 100u);
    EXPECT_EQ(ended.object_bytes_max, large);

    pool.free(refs[0]), pool.free(refs[3]);
    struct quire_percpu_stats empty = pool.stats();
    EXPECT_EQ(empty.fragments, 0u);
    EXPECT_EQ(empty.unit_free_bytes, unit);
    EXPECT_EQ(empty.longest_free_bytes, empty.unit_bytes); /* the run is longer, and no object may be */
    EXPECT_EQ(empty.object_bytes_max, 0u);
    EXPECT_EQ(empty.empty_chunks, 1u);
}

TEST(PercpuLook, fragments_of_all_chunks_and_all_threads_are_summed)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker other;
    Refs mine = pool.alloc_many(3, 400), theirs;
    other.run([&] { theirs = pool.alloc_many(3, 704); });
    EXPECT_EQ(pool.stats().chunks, 2u);
    pool.free(mine[1]);
    pool.free(theirs[1]);
    struct quire_percpu_stats stats = pool.stats();
    EXPECT_EQ(stats.fragments, 2u);
    EXPECT_EQ(stats.fragments_bytes, 1104u);
    EXPECT_EQ(stats.fragment_bytes_max, 704u);
    EXPECT_EQ(stats.live_objects, 4u);
    EXPECT_EQ(stats.object_bytes_min, 400u);
    EXPECT_EQ(stats.object_bytes_max, 704u);
    EXPECT_GE(stats.caches, 2u);
}

TEST(PercpuLook, the_longest_free_run_is_an_object_that_fits_without_a_new_chunk)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Random random(9);
    Refs refs;
    for (int i = 0; i < 300; i++) {
        if (refs.empty() || random.below(3))
            refs.push_back(pool.alloc(1 + random.below(900), size_t(4) << random.below(4)));
        else
            std::swap(refs[random.below(refs.size())], refs.back()), pool.free(refs.back()), refs.pop_back();
        struct quire_percpu_stats before = pool.stats();
        if (before.longest_free_bytes == 0)
            continue;
        Ref large = pool.alloc(before.longest_free_bytes, 4);
        ASSERT_EQ(pool.stats().chunks, before.chunks) << "step " << i;
        pool.free(large);
    }
    pool.free(refs);
}

TEST(PercpuLook, the_median_is_in_the_middle_of_what_lives)
{
    Pool pool({.chunk_bytes = unit_of(256 * kib), .cpus = 1});
    for (size_t bytes = 4; bytes <= 404; bytes += 4) /* 101 objects */
        pool.alloc(bytes, 4);
    EXPECT_EQ(pool.stats().object_bytes_median, 204u);
    EXPECT_EQ(pool.stats().object_bytes_min, 4u);
    EXPECT_EQ(pool.stats().object_bytes_max, 404u);
    pool.alloc_many(200, 12, 4);
    EXPECT_EQ(pool.stats().object_bytes_median, 12u);
}

TEST(PercpuLook, written_copies_are_counted_once_however_they_are_written)
{
    Mode mode(OS_RSEQ_FAKE);
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 8});
    Ref ref = pool.alloc();
    EXPECT_EQ(pool.stats().copies_written, 0u);
    os_cpu_fake_set(3);
    quire_percpu_add(pool, ref, 1);
    EXPECT_EQ(pool.stats().copies_written, 1u);
    quire_percpu_add(pool, ref, 1), pool.at(ref, 3);
    EXPECT_EQ(pool.stats().copies_written, 1u);
    pool.at(ref, 5);
    EXPECT_EQ(pool.stats().copies_written, 2u) << "may have been written";
    os_cpu_fake_set(99);
    quire_percpu_add(pool, ref, 1);
    EXPECT_EQ(pool.stats().copies_written, 3u) << "the copy that CPUs without one share";
    quire_percpu_sum(pool, ref);
    EXPECT_EQ(pool.stats().copies_written, 3u);
}

TEST(PercpuLook, chunks_and_their_peak_and_the_peak_of_bytes_stay)
{
    const size_t page = os_page_bytes();
    Pool pool({.chunk_bytes = unit_of(16 * page), .cpus = 2});
    Refs refs = pool.alloc_many(600, page / 4 - 24);
    struct quire_percpu_stats full = pool.stats();
    EXPECT_GE(full.chunks, 9u);
    pool.free(refs);
    quire_percpu_trim(pool);
    struct quire_percpu_stats empty = pool.stats();
    EXPECT_EQ(empty.chunks, 0u);
    EXPECT_EQ(empty.chunks_peak, full.chunks);
    EXPECT_GE(empty.peak_bytes, full.mapped_bytes);
    EXPECT_LT(empty.mapped_bytes, full.mapped_bytes / 4);
    EXPECT_EQ(empty.free_bytes + empty.live_bytes, 0u);
}

TEST(PercpuLook, what_another_thread_freed_is_free_at_once_whether_its_owner_looked_or_not)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker other;
    for (size_t count : {size_t(1), size_t(63), size_t(64), size_t(65), size_t(1000)}) {
        Refs refs = pool.alloc_many(count, 48);
        size_t frees = pool.stats().frees;
        other.run([&] { pool.free(refs); });
        EXPECT_EQ(pool.stats().live_objects, 0u) << count;
        EXPECT_EQ(pool.stats().frees, frees + count);
        EXPECT_FALSE(quire_percpu_owns(pool, refs[0]));
        EXPECT_EQ(quire_percpu_check(pool), nullptr);
    }
}

TEST(PercpuLook, owners_are_threads_that_allocate_and_do_not_grow_with_those_that_end)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    EXPECT_EQ(pool.stats().caches, 0u);
    pool.alloc();
    EXPECT_EQ(pool.stats().caches, 1u);
    for (int i = 0; i < 20; i++)
        std::thread([&] { pool.free(pool.alloc()); }).join();
    EXPECT_LE(pool.stats().caches, 3u);
}

TEST(PercpuLook, the_equation_holds_on_every_snapshot_that_is_taken_while_others_work)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    uint32_t stop = 0;
    auto work = [&](uint64_t seed) {
        Random random(seed);
        Refs mine;
        while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
            if (mine.size() < 1000 && random.below(2)) {
                mine.push_back(pool.alloc(8 + random.below(200)));
                quire_percpu_add(pool, mine.back(), 1);
            } else if (!mine.empty()) {
                pool.free(mine.back());
                mine.pop_back();
            }
        }
        pool.free(mine);
    };
    std::thread a(work, 1), b(work, 2);
    for (int i = 0; i < 100; i++) {
        EXPECT_LE(pool.stats().live_objects, 2000u);
        const char *error = quire_percpu_check(pool);
        EXPECT_EQ(error, nullptr) << error;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    a.join(), b.join();
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

TEST(PercpuLook, the_reserve_is_said_and_is_not_live)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .reserve_bytes = 5000});
    struct quire_percpu_stats stats = pool.stats();
    EXPECT_GE(stats.reserve_bytes, 5000u);
    struct quire_percpu_ref kept = quire_percpu_alloc_nowait(pool, stats.reserve_bytes, 0);
    EXPECT_NE(kept.bits, 0u) << stats.reserve_bytes;
    quire_percpu_free(pool, kept);
    EXPECT_EQ(pool.stats().chunks, 1u);
    EXPECT_EQ(stats.live_objects, 0u);
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.chunks, 1u);
}
