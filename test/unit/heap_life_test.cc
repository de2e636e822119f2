// SPDX-License-Identifier: MIT
/* Heaps come and go: many at once, from many threads, with all that is left in them; and the one that stays. */
#include <gtest/gtest.h>

#include <ctime>
#include <memory>
#include <thread>

#include "model/slab_worker.h"
#include "unit/heap_scope.h"
#include "unit/source_kit.h"

namespace {
const size_t mib = 1 << 20;
} // namespace

TEST(HeapLife, null_options_and_all_zero_options_are_the_defaults)
{
    quire_heap *heap = quire_heap_create(nullptr);
    ASSERT_NE(heap, nullptr);
    Heap zero;
    HeapStats one = heap_stats(heap), two = zero.stats();
    EXPECT_EQ(one.limit_bytes, 0u);
    EXPECT_EQ(one.live_blocks + one.large_blocks + one.pages, 0u);
    EXPECT_EQ(one.mapped_bytes, two.mapped_bytes);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
    quire_heap_destroy(heap);
}

TEST(HeapLife, unknown_flags_are_einval)
{
    for (uint32_t flag = 1; flag != 0; flag *= 2) {
        quire_heap_opts opts = {.flags = flag};
        errno = 0;
        quire_heap *heap = quire_heap_create(&opts);
        int error = errno;
        EXPECT_EQ(heap != nullptr, flag == QUIRE_HEAP_SECURE) << flag;
        EXPECT_TRUE(heap || error == EINVAL) << flag;
        quire_heap_destroy(heap);
    }
}

TEST(HeapLife, the_default_heap_is_always_the_same_and_is_not_destroyed)
{
    quire_heap *heap = quire_heap_default();
    ASSERT_NE(heap, nullptr);
    char *p = static_cast<char *>(quire_heap_alloc(heap, 100));
    fill(p, 100, 1);
    errno = 42;
    quire_heap_destroy(heap);
    EXPECT_EQ(errno, 42);
    EXPECT_EQ(quire_heap_default(), heap);
    Worker().run([&] { EXPECT_EQ(quire_heap_default(), heap); });
    EXPECT_TRUE(holds(p, 100, 1));
    EXPECT_EQ(quire_heap_of(p), heap);
    EXPECT_TRUE(quire_heap_owns(heap, p));
    Worker().run([&] { quire_heap_free(heap, p); });
    EXPECT_EQ(quire_heap_check(heap), nullptr);
    Heap other;
    EXPECT_NE(heap, other.operator quire_heap *());
}

TEST(HeapLife, the_default_heap_serves_every_function)
{
    quire_heap *heap = quire_heap_default();
    for (size_t bytes : {size_t(0), size_t(1), size_t(100), size_t(5000), size_t(100000), mib}) {
        char *p = static_cast<char *>(quire_heap_alloc_zero(heap, 1, bytes));
        ASSERT_TRUE(p && holds_only(p, bytes, 0)) << bytes;
        size_t usable = quire_heap_usable_bytes(p);
        EXPECT_GE(usable, bytes);
        fill(p, bytes, bytes);
        p = static_cast<char *>(quire_heap_realloc(heap, p, 3 * bytes + 1));
        ASSERT_TRUE(p && holds(p, bytes, bytes)) << bytes;
        Worker().run([&] { EXPECT_GE(quire_heap_usable_bytes(p), 3 * bytes + 1) << "asked by another thread"; });
        void *aligned = quire_heap_alloc_aligned(heap, bytes, 8192);
        EXPECT_EQ(uintptr_t(aligned) % 8192, 0u);
        HeapStats stats = heap_stats(heap);
        EXPECT_GE(stats.live_blocks, 2u);
        quire_heap_free(heap, p), quire_heap_free(heap, aligned);
        EXPECT_EQ(heap_stats(heap).live_blocks, stats.live_blocks - 2);
        EXPECT_EQ(quire_heap_check(heap), nullptr);
    }
}

