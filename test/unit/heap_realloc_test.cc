// SPDX-License-Identifier: MIT
/* quire_heap_realloc(): what stays, what moves, what is kept when there is no memory. */
#include <gtest/gtest.h>

#include <algorithm>
#include <sys/mman.h>
#include <tuple>

#include "model/slab_worker.h"
#include "pages/region_internal.h"
#include "unit/heap_growing.h"

namespace {
const size_t mib = 1 << 20;
} // namespace

TEST(HeapRealloc, null_is_an_allocation)
{
    Heap heap;
    char *p = grow(heap, nullptr, 100);
    ASSERT_NE(p, nullptr);
    fill(p, 100, 1);
    EXPECT_EQ(heap.stats().live_blocks, 1u);
    quire_heap_free(heap, p);
    p = grow(heap, nullptr, 0);
    EXPECT_NE(p, nullptr);
    quire_heap_free(heap, p);
    p = grow(heap, nullptr, mib);
    EXPECT_GE(quire_heap_usable_bytes(p), mib);
    quire_heap_free(heap, p);
}

TEST(HeapRealloc, to_no_bytes_is_a_block_of_the_least_size_and_never_null)
{
    Heap heap;
    for (size_t bytes : {size_t(0), size_t(1), size_t(100), size_t(5000), size_t(100000), 3 * mib}) {
        char *p = grow(heap, heap.alloc(bytes), 0);
        ASSERT_NE(p, nullptr) << bytes;
        EXPECT_LE(quire_heap_usable_bytes(p), 64u) << "of " << bytes << " nothing is kept";
        EXPECT_EQ(heap.stats().live_blocks, 1u);
        p = grow(heap, p, bytes);
        ASSERT_NE(p, nullptr);
        memset(p, 1, bytes);
        quire_heap_free(heap, p);
    }
}

TEST(HeapRealloc, a_block_that_fits_where_it_is_stays_there)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch want blocks as long as was asked for";
    Heap heap;
    for (size_t bytes : {size_t(10), size_t(100), size_t(700), size_t(10000), size_t(50000)}) {
        char *p = heap.alloc(bytes);
        uintptr_t at = uintptr_t(p);
        fill(p, bytes, 1);
        size_t usable = quire_heap_usable_bytes(p);
        p = grow(heap, p, usable);
        EXPECT_EQ(uintptr_t(p), at) << bytes << " to " << usable;
        p = grow(heap, p, bytes);
        EXPECT_EQ(uintptr_t(p), at);
        EXPECT_TRUE(holds(p, bytes, 1));
        quire_heap_free(heap, p);
    }
}

