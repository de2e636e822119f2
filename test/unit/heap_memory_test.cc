// SPDX-License-Identifier: MIT
/* What a heap holds beyond its blocks, and when it gives it back. */
#include <gtest/gtest.h>

#include <fcntl.h>
#include <random>
#include <thread>

#include <quire/stats.h>

#include "model/slab_worker.h"
#include "unit/heap_inside.h"
#include "unit/heap_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;

class HeapMemory : public testing::Test {
protected:
    void SetUp() override
    {
        if (memory_is_watched())
            GTEST_SKIP() << "shadow memory and red zones are memory too";
    }
};

/* Every so-manieth block freed, in no order. */
Blocks thin_out(const Heap &heap, Blocks blocks, size_t keep_one_in)
{
    std::mt19937_64 order(1);
    Blocks rest;
    for (size_t i = 0; i < blocks.size(); i += keep_one_in)
        rest.push_back(blocks[i]), blocks[i] = nullptr;
    std::shuffle(blocks.begin(), blocks.end(), order);
    heap.free(blocks);
    return rest;
}
} // namespace

/* ---- how much ---- */

TEST_F(HeapMemory, creating_costs_two_os_pages_and_a_first_block_little_more)
{
    Heap heap;
    EXPECT_LE(heap.stats().mapped_bytes, 4 * page);
    heap.alloc(10);
    EXPECT_LE(heap.stats().mapped_bytes, 32 * page) << "most of it untouched";
}

TEST_F(HeapMemory, small_blocks_cost_at_most_one_fiftieth_above_payload)
{
    for (size_t bytes : {size_t(16), size_t(48), size_t(64), size_t(128), size_t(512), size_t(2048)}) {
        Heap heap;
        size_t count = 8 * mib / bytes;
        heap.alloc_many(count, bytes);
        EXPECT_LE(heap.stats().mapped_bytes, count * bytes + count * bytes / (bytes < 32 ? 25 : 50) + 64 * page) << bytes;
    }
}

TEST_F(HeapMemory, a_thread_that_allocates_once_costs_twenty_kilobytes)
{
    Heap heap;
    heap.alloc(10);
    std::vector<std::unique_ptr<Worker>> threads;
    for (int i = 0; i < 64; i++)
        threads.push_back(std::make_unique<Worker>());
    size_t rss = rss_bytes();
    for (auto &thread : threads)
        thread->run([&] { memset(heap.alloc(100), 1, 100); });
    EXPECT_LE(rss_bytes() - rss, 64 * 20480u + mib / 4);
}

TEST_F(HeapMemory, a_thousand_threads_after_one_another_leave_no_more_than_one)
{
    Heap heap;
    Blocks kept;
    auto one = [&] { std::thread([&] { kept.push_back(heap.alloc(1000)), quire_heap_free(heap, heap.alloc(30)); }).join(); };
    for (int i = 0; i < 10; i++)
        one();
    size_t mapped = heap.stats().mapped_bytes;
    for (int i = 0; i < 990; i++)
        one();
    EXPECT_LE(heap.stats().mapped_bytes, mapped + 2 * mib) << "a mebibyte is what they keep alive";
    heap.free(kept);
    quire_heap_trim(heap);
    EXPECT_LE(heap.stats().mapped_bytes, mib / 2);
}

/* ---- giving back ---- */

TEST_F(HeapMemory, is_all_back_after_freeing_and_a_trim)
{
    quire_source_trim(quire_source_default());
    Blocks blocks(200000, &blocks); /* its own pages are there from now on */
    size_t rss = rss_bytes();
    Heap heap;
    for (size_t i = 0; i < blocks.size(); i++)
        memset(blocks[i] = heap.alloc(16 + i % 900), 1, 16 + i % 900);
    EXPECT_GE(rss_bytes(), rss + 60 * mib);
    std::mt19937_64 order(1);
    std::shuffle(blocks.begin(), blocks.end(), order);
    heap.free(blocks);
    EXPECT_GT(quire_heap_trim(heap), 0u);
    EXPECT_LE(heap.stats().mapped_bytes, mib);
    EXPECT_LE(rss_bytes(), rss + 2 * mib);
}

TEST_F(HeapMemory, two_decays_after_freeing_everything_it_is_back_without_a_trim)
{
    quire_source_trim(quire_source_default());
    Blocks blocks(100000, &blocks);
    size_t rss = rss_bytes();
    Heap heap;
    for (void *&p : blocks)
        memset(p = heap.alloc(400), 1, 400);
    Blocks large = heap.alloc_many(20, mib);
    size_t peak = rss_bytes();
    EXPECT_GE(peak, rss + 55 * mib);
    heap.free(blocks);
    heap.free(large);
    Decay decay(100000000);
    EXPECT_TRUE(at_last([&] { return rss_bytes() < rss + 4 * mib; })) << (rss_bytes() - rss) / mib << " MiB of " << (peak - rss) / mib;
}

