// SPDX-License-Identifier: MIT
/* Large blocks that become larger: where they are, in a mapping of their own, or by a copy. */
#include <gtest/gtest.h>

#include <optional>
#include <sys/mman.h>

#include "os/os.h"
#include "pages/source_internal.h"
#include "unit/heap_growing.h"
#include "unit/heap_inside.h"

namespace {
const size_t mib = 1 << 20;
} // namespace

TEST(HeapGrow, a_large_size_that_comes_and_goes_is_mapped_alone_once_and_again_where_it_rises)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    come_and_go(heap, 400000);
    char *first = grow(heap, nullptr, 300000);
    Neighbour neighbour(first, 300000); /* of each that comes after it, too */
    quire_heap_free(heap, first);
    size_t before = taken();
    for (int i = 0; i < 200; i++) {
        char *p = grow(heap, grow(heap, nullptr, 300000), 390000);
        ASSERT_FALSE(is_alone(before)) << i;
        quire_heap_free(heap, p);
    }
    int alone = 0;
    for (size_t bytes = 400000; bytes < 2 * mib; bytes += os_page_bytes()) {
        char *p = grow(heap, grow(heap, nullptr, 300000), bytes);
        alone += is_alone(before);
        quire_heap_free(heap, p);
    }
    EXPECT_TRUE(alone >= 1 && alone <= 10) << alone << ": when it has risen by a quarter since the last";
}

TEST(HeapGrow, a_large_block_that_grows_by_small_steps_is_mapped_alone_after_some)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    come_and_go(heap, 4 * mib);
    size_t before = taken(), copied = 0;
    char *p = grow(heap, nullptr, 300000);
    const size_t step = os_page_bytes();
    for (size_t bytes = 300000 + step; bytes < 4 * mib; bytes += step) {
        std::optional<Neighbour> neighbour;
        if (!is_alone(before))
            neighbour.emplace(p, bytes - step);
        p = grow(heap, p, bytes);
        neighbour.reset();
        ASSERT_NE(p, nullptr);
        copied += !is_alone(before);
    }
    EXPECT_GT(copied, 0u);
    EXPECT_LT(copied, 40u);
    quire_heap_free(heap, p);
}

/* A mapping of its own would be faulted in anew in each round. */
TEST(HeapGrow, blocks_that_grow_together_by_half_are_copied_once_their_size_comes_and_goes)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    come_and_go(heap, 2 * mib);
    for (int round = 0; round < 10; round++) {
        std::vector<char *> blocks(12, nullptr);
        for (size_t bytes = 100000; bytes < 3 * mib / 2; bytes += bytes / 2)
            for (char *&block : blocks)
                block = grow(heap, block, bytes);
        for (char *block : blocks) {
            ASSERT_NE(block, nullptr);
            EXPECT_FALSE(heap_page_find(block)->is_mapped) << round;
            quire_heap_free(heap, block);
        }
    }
}

TEST(HeapGrow, a_block_that_is_mapped_alone_gives_back_what_is_worth_a_call)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    char *first = grow(heap, nullptr, mib);
    Neighbour neighbour(first, mib);
    char *p = grow(heap, first, 4 * mib);
    ASSERT_TRUE(heap_page_find(p)->is_mapped);
    size_t times = 0, held = heap_page_find(p)->span.bytes;
    for (size_t bytes = 4 * mib; bytes > mib; bytes -= 4096) {
        ASSERT_EQ(grow(heap, p, bytes), p);
        const size_t now = heap_page_find(p)->span.bytes;
        EXPECT_LE(now, bytes + bytes / 15 + os_page_bytes());
        times += now != held;
        held = now;
    }
    EXPECT_LE(times, 24u) << "of 768; a sixteenth each time";
    quire_heap_free(heap, p);
}

TEST(HeapGrow, idle_memory_makes_way_for_a_block_that_is_mapped_alone)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    char *many[16]; /* so that some MiB may be idle, also where many CPUs have their part of a small process's allowance */
    for (char *&one : many)
        one = grow(heap, nullptr, 4 * mib);
    for (char *one : many)
        quire_heap_free(heap, one);
    quire_source_trim(quire_source_default());
    regions.most_bytes = regions.used_bytes_most = regions.way_bytes = 0; /* whatever came before */
    char *freed = grow(heap, nullptr, 4 * mib), *p = grow(heap, nullptr, 300000);
    quire_heap_free(heap, freed);
    size_t before = idle();
    ASSERT_GE(before, 4 * mib);
    p = grow(heap, p, 6 * mib);
    EXPECT_LE(idle(), before - mib) << "2 MiB more than ever, and a 64th of it may stay";
    p = grow(heap, p, 12 * mib);
    EXPECT_LE(idle(), mib);
    quire_heap_free(heap, p);
}

/* What its pages were lies there, empty, for the next. */
TEST(HeapGrow, the_pages_of_a_block_that_is_mapped_alone_are_no_second_copy)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    const size_t bytes = 32 * mib;
    for (int fails = 0; fails < 2; fails++) {
        Heap heap;
        quire_source_trim(quire_source_default()); /* what lies idle below is free before, as it is behind */
        char *p = grow(heap, nullptr, bytes), *before = p;
        Neighbour neighbour(p, bytes + 1); /* it has a page more, or the source would make it of huge pages */
        memset(p, 'x', bytes);
        quire_source_trim(quire_source_default());
        if (fails)
            os_fault_set(OS_REMAP, 2, false);
        p = grow(heap, p, bytes + mib);
        ASSERT_TRUE(p && p != before);
        for (size_t at = 0; at < bytes; at += 512)
            ASSERT_EQ(p[at], 'x') << fails;
        EXPECT_EQ(p[bytes], 0);
        EXPECT_LT(heap.stats().peak_bytes, bytes + 2 * mib) << fails;
        EXPECT_LT(idle(), mib) << fails;
        char *next = grow(heap, nullptr, bytes);
        EXPECT_EQ(next, before);
        quire_heap_free(heap, p);
        quire_heap_free(heap, next);
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
    }
}