TEST(HeapRealloc, from_every_size_to_every_size_keeps_what_fits)
{
    Heap heap;
    const size_t sizes[] = {0, 1, 15, 16, 17, 48, 100, 500, 513, 1000, 4096, 5000, 20000, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, 100000, mib - 1, mib, 3 * mib};
    for (size_t from : sizes)
        for (size_t to : sizes) {
            char *p = heap.alloc(from);
            fill(p, from, from + to);
            p = grow(heap, p, to);
            ASSERT_NE(p, nullptr) << from << " to " << to;
            ASSERT_EQ(uintptr_t(p) % 16, 0u);
            ASSERT_GE(quire_heap_usable_bytes(p), to);
            ASSERT_TRUE(holds(p, std::min(from, to), from + to)) << from << " to " << to;
            fill(p, to, to);
            ASSERT_TRUE(quire_heap_of(p) == heap && quire_heap_owns(heap, p));
            ASSERT_EQ(heap.stats().live_blocks, 1u);
            quire_heap_free(heap, p);
        }
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST(HeapRealloc, a_buffer_that_doubles_to_64_mebibytes_and_shrinks_again_is_whole_at_every_step)
{
    const size_t most = (memory_is_watched() ? 8 : 64) * mib;
    Heap heap;
    char *p = heap.alloc(1);
    uint64_t words = 0;
    auto word = [&](size_t i) { return i * 0x9e3779b97f4a7c15u; };
    for (size_t bytes = 16; bytes <= most; bytes *= 2) {
        p = grow(heap, p, bytes);
        ASSERT_NE(p, nullptr);
        for (; words < bytes / 8; words += bytes < mib ? 1 : 512) /* one in each page when it is large */
            reinterpret_cast<uint64_t *>(p)[words] = word(words);
        ASSERT_EQ(quire_heap_check(heap), nullptr) << bytes;
    }
    for (size_t bytes = most; bytes >= 16; bytes /= 2) {
        p = grow(heap, p, bytes);
        ASSERT_NE(p, nullptr);
        for (size_t i = 0; i < bytes / 8; i += bytes > 2 * mib || i * 8 >= mib / 2 ? 512 : 1)
            ASSERT_EQ(reinterpret_cast<uint64_t *>(p)[i], word(i)) << bytes << " at word " << i;
        ASSERT_EQ(quire_heap_check(heap), nullptr) << bytes;
        ASSERT_LE(heap.stats().live_bytes, std::max<size_t>(2 * bytes, 4096)) << "what is cut off is given back";
    }
    quire_heap_free(heap, p);
}

TEST(HeapRealloc, a_string_that_grows_by_small_steps_is_copied_few_times)
{
    Heap heap;
    char *p = nullptr;
    size_t moves = 0;
    uintptr_t at = 0;
    for (size_t bytes = 1; bytes <= 100000; bytes += bytes < 2000 ? 1 : 97) {
        p = grow(heap, p, bytes);
        ASSERT_NE(p, nullptr);
        p[bytes - 1] = char(bytes);
        ASSERT_EQ(p[0], 1);
        moves += uintptr_t(p) != at;
        at = uintptr_t(p);
    }
    if (!memory_is_watched()) {
        EXPECT_LE(moves, 120u) << "no more than there are sizes on the way";
    }
    quire_heap_free(heap, p);
}

/* By the page tables, and by a copy. */
TEST(HeapRealloc, a_large_block_that_shrinks_holds_what_it_is_and_is_never_there_twice)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing shrinks in place";
    const size_t had = 32 * mib;
    for (size_t bytes : {20 * mib + 5, 5 * mib, mib / 2})
        for (unsigned refused = 0; refused < 2; refused++) {
            Heap heap;
            quire_source_trim(quire_source_default()); /* what lies in caches is free before, as it is behind */
            size_t before = taken();
            char *p = grow(heap, nullptr, had), *shrunk;
            memset(p, 'x', had);
            ASSERT_EQ(mprotect(p + had - os_page_bytes(), os_page_bytes(), PROT_READ), 0);
            quire_source_trim(quire_source_default());
            os_fault_set(OS_REMAP, refused, true);
            shrunk = grow(heap, p, bytes);
            os_fault_set(OS_REMAP, 0, false);
            ASSERT_NE(shrunk, nullptr);
            for (size_t at = 0; at < bytes; at += 512)
                ASSERT_EQ(shrunk[at], 'x') << bytes << " " << refused;
            EXPECT_TRUE(is_alone(before)) << bytes << " " << refused;
            EXPECT_LT(heap.stats().peak_bytes, had + mib);
            EXPECT_LT(heap.stats().mapped_bytes, bytes + mib);
            EXPECT_LT(idle(), mib) << "what is no longer wanted is the system's";
            char *next = grow(heap, nullptr, had + mib);
            EXPECT_TRUE(next <= p && p + had <= next + had + mib) << "it lies there";
            memset(next, 'y', had + mib);
            quire_heap_free(heap, shrunk);
            quire_heap_free(heap, next);
            EXPECT_EQ(quire_heap_check(heap), nullptr);
            EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
        }
}

TEST(HeapRealloc, a_large_block_that_shrinks_stays_or_moves_as_any_where_no_mapping_can_be_had)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing shrinks in place";
    for (size_t bytes : {20 * mib, 5 * mib}) {
        Heap heap;
        char *next = grow(heap, nullptr, bytes), *p = grow(heap, nullptr, 32 * mib); /* the first: there are addresses that may be written */
        quire_heap_free(heap, next);
        memset(p, 'x', 32 * mib);
        os_fault_set(OS_MAP, 1, true);
        char *shrunk = grow(heap, p, bytes);
        os_fault_set(OS_MAP, 0, false);
        ASSERT_NE(shrunk, nullptr) << bytes;
        EXPECT_EQ(shrunk == p, bytes >= 16 * mib) << bytes;
        for (size_t at = 0; at < bytes; at += 512)
            ASSERT_EQ(shrunk[at], 'x') << bytes;
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        quire_heap_free(heap, shrunk);
    }
}