TEST(HeapLife, three_hundred_heaps_at_once_are_strangers_to_each_other)
{
    const size_t count = 300;
    std::vector<quire_heap *> heaps;
    std::vector<char *> blocks;
    for (size_t i = 0; i < count; i++) {
        quire_heap_opts opts = {.name = i % 2 ? "many" : nullptr, .flags = i % 10 == 3 ? QUIRE_HEAP_SECURE : 0};
        heaps.push_back(quire_heap_create(&opts));
        ASSERT_NE(heaps.back(), nullptr) << i;
    }
    for (size_t i = 0; i < 5 * count; i++) {
        blocks.push_back(static_cast<char *>(quire_heap_alloc(heaps[i % count], 10 + i % 200)));
        ASSERT_NE(blocks.back(), nullptr);
        fill(blocks.back(), 10 + i % 200, i);
    }
    for (size_t i = 0; i < blocks.size(); i++) {
        ASSERT_TRUE(holds(blocks[i], 10 + i % 200, i));
        ASSERT_EQ(quire_heap_of(blocks[i]), heaps[i % count]);
        ASSERT_FALSE(quire_heap_owns(heaps[(i + 1) % count], blocks[i]));
    }
    for (size_t i = 0; i < count; i++)
        EXPECT_EQ(heap_stats(heaps[i]).live_blocks, 5u);
    for (size_t i = 0; i < count; i += 2) /* every second goes, the others do not notice */
        quire_heap_destroy(heaps[i]);
    for (size_t i = 1; i < blocks.size(); i += 2)
        ASSERT_TRUE(holds(blocks[i], 10 + i % 200, i));
    for (size_t i = 1; i < count; i += 2) {
        EXPECT_EQ(quire_heap_check(heaps[i]), nullptr);
        quire_heap_destroy(heaps[i]);
    }
}

TEST(HeapLife, a_thread_that_used_three_hundred_heaps_ends_well)
{
    std::vector<quire_heap *> heaps;
    std::thread([&] {
        for (int i = 0; i < 300; i++) {
            heaps.push_back(quire_heap_create(nullptr));
            quire_heap_alloc(heaps.back(), 100);
        }
        for (size_t i = 0; i < heaps.size(); i += 3) {
            quire_heap_destroy(heaps[i]);
            heaps[i] = nullptr;
        }
        for (quire_heap *heap : heaps)
            EXPECT_TRUE(!heap || quire_heap_alloc(heap, 100));
    }).join();
    for (quire_heap *heap : heaps)
        if (heap) {
            EXPECT_EQ(heap_stats(heap).live_blocks, 2u);
            EXPECT_NE(quire_heap_alloc(heap, 100), nullptr);
            EXPECT_EQ(quire_heap_check(heap), nullptr);
            quire_heap_destroy(heap);
        }
}

TEST(HeapLife, a_thread_leaves_what_it_used_of_few_and_many_heaps_to_the_next)
{
    for (size_t count : {size_t(1), size_t(8), size_t(30)}) { /* fewer and more than a thread remembers */
        std::vector<quire_heap *> heaps;
        for (size_t i = 0; i <= count; i++)
            heaps.push_back(quire_heap_create(nullptr));
        auto use = [&] {
            for (quire_heap *heap : heaps)
                ASSERT_NE(quire_heap_alloc(heap, 100), nullptr);
        };
        auto first = std::make_unique<Worker>();
        first->run(use);
        quire_heap_destroy(heaps.back()); /* behind its back */
        heaps.back() = quire_heap_create(nullptr); /* at the same place, maybe */
        first.reset();
        std::vector<size_t> caches;
        for (quire_heap *heap : heaps)
            caches.push_back(heap_stats(heap).caches);
        std::thread(use).join();
        for (size_t i = 0; i < count; i++)
            EXPECT_EQ(heap_stats(heaps[i]).caches, caches[i]) << i << " of " << count << ": it is taken over";
        for (quire_heap *heap : heaps)
            quire_heap_destroy(heap);
    }
}

static double cpu_seconds()
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

TEST(HeapLife, destroying_the_oldest_of_many_costs_what_the_newest_does)
{
    const int count = memory_is_watched() || BUILT_WITH_TSAN ? 500 : 8000;
    double took[2];
    for (int oldest = 0; oldest < 2; oldest++) {
        std::vector<quire_heap *> heaps;
        for (int i = 0; i < count; i++)
            heaps.push_back(quire_heap_create(nullptr));
        if (!oldest)
            std::reverse(heaps.begin(), heaps.end());
        double start = cpu_seconds();
        for (quire_heap *heap : heaps)
            quire_heap_destroy(heap);
        took[oldest] = cpu_seconds() - start;
    }
    EXPECT_LT(took[1], 4 * took[0] + 0.01);
}

