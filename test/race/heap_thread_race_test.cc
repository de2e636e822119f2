// SPDX-License-Identifier: MIT
/* Threads that begin, end, are cancelled, and allocate in their last destructors: what they leave is had again by others. */
#include "race/heap_race.h"
#include "race/thread_kit.h"
#include "unit/heap_inside.h"

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

size_t free_all(quire_heap *heap, const std::vector<void *> &list)
{
    for (void *p : list) {
        EXPECT_TRUE(heap_is_painted(p));
        quire_heap_free(heap, p);
    }
    return list.size();
}

/* Nothing lives, few sets of pages were ever made, and the memory goes back. */
void expect_nothing_left(quire_heap *heap, size_t caches_max)
{
    quire_heap_trim(heap);
    HeapStats s = stats_of(heap);
    EXPECT_EQ(s.live_blocks, 0u);
    EXPECT_EQ(s.pages, 0u);
    EXPECT_LE(s.caches, caches_max);
    EXPECT_LE(s.mapped_bytes, 64 * os_page_bytes());
    EXPECT_STREQ(quire_heap_check(heap), nullptr);
}
} // namespace

TEST(HeapThreads, ten_thousand_short_ones_that_hand_blocks_over_lose_nothing_and_memory_stays_flat)
{
    Heap heap;
    Left<void *> left;
    size_t freed = 0;
    const unsigned threads = BUILT_WITH_TSAN ? 500 : under_asan() ? 2000 : test_long() ? 20000 : 10000;
    auto life = [&](unsigned t) {
        void *mine[20];
        for (size_t i = 0; i < 20; i++)
            mine[i] = painted(heap, 16 + (t + i) % 25 * 16);
        left.add(mine[t % 10]), left.add(mine[10 + t % 10]);
        for (size_t i = 0; i < 20; i++)
            if (i != t % 10 && i != 10 + t % 10)
                quire_heap_free(heap, mine[i]);
    };
    threads_in_turn(100, 4, life);
    freed += free_all(heap, left.take_all());
    size_t rss = rss_bytes();
    for (unsigned done = 0; done < threads; done += 500) {
        threads_in_turn(500, 4, life);
        EXPECT_EQ(heap.live(), 500u * 2);
        freed += free_all(heap, left.take_all());
    }
    EXPECT_EQ(freed, (threads + 100) * 2);
    expect_flat(rss, size_t(20) << 20);
    expect_nothing_left(heap, 8);
}

TEST(HeapThreads, what_ended_threads_left_is_had_again_by_those_that_come)
{
    Heap heap;
    std::vector<void *> lasting;
    for (unsigned t = 0; t < scaled(400); t++)
        std::thread([&] { lasting.push_back(painted(heap, 128)); }).join();
    HeapStats s = stats_of(heap);
    EXPECT_EQ(s.live_blocks, lasting.size());
    EXPECT_LE(s.pages, lasting.size() / 100 + 2) << "a page for each thread would be " << lasting.size();
    EXPECT_LE(s.caches, 4u);
    EXPECT_EQ(free_all(heap, lasting), lasting.size());
    expect_nothing_left(heap, 4);
}

namespace {
struct Cancelled {
    quire_heap *heap;
    Left<void *> *left;
    std::vector<void *> mine;
    unsigned seed;
    static void clean(void *self_)
    {
        Cancelled *self = static_cast<Cancelled *>(self_);
        for (void *p : self->mine)
            self->left->add(p);
        self->mine.clear();
    }
    static void *run(void *self_)
    {
        Cancelled *self = static_cast<Cancelled *>(self_);
        Random random(self->seed);
        pthread_cleanup_push(clean, self);
        for (;;) {
            self->mine.push_back(painted(self->heap, 16 + random.below(2000)));
            if (self->mine.size() > random.below(200)) {
                quire_heap_free(self->heap, self->mine.back());
                self->mine.pop_back();
            }
            if (random.below(20) == 0)
                pthread_testcancel();
        }
        pthread_cleanup_pop(0);
        return nullptr;
    }
};
} // namespace

