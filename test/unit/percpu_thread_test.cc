// SPDX-License-Identifier: MIT
/* Objects that cross threads, threads that end, and forks. */
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "model/slab_worker.h"
#include "owner/registry.h"
#include "unit/percpu_scope.h"
#include "unit/source_kit.h"

extern "C" struct registry percpu_pools;

namespace {
const size_t kib = 1024;
const size_t page = os_page_bytes();
} // namespace

/* ---- few objects, and many ---- */

TEST(PercpuThread, those_that_have_few_objects_share_chunks_and_leave_nothing)
{
    const unsigned threads = 200, few = 256;
    PercpuFew set(few);
    Pool pool({.cpus = 2});
    std::atomic<unsigned> there{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> list;
    for (unsigned t = 0; t < threads; t++)
        list.emplace_back([&] {
            Refs refs = pool.alloc_many(few / 4, 8);
            for (Ref ref : refs)
                quire_percpu_add(pool, ref, 1);
            there++;
            while (!go)
                std::this_thread::yield();
            pool.free(refs);
        });
    while (there < threads)
        std::this_thread::yield();
    struct quire_percpu_stats stats = pool.stats();
    EXPECT_EQ(stats.live_objects, threads * few / 4);
    EXPECT_EQ(stats.caches, 0u);
    EXPECT_LE(stats.chunks, 4u);
    EXPECT_STREQ(quire_percpu_check(pool), nullptr);
    go = true;
    for (std::thread &thread : list)
        thread.join();
    quire_percpu_trim(pool);
    EXPECT_EQ(pool.stats().chunks, 0u);
}

TEST(PercpuThread, one_that_allocates_more_has_chunks_of_its_own_from_then_on)
{
    const unsigned few = 256;
    PercpuFew set(few);
    Pool pool({.cpus = 2}), next({.cpus = 2});
    Worker other;
    Refs refs, more, nexts;
    other.run([&] { refs = pool.alloc_many(few, 8); });
    EXPECT_EQ(pool.stats().caches, 0u);
    other.run([&] { more = pool.alloc_many(1, 8), nexts = next.alloc_many(1, 8); });
    EXPECT_EQ(pool.stats().caches, 1u);
    EXPECT_EQ(next.stats().caches, 1u);
    EXPECT_EQ(pool.stats().chunks, 1u); /* home's is its own now */
    pool.free(refs), pool.free(more), next.free(nexts);
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

TEST(PercpuThread, one_that_has_few_gets_more_without_waiting_where_the_others_have_theirs)
{
    PercpuFew set(256);
    Pool pool({.cpus = 2});
    Ref first = pool.alloc(8), second = quire_percpu_alloc_nowait(pool, 8, 0);
    EXPECT_NE(second.bits, 0u);
    EXPECT_EQ(pool.stats().live_objects, 2u);
    pool.free(Refs{first, second});
}

/* ---- freed by another thread ---- */

TEST(PercpuThread, what_another_thread_freed_the_owner_allocates_again_before_more_memory_is_taken)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker other;
    Refs refs = pool.alloc_many(3000, 64);
    size_t chunks = pool.stats().chunks;
    for (int round = 0; round < 10; round++) {
        for (Ref ref : refs)
            quire_percpu_add(pool, ref, round);
        other.run([&] { pool.free(refs); });
        EXPECT_EQ(pool.stats().live_objects, 0u);
        refs = pool.alloc_many(3000, 64);
        for (Ref ref : refs)
            ASSERT_EQ(quire_percpu_sum(pool, ref), 0);
        EXPECT_LE(pool.stats().chunks, chunks + 1);
    }
}

TEST(PercpuThread, a_thread_that_only_frees_takes_nothing)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs = pool.alloc_many(500, 64);
    size_t chunks = pool.stats().chunks;
    Worker().run([&] {
        for (size_t i = 0; i < refs.size(); i += 2)
            pool.free(refs[i]);
    });
    EXPECT_LE(pool.stats().chunks, chunks);
    EXPECT_EQ(pool.stats().live_objects, 250u);
}

TEST(PercpuThread, chunks_that_others_emptied_go_with_a_trim_by_anybody)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker a, b;
    Refs refs;
    a.run([&] { refs = pool.alloc_many(3000, 100); });
    for (Ref ref : refs)
        quire_percpu_add(pool, ref, 1);
    b.run([&] { pool.free(refs); });
    EXPECT_EQ(pool.stats().live_objects, 0u);
    b.run([&] { EXPECT_GT(quire_percpu_trim(pool), 0u); });
    EXPECT_EQ(pool.stats().chunks, 0u);
}

