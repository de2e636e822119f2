// SPDX-License-Identifier: MIT
/* What a heap may hold: over its limit every call is refused, and nothing is harmed by that. */
#include <gtest/gtest.h>

#include "model/slab_worker.h"
#include "unit/heap_scope.h"

namespace {
const size_t mib = 1 << 20;
} // namespace

TEST(HeapLimit, less_than_its_bookkeeping_is_enomem)
{
    for (size_t limit : {size_t(1), size_t(64), size_t(1000)}) {
        quire_heap_opts opts = {.limit_bytes = limit};
        errno = 0;
        EXPECT_EQ(quire_heap_create(&opts), nullptr);
        EXPECT_EQ(errno, ENOMEM);
    }
}

TEST(HeapLimit, any_limit_makes_a_heap_that_heeds_it_or_none)
{
    for (size_t limit = 512; limit <= mib; limit += limit / 7 * 4 + 1) {
        quire_heap_opts opts = {.limit_bytes = limit};
        errno = 0;
        quire_heap *heap = quire_heap_create(&opts);
        ASSERT_TRUE(heap || errno == ENOMEM) << limit;
        for (size_t i = 0; heap && i < 3000; i++) {
            errno = 0;
            void *p = quire_heap_alloc(heap, i % 700);
            ASSERT_TRUE(p || errno == ENOMEM) << limit;
            if (!p)
                break;
            memset(p, 1, i % 700);
        }
        if (heap) {
            EXPECT_LE(heap_stats(heap).mapped_bytes, limit);
            EXPECT_EQ(heap_stats(heap).limit_bytes, limit);
            EXPECT_EQ(quire_heap_check(heap), nullptr);
        }
        quire_heap_destroy(heap);
    }
}

TEST(HeapLimit, is_used_nearly_in_full_never_passed_and_the_heap_stays_usable)
{
    for (size_t limit : {256 * os_page_bytes(), memory_is_watched() ? mib / 2 : 8 * mib})
        for (size_t bytes : {size_t(16), size_t(64), size_t(1000), size_t(8200), size_t(40000)}) {
            Heap heap({.name = "tenant", .limit_bytes = limit});
            const size_t room = heap.room_of(bytes);
            Blocks blocks = heap.alloc_until_refused(bytes);
            EXPECT_LE(heap.stats().peak_bytes, limit);
            if (!memory_is_watched()) {
                EXPECT_GE(blocks.size() * room, limit / 4 * 3) << bytes << " under " << limit;
            }
            errno = 0;
            EXPECT_EQ(quire_heap_alloc(heap, bytes), nullptr) << "again";
            EXPECT_EQ(quire_heap_alloc_zero(heap, 1, bytes), nullptr);
            EXPECT_EQ(quire_heap_alloc_aligned(heap, bytes, 64), nullptr);
            EXPECT_EQ(errno, ENOMEM);
            EXPECT_EQ(quire_heap_check(heap), nullptr);
            heap.free(blocks);
            EXPECT_GE(heap.alloc_until_refused(bytes).size(), blocks.size() / 10 * 9) << bytes << " under " << limit;
            EXPECT_LE(heap.stats().peak_bytes, limit);
        }
}

TEST(HeapLimit, a_block_that_anybody_frees_makes_room_at_once)
{
    Heap heap({.limit_bytes = mib});
    Worker other;
    Blocks blocks = heap.alloc_until_refused(100);
    for (size_t i = 0; i < blocks.size(); i += 97) {
        if (i % 2)
            quire_heap_free(heap, blocks[i]);
        else
            other.run([&] { quire_heap_free(heap, blocks[i]); });
        blocks[i] = quire_heap_alloc(heap, 100);
        ASSERT_NE(blocks[i], nullptr) << i;
        ASSERT_EQ(quire_heap_alloc(heap, 100), nullptr) << "one, not two";
    }
}

TEST(HeapLimit, pages_of_one_size_that_are_empty_are_room_for_another_size)
{
    Heap heap({.limit_bytes = 4 * mib});
    for (size_t bytes : {size_t(200), size_t(2000), size_t(100000), size_t(500), 2 * mib, size_t(148)}) {
        Blocks blocks = heap.alloc_until_refused(bytes);
        EXPECT_GE(blocks.size() * bytes, memory_is_watched() ? mib / 2 : 2 * mib) << bytes;
        heap.free(blocks);
    }
}