TEST(HeapRealloc, a_large_block_stays_where_it_is_while_little_of_it_is_spare)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing shrinks in place";
    Heap heap;
    for (auto [had, bytes, stays] : {std::tuple(2 * mib, mib + 4096, true), {16 * mib, 14 * mib, true}, {16 * mib, 13 * mib, false}, {3 * mib, 2 * mib - 65536, false}, {100000ul, 60000ul, true}}) {
        size_t before = taken();
        char *p = grow(heap, nullptr, had), *shrunk = grow(heap, p, bytes);
        EXPECT_EQ(taken() >= before + had, stays) << had << " to " << bytes;
        EXPECT_EQ(grow(heap, shrunk, bytes), shrunk);
        quire_heap_free(heap, shrunk);
    }
}

TEST(HeapRealloc, a_size_that_comes_and_goes_shrinks_where_it_is)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing shrinks in place";
    Heap heap;
    come_and_go(heap, 7 * mib);
    size_t before = taken();
    char *p = grow(heap, nullptr, 7 * mib), *shrunk = grow(heap, p, 4 * mib);
    EXPECT_FALSE(is_alone(before));
    EXPECT_EQ(quire_heap_usable_bytes(shrunk), 7 * mib) << "the pages are wanted again soon";
    quire_heap_free(heap, shrunk);
}

TEST(HeapRealloc, many_large_blocks_grow_beside_each_other)
{
    Heap heap;
    const size_t count = 12;
    char *blocks[count] = {};
    size_t bytes[count] = {};
    Random random(3);
    for (int step = 0; step < 200; step++) {
        size_t k = random.below(count), to = bytes[k] + random.below(400000);
        if (to > 3 * mib)
            to = random.below(50000);
        blocks[k] = grow(heap, blocks[k], to);
        ASSERT_NE(blocks[k], nullptr);
        for (size_t at = 0; at < std::min(to, bytes[k]); at += 4096)
            ASSERT_EQ(blocks[k][at], char(k + 1));
        for (size_t at = 0; at < to; at += 4096)
            blocks[k][at] = char(k + 1);
        bytes[k] = to;
        ASSERT_EQ(quire_heap_check(heap), nullptr);
    }
    for (char *p : blocks)
        quire_heap_free(heap, p);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapRealloc, by_another_thread_than_allocated_it)
{
    Heap heap;
    Worker other;
    for (size_t from : {size_t(50), size_t(3000), size_t(60000)})
        for (size_t to : {size_t(10), size_t(500), size_t(20000), size_t(200000)}) {
            char *p = heap.alloc(from);
            fill(p, from, to);
            other.run([&] { p = grow(heap, p, to); });
            ASSERT_TRUE(p && holds(p, std::min(from, to), to)) << from << " to " << to;
            EXPECT_EQ(heap.stats().live_blocks, 1u);
            quire_heap_free(heap, p);
        }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapRealloc, over_the_limit_the_block_is_as_it_was)
{
    Heap heap({.limit_bytes = 2 * mib});
    for (size_t bytes : {size_t(100), size_t(20000), size_t(200000)}) {
        char *p = heap.alloc(bytes);
        fill(p, bytes, 9);
        errno = 0;
        EXPECT_EQ(grow(heap, p, 4 * mib), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_EQ(heap.stats().live_blocks, 1u);
        p = unknown(p);
        EXPECT_TRUE(holds(p, bytes, 9));
        p = grow(heap, p, bytes + 50);
        ASSERT_TRUE(p && holds(p, bytes, 9)) << "and can be had as long as there is room";
        quire_heap_free(heap, p);
    }
}

TEST(HeapRealloc, a_large_block_grown_under_a_limit_is_on_the_account_with_its_new_size)
{
    Heap heap({.limit_bytes = 16 * mib});
    char *p = heap.alloc(mib);
    p = grow(heap, p, 6 * mib);
    ASSERT_NE(p, nullptr);
    EXPECT_GE(heap.stats().large_bytes, 6 * mib);
    EXPECT_EQ(heap.stats().large_blocks, 1u);
    EXPECT_EQ(quire_heap_alloc(heap, 12 * mib), nullptr);
    p = grow(heap, p, mib);
    ASSERT_NE(p, nullptr);
    EXPECT_LE(heap.stats().large_bytes, 2 * mib);
    EXPECT_NE(quire_heap_alloc(heap, 10 * mib), nullptr) << "what it shrank by is room";
    quire_heap_free(heap, p);
}

TEST(HeapRealloc, a_large_block_of_some_bytes_more_on_its_pages_waits_for_nobody)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch want blocks as long as was asked for";
    Heap heap;
    char *p = heap.alloc(100001);
    size_t had = quire_heap_usable_bytes(p);
    quire_heap *inner = heap;
    lock_take(&inner->lock); /* another thread's, for instance */
    for (size_t bytes = 100001; bytes <= had; bytes += 7)
        ASSERT_EQ(grow(heap, p, bytes), p);
    ASSERT_EQ(grow(heap, p, had / 2 + 4096), p);
    lock_drop(&inner->lock);
    EXPECT_EQ(heap.stats().live_blocks, 1u);
    EXPECT_TRUE(heap_size_fits(p, had / 2 + 4096, 0)) << "what was asked for last";
    EXPECT_EQ(quire_heap_usable_bytes(p), had);
    quire_heap_free(heap, p);
}

