// SPDX-License-Identifier: MIT
/* Pools over every kind of source, each for real; and under limits. */
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sched.h>
#include <sys/mount.h>

#include "model/slab_worker.h"
#include "unit/own_source.h"
#include "unit/percpu_scope.h"
#include "unit/source_kit.h"

namespace {
const size_t page = os_page_bytes();
const size_t kib = 1024, mib = 1 << 20;

/* Every byte of every copy. */
bool holds(quire_percpu *pool, Ref ref, size_t bytes, char value)
{
    bool same = true;
    for (unsigned cpu = 0; cpu < quire_percpu_cpus(pool); cpu++) {
        const char *copy = static_cast<char *>(quire_percpu_at(pool, ref, cpu));
        same &= copy[0] == value && memcmp(copy, copy + 1, bytes - 1) == 0;
    }
    return same;
}

/* Everything an ordinary pool does, over one source, from two threads; 0 when all of it went well, else the line. */
int life_of(struct quire_source *source, size_t bytes)
{
    quire_percpu_opts opts = {.name = "mode", .source = source, .chunk_bytes = unit_of(32 * kib), .cpus = 3, .reserve_bytes = 1000};
    quire_percpu *pool = quire_percpu_create(&opts);
    OR_LINE(pool);
    Worker other;
    for (int round = 0; round < 3; round++) {
        Refs refs;
        for (int i = 0; i < 100; i++) {
            refs.push_back(quire_percpu_alloc(pool, bytes, 0));
            OR_LINE(refs.back().bits && holds(pool, refs.back(), bytes, 0));
            for (unsigned cpu = 0; cpu < 3; cpu++)
                memset(quire_percpu_at(pool, refs.back(), cpu), 0x5a, bytes);
        }
        for (Ref ref : refs)
            OR_LINE(holds(pool, ref, bytes, 0x5a) && quire_percpu_owns(pool, ref));
        Ref counter = quire_percpu_alloc(pool, 8, 0);
        for (int i = 0; i < 1000; i++)
            quire_percpu_add(pool, counter, i);
        OR_LINE(quire_percpu_sum(pool, counter) == 499500);
        struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
        quire_percpu_stats(pool, &stats);
        OR_LINE(stats.live_objects == 101 && stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes);
        other.run([&] {
            for (size_t i = 0; i < 30; i++)
                quire_percpu_free(pool, refs[i]);
        });
        for (size_t i = 30; i < 100; i += 2)
            quire_percpu_free(pool, refs[i]);
        quire_percpu_trim(pool);
        OR_LINE(quire_percpu_check(pool) == nullptr);
        for (size_t i = 31; i < 100; i += 2) {
            OR_LINE(holds(pool, refs[i], bytes, 0x5a));
            quire_percpu_free(pool, refs[i]);
        }
        quire_percpu_free(pool, counter);
        quire_percpu_stats(pool, &stats);
        OR_LINE(stats.live_objects == 0);
        OR_LINE(quire_percpu_check(pool) == nullptr);
    }
    quire_percpu_destroy(pool);
    return 0;
}

/* Two sizes, then everything is back. */
void works_over(struct quire_source *source)
{
    ASSERT_NE(source, nullptr) << "errno " << errno;
    struct quire_source *count = quire_source_count(source);
    EXPECT_EQ(life_of(count, 64), 0) << source->name;
    EXPECT_EQ(life_of(count, 3000), 0) << source->name;
    EXPECT_EQ(stats_of(count).taken_bytes, 0u) << source->name;
    EXPECT_GT(stats_of(count).takes, 0u) << source->name << ": its memory came from there";
    EXPECT_EQ(stats_of(count).takes, stats_of(count).gives) << source->name;
    EXPECT_EQ(quire_source_check(source), nullptr) << source->name;
    quire_source_destroy(count);
    quire_source_destroy(source);
}
} // namespace

/* ---- every source ---- */