TEST(HeapLife, whose_a_large_block_is_costs_the_same_however_many_there_are)
{
    Heap heap;
    Blocks few = heap.alloc_many(10, 40000);
    auto looks = [&](const void *p) {
        double start = cpu_seconds();
        for (int i = 0; i < 200; i++)
            EXPECT_EQ(quire_heap_of(p), static_cast<quire_heap *>(heap));
        return cpu_seconds() - start;
    };
    double before = looks(few[0]);
    Blocks many = heap.alloc_many(10000, 40000);
    EXPECT_LT(looks(few[0]), 5 * before + 0.002);
    heap.free(many);
    heap.free(few);
    EXPECT_EQ(quire_heap_of(few[0]), nullptr);
}

TEST(HeapLife, destroy_takes_the_live_blocks_of_all_threads_with_it)
{
    struct quire_source *count = quire_source_count(quire_source_default());
    std::vector<std::unique_ptr<Worker>> threads;
    for (int i = 0; i < 6; i++)
        threads.push_back(std::make_unique<Worker>());
    for (int round = 0; round < 10; round++) {
        quire_heap_opts opts = {.name = "left", .source = count, .flags = round % 3 == 2 ? QUIRE_HEAP_SECURE : 0};
        quire_heap *heap = quire_heap_create(&opts);
        Blocks blocks;
        for (auto &thread : threads)
            thread->run([&] {
                for (void *p : blocks)
                    quire_heap_free(heap, p); /* what the thread before allocated */
                blocks.clear();
                for (size_t i = 0; i < 400; i++) {
                    void *p = quire_heap_alloc(heap, i % 50 ? i : 40000 + i * 100);
                    ASSERT_NE(p, nullptr);
                    if (i % 2)
                        blocks.push_back(p);
                }
            });
        std::thread([&] { quire_heap_alloc(heap, 100); }).join();
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        quire_heap_destroy(heap); /* the threads live on, and find no trace of it */
        EXPECT_EQ(taken_settled(count, 0), 0u);
    }
    quire_source_destroy(count);
}

TEST(HeapLife, creating_and_destroying_ten_thousand_times_keeps_nothing)
{
    size_t before = 0;
    for (int i = 0; i < (memory_is_watched() ? 2000 : 10000); i++) {
        if (i == 1000)
            before = rss_bytes();
        quire_heap *heap = quire_heap_create(nullptr);
        ASSERT_NE(heap, nullptr);
        void *p = quire_heap_alloc(heap, 100);
        ASSERT_NE(p, nullptr);
        memset(p, 1, 100);
        ASSERT_TRUE(i % 100 || quire_heap_alloc(heap, 100000));
        quire_heap_destroy(heap);
    }
    if (!memory_is_watched()) {
        EXPECT_LE(rss_bytes(), before + mib);
    }
}

TEST(HeapLife, the_child_of_a_fork_goes_on_with_its_copy)
{
    Heap heap;
    Worker other;
    Blocks mine = heap.alloc_many(500, 100), theirs;
    other.run([&] { theirs = heap.alloc_many(500, 100); });
    EXPECT_EQ(in_child([&] {
                  for (Blocks *blocks : {&mine, &theirs})
                      for (size_t i = 0; i < blocks->size(); i++) {
                          if (!holds_only((*blocks)[i], 100, char(i)))
                              return 1;
                          quire_heap_free(heap, (*blocks)[i]);
                      }
                  HeapStats stats = {.struct_bytes = sizeof stats};
                  quire_heap_stats(heap, &stats);
                  if (stats.live_blocks != 0 || quire_heap_check(heap))
                      return 2;
                  if (!quire_heap_alloc(heap, 100) || !quire_heap_alloc(heap, mib))
                      return 3;
                  if (!BUILT_WITH_TSAN && !BUILT_WITH_ASAN) /* the one knows no threads of a child's own, the other's malloc may be locked by one of the parent's */
                      std::thread([&] { quire_heap_free(heap, quire_heap_alloc(heap, 100)); }).join();
                  quire_heap_destroy(heap);
                  return quire_heap_alloc(quire_heap_default(), 10) ? 0 : 4;
              }),
              0);
    EXPECT_EQ(heap.stats().live_blocks, 1000u) << "the parent's are its own";
    heap.free(mine), heap.free(theirs);
}