TEST_F(HeapMemory, blocks_freed_by_another_thread_are_given_back_too)
{
    quire_source_trim(quire_source_default());
    Blocks blocks(100000, &blocks);
    size_t rss = rss_bytes();
    Heap heap;
    for (void *&p : blocks)
        memset(p = heap.alloc(400), 1, 400);
    Worker().run([&] { heap.free(blocks); });
    quire_heap_trim(heap);
    EXPECT_LE(heap.stats().mapped_bytes, mib);
    EXPECT_LE(rss_bytes(), rss + 2 * mib);
}

TEST_F(HeapMemory, what_is_left_sparse_is_used_before_more_is_taken)
{
    Heap heap;
    Blocks blocks = heap.alloc_many(50000, 200), rest = thin_out(heap, blocks, 10);
    size_t mapped = heap.stats().mapped_bytes;
    Blocks again = heap.alloc_many(44000, 200);
    EXPECT_LE(heap.stats().mapped_bytes, mapped + mapped / 20 + 16 * page);
    for (size_t i = 0; i < rest.size(); i++)
        ASSERT_TRUE(holds_only(rest[i], 200, char(i * 10)));
    heap.free(again), heap.free(rest);
}

/* Slots that went to their pages were missed: from then on magazines are large. */
static void turn(const Heap &heap, size_t bytes)
{
    for (int round = 0; round < 3; round++)
        heap.free(heap.alloc_many(2000, bytes));
}

static Blocks in_no_order(Blocks blocks)
{
    std::mt19937_64 order(2);
    std::shuffle(blocks.begin(), blocks.end(), order);
    return blocks;
}

/* Rounds of 200,000 blocks that all live, and then all are freed; what the heap has for itself then, arrays above all.  Statistics only at the end: they send all home. */
static size_t meta_after(int rounds, bool ordered)
{
    Heap heap;
    turn(heap, 48);
    for (int round = 0; round < rounds; round++) {
        Blocks blocks = heap.alloc_many(200000, 48);
        heap.free(ordered ? blocks : in_no_order(blocks));
    }
    EXPECT_LE(heap.stats().free_bytes, 200000u * 48 / 5) << "pages that are empty go back";
    return heap.stats().meta_bytes;
}

TEST_F(HeapMemory, who_frees_much_at_once_pays_no_arrays_for_it)
{
    EXPECT_LE(meta_after(1, true), 200000u * 48 / 20) << "an address for each would be a sixth";
    EXPECT_LE(meta_after(1, false), 200000u * 48 / 20);
}

TEST_F(HeapMemory, what_is_freed_side_by_side_goes_to_its_pages_each_time)
{
    EXPECT_LE(meta_after(6, true), 200000u * 48 / 20);
}

TEST_F(HeapMemory, what_is_freed_in_no_order_again_and_again_goes_to_its_pages_too)
{
    EXPECT_LE(meta_after(6, false), 200000u * 48 / 20);
}

/* In this thread's full magazines. */
static size_t owned_bytes(const Heap &heap)
{
    const struct heap_local *local = heap_mine(heap);
    size_t bytes = 0;
    for (unsigned c = 0; c < HEAP_CLASSES; c++)
        bytes += local->bin[c].slots.owns * slots_magazine_bytes(heap_class_bytes(c));
    return bytes;
}

TEST_F(HeapMemory, full_magazines_make_way_for_pages_of_another_size)
{
    if (!bias_works())
        GTEST_SKIP() << "threads have no magazines";
    Heap heap;
    for (int round = 0; round < 6; round++) {
        Blocks blocks;
        for (size_t n = 0; n < 60000; n++)
            blocks.push_back(heap.alloc(64 + n % 13 * 16));
        heap.free(blocks);
    }
    const size_t kept = owned_bytes(heap);
    ASSERT_GT(kept, 4 * mib) << "what is freed and allocated again stays";
    Blocks same = heap.alloc_many(4000, 64);
    EXPECT_GT(owned_bytes(heap), kept - mib) << "for as long as no page is wanted";
    heap_mine(heap)->way_again_ns = 0; /* as after a while */
    Blocks others = heap.alloc_many(32 * mib / 400, 400);
    EXPECT_LE(owned_bytes(heap), mib / 4 + heap.stats().mapped_bytes / 64);
    heap.free(same), heap.free(others);
}