TEST(PercpuSource, every_source_feeds_a_pool)
{
    works_over(quire_source_default());
    works_over(quire_source_anon());
    works_over(quire_source_malloc());
    works_over(quire_source_memfd("percpu"));
    works_over(quire_source_limit(quire_source_anon(), 16 * mib));
    works_over(quire_source_fail(quire_source_default(), 1000000));
    std::unique_ptr<char[]> buffer(new char[16 << 20]);
    works_over(quire_source_fixed(buffer.get(), 16 << 20));
}

TEST(PercpuSource, files_feed_a_pool_and_none_is_left)
{
    Directory directory;
    works_over(quire_source_file(directory.path.c_str(), "percpu"));
    EXPECT_EQ(directory.list(), Names{});
}

TEST(PercpuSource, objects_lie_in_the_source_that_was_given)
{
    std::vector<char> buffer(8 * mib);
    struct quire_source *fixed = quire_source_fixed(buffer.data(), buffer.size());
    {
        Pool pool({.source = fixed, .chunk_bytes = unit_of(64 * kib), .cpus = 3});
        Refs refs = pool.alloc_until_refused(1000);
        EXPECT_GE(refs.size() * 1000 * 4, buffer.size() / 2) << "its end is reached by objects";
        for (Ref ref : refs)
            for (unsigned cpu = 0; cpu < 3; cpu++)
                ASSERT_TRUE(pool.at(ref, cpu) >= buffer.data() && pool.at(ref, cpu) + 1000 <= buffer.data() + buffer.size());
        pool.free(refs);
        quire_percpu_trim(pool);
        EXPECT_EQ(stats_of(fixed).taken_bytes, 0u);
    }
    quire_source_destroy(fixed);
}

TEST(PercpuSource, a_counting_source_sees_one_tenants_memory)
{
    struct quire_source *a = quire_source_count(quire_source_anon()), *b = quire_source_count(quire_source_anon());
    {
        Pool of_a({.source = a, .chunk_bytes = unit_of(64 * kib), .cpus = 2}), of_b({.source = b, .chunk_bytes = unit_of(64 * kib), .cpus = 2});
        of_a.alloc_many(10000, 64), of_b.alloc_many(10, 64);
        for (auto [count, pool] : {std::pair(a, &of_a), std::pair(b, &of_b)}) {
            struct quire_percpu_stats stats = pool->stats();
            size_t words = stats.mapped_bytes - stats.meta_bytes;
            EXPECT_GE(stats_of(count).taken_bytes, words);
            EXPECT_LE(stats_of(count).taken_bytes, stats.mapped_bytes) << "bookkeeping lies elsewhere";
        }
        EXPECT_GT(stats_of(a).taken_bytes, 5 * stats_of(b).taken_bytes);
    }
    EXPECT_EQ(stats_of(a).taken_bytes + stats_of(b).taken_bytes, 0u);
    quire_source_destroy(a), quire_source_destroy(b);
}

TEST(PercpuSource, memory_that_was_used_before_is_zero_in_every_copy)
{
    Random random(2);
    for (struct quire_source *source : {quire_source_default(), quire_source_malloc()})
        for (int round = 0; round < 10; round++) {
            Pool pool({.source = source, .chunk_bytes = unit_of(16 * kib), .cpus = 2});
            for (int i = 0; i < 40; i++) {
                Ref ref = pool.alloc(1000);
                ASSERT_TRUE(pool.holds(ref, 1000, 0)) << source->name;
                pool.fill(ref, 1000, 0xcc);
            }
        }
}

TEST(PercpuSource, a_source_of_the_users_own_with_five_verbs_is_enough)
{
    static const struct quire_source_verbs verbs = {sizeof verbs,
        own_take, own_give, [](struct quire_source *, void *, size_t) {}, [](struct quire_source *, void *, size_t) { return 0; },
        [](struct quire_source *) {}, nullptr, nullptr, nullptr};
    OwnSource own = {{&verbs, "own"}, 0, 4 * mib};
    EXPECT_EQ(life_of(&own.base, 64), 0);
    EXPECT_EQ(life_of(&own.base, 1000), 0);
    EXPECT_EQ(own.taken_bytes, 0u);
    {
        Pool pool({.source = &own.base, .chunk_bytes = unit_of(16 * kib), .cpus = 3});
        EXPECT_GT(pool.alloc_until_refused(64).size(), 1000u) << "and errno is ENOMEM, whatever the source said";
    }
    EXPECT_EQ(own.taken_bytes, 0u);
}

