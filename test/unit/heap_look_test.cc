// SPDX-License-Identifier: MIT
/* What a heap tells of itself: walk, owns, of, statistics, classes. */
#include <gtest/gtest.h>

#include <cerrno>

#include <atomic>
#include <thread>

#include <quire/arena.h>
#include <quire/slab.h>

#include "model/slab_worker.h"
#include "unit/heap_scope.h"

namespace {
const size_t mib = 1 << 20;

/* A bit of every kind of block. */
Blocks some_of_everything(const Heap &heap)
{
    Blocks blocks;
    for (size_t bytes = 0; bytes < 3000; bytes += 53)
        for (int i = 0; i < 5; i++)
            blocks.push_back(heap.alloc(bytes));
    for (size_t bytes : {size_t(10000), SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, size_t(100000), 2 * mib})
        blocks.push_back(heap.alloc(bytes));
    for (size_t align : {size_t(64), size_t(4096), size_t(1) << 17})
        blocks.push_back(quire_heap_alloc_aligned(heap, 100, align));
    blocks.push_back(quire_heap_realloc(heap, heap.alloc(mib), 8 * mib));
    return blocks;
}

/* The walk, the statistics and the sums over the classes say that exactly these live. */
void agrees(const Heap &heap, const Blocks &blocks, const char *phase)
{
    std::map<void *, size_t> walked = heap.walk();
    HeapStats stats = heap.stats();
    EXPECT_EQ(walked.size(), blocks.size()) << phase;
    EXPECT_EQ(stats.live_blocks, blocks.size()) << phase;
    for (void *p : blocks) {
        auto found = walked.find(p);
        ASSERT_NE(found, walked.end()) << phase;
        ASSERT_EQ(found->second, quire_heap_usable_bytes(p)) << phase;
    }
    size_t live_blocks = stats.large_blocks, live_bytes = stats.large_bytes, page_bytes = 0, rounding_bytes = 0;
    for (const HeapClassStats &one : heap_classes(heap)) {
        live_blocks += one.live_blocks;
        live_bytes += one.live_blocks * one.slot_bytes;
        page_bytes += one.page_bytes;
        rounding_bytes += one.rounding_bytes;
        EXPECT_LE(one.live_blocks * one.slot_bytes, one.page_bytes) << phase << " class of " << one.slot_bytes;
        EXPECT_LE(one.page_bytes, one.peak_bytes) << phase << " class of " << one.slot_bytes;
        EXPECT_LE(one.rounding_bytes, one.live_blocks * one.slot_bytes) << phase << " class of " << one.slot_bytes;
    }
    EXPECT_EQ(live_blocks, stats.live_blocks) << phase;
    EXPECT_EQ(live_bytes, stats.live_bytes) << phase;
    EXPECT_LE(page_bytes + stats.large_bytes + stats.meta_bytes, stats.mapped_bytes) << phase;
    EXPECT_LE(rounding_bytes, stats.rounding_bytes) << phase;
    EXPECT_EQ(quire_heap_check(heap), nullptr) << phase;
}
} // namespace

TEST(HeapLook, walk_statistics_and_classes_agree_after_every_phase)
{
    Heap heap({.name = "phases"});
    agrees(heap, {}, "at first");
    EXPECT_EQ(heap.stats().pages, 0u);
    Blocks blocks = some_of_everything(heap);
    agrees(heap, blocks, "all there");
    EXPECT_GT(heap.stats().pages, 10u);
    EXPECT_GE(heap.stats().large_bytes, 10 * mib);
    EXPECT_GE(heap.stats().peak_bytes, 10 * mib);
    Blocks rest;
    for (size_t i = 0; i < blocks.size(); i++)
        if (i % 3)
            rest.push_back(blocks[i]);
        else
            quire_heap_free(heap, blocks[i]);
    agrees(heap, rest, "a third freed");
    Worker other;
    other.run([&] {
        for (size_t i = 0; i < 100; i++)
            quire_heap_free(heap, rest[i]);
        rest.erase(rest.begin(), rest.begin() + 100);
        Blocks theirs = some_of_everything(heap);
        rest.insert(rest.end(), theirs.begin(), theirs.end());
    });
    agrees(heap, rest, "with another thread's");
    quire_heap_trim(heap);
    agrees(heap, rest, "trimmed");
    std::thread([&] {
        Blocks theirs = some_of_everything(heap);
        rest.insert(rest.end(), theirs.begin(), theirs.end());
    }).join();
    agrees(heap, rest, "with an ended thread's");
    size_t peak = heap.stats().peak_bytes;
    heap.free(rest);
    agrees(heap, {}, "all freed");
    quire_heap_trim(heap);
    agrees(heap, {}, "all freed and trimmed");
    EXPECT_EQ(heap.stats().large_blocks, 0u);
    EXPECT_GE(heap.stats().peak_bytes, peak) << "the peak stays";
    EXPECT_LE(heap.stats().peak_bytes, peak + 65536) << "what was freed waits in a magazine, which is memory, too";
}

