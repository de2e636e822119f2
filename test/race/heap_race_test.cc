// SPDX-License-Identifier: MIT
/* Every mix of allocations, resizes, own frees and strangers' frees, with everything else a heap can do going on beside them. */
#include "race/heap_race.h"

#include <memory>
#include <mutex>

namespace {
const std::vector<unsigned> THREADS = memory_is_watched() && !test_long() ? std::vector<unsigned>{4} : std::vector<unsigned>{2, 8, 32};

/* The whole mix at several numbers of threads, with `others` beside it. */
void everything(quire_heap *heap, size_t bytes_max, unsigned steps, const std::vector<std::function<void()>> &others = {})
{
    for (unsigned threads : THREADS) {
        Table table;
        {
            Noise on;
            heap_work({heap, &table, bytes_max}, threads, scaled(steps) / threads, others);
        }
        heap_settle(heap, table);
        if (::testing::Test::HasFailure())
            return;
    }
}

void expect_sound_now(quire_heap *heap)
{
    HeapStats s = stats_of(heap);
    EXPECT_TRUE(adds_up(s)) << "mapped " << s.mapped_bytes << " live " << s.live_bytes << " free " << s.free_bytes << " meta " << s.meta_bytes << " rounding " << s.rounding_bytes;
}

/* A page and more of each of `count` slots of one size, freed again. */
void fill_and_empty(quire_heap *heap, size_t count, size_t bytes)
{
    std::vector<void *> all;
    for (size_t i = 0; i < count; i++)
        all.push_back(quire_heap_alloc(heap, bytes));
    for (void *p : all)
        quire_heap_free(heap, p);
}
} // namespace

TEST(HeapRace, no_block_has_two_owners_whoever_frees_it)
{
    for (size_t bytes_max : {size_t(48), size_t(1000), HEAP_SMALL_BYTES}) {
        Heap heap;
        everything(heap, bytes_max, 60000);
    }
}

TEST(HeapRace, the_heap_of_the_process_serves_everybody)
{
    quire_heap *heap = quire_heap_default();
    size_t before = stats_of(heap).live_blocks;
    Table table;
    {
        Noise on;
        heap_work({heap, &table, 3000}, 8, scaled(10000), {[&] { quire_heap_trim(heap), sched_yield(); }, [&] {
                      void *p = quire_heap_alloc(heap, 100);
                      EXPECT_GE(quire_heap_usable_bytes(p), 100u);
                      quire_heap_free(heap, p);
                  }});
    }
    heap_table_drain(table, heap);
    EXPECT_EQ(stats_of(heap).live_blocks, before);
    EXPECT_STREQ(quire_heap_check(heap), nullptr);
}

TEST(HeapRace, large_blocks_are_taken_resized_and_freed_by_all)
{
    Heap heap;
    everything(heap, 600000, 6000, {[&] { expect_sound_now(heap); }});
}

TEST(HeapRace, checks_hold_beside_threads_that_have_only_large_blocks)
{
    Heap heap;
    auto large = [&](unsigned t) {
        for (unsigned i = 0; i < scaled(4000); i++) {
            void *p = quire_heap_alloc(heap, (40000 + t * 1000) << i % 4);
            if (i % 3 == 0)
                p = quire_heap_realloc(heap, p, (50000u << i % 5) + i);
            quire_heap_free(heap, p);
        }
    };
    heap_in_threads(3, large, {[&] { EXPECT_STREQ(quire_heap_check(heap), nullptr); }, [&] { expect_sound_now(heap); }});
    EXPECT_EQ(heap.live(), 0u);
}

TEST(HeapRace, a_secure_heap_under_every_mix)
{
    Heap heap(heap_flags(QUIRE_HEAP_SECURE));
    everything(heap, 70000, 10000, {[&] { quire_heap_trim(heap), sched_yield(); }});
}

TEST(HeapRace, trim_by_two_strangers_takes_nothing_that_lives)
{
    Heap heap;
    auto trim = [&] { quire_heap_trim(heap), sched_yield(); };
    everything(heap, 2000, 20000, {trim, trim, [] { quire_source_trim(quire_source_default()), sched_yield(); }});
}