TEST(HeapLimit, what_a_sleeping_thread_has_freed_is_room_for_others)
{
    Heap heap({.limit_bytes = 2 * mib});
    Worker sleeper;
    size_t theirs = 0;
    sleeper.run([&] {
        Blocks blocks = heap.alloc_until_refused(200);
        theirs = blocks.size();
        heap.free(blocks); /* and sleeps on empty pages */
    });
    EXPECT_GE(heap.alloc_until_refused(200).size(), theirs / 10 * 9);
}

TEST(HeapLimit, what_lies_idle_is_room_for_a_large_block_that_grows)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    for (uint32_t flags : {0u, uint32_t(QUIRE_HEAP_SECURE)}) {
        Heap heap({.limit_bytes = 16 * mib, .flags = flags});
        char *p = static_cast<char *>(quire_heap_realloc(heap, heap.alloc(mib), 6 * mib));
        ASSERT_NE(p, nullptr);
        memset(p, 'x', 6 * mib);
        Worker sleeper;
        Blocks blocks;
        sleeper.run([&] { blocks = heap.alloc_many(8000, 1000); });
        heap.free(blocks); /* back to a thread that sleeps */
        size_t bytes = quire_heap_usable_bytes(p) + 16 * mib - heap.stats().mapped_bytes + os_page_bytes();
        p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
        ASSERT_NE(p, nullptr) << "a page more than what nobody holds; as large as both is more than the limit";
        EXPECT_TRUE(p[0] == 'x' && p[6 * mib - 1] == 'x');
        EXPECT_LE(heap.stats().peak_bytes, 16 * mib);
        quire_heap_free(heap, p);
    }
}

TEST(HeapLimit, a_block_that_grows_for_the_first_time_is_charged_what_it_grows_by)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap({.limit_bytes = 16 * mib});
    char *p = heap.alloc(10 * mib);
    memset(p, 'x', 10 * mib);
    p = static_cast<char *>(quire_heap_realloc(heap, p, 15 * mib));
    ASSERT_NE(p, nullptr);
    EXPECT_TRUE(p[0] == 'x' && p[10 * mib - 1] == 'x' && p[10 * mib] == 0);
    EXPECT_LE(heap.stats().peak_bytes, 16 * mib);
    quire_heap_free(heap, p);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST(HeapLimit, a_thread_that_never_was_here_gets_null_under_an_exhausted_limit)
{
    Heap heap({.limit_bytes = mib});
    Blocks blocks = heap.alloc_until_refused(100);
    std::thread([&] {
        errno = 0;
        void *p = quire_heap_alloc(heap, 100);
        EXPECT_TRUE(p || errno == ENOMEM);
        quire_heap_free(heap, p);
        for (size_t i = 0; i < blocks.size() / 2; i++)
            quire_heap_free(heap, blocks[i]);
        EXPECT_NE(quire_heap_alloc(heap, 100), nullptr) << "there is room again";
    }).join();
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST(HeapLimit, two_heaps_have_a_limit_each)
{
    Heap small({.limit_bytes = mib}), large({.limit_bytes = 4 * mib}), none;
    size_t in_small = small.alloc_until_refused(1000).size(), in_large = large.alloc_until_refused(1000).size();
    EXPECT_GE(in_large, 3 * in_small);
    EXPECT_NE(none.alloc(8 * mib), nullptr);
    EXPECT_EQ(none.stats().limit_bytes, 0u);
}

TEST(HeapLimit, an_allocation_that_is_refused_is_no_peak)
{
    for (uint32_t flags : {0u, uint32_t(QUIRE_HEAP_SECURE)}) {
        Heap heap({.name = "peak", .flags = flags});
        void *p = quire_heap_alloc(heap, 100000);
        ASSERT_NE(p, nullptr);
        for (int grown = 0; grown < 2; grown++) { /* of the source, and mapped alone */
            size_t peak = heap_stats(heap).peak_bytes;
            EXPECT_GE(peak, heap_stats(heap).mapped_bytes);
            errno = 0;
            EXPECT_EQ(quire_heap_alloc(heap, size_t(1) << 46), nullptr) << flags;
            EXPECT_EQ(errno, ENOMEM);
            EXPECT_EQ(quire_heap_realloc(heap, p, size_t(1) << 46), nullptr) << flags << grown;
            EXPECT_LE(heap_stats(heap).peak_bytes, peak + mib) << "headers at most";
            p = quire_heap_realloc(heap, p, mib);
            ASSERT_NE(p, nullptr);
        }
        quire_heap_free(heap, p);
    }
}
