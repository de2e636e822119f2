// SPDX-License-Identifier: MIT
/* Each sentence of quire/percpu.h about objects: where their copies lie, what is in them, what is refused. */
#include <gtest/gtest.h>

#include <algorithm>

#include <quire/arena.h>
#include <quire/slab.h>

#include "unit/percpu_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t kib = 1024, mib = 1 << 20;

/* The errno with which a pool is refused; 0: it is not. */
int refusal(quire_percpu_opts opts)
{
    errno = 0;
    quire_percpu *pool = quire_percpu_create(&opts);
    int error = errno;
    quire_percpu_destroy(pool);
    return pool ? 0 : error;
}

/* The same of an object, by both ways to allocate. */
int refusal(const Pool &pool, size_t bytes, size_t align_bytes)
{
    errno = 0;
    Ref ref = quire_percpu_alloc(pool, bytes, align_bytes);
    int error = errno;
    errno = 0;
    Ref nowait = quire_percpu_alloc_nowait(pool, bytes, align_bytes);
    EXPECT_EQ(nowait.bits, 0u);
    EXPECT_EQ(errno, error) << "the same word from both";
    return ref.bits ? 0 : error;
}

struct quire_source_stats source_stats(quire_source *source)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    return stats;
}
} // namespace

/* ---- creation ---- */

TEST(Percpu, null_options_and_all_zero_options_are_the_defaults)
{
    quire_percpu *pool = quire_percpu_create(nullptr);
    ASSERT_NE(pool, nullptr);
    Pool zero;
    EXPECT_EQ(quire_percpu_cpus(pool), os_cpu_count());
    EXPECT_EQ(percpu_stats(pool).unit_bytes, zero.stats().unit_bytes);
    EXPECT_EQ(percpu_stats(pool).limit_bytes, 0u);
    EXPECT_EQ(percpu_stats(pool).cpus, os_cpu_count());
    EXPECT_EQ(percpu_stats(pool).live_objects, 0u);
    EXPECT_EQ(percpu_stats(pool).reserve_bytes, 0u);
    EXPECT_EQ(zero.stats().unit_bytes, mib - page) << "a unit's first page is not only for objects";
    EXPECT_EQ(quire_percpu_check(pool), nullptr);
    quire_percpu_destroy(pool);
}

TEST(Percpu, as_many_copies_as_were_asked_for)
{
    for (unsigned cpus : {1u, 2u, 3u, 63u, 64u, 65u, 512u}) {
        Pool pool({.chunk_bytes = unit_of(16 * kib), .cpus = cpus});
        EXPECT_EQ(pool.cpus(), cpus);
        EXPECT_EQ(pool.stats().cpus, cpus);
        Ref ref = pool.alloc();
        *reinterpret_cast<intptr_t *>(pool.at(ref, cpus - 1)) = 7;
        EXPECT_EQ(quire_percpu_sum(pool, ref), 7);
    }
}

TEST(Percpu, the_largest_object_is_at_least_what_was_asked_for_and_its_unit_a_power_of_two_less_than_four_times_as_large)
{
    for (size_t bytes : {size_t(1), size_t(100), page - 1, page, page + 1, 3 * page, size_t(100000), mib - page, mib}) {
        Pool pool({.chunk_bytes = bytes, .cpus = 2});
        size_t largest = pool.stats().unit_bytes;
        EXPECT_GE(largest, bytes);
        Ref ref = pool.alloc(largest, page);
        size_t unit = size_t(pool.at(ref, 1) - pool.at(ref, 0));
        EXPECT_EQ(unit & (unit - 1), 0u) << unit;
        EXPECT_LE(unit, 2 * (bytes + page) > 2 * page ? 2 * (bytes + page) : 2 * page);
        EXPECT_EQ(quire_percpu_alloc(pool, largest + 1, 4).bits, 0u);
        pool.free(ref);
    }
}