TEST(PercpuSource, a_budget_in_the_source_is_enomem_and_what_lives_goes_on)
{
    struct quire_source *limit = quire_source_limit(quire_source_anon(), 1 * mib);
    {
        Pool pool({.source = limit, .chunk_bytes = unit_of(32 * kib), .cpus = 3});
        Refs refs = pool.alloc_until_refused(200);
        EXPECT_GE(refs.size() * 200 * 4, mib / 2);
        quire_percpu_add(pool, refs[0], 1);
        EXPECT_EQ(quire_percpu_check(pool), nullptr);
        pool.free(refs.back());
        refs.back() = pool.alloc(200);
        EXPECT_EQ(quire_percpu_sum(pool, refs[0]), 1);
        pool.free(refs);
        pool.free(pool.alloc_many(100, 200));
    }
    EXPECT_EQ(stats_of(limit).taken_bytes, 0u);
    EXPECT_LE(stats_of(limit).peak_bytes, mib);
    quire_source_destroy(limit);
}

TEST(PercpuSource, a_full_disk_is_enomem_and_never_a_signal)
{
    Directory directory;
    int status = in_child([&] {
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("tmpfs", directory.path.c_str(), "tmpfs", 0, "size=2m") != 0)
            return int(CHILD_SKIPS);
        quire_percpu_opts opts = {.source = quire_source_file(directory.path.c_str(), "percpu"), .chunk_bytes = unit_of(32 * kib), .cpus = 3};
        quire_percpu *pool = quire_percpu_create(&opts);
        OR_LINE(pool);
        for (int round = 0; round < 2; round++) {
            Refs refs;
            errno = 0;
            for (Ref ref; refs.size() < 100000 && (ref = quire_percpu_alloc(pool, 500, 0)).bits;) {
                for (unsigned cpu = 0; cpu < 3; cpu++)
                    memset(quire_percpu_at(pool, ref, cpu), 1, 500); /* a SIGBUS here if its space were not reserved */
                quire_percpu_add(pool, ref, 1);
                refs.push_back(ref);
            }
            OR_LINE(errno == ENOMEM && refs.size() * 500 * 4 <= 2 * mib && refs.size() * 500 * 4 >= mib);
            OR_LINE(!quire_percpu_check(pool));
            for (Ref ref : refs)
                quire_percpu_free(pool, ref);
            quire_percpu_trim(pool);
        }
        quire_percpu_destroy(pool);
        return 0;
    });
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "no file system can be mounted here";
    EXPECT_EQ(status, 0);
}

/* ---- limit_bytes ---- */

TEST(PercpuLimit, less_than_one_chunk_is_enomem)
{
    for (size_t limit : {size_t(1), page, 64 * kib, 4 * 64 * kib - 1}) {
        quire_percpu_opts opts = {.chunk_bytes = unit_of(64 * kib), .cpus = 4, .limit_bytes = limit};
        errno = 0;
        EXPECT_EQ(quire_percpu_create(&opts), nullptr) << limit;
        EXPECT_EQ(errno, ENOMEM);
    }
    errno = 0;
    quire_percpu_opts opts = {.limit_bytes = 1};
    EXPECT_EQ(quire_percpu_create(&opts), nullptr) << "no unit is as small as that";
    EXPECT_EQ(errno, ENOMEM);
}

