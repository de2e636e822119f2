// SPDX-License-Identifier: MIT
/* What a pool costs the system: memory only where something was written, mappings, bookkeeping; and when it gives memory back. */
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "unit/percpu_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t kib = 1024, mib = 1 << 20;

class PercpuMemory : public testing::Test {
protected:
    void SetUp() override
    {
        if (memory_is_watched())
            GTEST_SKIP() << "shadow memory is memory too";
    }
};

/* Bytes in memory, or looked at, of the chunk that this object lies in, all copies together.  Marks two copies as written. */
size_t resident_bytes(const Pool &pool, Ref ref)
{
    size_t unit = size_t(pool.at(ref, 1) - pool.at(ref, 0));
    char *base = reinterpret_cast<char *>(uintptr_t(pool.at(ref, 0)) / unit * unit);
    return os_resident_bytes(base, unit * (pool.cpus() + 1));
}

size_t taken_bytes(quire_source *source)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    return stats.taken_bytes;
}

/* One of ten stays, at random. */
Refs keep_a_tenth(const Pool &pool, Refs refs)
{
    std::mt19937_64 order(5);
    std::shuffle(refs.begin(), refs.end(), order);
    size_t kept = refs.size() / 10;
    pool.free(Refs(refs.begin() + long(kept), refs.end()));
    refs.resize(kept);
    return refs;
}
} // namespace

/* ---- memory by touch only ---- */

TEST_F(PercpuMemory, allocating_and_freeing_what_was_never_written_touches_nothing)
{
    Pool pool({.cpus = 64});
    Refs refs = pool.alloc_many(2000, 300);
    for (size_t i = 1; i < refs.size(); i += 2)
        pool.free(refs[i]);
    for (size_t i = 1; i < refs.size(); i += 2)
        refs[i] = pool.alloc(200, 64);
    EXPECT_EQ(resident_bytes(pool, refs[0]), 0u);
}

TEST_F(PercpuMemory, reuse_commits_nothing_that_was_never_written)
{
    Mode mode(OS_RSEQ_FAKE);
    size_t rss = rss_bytes();
    Pool pool({.cpus = 64});
    Ref keep = pool.alloc(8);
    Refs refs = pool.alloc_many(1000, 64);
    for (unsigned cpu : {3u, 40u}) {
        os_cpu_fake_set(int(cpu));
        for (Ref ref : refs)
            quire_percpu_add(pool, ref, -1);
    }
    size_t written = rss_bytes() - rss;
    EXPECT_LE(written, 2 * 1000 * 64 + 256 * kib) << "two CPUs' copies";
    for (int round = 0; round < 5; round++) {
        pool.free(refs);
        refs = pool.alloc_many(1000, 64);
        for (Ref ref : refs)
            ASSERT_EQ(quire_percpu_sum(pool, ref), 0);
    }
    EXPECT_LE(rss_bytes() - rss, written + 64 * kib);
    EXPECT_LE(resident_bytes(pool, keep), 2 * (1000 * 64 + 3 * page)) << "nor was anything else looked at";
}

TEST_F(PercpuMemory, a_word_on_each_of_64_cpus_is_two_pages_each_and_no_huge_ones)
{
    Mode mode(OS_RSEQ_OFF);
    Pool pool({.cpus = 64});
    Ref gap = pool.alloc(500000), ref = pool.alloc(8);
    size_t rss = rss_bytes();
    for (int cpu = 0; cpu < 64; cpu++) {
        os_cpu_fake_set(cpu);
        quire_percpu_add(pool, ref, 1);
    }
    EXPECT_EQ(quire_percpu_sum(pool, ref), 64);
    EXPECT_LE(rss_bytes() - rss, 64 * 2 * page + 128 * kib);
    EXPECT_LE(resident_bytes(pool, ref), 64 * 2 * page);
    pool.free(gap);
    EXPECT_LE(rss_bytes() - rss, 64 * 2 * page + 128 * kib) << "clearing what was never written costs nothing";
}

TEST_F(PercpuMemory, reading_costs_no_memory)
{
    Pool pool({.cpus = 64});
    Refs refs = pool.alloc_many(200, 4096, page);
    size_t rss = rss_bytes();
    long seen = 0;
    for (Ref ref : refs) {
        for (unsigned cpu = 0; cpu < 64; cpu++)
            seen += *pool.at(ref, cpu);
        seen += quire_percpu_sum(pool, ref);
    }
    EXPECT_EQ(seen, 0);
    EXPECT_LE(rss_bytes() - rss, 512 * kib) << "of the 50 MiB that were read";
}