TEST(PercpuThread, every_thread_may_use_every_object)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker a, b;
    Refs refs(200);
    a.run([&] {
        for (Ref &ref : refs)
            ref = pool.alloc();
    });
    for (Worker *worker : {&a, &b})
        worker->run([&] {
            for (Ref ref : refs)
                quire_percpu_add(pool, ref, 3);
        });
    for (Ref ref : refs) {
        quire_percpu_add(pool, ref, -1);
        ASSERT_EQ(quire_percpu_sum(pool, ref), 5);
        ASSERT_TRUE(quire_percpu_owns(pool, ref));
    }
}

/* ---- threads that end ---- */

TEST(PercpuThread, objects_outlive_the_thread_that_allocated_them)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs;
    std::thread([&] {
        refs = pool.alloc_many(1000, 64);
        for (Ref ref : refs)
            quire_percpu_add(pool, ref, 7);
    }).join();
    EXPECT_EQ(pool.stats().live_objects, 1000u);
    for (Ref ref : refs)
        ASSERT_EQ(quire_percpu_sum(pool, ref), 7);
    pool.free(Refs(refs.begin(), refs.begin() + 500));
    std::thread([&] { pool.free(Refs(refs.begin() + 500, refs.end())); }).join();
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

TEST(PercpuThread, a_thread_that_ends_leaves_its_chunks_to_others)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs;
    std::thread([&] { refs = pool.alloc_many(5000, 64); }).join();
    for (size_t i = 0; i < refs.size(); i += 2)
        pool.free(refs[i]);
    size_t chunks = pool.stats().chunks;
    std::thread([&] { pool.alloc_many(2400, 64); }).join();
    EXPECT_LE(pool.stats().chunks, chunks + 1) << "the holes are used";
    EXPECT_EQ(pool.stats().live_objects, 4900u);
    EXPECT_EQ(quire_percpu_check(pool), nullptr);
}

TEST(PercpuThread, hundreds_of_threads_one_after_the_other_share_one_set_of_chunks)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    size_t chunks = 0;
    for (int i = 0; i < 300; i++) {
        std::thread([&] {
            Refs refs = pool.alloc_many(100, 100);
            pool.free(refs);
            pool.alloc(100);
        }).join();
        if (i == 10)
            chunks = pool.stats().chunks;
    }
    struct quire_percpu_stats stats = pool.stats();
    EXPECT_EQ(stats.live_objects, 300u);
    EXPECT_LE(stats.chunks, chunks + 1);
    EXPECT_LE(stats.caches, 4u);
}

TEST(PercpuThread, a_thread_that_ends_with_nothing_live_leaves_no_more_than_a_chunk)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    for (int i = 0; i < 50; i++)
        std::thread([&] { pool.free(pool.alloc_many(2000, 64)); }).join();
    EXPECT_LE(pool.stats().chunks, 2u);
    quire_percpu_trim(pool);
    EXPECT_EQ(pool.stats().chunks, 0u);
}

TEST(PercpuThread, a_pool_may_be_destroyed_while_threads_that_used_it_live_and_they_may_use_the_next)
{
    Worker a, b;
    for (int i = 0; i < 30; i++) {
        Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
        Ref of_a = {0}, of_b = {0};
        a.run([&] { of_a = pool.alloc(), quire_percpu_add(pool, of_a, 1); });
        b.run([&] { of_b = pool.alloc(), pool.free(of_a), quire_percpu_add(pool, of_b, 2); });
        EXPECT_EQ(quire_percpu_sum(pool, of_b), 2);
        EXPECT_EQ(pool.stats().live_objects, 1u);
    }
}

TEST(PercpuThread, threads_may_end_after_their_pools)
{
    std::vector<std::unique_ptr<Worker>> workers;
    for (int i = 0; i < 20; i++)
        workers.push_back(std::make_unique<Worker>());
    for (int i = 0; i < 3; i++) {
        Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
        for (auto &worker : workers)
            worker->run([&] { pool.alloc(1000); });
        EXPECT_EQ(pool.stats().live_objects, 20u);
    }
    workers.clear();
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker().run([&] { pool.alloc(); });
}

/* ---- fork ---- */