TEST(Percpu, creating_costs_32_kib_of_address_space_and_with_a_reserve_a_chunk)
{
    struct quire_source *count = quire_source_count(quire_source_anon());
    {
        Pool pool({.source = count});
        EXPECT_LE(pool.stats().mapped_bytes, std::max(32 * kib, page));
        EXPECT_EQ(pool.stats().chunks, 0u);
        EXPECT_EQ(source_stats(count).taken_bytes, 0u);
        Pool reserved({.source = count, .reserve_bytes = 1000});
        EXPECT_EQ(reserved.stats().chunks, 1u);
        EXPECT_EQ(source_stats(count).takes, 1u);
    }
    EXPECT_EQ(source_stats(count).taken_bytes, 0u);
    quire_source_destroy(count);
}

TEST(Percpu, unknown_flags_and_too_large_units_and_reserves_are_einval)
{
    for (uint32_t flag = 1; flag != 0; flag *= 2)
        EXPECT_EQ(refusal({.flags = flag}), EINVAL) << flag;
    for (size_t bytes : {SIZE_MAX, SIZE_MAX / 2 + 2, size_t(PTRDIFF_MAX), size_t(1) << 62, size_t(1) << 46})
        EXPECT_EQ(refusal({.chunk_bytes = bytes}), EINVAL) << bytes;
    for (size_t bytes : {2 * mib, size_t(PTRDIFF_MAX), SIZE_MAX})
        EXPECT_EQ(refusal({.reserve_bytes = bytes}), EINVAL) << bytes;
    EXPECT_EQ(refusal({.chunk_bytes = unit_of(64 * kib), .reserve_bytes = 65 * kib}), EINVAL);
    EXPECT_EQ(refusal({.chunk_bytes = unit_of(64 * kib), .reserve_bytes = 32 * kib}), 0);
}

TEST(Percpu, more_copies_than_there_is_address_space_for_are_refused_and_the_process_lives)
{
    for (unsigned cpus : {UINT32_MAX, UINT32_MAX - 1, UINT32_MAX / 2, 1u << 30}) {
        quire_percpu_opts opts = {.chunk_bytes = 64 * mib, .cpus = cpus};
        errno = 0;
        quire_percpu *pool = quire_percpu_create(&opts);
        if (pool) {
            errno = 0;
            EXPECT_EQ(quire_percpu_alloc(pool, 8, 0).bits, 0u) << cpus;
        }
        EXPECT_TRUE(errno == ENOMEM || errno == EINVAL) << errno;
        quire_percpu_destroy(pool);
    }
}

/* ---- where objects lie ---- */