TEST(HeapThreads, of_what_ended_ones_had_an_os_page_each_stays)
{
    const unsigned threads = 60;
    Heap heap;
    std::atomic<unsigned> there{0};
    std::vector<std::thread> list;
    for (unsigned t = 0; t < threads; t++)
        list.emplace_back([&] {
            for (size_t bytes = 16; bytes < 30000; bytes += bytes / 2)
                quire_heap_free(heap, quire_heap_alloc(heap, bytes));
            there++;
            while (there < threads) /* or one would have what another left */
                std::this_thread::yield();
        });
    for (std::thread &thread : list)
        thread.join();
    quire_heap_trim(heap);
    size_t locals = 0, resident = 0;
    const quire_heap *whole = heap;
    for (heap_local *local = heap_locals(whole); local; local = local->next)
        if (local->span_bytes) {
            locals++;
            resident += os_resident_bytes(local, local->span_bytes);
        }
    EXPECT_EQ(locals, threads);
    EXPECT_LE(resident, threads * os_page_bytes());
    EXPECT_STREQ(quire_heap_check(heap), nullptr);
}

/* Its pages are on no list: they come back to one when what lives in them is freed, when nothing else is left of what that thread had. */
TEST(HeapThreads, full_pages_of_one_that_ended_and_was_forgotten_are_had_again)
{
    const size_t bytes = 4096, count = 64;
    Heap heap;
    std::vector<void *> left;
    std::thread([&] {
        for (size_t i = 0; i < count; i++)
            left.push_back(painted(heap, bytes));
    }).join();
    size_t pages = stats_of(heap).pages;
    quire_heap_trim(heap);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < count; i++)
            if (round == 3 || i % 16 == size_t(round)) {
                EXPECT_TRUE(heap_is_painted(left[i]));
                quire_heap_free(heap, left[i]);
                left[i] = nullptr;
            }
        quire_heap_trim(heap);
        EXPECT_STREQ(quire_heap_check(heap), nullptr);
        std::thread([&] {
            for (void *&p : left)
                p = p ? p : painted(heap, bytes);
        }).join();
        EXPECT_LE(stats_of(heap).pages, pages + 1); /* a page is worth going back to when some of it is free */
        quire_heap_trim(heap);
        EXPECT_STREQ(quire_heap_check(heap), nullptr);
    }
    free_all(heap, left);
    expect_nothing_left(heap, 2);
}

TEST(HeapThreads, what_an_ended_one_had_may_stay_where_the_system_does_not_take_it)
{
    const size_t bytes = 2000;
    for (bool refused : {false, true}) {
        Heap heap;
        for (int round = 0; round < 3; round++) {
            void *others[6];
            for (void *&p : others)
                p = painted(heap, bytes);
            std::thread([&] { /* before it has allocated any, so that its bin is not ready */
                quire_heap_free(heap, quire_heap_alloc(heap, 16));
                for (void *p : others)
                    quire_heap_free(heap, p);
                EXPECT_EQ(free_all(heap, {painted(heap, bytes), painted(heap, bytes)}), 2u);
            }).join();
            os_fault_set(OS_DISCARD, refused ? 1 : 0, true);
            quire_heap_trim(heap);
            EXPECT_EQ(os_fault_failed(OS_DISCARD) != 0, refused);
            os_fault_set(OS_DISCARD, 0, false);
            EXPECT_STREQ(quire_heap_check(heap), nullptr);
        }
        expect_nothing_left(heap, 2);
    }
}

TEST(HeapThreads, three_hundred_cancelled_ones_leave_nothing_out_of_reach)
{
    if (under_asan())
        GTEST_SKIP() << "AddressSanitizer takes the stack of a cancelled thread for one in use";
    Heap heap;
    Left<void *> left;
    size_t rss = rss_bytes();
    for (unsigned round = 0; round < (BUILT_WITH_TSAN ? 30u : 300u) / 3; round++) {
        Cancelled all[3];
        pthread_t threads[3];
        for (unsigned t = 0; t < 3; t++) {
            all[t].heap = heap, all[t].left = &left, all[t].seed = round * 3 + t;
            ASSERT_EQ(pthread_create(&threads[t], nullptr, Cancelled::run, &all[t]), 0);
        }
        usleep(100 + round * 7 % 300);
        for (pthread_t thread : threads)
            EXPECT_EQ(pthread_cancel(thread), 0);
        for (pthread_t thread : threads) {
            void *end;
            EXPECT_EQ(pthread_join(thread, &end), 0);
            EXPECT_EQ(end, PTHREAD_CANCELED);
        }
        std::vector<void *> list = left.take_all();
        ASSERT_EQ(heap.live(), list.size());
        free_all(heap, list);
    }
    expect_flat(rss, size_t(20) << 20);
    expect_nothing_left(heap, 8);
}

