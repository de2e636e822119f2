// SPDX-License-Identifier: MIT
/* Blocks that one thread allocates and another frees, in every pattern there is: nothing is lost on the way, and the way is not long. */
#include "race/heap_race.h"

#include <mutex>

namespace {
constexpr size_t BYTES = 64;

void *painted(quire_heap *heap, size_t bytes = BYTES)
{
    void *p = quire_heap_alloc(heap, bytes);
    EXPECT_NE(p, nullptr);
    if (p)
        heap_paint(p, bytes, reinterpret_cast<uintptr_t>(p));
    return p;
}

void verify_and_free(quire_heap *heap, void *p)
{
    EXPECT_TRUE(stamp_of(p) == reinterpret_cast<uintptr_t>(p) && heap_is_painted(p));
    quire_heap_free(heap, p);
}

/* What some put in and others take out, a batch at a time. */
class Queue {
public:
    void put(std::vector<void *> &&batch)
    {
        for (;;) {
            {
                std::lock_guard<std::mutex> guard(mutex);
                if (batches.size() < DEPTH) {
                    batches.push_back(std::move(batch));
                    return;
                }
            }
            sched_yield();
        }
    }
    bool take(std::vector<void *> *out)
    {
        std::lock_guard<std::mutex> guard(mutex);
        if (batches.empty())
            return false;
        *out = std::move(batches.back());
        batches.pop_back();
        return true;
    }

private:
    static constexpr size_t DEPTH = 8;
    std::mutex mutex;
    std::vector<std::vector<void *>> batches;
};

/* `makers` threads allocate `count` blocks each, `breakers` free them all. */
void make_and_break(quire_heap *heap, unsigned makers, unsigned breakers, size_t count)
{
    Queue queue;
    std::atomic<unsigned> making{makers};
    heap_in_threads(makers + breakers, [&](unsigned t) {
        std::vector<void *> batch;
        if (t < makers) {
            for (size_t i = 0; i < count; i++) {
                batch.push_back(painted(heap, 16 + (i * 7 + t) % 300));
                if (batch.size() == 50 || i + 1 == count)
                    queue.put(std::move(batch)), batch.clear();
            }
            making--;
            return;
        }
        for (bool last = false; !last;) {
            last = making == 0;
            while (queue.take(&batch))
                for (void *p : batch)
                    verify_and_free(heap, p);
            sched_yield();
        }
    });
}
} // namespace

TEST(HeapRemote, producers_and_consumers_of_every_number_lose_nothing)
{
    const unsigned patterns[][2] = {{1, 1}, {1, 4}, {4, 1}, {3, 3}};
    for (auto &[makers, breakers] : patterns) {
        Heap heap;
        Noise on;
        make_and_break(heap, makers, breakers, scaled(100000) / makers);
        EXPECT_EQ(heap.live(), 0u) << makers << " allocate, " << breakers << " free";
    }
}

TEST(HeapRemote, what_another_thread_frees_is_allocated_again_before_memory_grows)
{
    Heap heap;
    make_and_break(heap, 1, 1, test_long() ? 2000000 : scaled(200000));
    EXPECT_EQ(heap.live(), 0u);
    EXPECT_LT(stats_of(heap).peak_bytes, size_t(8) << 20) << "50 blocks of a quarter KiB at once, in 9 batches";
}

TEST(HeapRemote, in_a_ring_each_thread_frees_what_the_one_before_it_allocated)
{
    constexpr unsigned RING = 5;
    Heap heap;
    Noise on;
    std::atomic<void *> places[RING] = {};
    heap_in_threads(RING, [&](unsigned t) {
        for (unsigned i = 0; i < scaled(50000); i++) {
            void *p = places[t].exchange(painted(heap, 16 + i % 200));
            if (p)
                verify_and_free(heap, p);
            p = places[(t + RING - 1) % RING].exchange(nullptr);
            if (p)
                verify_and_free(heap, p);
            if (i % 16 == t)
                sched_yield();
        }
    });
    for (auto &place : places)
        if (void *p = place.load())
            verify_and_free(heap, p);
    EXPECT_EQ(heap.live(), 0u);
}