TEST(Percpu, objects_of_every_size_and_alignment_are_aligned_apart_and_zero_on_every_cpu)
{
    const size_t unit = unit_of(std::max(64 * kib, 4 * page));
    Pool pool({.chunk_bytes = unit, .cpus = 3});
    for (size_t align = 4; align <= page; align *= 2)
        for (size_t bytes : {size_t(1), size_t(2), size_t(3), size_t(4), size_t(5), size_t(7), size_t(8), size_t(9), size_t(15), size_t(16), size_t(17),
                             size_t(63), size_t(64), size_t(65), size_t(100), size_t(255), size_t(1000), size_t(1024), page - 1, page, page + 1, unit / 2,
                             unit - page, unit - 4, unit - 1, unit}) {
            Refs refs = pool.alloc_many(bytes > page + 1 ? 2 : 5, bytes, align);
            for (size_t i = 0; i < refs.size(); i++) {
                ASSERT_TRUE(pool.holds(refs[i], bytes, 0)) << bytes << " aligned to " << align;
                for (unsigned cpu = 0; cpu < 3; cpu++) {
                    ASSERT_EQ(uintptr_t(pool.at(refs[i], cpu)) % align, 0u) << bytes << " aligned to " << align;
                    memset(pool.at(refs[i], cpu), int(1 + i * 3 + cpu), bytes);
                }
            }
            for (size_t i = 0; i < refs.size(); i++)
                for (unsigned cpu = 0; cpu < 3; cpu++) {
                    const char *copy = pool.at(refs[i], cpu);
                    ASSERT_TRUE(copy[0] == char(1 + i * 3 + cpu) && memcmp(copy, copy + 1, bytes - 1) == 0) << bytes << " aligned to " << align;
                }
            EXPECT_EQ(pool.stats().live_objects, refs.size());
            pool.free(refs);
        }
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

/* Those of which there are many lie in pages of 8 or 32 KiB, or as large as the unit. */
TEST(Percpu, many_objects_of_each_size_are_apart_and_freed_in_any_order_in_units_of_every_size)
{
    for (size_t unit : {2 * page, unit_of(std::max(32 * kib, 2 * page)), unit_of(std::max(mib, 4 * page))}) {
        Pool pool({.chunk_bytes = unit, .cpus = 1});
        Random random(unit);
        for (size_t bytes : {4, 16, 64, 128, 508, 512, 516, 768, 1000, 1024, 1028}) {
            Refs refs = pool.alloc_many(200, bytes, 4);
            for (int round = 0; round < 2; round++) {
                for (size_t i = 0; i < refs.size(); i++)
                    memset(pool.at(refs[i], 0), int(1 + i), bytes);
                for (size_t i = refs.size(); i-- > 1;)
                    std::swap(refs[i], refs[random.below(i + 1)]);
                for (size_t i = 0; i < refs.size(); i++) {
                    const char *copy = pool.at(refs[i], 0);
                    ASSERT_EQ(memcmp(copy, copy + 1, bytes - 1), 0) << bytes << " in units of " << unit;
                }
                ASSERT_EQ(quire_percpu_check(pool), nullptr) << bytes << " in units of " << unit;
                pool.free(Refs(refs.begin() + 50, refs.end()));
                refs.resize(50);
                for (Ref ref : pool.alloc_many(150, bytes, 4)) {
                    ASSERT_TRUE(pool.holds(ref, bytes, 0));
                    refs.push_back(ref);
                }
            }
            pool.free(refs);
        }
        EXPECT_EQ(pool.stats().live_objects, 0u);
    }
}

TEST(Percpu, every_alignment_is_met_between_objects_of_odd_sizes)
{
    Pool pool({.chunk_bytes = unit_of(256 * kib), .cpus = 2});
    Random random(1);
    Refs refs;
    for (int i = 0; i < 3000; i++) {
        size_t align = size_t(1) << random.below(13), bytes = 1 + random.below(200);
        if (align > page)
            continue;
        refs.push_back(pool.alloc(bytes, align));
        ASSERT_EQ(uintptr_t(pool.at(refs.back(), 0)) % align, 0u);
        ASSERT_EQ(uintptr_t(pool.at(refs.back(), 1)) % align, 0u);
    }
    pool.free(refs);
}

TEST(Percpu, a_large_alignment_is_met_by_a_new_chunk_though_many_others_seem_to_have_room)
{
    quire_percpu_opts opts = {};
    opts.chunk_bytes = unit_of(2 * page);
    Pool pool(opts);
    for (size_t first : {page - 100, page / 2, page / 4}) /* what is left of each unit is long, and holds no such object */
        for (int i = 0; i < 30; i++)
            ASSERT_NE(quire_percpu_alloc(pool, first, 0).bits, 0u);
    for (size_t bytes : {page - 64, page - 700, page / 2})
        for (int i = 0; i < 30; i++) {
            Ref ref = quire_percpu_alloc(pool, bytes, page);
            ASSERT_NE(ref.bits, 0u) << bytes << ", " << i;
            EXPECT_EQ(ref.bits % page, 0u);
        }
}

TEST(Percpu, without_an_alignment_objects_are_8_byte_aligned_and_those_under_8_bytes_4)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    pool.alloc(4, 4);
    for (size_t bytes = 0; bytes < 100; bytes++) {
        Ref ref = pool.alloc(bytes);
        EXPECT_EQ(uintptr_t(pool.at(ref, 1)) % (bytes < 8 ? 4 : 8), 0u) << bytes;
    }
    size_t free_before = pool.stats().unit_free_bytes;
    pool.alloc_many(100, 4);
    EXPECT_EQ(pool.stats().unit_free_bytes, free_before - 400) << "four bytes are four bytes";
}