TEST(HeapThreads, one_cancelled_while_it_looks_or_trims_keeps_no_lock)
{
    if (under_asan())
        GTEST_SKIP() << "AddressSanitizer takes the stack of a cancelled thread for one in use";
    Heap heap;
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (int t = 0; t < 2; t++)
        busy.emplace_back([&] {
            while (!stop)
                quire_heap_free(heap, painted(heap));
        });
    for (unsigned round = 0; round < scaled(60); round++) {
        pthread_t thread;
        quire_heap *arg = heap;
        auto look = [](void *heap_) -> void * {
            quire_heap *looked_at = static_cast<quire_heap *>(heap_);
            for (;;) {
                quire_heap_trim(looked_at);
                stats_of(looked_at);
                heap_visited(looked_at);
                quire_heap_check(looked_at);
                pthread_testcancel();
            }
        };
        ASSERT_EQ(pthread_create(&thread, nullptr, look, arg), 0);
        usleep(200 + round * 37 % 1000);
        pthread_cancel(thread);
        pthread_join(thread, nullptr);
    }
    stop = true;
    for (auto &thread : busy)
        thread.join();
    expect_nothing_left(heap, 8);
}

namespace {
/* For the destructors, which get nothing else to know it by. */
quire_heap *last_heap;
std::atomic<unsigned> last_calls{0};

void use_last_heap()
{
    void *many[20];
    for (size_t i = 0; i < 20; i++)
        many[i] = painted(last_heap, 16 + i * 40);
    for (void *p : many) {
        EXPECT_TRUE(heap_is_painted(p));
        quire_heap_free(last_heap, p);
    }
    last_calls++;
}

/* Keys made before and after the library's own: their destructors run before and after its own in every round of destructors. */
constexpr int KEYS = 4;
/* ThreadSanitizer lets go of a thread in the last round. */
constexpr int ROUNDS = BUILT_WITH_TSAN ? 2 : PTHREAD_DESTRUCTOR_ITERATIONS;
struct Keys {
    pthread_key_t keys[KEYS];
    Keys()
    {
        for (pthread_key_t &key : keys)
            pthread_key_create(&key, destroyed);
    }
    struct Cell {
        pthread_key_t *key;
        void *block;
        int rounds;
    };
    static void destroyed(void *cell_)
    {
        Cell *cell = static_cast<Cell *>(cell_);
        use_last_heap();
        if (--cell->rounds > 0)
            pthread_setspecific(*cell->key, cell); /* once more, in the next round */
        else
            quire_heap_free(last_heap, cell->block), delete cell;
    }
    void set()
    {
        for (pthread_key_t &key : keys)
            pthread_setspecific(key, new Cell{&key, quire_heap_alloc(last_heap, BYTES), ROUNDS});
    }
};
Keys heap_keys_before;

struct AtThreadEnd {
    void *block = nullptr;
    void touch() { block = painted(last_heap); }
    ~AtThreadEnd()
    {
        use_last_heap();
        quire_heap_free(last_heap, block);
    }
};
} // namespace

TEST(HeapThreads, destructors_that_run_after_the_librarys_own_may_allocate_and_free)
{
    Heap heap;
    last_heap = heap;
    quire_heap_free(heap, quire_heap_alloc(heap, BYTES)); /* whatever key the library wants, it has now */
    static Keys keys_after;
    auto life = [&](unsigned t) {
        static thread_local AtThreadEnd before_first_use;
        heap_keys_before.set();
        before_first_use.touch();
        use_last_heap();
        static thread_local AtThreadEnd after_first_use;
        after_first_use.touch();
        keys_after.set();
        if (t % 3 == 0)
            quire_heap_free(heap, painted(heap, 100000));
    };
    const unsigned threads = BUILT_WITH_TSAN ? 100 : under_asan() ? 500 : 3000;
    threads_in_turn(100, 4, life);
    size_t rss = rss_bytes();
    last_calls = 0;
    threads_in_turn(threads, 4, life);
    EXPECT_EQ(last_calls, threads * (2 * KEYS * ROUNDS + 3));
    expect_flat(rss, size_t(10) << 20);
    expect_nothing_left(heap, 8);
}