/* What would go would be had again at once, page by page. */
TEST_F(HeapMemory, full_magazines_stay_with_who_fills_and_empties_one_size_after_the_other)
{
    if (!bias_works())
        GTEST_SKIP() << "threads have no magazines";
    Heap heap;
    uint32_t pages = 0;
    for (int round = 0; round < 12; round++) {
        pages = heap_mine(heap) == &heap_local_none ? 0 : heap_mine(heap)->pages_had;
        for (size_t bytes = 64; bytes < 192; bytes += 16)
            heap.free(heap.alloc_many(10000, bytes));
    }
    EXPECT_EQ(heap_mine(heap)->pages_had, pages) << "the last round takes no page";
    EXPECT_GT(owned_bytes(heap), 4 * mib);
}

/* Of the large ones few stay, and pages are wanted in each round.  Were the small ones sent away as often, a round would take twice the time. */
TEST_F(HeapMemory, full_magazines_do_not_go_again_before_64_times_the_time_that_it_took)
{
    if (!bias_works())
        GTEST_SKIP() << "threads have no magazines";
    Heap heap;
    auto kept_after_round = [&] {
        heap.free(heap.alloc_many(20000, 256));
        heap.free(heap.alloc_many(1000, 32768));
        return owned_bytes(heap);
    };
    kept_after_round(), kept_after_round();
    uint64_t &again_ns = heap_mine(heap)->way_again_ns;
    const uint64_t hour_ns = UINT64_C(3600000000000), later_ns = os_time_ns() + hour_ns;
    again_ns = later_ns;
    for (int round = 0; round < 6; round++)
        EXPECT_GT(kept_after_round(), 2 * mib);
    again_ns = 0;
    const uint64_t from_ns = os_time_ns();
    EXPECT_LT(kept_after_round(), mib);
    EXPECT_GT(again_ns, from_ns + 64 * UINT64_C(1000)) << "20,000 slots take more than a microsecond";
    EXPECT_LT(again_ns, later_ns);
}

TEST_F(HeapMemory, churn_with_drifting_sizes_stays_flat)
{
    Heap heap;
    Random random(2);
    Blocks blocks(20000, nullptr);
    size_t mapped[4] = {};
    for (size_t quarter = 0; quarter < 4; quarter++)
        for (size_t step = 0; step < 150000; step++) {
            size_t k = random.below(blocks.size()), middle = 40 + (quarter * 150000 + step) / 1000;
            quire_heap_free(heap, blocks[k]);
            blocks[k] = heap.alloc(middle + random.below(middle));
            if (step % 10000 == 0)
                mapped[quarter] = std::max(mapped[quarter], heap.stats().mapped_bytes);
        }
    size_t live = heap.stats().live_bytes;
    const size_t larger_pages = 32 * (os_page_bytes() - 4096); /* one of each class is the last that is drained */
    EXPECT_LE(heap.stats().mapped_bytes, live + live / 2 + larger_pages) << "sizes grew all the time: old pages are drained";
    heap.free(blocks);
}

/* The clock is asleep when the last one frees, and nobody does anything after. */
TEST_F(HeapMemory, blocks_of_a_secure_heap_that_wait_with_a_thread_that_sleeps_go_home_by_the_clock)
{
    Decay decay(2000000);
    Heap heap({.flags = QUIRE_HEAP_SECURE});
    Blocks blocks;
    quire_heap_free(heap, heap.alloc(100)); /* so that it does not take over what the other leaves */
    std::thread([&] { blocks = heap.alloc_many(24, 20000); }).join();
    usleep(300000);
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(quire_source_default(), &stats);
    size_t taken = stats.taken_bytes;
    heap.free(blocks);
    EXPECT_TRUE(at_last([&] { return quire_source_stats(quire_source_default(), &stats), stats.taken_bytes + 20 * 20000 < taken; }));
}