TEST(Percpu, zero_bytes_are_an_object_of_its_own_too)
{
    Pool pool({.chunk_bytes = page, .cpus = 1});
    Ref a = pool.alloc(0), b = pool.alloc(0);
    EXPECT_FALSE(a == b);
    pool.free(a), pool.free(b);
}

TEST(Percpu, copies_are_apart_and_each_keeps_what_was_written_to_it)
{
    Pool pool({.chunk_bytes = unit_of(16 * kib), .cpus = 17});
    Refs refs = pool.alloc_many(200, 24);
    for (size_t i = 0; i < refs.size(); i++)
        for (unsigned cpu = 0; cpu < 17; cpu++)
            memset(pool.at(refs[i], cpu), int(i * 17 + cpu), 24);
    for (size_t i = 0; i < refs.size(); i++)
        for (unsigned cpu = 0; cpu < 17; cpu++)
            for (int k = 0; k < 24; k++)
                ASSERT_EQ(pool.at(refs[i], cpu)[k], char(i * 17 + cpu));
}

TEST(Percpu, the_copy_of_a_cpu_that_has_none_is_einval)
{
    Pool pool({.cpus = 4});
    Ref ref = pool.alloc();
    for (unsigned cpu : {4u, 5u, 64u, 1000000u, UINT32_MAX}) {
        errno = 0;
        EXPECT_EQ(quire_percpu_at(pool, ref, cpu), nullptr) << cpu;
        EXPECT_EQ(errno, EINVAL);
    }
}

/* ---- refusals ---- */

TEST(Percpu, alignments_that_are_no_power_of_two_or_above_an_os_page_are_einval)
{
    Pool pool({.reserve_bytes = 10000});
    for (size_t align : {size_t(3), size_t(5), size_t(12), size_t(24), page - 1, page + 1, 2 * page, mib, SIZE_MAX, SIZE_MAX / 2 + 1})
        EXPECT_EQ(refusal(pool, 8, align), EINVAL) << align;
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

TEST(Percpu, sizes_above_a_unit_are_enomem_however_large)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .reserve_bytes = 1000});
    size_t largest = pool.stats().unit_bytes;
    for (size_t bytes : {largest + 1, largest + 4, largest + page, mib, size_t(1) << 32, size_t(1) << 62, size_t(PTRDIFF_MAX), size_t(PTRDIFF_MAX) + 1, SIZE_MAX - 4096,
                         SIZE_MAX - 7, SIZE_MAX - 3, SIZE_MAX - 1, SIZE_MAX})
        for (size_t align = 1; align <= page; align *= 2)
            EXPECT_EQ(refusal(pool, bytes, align), ENOMEM) << bytes << " aligned to " << align;
    EXPECT_EQ(pool.stats().live_objects, 0u);
    pool.free(pool.alloc(largest));
}

/* ---- freeing ---- */

TEST(Percpu, freeing_none_does_nothing_and_freeing_and_destroying_keep_errno)
{
    quire_percpu_opts opts = {.chunk_bytes = unit_of(16 * kib), .cpus = 2};
    quire_percpu *pool = quire_percpu_create(&opts);
    Refs refs;
    for (int i = 0; i < 500; i++) /* several chunks: some go back with their last object */
        refs.push_back(quire_percpu_alloc(pool, 200, 0));
    errno = 42;
    quire_percpu_free(pool, {0});
    for (Ref ref : refs)
        quire_percpu_free(pool, ref);
    EXPECT_EQ(percpu_stats(pool).live_objects, 0u);
    quire_percpu_destroy(pool);
    quire_percpu_destroy(nullptr);
    EXPECT_EQ(errno, 42);
}