TEST(HeapRace, ticks_of_a_decay_of_a_millisecond_take_nothing_that_lives)
{
    Decay decay(1000000);
    Heap heap;
    everything(heap, 5000, 20000, {[] { sleep_ms(1), quire_source_trim(quire_source_default()); }});
}

TEST(HeapRace, statistics_add_up_and_checks_hold_at_every_moment_of_the_mix)
{
    Heap heap;
    everything(heap, 40000, 10000, {[&] { expect_sound_now(heap); }, [&] { EXPECT_STREQ(quire_heap_check(heap), nullptr); }});
}

TEST(HeapRace, looking_goes_on_while_headers_of_hundreds_of_pages_come_and_go)
{
    Decay decay(0); /* what goes is unmapped at once */
    Heap heap;
    auto come_and_go = [&](unsigned) {
        for (unsigned round = 0; round < scaled(100); round++)
            fill_and_empty(heap, 9000, 2048);
    };
    heap_in_threads(2, come_and_go,
                    {[&] { quire_heap_trim(heap); }, [&] { expect_sound_now(heap); }, [&] { EXPECT_STREQ(quire_heap_check(heap), nullptr); },
                     [&] { heap_visited(heap); }});
    EXPECT_EQ(heap.live(), 0u);
}

TEST(HeapRace, a_walk_visits_what_lives_all_along_once)
{
    Heap heap;
    std::vector<void *> lasting;
    for (size_t i = 0; i < 3000; i++) {
        void *p = quire_heap_alloc(heap, 16 + i % 500);
        heap_paint(p, 16, 7);
        i % 3 ? quire_heap_free(heap, p) : lasting.push_back(p);
    }
    std::sort(lasting.begin(), lasting.end());
    auto walk = [&] {
        struct Seen {
            quire_heap *heap;
            std::vector<void *> list;
            void *kept;
        } seen = {heap, {}, nullptr};
        auto see = [](void *p, size_t, void *arg) {
            Seen *to = static_cast<Seen *>(arg);
            to->list.push_back(p);
            if (to->list.size() % 7 == 0) { /* the heap is used, too */
                quire_heap_free(to->heap, to->kept);
                to->kept = quire_heap_alloc(to->heap, 16 + to->list.size() % 60000);
            }
            return 0;
        };
        EXPECT_EQ(quire_heap_walk(heap, see, &seen), 0);
        quire_heap_free(heap, seen.kept);
        size_t visits = 0;
        for (void *p : seen.list)
            visits += std::binary_search(lasting.begin(), lasting.end(), p);
        EXPECT_EQ(visits, lasting.size());
    };
    Table table;
    {
        Noise on;
        heap_work({heap, &table, 600}, 6, scaled(3000), {walk, [&] { quire_heap_trim(heap); }});
    }
    heap_table_drain(table, heap);
    for (void *p : lasting)
        EXPECT_EQ(stamp_of(p), 7u);
    for (void *p : lasting)
        quire_heap_free(heap, p);
    EXPECT_EQ(heap.live(), 0u);
}

TEST(HeapRace, owns_and_of_are_true_for_what_a_thread_holds_and_harmless_for_what_others_free)
{
    Heap heap, stranger;
    static std::atomic<void *> rumour{nullptr}; /* somebody's block, or one that was */
    auto ask = [&] {
        size_t bytes = 16 + reinterpret_cast<uintptr_t>(rumour.load()) / 16 % 60000;
        char *p = static_cast<char *>(quire_heap_alloc(heap, bytes));
        EXPECT_TRUE(quire_heap_owns(heap, p) && quire_heap_owns(heap, p + bytes - 1));
        EXPECT_EQ(quire_heap_of(p), static_cast<quire_heap *>(heap));
        EXPECT_GE(quire_heap_usable_bytes(p), bytes);
        EXPECT_FALSE(quire_heap_owns(stranger, p) || quire_heap_owns(heap, &heap) || quire_heap_owns(heap, nullptr));
        void *other = rumour.exchange(p);
        quire_heap_owns(heap, other);
        quire_heap_of(other);
        quire_heap_free(heap, p);
    };
    everything(heap, 2000, 10000, {ask, ask, [&] { quire_heap_trim(heap); }});
}