TEST_F(PercpuMemory, a_hundred_thousand_objects_on_64_cpus_of_which_two_write_are_at_most_16_mb)
{
    Mode mode(OS_RSEQ_FAKE);
    Refs refs(100000);
    size_t rss = rss_bytes();
    Pool pool({.cpus = 64});
    for (Ref &ref : refs)
        ref = quire_percpu_alloc(pool, 64, 0);
    for (unsigned cpu : {0u, 1u}) {
        os_cpu_fake_set(int(cpu));
        for (Ref ref : refs) {
            quire_percpu_add(pool, ref, 1);
            memset(pool.at(ref, cpu) + 8, 1, 56);
        }
    }
    EXPECT_LE(rss_bytes() - rss, 16u * 1000 * 1000);
    for (size_t i = 0; i < refs.size(); i += 1000)
        ASSERT_EQ(quire_percpu_sum(pool, refs[i]), 2);
    EXPECT_LE(rss_bytes() - rss, 16u * 1000 * 1000) << "and after the sums";
    EXPECT_EQ(pool.stats().copies_written, 2 * pool.stats().chunks);
    pool.free(refs);
    EXPECT_LE(rss_bytes() - rss, 5u * 1000 * 1000) << "empty chunks go at once";
    quire_percpu_trim(pool);
    EXPECT_LE(rss_bytes() - rss, 1u * 1000 * 1000);
}

TEST_F(PercpuMemory, a_pool_that_nobody_allocates_from_is_three_pages)
{
    quire_source_trim(quire_source_default());
    std::vector<quire_percpu *> pools(200);
    size_t rss = rss_bytes();
    for (quire_percpu *&pool : pools)
        pool = quire_percpu_create(nullptr);
    EXPECT_LE(rss_bytes() - rss, 200 * 3 * page + 128 * kib);
    for (quire_percpu *pool : pools)
        quire_percpu_destroy(pool);
}

/* ---- giving back ---- */

TEST_F(PercpuMemory, after_a_random_nine_tenths_are_freed_trim_gives_back_half_of_what_packing_would)
{
    for (size_t bytes : {page / 4, page, page / 2 * 5}) {
        Pool pool({.chunk_bytes = unit_of(256 * page), .cpus = 4});
        Refs refs(2048 * page / bytes);
        size_t rss = rss_bytes();
        for (size_t i = 0; i < refs.size(); i++) {
            refs[i] = pool.alloc(bytes);
            memset(pool.at(refs[i], 0), int(i), bytes), memset(pool.at(refs[i], 2), int(i), bytes);
        }
        size_t full = rss_bytes() - rss;
        Refs kept = keep_a_tenth(pool, refs);
        size_t given = quire_percpu_trim(pool);
        size_t held = rss_bytes() - rss;
        EXPECT_LE(held, full - full * 9 / 10 / 2) << bytes;
        EXPECT_GE(given + 128 * page, full - held) << "trim says what it gave";
        for (Ref ref : kept)
            ASSERT_EQ(pool.at(ref, 0)[0], pool.at(ref, 2)[bytes - 1]) << "what lives is whole";
        for (Ref ref : pool.alloc_many(refs.size() - kept.size(), bytes))
            ASSERT_TRUE(pool.holds(ref, bytes, 0)) << "what went is zero when it comes back";
    }
}

TEST_F(PercpuMemory, trim_keeps_every_byte_that_lives_on_every_cpu)
{
    const size_t bytes = page / 8 - 12;
    Pool pool({.chunk_bytes = unit_of(64 * page), .cpus = 3});
    Refs refs = pool.alloc_many(1500, bytes);
    for (size_t i = 0; i < refs.size(); i++)
        for (unsigned cpu = 0; cpu < 3; cpu++)
            memset(pool.at(refs[i], cpu), int(i * 3 + cpu), bytes);
    for (size_t i = 0; i < refs.size(); i++)
        if (i % 40)
            pool.free(refs[i]);
    EXPECT_GT(quire_percpu_trim(pool), 0u);
    EXPECT_EQ(quire_percpu_check(pool), nullptr);
    for (size_t i = 0; i < refs.size(); i += 40)
        for (unsigned cpu = 0; cpu < 3; cpu++)
            for (size_t k = 0; k < bytes; k++)
                ASSERT_EQ(pool.at(refs[i], cpu)[k], char(i * 3 + cpu));
}

TEST_F(PercpuMemory, operations_go_on_after_a_trim_of_the_page_they_ran_on)
{
    Mode mode(OS_RSEQ_FAKE);
    Pool pool({.cpus = 4});
    Ref keep = pool.alloc(8), gap = pool.alloc(100000), ref = pool.alloc(8);
    for (int round = 0; round < 3; round++)
        for (int cpu = 0; cpu < 6; cpu++) {
            os_cpu_fake_set(cpu);
            quire_percpu_add(pool, keep, 1);
            quire_percpu_add(pool, ref, 2);
            pool.free(gap);
            quire_percpu_trim(pool);
            gap = pool.alloc(100000);
            ASSERT_EQ(quire_percpu_check(pool), nullptr);
        }
    EXPECT_EQ(quire_percpu_sum(pool, keep), 18);
    EXPECT_EQ(quire_percpu_sum(pool, ref), 36);
}

TEST_F(PercpuMemory, trim_without_anything_to_give_gives_nothing)
{
    Pool pool({.cpus = 2});
    EXPECT_EQ(quire_percpu_trim(pool), 0u);
    Refs refs = pool.alloc_many(100, 64);
    pool.fill(refs[50], 64, 1);
    quire_percpu_trim(pool);
    EXPECT_EQ(quire_percpu_trim(pool), 0u) << "the second time";
}