TEST(Percpu, calls_that_succeed_keep_errno)
{
    Pool pool({.chunk_bytes = unit_of(16 * kib), .cpus = 2, .reserve_bytes = 1000});
    errno = 42;
    for (int i = 0; i < 100; i++) {
        Ref ref = pool.alloc(1000);
        quire_percpu_add(pool, ref, 1);
        quire_percpu_sum(pool, ref);
        quire_percpu_free(pool, quire_percpu_alloc_nowait(pool, 8, 0));
    }
    quire_percpu_trim(pool);
    EXPECT_EQ(errno, 42);
}

TEST(Percpu, objects_are_zero_on_every_cpu_also_where_older_ones_were)
{
    Pool pool({.chunk_bytes = unit_of(32 * kib), .cpus = 4});
    for (size_t bytes : {size_t(1), size_t(3), size_t(8), size_t(24), size_t(100), size_t(1000), size_t(9000), unit_of(32 * kib)})
        for (int round = 0; round < 6; round++) {
            Refs refs = pool.alloc_many(bytes > 4096 ? 3 : 30, bytes);
            for (Ref ref : refs) {
                ASSERT_TRUE(pool.holds(ref, bytes, 0)) << bytes;
                pool.fill(ref, bytes, 0xee);
            }
            if (round % 2)
                std::reverse(refs.begin(), refs.end());
            pool.free(refs);
            if (round == 3)
                quire_percpu_trim(pool);
        }
}

TEST(Percpu, what_is_freed_is_allocated_again_before_more_memory_is_taken)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs = pool.alloc_many(5000, 64);
    size_t chunks = pool.stats().chunks;
    Random random(7);
    for (int round = 0; round < 10; round++) {
        Refs kept;
        for (Ref ref : refs)
            if (random.below(2))
                pool.free(ref);
            else
                kept.push_back(ref);
        while (kept.size() < refs.size())
            kept.push_back(pool.alloc(64));
        refs = kept;
        EXPECT_LE(pool.stats().chunks, chunks);
    }
}

TEST(Percpu, destroy_frees_what_is_left)
{
    struct quire_source *count = quire_source_count(quire_source_anon());
    for (int i = 0; i < 20; i++) {
        quire_percpu_opts opts = {.source = count, .chunk_bytes = unit_of(16 * kib), .cpus = 3, .reserve_bytes = size_t(i % 2 ? 500 : 0)};
        quire_percpu *pool = quire_percpu_create(&opts);
        for (int k = 0; k < 300; k++)
            quire_percpu_add(pool, quire_percpu_alloc(pool, 500, 0), 1);
        quire_percpu_destroy(pool);
        EXPECT_EQ(source_stats(count).taken_bytes, 0u);
    }
    EXPECT_EQ(source_stats(count).takes, source_stats(count).gives);
    quire_source_destroy(count);
}

/* ---- many pools ---- */

TEST(Percpu, a_hundred_pools_at_once_are_kept_apart)
{
    std::vector<quire_percpu *> pools;
    std::vector<Refs> refs(100);
    for (size_t i = 0; i < 100; i++) {
        quire_percpu_opts opts = {.chunk_bytes = unit_of(8 * kib), .cpus = unsigned(1 + i % 5)};
        pools.push_back(quire_percpu_create(&opts));
        ASSERT_NE(pools.back(), nullptr);
    }
    for (size_t k = 0; k < 50; k++)
        for (size_t i = 0; i < 100; i++) {
            refs[i].push_back(quire_percpu_alloc(pools[i], 8 + 8 * (k % 4), 0));
            quire_percpu_add(pools[i], refs[i][k], intptr_t(i * 1000 + k));
        }
    for (size_t i = 0; i < 100; i++)
        for (size_t k = 0; k < 50; k++) {
            ASSERT_EQ(quire_percpu_sum(pools[i], refs[i][k]), intptr_t(i * 1000 + k));
            ASSERT_TRUE(quire_percpu_owns(pools[i], refs[i][k]));
            ASSERT_FALSE(quire_percpu_owns(pools[(i + 1) % 100], refs[i][k]));
        }
    for (size_t i = 0; i < 100; i++) {
        EXPECT_EQ(percpu_stats(pools[i]).live_objects, 50u);
        EXPECT_EQ(quire_percpu_check(pools[i]), nullptr);
        quire_percpu_destroy(pools[i]);
    }
}