TEST(HeapRemote, two_that_free_each_others_while_both_end)
{
    Heap heap;
    Noise on;
    for (unsigned round = 0; round < scaled(300); round++) {
        void *blocks[2][80];
        std::atomic<int> ready{0};
        auto one = [&](unsigned me) {
            for (void *&p : blocks[me])
                p = painted(heap);
            for (ready++; ready < 2;)
                sched_yield();
            for (void *p : blocks[1 - me])
                verify_and_free(heap, p);
        };
        heap_in_threads(2, one);
        ASSERT_EQ(heap.live(), 0u) << "round " << round;
    }
    quire_heap_trim(heap);
    EXPECT_EQ(stats_of(heap).pages, 0u);
    EXPECT_LE(stats_of(heap).caches, 4u);
}

TEST(HeapRemote, strangers_free_what_a_thread_allocated_while_it_ends_and_others_take_over_its_pages)
{
    Decay decay(1000000);
    Heap heap;
    Table table;
    Noise on;
    auto life = [&] {
        std::thread([&] {
            for (size_t i = 0; i < 100; i++)
                if (void *p = table.swap(i * 5, painted(heap, 16 + i * 3)))
                    verify_and_free(heap, p);
        }).join();
    };
    heap_in_threads(
        2,
        [&](unsigned) {
            for (unsigned t = 0; t < scaled(200); t++)
                life();
        },
        {[&] {
             for (size_t at = 0; at < Table::PLACES; at++)
                 if (void *p = table.swap(at, nullptr))
                     verify_and_free(heap, p);
             sched_yield();
         },
         [&] { quire_heap_trim(heap), sched_yield(); }, [&] { EXPECT_TRUE(adds_up(stats_of(heap))); }});
    heap_settle(heap, table);
}

TEST(HeapRemote, blocks_of_many_owners_in_turn_arrive_each_at_its_own)
{
    constexpr size_t OWNERS = 9; /* more than a thread gathers frees for at once */
    Heap heap;
    Noise on;
    std::vector<void *> blocks[OWNERS];
    std::atomic<unsigned> ready{0};
    std::atomic<bool> freed{false};
    heap_in_threads(OWNERS + 1, [&](unsigned t) {
        if (t < OWNERS) {
            for (size_t i = 0; i < scaled(10000); i++)
                blocks[t].push_back(painted(heap, 16 + i % 64));
            ready++;
            while (!freed)
                sleep_ms(1);
            for (size_t i = 0; i < 100; i++) /* draws in what came home */
                verify_and_free(heap, painted(heap, 16 + i % 64));
            return;
        }
        while (ready < OWNERS)
            sched_yield();
        for (size_t i = 0; i < blocks[0].size(); i++)
            for (auto &list : blocks)
                verify_and_free(heap, list[i]);
        freed = true;
    });
    EXPECT_EQ(heap.live(), 0u);
}

TEST(HeapRemote, what_a_sleeping_thread_has_goes_back_when_others_freed_it)
{
    Heap heap;
    std::vector<void *> blocks;
    std::atomic<bool> asleep{false}, awake{false};
    std::thread owner([&] {
        for (int i = 0; i < 5000; i++)
            blocks.push_back(painted(heap, 500));
        for (asleep = true; !awake;)
            sleep_ms(2);
    });
    while (!asleep)
        sleep_ms(1);
    for (void *p : blocks)
        verify_and_free(heap, p);
    quire_heap_trim(heap);
    EXPECT_EQ(heap.live(), 0u);
    EXPECT_EQ(stats_of(heap).pages, 0u) << "its owner never woke up";
    awake = true;
    owner.join();
}