TEST(HeapThreads, statistics_walks_and_checks_while_threads_come_and_go)
{
    Heap heap;
    Left<void *> left;
    Noise on;
    heap_in_threads(
        2,
        [&](unsigned) {
            threads_in_turn(scaled(120), 3, [&](unsigned t) {
                std::vector<void *> mine;
                for (size_t i = 0; i < 30; i++)
                    mine.push_back(painted(heap, 16 + (t + i) % 40 * 32));
                for (size_t i = 0; i < 5; i++)
                    left.add(mine.back()), mine.pop_back();
                if (t % 10 == 0)
                    mine.push_back(painted(heap, 200000));
                free_all(heap, mine);
            });
        },
        {[&] { EXPECT_TRUE(adds_up(stats_of(heap))); }, [&] { EXPECT_STREQ(quire_heap_check(heap), nullptr); }, [&] { heap_visited(heap), sched_yield(); },
         [&] { quire_heap_trim(heap), sched_yield(); }, [&] { free_all(heap, left.take_all()), sched_yield(); }});
    free_all(heap, left.take_all());
    expect_nothing_left(heap, 16);
}

TEST(HeapThreads, a_stack_of_16_kib_is_enough_for_every_operation)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << "a sanitizer's own frames are larger than that";
    Heap heap, secure(heap_flags(QUIRE_HEAP_SECURE));
    quire_heap *heaps[] = {heap, secure, quire_heap_default()};
    auto all = [](void *heap_) -> void * {
        quire_heap *used = static_cast<quire_heap *>(heap_);
        void *p = quire_heap_alloc(used, 100), *large = quire_heap_alloc_zero(used, 1, 1 << 20), *aligned = quire_heap_alloc_aligned(used, 100, 65536);
        p = quire_heap_realloc(used, p, 5000);
        large = quire_heap_realloc(used, large, 3 << 20);
        struct quire_heap_class_stats of_class = {.struct_bytes = sizeof of_class};
        bool good = p && large && aligned && quire_heap_owns(used, large) && quire_heap_of(p) == used && quire_heap_usable_bytes(p) >= 5000;
        good = good && quire_heap_class_stats(used, 3, &of_class) == 0 && adds_up(stats_of(used)) && !quire_heap_check(used) && heap_visited(used) >= 3;
        for (void *q : {p, large, aligned})
            quire_heap_free(used, q);
        quire_heap_trim(used);
        quire_heap *own = quire_heap_create(nullptr);
        quire_heap_alloc(own, 10);
        quire_heap_destroy(own);
        return reinterpret_cast<void *>(uintptr_t(good));
    };
    const size_t stack_bytes = 16384;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    ASSERT_EQ(pthread_attr_setstacksize(&attributes, stack_bytes), 0);
    for (int round = 0; round < 10; round++)
        for (quire_heap *used : heaps) {
            pthread_t thread;
            void *good = nullptr;
            ASSERT_EQ(pthread_create(&thread, &attributes, all, used), 0);
            pthread_join(thread, &good);
            EXPECT_NE(good, nullptr);
        }
    pthread_attr_destroy(&attributes);
}

/* Its table of heaps still has the addresses, and only the page map says whether one lives there. */
TEST(HeapThreads, one_ends_while_heaps_begin_where_those_that_it_used_were)
{
    for (unsigned round = 0; round < scaled(400); round++) {
        quire_heap *heaps[8];
        for (quire_heap *&heap : heaps)
            heap = quire_heap_create(nullptr);
        std::atomic<bool> used{false}, goes{false};
        std::thread thread([&] {
            for (quire_heap *heap : heaps)
                quire_heap_free(heap, painted(heap));
            used = true;
            while (!goes)
                std::this_thread::yield();
        });
        while (!used)
            std::this_thread::yield();
        for (quire_heap *heap : heaps)
            quire_heap_destroy(heap);
        for (int i = 0; i < 40; i++) {
            quire_heap_destroy(quire_heap_create(nullptr));
            goes = i >= 20;
        }
        thread.join();
    }
}

namespace {
int exit_amid_work(bool destructors)
{
    static quire_heap *heap = quire_heap_create(nullptr);
    static Table table;
    if (destructors)
        atexit([] {
            for (int i = 0; i < 200; i++)
                quire_heap_free(heap, painted(heap, 16 + unsigned(i) * 30));
            quire_heap_trim(heap);
            stats_of(heap);
        });
    for (unsigned t = 0; t < 4; t++)
        std::thread([t] {
            for (HeapWorker worker({heap, &table, 40000}, t + 1);;)
                worker.step();
        }).detach();
    usleep(2000);
    exit(7);
}
} // namespace

TEST(HeapThreads, a_process_may_exit_while_others_allocate)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << "a sanitizer's own end of a process takes its time and looks for leaks";
    for (unsigned round = 0; round < (test_long() ? 1000 : 30); round++)
        ASSERT_EQ(status_of_child([&] { return exit_amid_work(round % 2); }), 7) << "round " << round;
}