TEST(Percpu, pools_are_created_until_there_is_no_room_for_one_more_and_then_again)
{
    quire_percpu_opts opts = {.chunk_bytes = page, .cpus = 1};
    for (int round = 0; round < 2; round++) {
        std::vector<quire_percpu *> pools;
        errno = 0;
        for (quire_percpu *pool; pools.size() < 20000 && (pool = quire_percpu_create(&opts));)
            pools.push_back(pool);
        EXPECT_GE(pools.size(), 3000u);
        EXPECT_LT(pools.size(), 20000u) << "bounded";
        EXPECT_EQ(errno, ENOMEM);
        Ref ref = quire_percpu_alloc(pools.back(), 8, 0);
        quire_percpu_add(pools.back(), ref, 5);
        EXPECT_EQ(quire_percpu_sum(pools.back(), ref), 5);
        for (quire_percpu *pool : pools)
            quire_percpu_destroy(pool);
    }
}

/* ---- owns ---- */

TEST(Percpu, owns_is_true_of_live_objects_only)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 3}), other({.chunk_bytes = unit_of(64 * kib), .cpus = 3});
    Refs refs = pool.alloc_many(50, 100);
    for (Ref ref : refs) {
        EXPECT_TRUE(quire_percpu_owns(pool, ref));
        EXPECT_FALSE(quire_percpu_owns(other, ref));
        for (uintptr_t inside : {1, 2, 4, 8, 50, 96, 99})
            EXPECT_FALSE(quire_percpu_owns(pool, {ref.bits + inside})) << "the inside of an object is none";
        EXPECT_FALSE(quire_percpu_owns(pool, {uintptr_t(pool.at(ref, 1))})) << "nor is another CPU's copy";
    }
    for (size_t i = 0; i < 50; i += 2)
        pool.free(refs[i]);
    for (size_t i = 0; i < 50; i++)
        EXPECT_EQ(quire_percpu_owns(pool, refs[i]), i % 2 == 1);
}

TEST(Percpu, owns_may_be_asked_about_any_bits)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Ref ref = pool.alloc(64);
    quire_arena *arena = quire_arena_create(nullptr);
    quire_slab *slab = quire_slab_create(64, nullptr);
    int local = 0;
    for (const void *wild : {static_cast<const void *>(nullptr), static_cast<const void *>(&local), static_cast<const void *>(&page),
                             static_cast<const void *>(quire_arena_alloc(arena, 8)), static_cast<const void *>(quire_slab_alloc(slab)),
                             static_cast<const void *>(static_cast<quire_percpu *>(pool))})
        EXPECT_FALSE(quire_percpu_owns(pool, {uintptr_t(wild)})) << wild;
    for (int bit = 0; bit < 64; bit++) {
        EXPECT_FALSE(quire_percpu_owns(pool, {ref.bits ^ uintptr_t(1) << bit})) << bit;
        for (uintptr_t low : {uintptr_t(0), uintptr_t(1), ~uintptr_t(0), uintptr_t(4096)})
            EXPECT_FALSE(quire_percpu_owns(pool, {(low << bit) ^ (uintptr_t(1) << bit)})) << bit;
    }
    uintptr_t unit = ref.bits / (64 * kib) * (64 * kib);
    for (uintptr_t at = unit - page; at < unit + 4 * 64 * kib; at += 4)
        EXPECT_EQ(quire_percpu_owns(pool, {at}), at == ref.bits);
    quire_slab_destroy(slab);
    quire_arena_destroy(arena);
}