TEST(HeapLook, a_walk_ends_with_what_its_function_returns)
{
    Heap heap;
    Blocks blocks = some_of_everything(heap);
    for (size_t stop : {size_t(1), size_t(2), blocks.size() / 2, blocks.size()}) {
        size_t left = stop;
        int result = quire_heap_walk(
            heap, [](void *, size_t, void *arg) { return --*static_cast<size_t *>(arg) == 0 ? 7 : 0; }, &left);
        EXPECT_EQ(result, 7);
        EXPECT_EQ(left, 0u);
    }
    Heap empty;
    EXPECT_EQ(quire_heap_walk(
                  empty, [](void *, size_t, void *) { return 1; }, nullptr),
              0)
        << "nobody lives there";
    heap.free(blocks);
}

TEST(HeapLook, a_walk_without_a_function_is_einval)
{
    Heap heap;
    errno = 0;
    EXPECT_EQ(quire_heap_walk(heap, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST(HeapLook, after_a_walk_was_ended_everything_goes_on_in_all_threads)
{
    Heap heap;
    Worker other;
    other.run([&] { heap.alloc_many(100, 64); });
    heap.alloc_many(100, 64);
    EXPECT_EQ(quire_heap_walk(
                  heap, [](void *, size_t, void *) { return -1; }, nullptr),
              -1);
    other.run([&] { heap.alloc_many(100, 64); });
    EXPECT_EQ(heap.stats().live_blocks, 300u);
}

TEST(HeapLook, owns_is_true_inside_live_blocks_only)
{
    Heap heap, other;
    for (size_t bytes : {size_t(1), size_t(100), size_t(5000), size_t(50000), 2 * mib}) {
        char *p = heap.alloc(bytes);
        for (size_t at : {size_t(0), bytes / 2, bytes - 1}) {
            EXPECT_TRUE(quire_heap_owns(heap, p + at)) << bytes << " at " << at;
            EXPECT_FALSE(quire_heap_owns(other, p + at)) << bytes << " at " << at;
        }
        EXPECT_EQ(quire_heap_of(p), heap);
        quire_heap_free(heap, p);
        p = unknown(p);
        EXPECT_FALSE(quire_heap_owns(heap, p)) << bytes << " freed";
        EXPECT_EQ(quire_heap_of(p), nullptr) << bytes << " freed";
    }
}

TEST(HeapLook, any_address_may_be_asked_about)
{
    Heap heap;
    char *p = heap.alloc(100);
    int local = 0;
    static int somewhere;
    quire_arena *arena = quire_arena_create(nullptr);
    quire_slab *slab = quire_slab_create(64, nullptr);
    char *libc = static_cast<char *>(malloc(100));
    memset(libc, 0, 100);
    Blocks strange = {nullptr, &local, &somewhere, arena, quire_arena_alloc(arena, 100), slab, quire_slab_alloc(slab), libc, heap.operator quire_heap *(),
                      reinterpret_cast<void *>(&quire_heap_create), reinterpret_cast<void *>(8L), reinterpret_cast<void *>(-1L),
                      reinterpret_cast<void *>(-4096L), reinterpret_cast<void *>(1L << 46), reinterpret_cast<void *>(1L << 52)};
    for (unsigned bit : {47u, 48u, 56u, 60u, 63u}) /* all but one bit of a block's address */
        strange.push_back(reinterpret_cast<void *>(uintptr_t(p) ^ uintptr_t(1) << bit));
    for (void *each : strange) {
        EXPECT_FALSE(quire_heap_owns(heap, each)) << each;
        EXPECT_EQ(quire_heap_of(each), nullptr) << each;
    }
    free(libc);
    quire_slab_destroy(slab);
    quire_arena_destroy(arena);
}

TEST(HeapLook, any_address_may_be_asked_about_while_pages_come_and_go)
{
    Decay decay(0);
    Heap heap;
    std::atomic<void *> places[64] = {};
    std::atomic<bool> done{false};
    std::thread asks([&] {
        for (size_t i = 0; !done; i++) {
            void *p = places[i % 64];
            quire_heap *found = quire_heap_of(p); /* whatever is there now: ours, or nothing */
            EXPECT_TRUE(!found || found == heap || found == quire_heap_default());
            quire_heap_owns(heap, p);
        }
    });
    for (size_t round = 0; round < (memory_is_watched() ? 20u : test_long() ? 300u : 40u); round++) {
        Blocks blocks;
        for (size_t i = 0; i < 640; i++) {
            blocks.push_back(heap.alloc(16 + round % 40 * 50 + (i % 200 == 0) * 40000));
            if (i % 10 == 0)
                places[i / 10] = blocks.back();
        }
        heap.free(blocks);
        quire_heap_trim(heap);
        quire_source_trim(quire_source_default());
    }
    done = true;
    asks.join();
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapLook, random_addresses_are_owned_exactly_when_a_block_is_there)
{
    Heap heap;
    std::map<char *, size_t> live;
    Random random(5);
    for (int i = 0; i < 2000; i++) {
        size_t bytes = random.below(20) ? random.below(300) : random.below(60000);
        char *p = heap.alloc(bytes);
        live[p] = quire_heap_usable_bytes(p);
        if (i % 3 == 0) {
            auto victim = live.lower_bound(p - random.below(100000));
            victim = victim == live.end() ? live.begin() : victim;
            quire_heap_free(heap, victim->first);
            live.erase(victim);
        }
    }
    size_t slack = memory_is_watched() ? 64 : 0;
    for (int i = 0; i < 20000; i++) {
        auto near = live.lower_bound(live.begin()->first + random.below(size_t(live.rbegin()->first - live.begin()->first)));
        char *p = near->first + random.below(3 * near->second + 1) - near->second;
        auto after = live.upper_bound(p);
        size_t offset = after == live.begin() ? SIZE_MAX : size_t(p - std::prev(after)->first);
        size_t usable = after == live.begin() ? 0 : std::prev(after)->second;
        if (offset < usable) {
            ASSERT_TRUE(quire_heap_owns(heap, p)) << offset << " of " << usable;
        } else if (offset >= usable + slack && offset - usable >= usable / 8 + 16) {
            ASSERT_FALSE(quire_heap_owns(heap, p)) << offset << " of " << usable;
        }
    }
}

TEST(HeapLook, classes_rise_to_32_kibibytes_and_end_with_einval)
{
    Heap heap;
    std::vector<HeapClassStats> classes = heap_classes(heap);
    ASSERT_GE(classes.size(), 40u);
    for (size_t i = 1; i < classes.size(); i++)
        EXPECT_GT(classes[i].slot_bytes, classes[i - 1].slot_bytes);
    EXPECT_EQ(classes.back().slot_bytes, SMALL_BYTES_MAX);
    for (unsigned past : {unsigned(classes.size()), unsigned(classes.size()) + 1, 1000000u, ~0u}) {
        HeapClassStats untouched = {};
        errno = 0;
        EXPECT_EQ(quire_heap_class_stats(heap, past, &untouched), -1);
        EXPECT_EQ(errno, EINVAL);
    }
}

TEST(HeapLook, each_class_counts_its_own_blocks)
{
    Heap heap;
    std::vector<HeapClassStats> classes = heap_classes(heap);
    for (size_t i = 0; i < classes.size(); i += 9) {
        size_t bytes = classes[i].slot_bytes - (memory_is_watched() ? std::min<size_t>(classes[i].slot_bytes, 16) : 0);
        Blocks blocks = heap.alloc_many(7, bytes);
        HeapClassStats now = {.struct_bytes = sizeof now};
        ASSERT_EQ(quire_heap_class_stats(heap, unsigned(i), &now), 0);
        if (!memory_is_watched()) {
            EXPECT_EQ(now.live_blocks, 7u) << bytes;
            EXPECT_GE(now.page_bytes, 7 * bytes);
        }
        EXPECT_EQ(now.slot_bytes, classes[i].slot_bytes);
        heap.free(blocks);
        ASSERT_EQ(quire_heap_class_stats(heap, unsigned(i), &now), 0);
        EXPECT_EQ(now.live_blocks, 0u) << bytes;
    }
}

TEST(HeapLook, rounding_is_estimated_by_what_was_asked_for)
{
    if (memory_is_watched())
        GTEST_SKIP() << "red zones are rounding too";
    Heap exact, wasteful;
    exact.alloc_many(20000, 64);
    wasteful.alloc_many(20000, 50);
    double none = double(exact.stats().rounding_bytes), some = double(wasteful.stats().rounding_bytes);
    EXPECT_LE(none, 0.02 * 20000 * 64) << "64 of 64 bytes were asked for";
    EXPECT_GE(some, 0.5 * 20000 * 14) << "14 of 64 bytes were not";
    EXPECT_LE(some, 1.5 * 20000 * 14);
}

TEST(HeapLook, caches_are_one_for_each_thread_that_is_there_at_once)
{
    Heap heap;
    heap.alloc(10);
    size_t mine = heap.stats().caches;
    EXPECT_GE(mine, 1u);
    {
        Worker a, b, c;
        for (Worker *worker : {&a, &b, &c})
            worker->run([&] { heap.alloc(10); });
        EXPECT_EQ(heap.stats().caches, mine + 3);
    }
    for (int i = 0; i < 50; i++)
        std::thread([&] { heap.alloc(10); }).join();
    EXPECT_LE(heap.stats().caches, mine + 4) << "those of ended threads are used again";
}