TEST(PercpuLimit, is_used_nearly_in_full_and_never_passed)
{
    for (size_t limit : {std::max(mib, 24 * os_page_bytes()), 3 * mib, 10 * mib})
        for (size_t bytes : {size_t(4), size_t(64), size_t(1000)}) {
            Pool pool({.name = "tenant", .chunk_bytes = unit_of(32 * kib), .cpus = 3, .limit_bytes = limit});
            Refs refs;
            errno = 0;
            for (Ref ref; (ref = quire_percpu_alloc(pool, bytes, 4)).bits;)
                refs.push_back(ref);
            EXPECT_EQ(errno, ENOMEM);
            struct quire_percpu_stats stats = pool.stats();
            EXPECT_EQ(stats.limit_bytes, limit);
            EXPECT_LE(stats.peak_bytes, limit);
            EXPECT_GE(stats.live_bytes, limit / 2) << bytes;
            EXPECT_EQ(quire_percpu_check(pool), nullptr);
            pool.free(refs.back());
            EXPECT_NE(quire_percpu_alloc(pool, bytes, 4).bits, 0u) << "room is room at once";
        }
}

TEST(PercpuLimit, what_another_thread_frees_is_room_at_once)
{
    Pool pool({.chunk_bytes = unit_of(32 * kib), .cpus = 3, .limit_bytes = mib});
    Refs refs = pool.alloc_until_refused(1000);
    Worker other;
    for (size_t i = 0; i < 10; i++) {
        other.run([&] { pool.free(refs[i]); });
        refs[i] = pool.alloc(1000);
    }
    other.run([&] { pool.free(refs); });
    EXPECT_EQ(pool.alloc_until_refused(1000).size(), refs.size());
}

TEST(PercpuLimit, a_default_unit_is_as_small_as_the_limit_asks_for)
{
    for (size_t limit : {std::max(size_t(256) << 10, 64 * page), mib, 4 * mib, 64 * mib}) {
        Pool pool({.cpus = 4, .limit_bytes = limit});
        EXPECT_LE(pool.stats().unit_bytes, limit / 5) << limit;
        pool.free(pool.alloc(pool.stats().unit_bytes));
        EXPECT_GE(pool.alloc_until_refused(64).size(), limit / 5 / 64 / 3) << limit;
        EXPECT_LE(pool.stats().peak_bytes, limit);
    }
    Pool roomy({.cpus = 4, .limit_bytes = 1000 * mib});
    EXPECT_EQ(roomy.stats().unit_bytes, mib - page);
}

/* Two chunks, and room for a few pages of bookkeeping besides. */
const quire_percpu_opts two_chunks = {.chunk_bytes = 60000, .cpus = 1, .limit_bytes = 400000};

TEST(PercpuLimit, a_chunk_that_is_empty_but_for_other_sizes_makes_room)
{
    if (page != 4096)
        GTEST_SKIP() << "sizes for pages of 4 KiB";
    for (size_t bytes : {4, 8, 12, 100, 1024, 6400}) {
        Pool pool(two_chunks);
        pool.alloc(61440);
        pool.alloc(4032);
        pool.free(pool.alloc(61440));
        EXPECT_EQ(pool.stats().empty_chunks, 1u);
        EXPECT_EQ(pool.stats().chunks, 2u);
        pool.alloc(bytes);
    }
    Pool pool(two_chunks);
    pool.free(pool.alloc_many(600, 16));
    pool.alloc_many(2, 60000);
}

TEST(PercpuLimit, free_pages_of_other_sizes_are_used_before_anybody_is_refused)
{
    if (page != 4096)
        GTEST_SKIP() << "sizes for pages of 4 KiB";
    Pool pool(two_chunks);
    pool.alloc_many(600, 16);
    for (size_t bytes = 60000; bytes > 1024; bytes -= bytes > 2000 ? 100 : 4)
        (void)pool.alloc_until_refused(bytes);
    for (size_t bytes : {1024, 512, 256, 100, 64, 40, 20, 12, 8, 4}) {
        EXPECT_EQ(pool.stats().longest_free_bytes, 1024u);
        pool.free(pool.alloc(bytes, 4));
    }
    EXPECT_LE(pool.stats().peak_bytes, 400000u);
}