TEST(HeapRace, threads_work_with_more_heaps_than_they_remember)
{
    constexpr unsigned HEAPS = 12;
    Decay decay(1000000);
    std::vector<std::unique_ptr<Heap>> heaps;
    std::vector<Table> tables(HEAPS);
    for (unsigned i = 0; i < HEAPS; i++)
        heaps.push_back(std::make_unique<Heap>());
    Noise on;
    heap_in_threads(6, [&](unsigned t) {
        std::vector<std::unique_ptr<HeapWorker>> workers;
        for (unsigned i = 0; i < HEAPS; i++)
            workers.push_back(std::make_unique<HeapWorker>(HeapWorker::Job{*heaps[i], &tables[i], 2000, 20}, t * HEAPS + i + 1));
        for (unsigned i = 0; i < scaled(6000); i++)
            workers[(i + t) * 7 % HEAPS]->step();
    });
    for (unsigned i = 0; i < HEAPS; i++)
        heap_settle(*heaps[i], tables[i]);
}

TEST(HeapRace, heaps_come_and_go_with_live_blocks_on_many_threads)
{
    Noise on;
    heap_in_threads(
        8,
        [](unsigned t) {
            for (unsigned round = 0; round < scaled(100); round++) {
                Heap heap(heap_flags(round % 8 == 7 ? QUIRE_HEAP_SECURE : 0));
                Table table;
                HeapWorker worker({heap, &table, 50000}, t * 1000 + round + 1);
                for (int i = 0; i < 60; i++)
                    worker.step();
                std::thread([&] { quire_heap_alloc(heap, 100), quire_heap_alloc(heap, 100000); }).join(); /* left to destroy */
                heap_table_drain(table, heap);
                EXPECT_EQ(heap.live(), worker.count() + 2);
            }
        },
        {[] { quire_source_trim(quire_source_default()), sched_yield(); }});
}

TEST(HeapRace, threads_that_knew_a_heap_work_with_the_next_one_at_its_address)
{
    constexpr unsigned WORKERS = 6;
    unsigned rounds = scaled(100);
    std::atomic<quire_heap *> now{nullptr};
    std::atomic<unsigned> round_open{0}, done{0};
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < WORKERS; t++)
        workers.emplace_back([&, t] {
            for (unsigned round = 1; round <= rounds; round++) {
                while (round_open.load() < round)
                    sched_yield();
                Table table;
                if ((t + round) % 3) { /* a third of them skip a generation */
                    HeapWorker worker({now.load(), &table, 1000}, t + 1);
                    for (unsigned i = 0; i < 30; i++)
                        worker.step();
                }
                heap_table_drain(table, now.load());
                done++;
            }
        });
    for (unsigned round = 1; round <= rounds; round++) {
        now = quire_heap_create(nullptr);
        ASSERT_NE(now.load(), nullptr);
        done = 0;
        round_open = round;
        while (done.load() < WORKERS)
            sched_yield();
        EXPECT_EQ(stats_of(now).live_blocks, 0u);
        EXPECT_STREQ(quire_heap_check(now), nullptr);
        quire_heap_destroy(now);
    }
    for (auto &thread : workers)
        thread.join();
}

TEST(HeapRace, a_limit_holds_at_every_moment_and_running_out_harms_nobody)
{
    quire_heap_opts opts = {};
    opts.limit_bytes = 1 << 20;
    Heap heap(opts);
    for (unsigned threads : THREADS) {
        Table table;
        heap_work({heap, &table, 50000, 60, true}, threads, scaled(4000) / threads,
                  {[&] { EXPECT_LE(stats_of(heap).peak_bytes, opts.limit_bytes); }});
        heap_settle(heap, table);
        EXPECT_LE(stats_of(heap).peak_bytes, opts.limit_bytes);
        void *p = quire_heap_alloc(heap, 512);
        EXPECT_NE(p, nullptr) << "all is free: there is room";
        quire_heap_free(heap, p);
    }
}

TEST(HeapRace, a_source_that_refuses_now_and_then_harms_nobody)
{
    quire_source *budget = quire_source_limit(quire_source_default(), 1 << 20);
    quire_heap_opts opts = {};
    opts.source = budget;
    {
        Heap heap(opts);
        Table table;
        heap_work({heap, &table, 50000, 60, true}, 6, scaled(1000), {[&] { quire_heap_trim(heap), sched_yield(); }});
        heap_settle(heap, table);
    }
    quire_source_destroy(budget); /* panics when a span is missing */
}