/* ---- chunks ---- */

TEST(PercpuChunks, empty_chunks_go_at_once_and_the_last_with_a_trim)
{
    struct quire_source *count = quire_source_count(quire_source_anon());
    {
        Pool pool({.source = count, .chunk_bytes = unit_of(16 * page), .cpus = 3});
        for (bool backwards : {false, true}) {
            Refs refs = pool.alloc_many(1000, page / 4 - 24);
            EXPECT_GE(pool.stats().chunks, 15u);
            if (backwards)
                std::reverse(refs.begin(), refs.end());
            for (Ref ref : refs)
                quire_percpu_add(pool, ref, 1);
            pool.free(refs);
            EXPECT_LE(pool.stats().chunks, 2u);
            EXPECT_EQ(pool.stats().chunks, pool.stats().empty_chunks);
        }
        size_t mapped = pool.stats().mapped_bytes;
        EXPECT_GT(quire_percpu_trim(pool), 0u);
        EXPECT_LE(pool.stats().mapped_bytes, mapped - 4 * 16 * page);
        EXPECT_EQ(pool.stats().chunks, 0u);
        EXPECT_EQ(taken_bytes(count), 0u);
        pool.free(pool.alloc());
    }
    EXPECT_EQ(taken_bytes(count), 0u);
    quire_source_destroy(count);
}

TEST(PercpuChunks, one_object_allocated_and_freed_over_and_over_takes_one_chunk_from_the_source)
{
    struct quire_source *count = quire_source_count(quire_source_anon());
    {
        Pool pool({.source = count, .chunk_bytes = unit_of(64 * kib), .cpus = 3});
        for (int i = 0; i < 1000; i++)
            pool.free(pool.alloc(100));
    }
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(count, &stats);
    EXPECT_EQ(stats.takes, 1u);
    quire_source_destroy(count);
}

TEST(PercpuChunks, sparse_chunks_are_left_alone_while_fuller_ones_have_room)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs = pool.alloc_many(6000, 100); /* some ten chunks */
    size_t chunks = pool.stats().chunks;
    std::mt19937_64 order(3);
    for (size_t i = 0; i < refs.size(); i++) /* the first chunks keep one of twenty, the others nineteen */
        if ((i < refs.size() / 2) == (i % 20 != 0))
            pool.free(refs[i]), refs[i] = {0};
    refs.erase(std::remove(refs.begin(), refs.end(), Ref{0}), refs.end());
    for (int round = 0; round < 200; round++) /* churn: what is freed at random comes back where it is full */
        for (int k = 0; k < 30; k++) {
            size_t i = order() % refs.size();
            pool.free(refs[i]);
            refs[i] = pool.alloc(100);
        }
    EXPECT_LE(pool.stats().chunks, chunks);
    EXPECT_EQ(pool.stats().live_objects, refs.size());
}

/* ---- bookkeeping and mappings ---- */

TEST(PercpuChunks, bookkeeping_is_at_most_8_percent_of_one_unit_whatever_the_number_of_cpus)
{
    for (unsigned cpus : {1u, 2u, 64u, 512u})
        for (size_t unit : {unit_of(64 * page), unit_of(256 * page), std::min(unit_of(1024 * page), unit_of(16 * mib))}) {
            if (memory_is_watched() && cpus > 64)
                continue; /* half a GiB has shadow memory */
            Pool pool({.chunk_bytes = unit, .cpus = cpus});
            size_t nothing = pool.stats().meta_bytes;
            pool.alloc(8);
            Refs more = pool.alloc_many(3, unit / 3 * 2);
            struct quire_percpu_stats stats = pool.stats();
            ASSERT_GE(stats.chunks, 3u);
            EXPECT_LE(stats.meta_bytes - nothing, stats.chunks * stats.unit_bytes * 8 / 100 + 2 * page) << cpus << " CPUs, units of " << unit;
            pool.free(more);
        }
}

TEST_F(PercpuMemory, a_chunk_is_at_most_four_mappings)
{
    Mode mode(OS_RSEQ_OFF);
    quire_percpu_destroy(quire_percpu_create(nullptr));
    size_t before = count_lines("/proc/self/maps");
    Pool pool({.chunk_bytes = unit_of(16 * page), .cpus = 64});
    Refs refs = pool.alloc_many(20 * 64, page / 4 - 24);
    for (size_t i = 0; i < refs.size(); i++) {
        os_cpu_fake_set(int(i % 70));
        quire_percpu_add(pool, refs[i], 1);
    }
    size_t chunks = pool.stats().chunks;
    EXPECT_GE(chunks, 20u);
    EXPECT_LE(count_lines("/proc/self/maps"), before + 4 * chunks + 4);
    for (size_t i = 0; i < refs.size(); i++)
        if (i % 20)
            pool.free(refs[i]);
    quire_percpu_trim(pool);
    EXPECT_LE(count_lines("/proc/self/maps"), before + 4 * chunks + 4) << "trimmed pages do not cut them";
    EXPECT_LE(pool.stats().chunks, chunks);
}