TEST(HeapRealloc, zeros_above_32_MiB_take_no_memory_though_the_pages_were_in_use)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is resident memory too";
    Heap heap;
    const size_t bytes = 40 * mib + 3;
    for (int round = 0; round < 3; round++) {
        char *dirty = heap.alloc(bytes);
        memset(dirty, 1, bytes);
        quire_heap_free(heap, dirty);
        char *p = static_cast<char *>(quire_heap_alloc_zero(heap, 1, bytes));
        ASSERT_NE(p, nullptr);
        EXPECT_LE(os_resident_bytes(p, align_down(bytes, os_page_bytes())), 2 * mib);
        EXPECT_EQ(p[0] | p[bytes / 2] | p[bytes - 1], 0);
        EXPECT_TRUE(std::all_of(p, p + bytes, [](char c) { return c == 0; }));
        quire_heap_free(heap, p);
    }
}

TEST(HeapRealloc, zeros_are_zero_where_the_system_does_not_take_pages_back)
{
    Heap heap;
    const size_t bytes = 40 * mib + 3;
    char *dirty = heap.alloc(bytes);
    memset(dirty, 1, bytes);
    quire_heap_free(heap, dirty);
    os_fault_set(OS_DISCARD, 1, true);
    char *p = static_cast<char *>(quire_heap_alloc_zero(heap, 1, bytes));
    os_fault_set(OS_DISCARD, 0, false);
    ASSERT_NE(p, nullptr);
    EXPECT_TRUE(std::all_of(p, p + bytes, [](char c) { return c == 0; }));
    quire_heap_free(heap, p);
}

TEST(HeapRealloc, what_is_not_touched_of_whole_huge_pages_is_no_memory)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is resident memory too";
    Heap heap;
    for (size_t bytes : {2 * mib, 64 * mib, 2 * mib - 5}) {
        char *p = heap.alloc(bytes), *aligned = static_cast<char *>(quire_heap_alloc_aligned(heap, bytes, 2 * mib));
        for (char *block : {p, aligned}) {
            ASSERT_NE(block, nullptr);
            quire_source_trim(quire_source_default());
            size_t before = os_resident_bytes(block, bytes & ~(os_page_bytes() - 1));
            block[bytes / 2] = 1;
            EXPECT_LE(os_resident_bytes(block, bytes & ~(os_page_bytes() - 1)), before + 64 * 1024) << bytes;
            quire_heap_free(heap, block);
        }
    }
}