TEST(PercpuThread, the_child_of_a_fork_has_copies_of_its_own_and_goes_on)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .reserve_bytes = 1000});
    Worker other;
    Refs mine = pool.alloc_many(500, 64), theirs;
    other.run([&] { theirs = pool.alloc_many(500, 64); });
    for (Ref ref : mine)
        quire_percpu_add(pool, ref, 5);
    EXPECT_EQ(in_child([&] {
                  for (Ref ref : mine) {
                      quire_percpu_add(pool, ref, 1);
                      OR_LINE(quire_percpu_sum(pool, ref) == 6);
                  }
                  pool.free(mine);
                  for (Ref ref : theirs) {
                      OR_LINE(quire_percpu_owns(pool, ref));
                      quire_percpu_free(pool, ref);
                  }
                  OR_LINE(quire_percpu_alloc_nowait(pool, 64, 0).bits);
                  Refs refs = pool.alloc_many(2000, 64);
                  for (Ref ref : refs)
                      OR_LINE(quire_percpu_sum(pool, ref) == 0);
                  struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
                  quire_percpu_stats(pool, &stats);
                  OR_LINE(stats.live_objects == 2001);
                  OR_LINE(stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.meta_bytes);
                  OR_LINE(quire_percpu_check(pool) == nullptr);
                  quire_percpu *born = quire_percpu_create(nullptr);
                  OR_LINE(born && quire_percpu_alloc(born, 8, 0).bits);
                  quire_percpu_destroy(born);
                  quire_percpu_trim(pool);
                  OR_LINE(quire_percpu_check(pool) == nullptr);
                  return 0;
              }),
              0);
    for (Ref ref : mine)
        ASSERT_EQ(quire_percpu_sum(pool, ref), 5) << "the child's adds are its own";
    EXPECT_EQ(pool.stats().live_objects, 1000u);
    other.run([&] { pool.free(theirs); });
}

TEST(PercpuThread, the_child_of_a_child_goes_on_too_and_both_destroy_the_pool)
{
    quire_percpu_opts opts = {.chunk_bytes = page, .cpus = 2};
    quire_percpu *pool = quire_percpu_create(&opts);
    Ref ref = quire_percpu_alloc(pool, 8, 0);
    EXPECT_EQ(in_child([&] {
                  quire_percpu_add(pool, ref, 1);
                  int inner = in_child([&] {
                      quire_percpu_add(pool, ref, 1);
                      OR_LINE(quire_percpu_sum(pool, ref) == 2);
                      quire_percpu_free(pool, ref);
                      quire_percpu_destroy(pool);
                      return 0;
                  });
                  OR_LINE(inner == 0 && quire_percpu_sum(pool, ref) == 1);
                  quire_percpu_destroy(pool);
                  return 0;
              }),
              0);
    EXPECT_EQ(quire_percpu_sum(pool, ref), 0);
    quire_percpu_destroy(pool);
}

TEST(PercpuThread, a_child_that_forked_from_a_thread_other_than_the_owner_goes_on)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Worker owner, forker;
    Refs refs;
    owner.run([&] { refs = pool.alloc_many(300, 64); });
    forker.run([&] {
        EXPECT_EQ(in_child([&] {
                      pool.free(refs);
                      Refs born = pool.alloc_many(3000, 64);
                      struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
                      quire_percpu_stats(pool, &stats);
                      OR_LINE(stats.live_objects == 3000);
                      OR_LINE(quire_percpu_check(pool) == nullptr);
                      return 0;
                  }),
                  0);
    });
    EXPECT_EQ(pool.stats().live_objects, 300u);
}

TEST(PercpuThread, a_child_of_a_process_whose_pools_somebody_looked_at_knows_the_most_objects_that_there_were)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2});
    Refs refs = pool.alloc_many(100, 64);
    quire_percpu_free(pool, refs.back());
    static std::atomic<bool> looks, leave;
    std::thread looker([] {
        registry_lock(&percpu_pools);
        for (looks = true; !leave;)
            usleep(100);
        registry_unlock(&percpu_pools);
    });
    while (!looks)
        usleep(100);
    EXPECT_EQ(in_child([&] {
                  struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
                  quire_percpu_stats(pool, &stats);
                  OR_LINE(stats.live_objects == 99);
                  OR_LINE(stats.live_objects_peak == 100);
                  return 0;
              }),
              0);
    leave = true;
    looker.join();
}