TEST(HeapGrow, what_the_program_did_to_the_pages_of_a_block_does_not_stay_when_it_grows)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    for (int is_copied = 0; is_copied < 2; is_copied++) {
        Heap heap;
        char *p = static_cast<char *>(quire_heap_alloc_aligned(heap, mib, os_page_bytes()));
        Neighbour neighbour(p, mib);
        memset(p, 'x', mib);
        ASSERT_EQ(mprotect(p, mib, PROT_READ), 0);
        if (is_copied)
            os_fault_set(OS_REMAP, 1, true);
        char *grown = grow(heap, p, 2 * mib), *next = static_cast<char *>(quire_heap_alloc_aligned(heap, mib, os_page_bytes()));
        os_fault_set(OS_REMAP, 0, false);
        ASSERT_TRUE(grown && next == p) << is_copied;
        EXPECT_TRUE(grown[0] == 'x' && grown[mib - 1] == 'x');
        memset(next, 'y', mib);
        quire_heap_free(heap, grown);
        quire_heap_free(heap, next);
    }
}

/* ---- where they are ---- */

TEST(HeapGrow, a_large_block_takes_what_is_free_behind_it)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    const size_t page = os_page_bytes(), less = mib + 5 * page;
    char *room = grow(heap, nullptr, 3 * mib), *p = nullptr;
    quire_heap_free(heap, room);
    Blocks holes; /* that other tests have left in front of it */
    while ((p = grow(heap, nullptr, less)) != room && holes.size() < 100)
        holes.push_back(p);
    ASSERT_EQ(p, room);
    quire_heap_free(heap, p);
    size_t before = taken(), held = heap.stats().mapped_bytes, others = heap.stats().large_bytes;
    p = grow(heap, nullptr, less); /* its pages are the first of those, and not a power of two of them */
    ASSERT_EQ(p, room);
    memset(p, 'x', less);
    for (size_t bytes = less + 1; bytes < 3 * mib; bytes += bytes / 8) {
        ASSERT_EQ(grow(heap, p, bytes), room) << bytes;
        memset(p + less, 'y', bytes - less);
        ASSERT_EQ(quire_heap_usable_bytes(p) / page, (bytes + page - 1) / page);
        ASSERT_EQ(taken() - before, heap.stats().mapped_bytes - held) << bytes;
        ASSERT_EQ(heap.stats().large_bytes - others, taken() - before) << bytes;
        ASSERT_EQ(quire_heap_check(heap), nullptr);
        ASSERT_EQ(quire_source_check(quire_source_default()), nullptr);
    }
    EXPECT_EQ(std::count(p, p + less, 'x'), ptrdiff_t(less));
    quire_heap_free(heap, p);
    EXPECT_EQ(taken(), before);
    heap.free(holes);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(HeapGrow, nobody_elses_page_is_taken)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap;
    const size_t page = os_page_bytes(), bytes = 100 * page;
    char *p = grow(heap, nullptr, bytes);
    Neighbour neighbour(p, bytes);
    memset(p, 'x', bytes);
    char *grown = grow(heap, p, bytes + page);
    ASSERT_NE(grown, p);
    EXPECT_EQ(std::count(grown, grown + bytes, 'x'), ptrdiff_t(bytes));
    quire_heap_free(heap, grown);
}

/* Spans of so many pages, a power of two, lie at multiples of that: whoever takes one from a cache relies on it. */
TEST(HeapGrow, no_span_becomes_one_that_does_not_lie_as_others_of_its_size)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    const size_t page = os_page_bytes();
    quire_source *source = quire_source_default();
    quire_span room, below, span;
    ASSERT_EQ(source->verbs->take(source, 256 * page, 256 * page, &room), 0);
    region_give(&room, true); /* past the caches: where it was there is room */
    ASSERT_EQ(source->verbs->take(source, page, page, &below), 0);
    do
        ASSERT_EQ(source->verbs->take(source, 33 * page, page, &span), 0);
    while (uintptr_t(span.start) % (64 * page) == 0);
    EXPECT_FALSE(source_extend(source, &span, 31 * page)) << "64 pages, and not at a multiple of that";
    EXPECT_EQ(span.bytes, 33 * page);
    if (source_extend(source, &span, 32 * page)) {
        EXPECT_EQ(span.bytes, 65 * page);
    }
    EXPECT_FALSE(source_extend(quire_source_anon(), &span, page)) << "another source's";
    EXPECT_EQ(quire_source_check(source), nullptr);
    source->verbs->give(source, &span);
    source->verbs->give(source, &below);
    EXPECT_EQ(quire_source_check(source), nullptr);
}

TEST(HeapGrow, over_its_limit_a_heap_takes_nothing_behind_a_block)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there nothing grows in place";
    Heap heap({.limit_bytes = 2 * mib});
    char *p = grow(heap, nullptr, mib);
    size_t before = taken();
    EXPECT_EQ(grow(heap, p, 3 * mib), nullptr);
    EXPECT_EQ(taken(), before);
    EXPECT_LE(heap.stats().peak_bytes, 2 * mib);
    quire_heap_free(heap, p);
}