/* What a look brings home makes pages empty: there is something to be done, and who looks must say so, or nobody after it does. */
TEST_F(HeapMemory, the_clock_is_woken_by_who_writes_statistics_and_does_nothing_else)
{
    Decay decay(2000000);
    Heap heap, secure({.flags = QUIRE_HEAP_SECURE});
    Worker other;
    Blocks blocks, pages;
    int null = open("/dev/null", O_WRONLY);
    other.run([&] {
        secure.free({secure.alloc(100)}); /* so that it does not take over what the next one leaves */
        pages = heap.alloc_many(1000, 100);
        heap.free(Blocks(pages.begin() + 3, pages.end() - 1));
    });
    std::thread([&] { blocks = secure.alloc_many(24, 20000); }).join();
    quire_source_trim(quire_source_default()); /* or the source itself wakes the clock, for what it has idle */
    usleep(300000);
    other.run([&] { heap.free(Blocks(pages.begin(), pages.begin() + 3)); });
    EXPECT_EQ(quire_stats_write(null, QUIRE_STATS_JSON), 0);
    close(null);
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(quire_source_default(), &stats);
    size_t taken = stats.taken_bytes;
    other.run([&] { secure.free(blocks); });
    EXPECT_TRUE(at_last([&] { return quire_source_stats(quire_source_default(), &stats), stats.taken_bytes + 20 * 20000 < taken; }));
    heap.free({pages.back()});
}

TEST_F(HeapMemory, in_the_child_of_a_fork_the_clock_is_woken_though_its_parents_had_something_to_do)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "which knows no threads of a child's own";
    Heap heap({.flags = QUIRE_HEAP_SECURE});
    Blocks blocks;
    quire_heap_free(heap, heap.alloc(100));
    std::thread([&] { blocks = heap.alloc_many(24, 20000); }).join();
    EXPECT_EQ(in_child([&] {
                  Decay decay(2000000);
                  struct quire_source_stats stats = {.struct_bytes = sizeof stats};
                  quire_source_stats(quire_source_default(), &stats);
                  size_t taken = stats.taken_bytes;
                  heap.free(blocks);
                  return at_last([&] { return quire_source_stats(quire_source_default(), &stats), stats.taken_bytes + 20 * 20000 < taken; }) ? 0 : 1;
              }),
              0);
    heap.free(blocks);
}

TEST(HeapTrim, says_how_many_bytes_and_gives_nothing_twice)
{
    Heap heap;
    Blocks blocks = heap.alloc_many(5000, 500), large = heap.alloc_many(3, mib);
    size_t full = heap.stats().mapped_bytes;
    heap.free(blocks), heap.free(large);
    quire_heap_trim(heap);
    HeapStats after = heap.stats();
    EXPECT_LT(after.mapped_bytes, full / 4);
    quire_heap_trim(heap);
    EXPECT_EQ(heap.stats().mapped_bytes, after.mapped_bytes);
    heap.alloc_many(100, 500);
}

TEST(HeapTrim, gives_a_sleeping_threads_free_pages_back)
{
    Heap heap;
    Worker sleeper;
    sleeper.run([&] {
        for (int i = 0; i < 3; i++)
            heap.free(heap.alloc_many(5000, 500));
    });
    quire_heap_trim(heap);
    EXPECT_LE(heap.stats().mapped_bytes, mib / 2);
    sleeper.run([&] { heap.free(heap.alloc_many(5000, 500)); });
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST(HeapTrim, gives_pages_back_that_others_emptied_for_a_sleeping_thread)
{
    Heap heap;
    Worker sleeper, other;
    Blocks blocks;
    sleeper.run([&] { blocks = heap.alloc_many(5000, 500); });
    other.run([&] { heap.free(blocks); });
    quire_heap_trim(heap);
    EXPECT_LE(heap.stats().mapped_bytes, mib / 2);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapTrim, gives_back_what_an_ended_thread_left)
{
    Heap heap;
    Blocks blocks;
    std::thread([&] { blocks = heap.alloc_many(5000, 500); }).join();
    heap.free(blocks);
    quire_heap_trim(heap);
    EXPECT_LE(heap.stats().mapped_bytes, mib / 2);
}

TEST(HeapTrim, leaves_live_blocks_as_they_are)
{
    Heap heap;
    Blocks blocks = heap.alloc_many(3000, 500), rest = thin_out(heap, blocks, 4);
    quire_heap_trim(heap);
    for (size_t i = 0; i < rest.size(); i++)
        ASSERT_TRUE(holds_only(rest[i], 500, char(i * 4)));
    EXPECT_EQ(heap.stats().live_blocks, rest.size());
}

TEST(HeapTrim, of_an_empty_heap_and_of_one_that_is_full_does_no_harm)
{
    Heap heap;
    quire_heap_trim(heap);
    Blocks blocks = heap.alloc_many(1000, 64);
    quire_heap_trim(heap);
    EXPECT_EQ(heap.stats().live_blocks, 1000u);
    quire_heap_trim(quire_heap_default());
    EXPECT_EQ(quire_heap_check(quire_heap_default()), nullptr);
}
