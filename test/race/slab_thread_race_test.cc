// SPDX-License-Identifier: MIT
/* Threads that begin, end, are cancelled, sleep, and allocate in their last destructors: what they leave is had again by others. */
#include "race/slab_race.h"
#include "race/thread_kit.h"

namespace {
constexpr size_t BYTES = 64;

/* Verified and freed one by one; how many there were. */
size_t free_all(quire_slab *slab, const std::vector<void *> &list)
{
    for (void *p : list) {
        EXPECT_TRUE(is_painted(p, BYTES));
        quire_slab_free(slab, p);
    }
    return list.size();
}

void *painted(quire_slab *slab)
{
    void *p = quire_slab_alloc(slab);
    EXPECT_NE(p, nullptr);
    if (p)
        paint(p, BYTES, reinterpret_cast<uintptr_t>(p));
    return p;
}

/* Nothing lives, few sets of pages were ever made, and the memory goes back. */
void expect_nothing_left(quire_slab *slab, size_t caches_max)
{
    quire_slab_trim(slab);
    SlabStats s = stats_of(slab);
    EXPECT_EQ(s.live_elements, 0u);
    EXPECT_LE(s.caches, caches_max);
    EXPECT_LE(s.mapped_bytes, size_t(256) << 10);
    EXPECT_STREQ(quire_slab_check(slab), nullptr);
}
} // namespace

TEST(SlabThreads, ten_thousand_short_ones_lose_nothing_and_memory_stays_flat)
{
    Slab slab(BYTES);
    Left<void *> left;
    size_t freed = 0;
    unsigned threads = BUILT_WITH_TSAN || (under_asan() && !test_long()) ? 1000 : test_long() ? 20000 : 10000;
    auto life = [&](unsigned t) {
        std::vector<void *> mine;
        for (int i = 0; i < 50; i++)
            mine.push_back(painted(slab));
        for (int i = 0; i < 5; i++)
            left.add(mine[(t + unsigned(i) * 10) % 50]), mine[(t + unsigned(i) * 10) % 50] = nullptr;
        quire_slab_free_batch(slab, mine.data(), mine.size());
    };
    threads_in_turn(100, 4, life);
    freed += free_all(slab, left.take_all());
    size_t rss = rss_bytes();
    for (unsigned done = 0; done < threads; done += 500) {
        threads_in_turn(500, 4, life);
        EXPECT_EQ(stats_of(slab).live_elements, 500u * 5);
        freed += free_all(slab, left.take_all());
    }
    EXPECT_EQ(freed, (threads + 100) * 5);
    expect_flat(rss, size_t(20) << 20);
    expect_nothing_left(slab, 8);
}

TEST(SlabThreads, live_elements_of_all_ended_threads_are_found_again)
{
    Slab slab(BYTES);
    Left<void *> left;
    threads_in_turn(scaled(1000), 8, [&](unsigned t) {
        for (unsigned i = 0; i < 1 + t % 100; i++)
            left.add(painted(slab));
    });
    std::vector<void *> all = left.take_all();
    EXPECT_EQ(slab.live(), all.size());
    size_t visited = 0;
    quire_slab_walk(slab, [](void *, void *n) { return ++*static_cast<size_t *>(n), 0; }, &visited);
    EXPECT_EQ(visited, all.size());
    free_all(slab, all);
    expect_nothing_left(slab, 16);
}

namespace {
struct Cancelled {
    quire_slab *slab;
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
            self->mine.push_back(painted(self->slab));
            if (self->mine.size() > random.below(300)) {
                quire_slab_free(self->slab, self->mine.back());
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

TEST(SlabThreads, three_hundred_cancelled_ones_leave_nothing_out_of_reach)
{
    if (under_asan())
        GTEST_SKIP() << "AddressSanitizer takes the stack of a cancelled thread for one in use";
    Slab slab(BYTES);
    Left<void *> left;
    size_t rss = rss_bytes();
    for (unsigned round = 0; round < (BUILT_WITH_TSAN ? 30u : 300u) / 3; round++) {
        Cancelled all[3];
        pthread_t threads[3];
        for (unsigned t = 0; t < 3; t++) {
            all[t].slab = slab, all[t].left = &left, all[t].seed = round * 3 + t;
            ASSERT_EQ(pthread_create(&threads[t], nullptr, Cancelled::run, &all[t]), 0);
        }
        usleep(300 + round * 7 % 500);
        for (pthread_t thread : threads)
            EXPECT_EQ(pthread_cancel(thread), 0);
        for (pthread_t thread : threads) {
            void *end;
            EXPECT_EQ(pthread_join(thread, &end), 0);
            EXPECT_EQ(end, PTHREAD_CANCELED);
        }
        std::vector<void *> list = left.take_all();
        ASSERT_EQ(slab.live(), list.size());
        free_all(slab, list);
    }
    expect_flat(rss, size_t(20) << 20);
    expect_nothing_left(slab, 8);
}

TEST(SlabThreads, one_cancelled_while_it_looks_or_trims_keeps_no_lock)
{
    if (under_asan())
        GTEST_SKIP() << "AddressSanitizer takes the stack of a cancelled thread for one in use";
    Slab slab(BYTES);
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (int t = 0; t < 3; t++)
        busy.emplace_back([&] {
            while (!stop)
                quire_slab_free(slab, painted(slab));
        });
    for (unsigned round = 0; round < scaled(100); round++) {
        pthread_t thread;
        quire_slab *arg = slab;
        auto look = [](void *slab_) -> void * {
            quire_slab *looked_at = static_cast<quire_slab *>(slab_);
            for (;;) {
                quire_slab_trim(looked_at);
                stats_of(looked_at);
                quire_slab_walk(looked_at, [](void *, void *) { return 0; }, nullptr);
                quire_slab_check(looked_at);
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
    expect_nothing_left(slab, 8);
}

namespace {
/* For the destructors, which get nothing else to know it by. */
quire_slab *last_slab;
std::atomic<unsigned> last_calls{0};

void use_last_slab()
{
    void *many[40];
    for (void *&p : many)
        p = painted(last_slab);
    for (void *p : many) {
        EXPECT_TRUE(is_painted(p, BYTES));
        quire_slab_free(last_slab, p);
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
    static void destroyed(void *cell_)
    {
        Cell *cell = static_cast<Cell *>(cell_);
        use_last_slab();
        if (--cell->rounds > 0)
            pthread_setspecific(*cell->key, cell); /* once more, in the next round */
        else
            quire_slab_free(last_slab, cell->element), delete cell;
    }
    struct Cell {
        pthread_key_t *key;
        void *element;
        int rounds;
    };
    void set()
    {
        for (pthread_key_t &key : keys)
            pthread_setspecific(key, new Cell{&key, quire_slab_alloc(last_slab), ROUNDS});
    }
};
Keys keys_before;

struct AtThreadEnd {
    void *element = nullptr;
    void touch() { element = painted(last_slab); }
    ~AtThreadEnd()
    {
        use_last_slab();
        quire_slab_free(last_slab, element);
    }
};
} // namespace

TEST(SlabThreads, destructors_that_run_after_the_librarys_own_may_allocate_and_free)
{
    Slab slab(BYTES);
    last_slab = slab;
    quire_slab_free(slab, quire_slab_alloc(slab)); /* whatever key the library wants, it has now */
    static Keys keys_after;
    auto life = [&](unsigned) {
        static thread_local AtThreadEnd before_first_use;
        keys_before.set();
        before_first_use.touch();
        use_last_slab();
        static thread_local AtThreadEnd after_first_use;
        after_first_use.touch();
        keys_after.set();
    };
    unsigned threads = BUILT_WITH_TSAN || (under_asan() && !test_long()) ? 148 : 1500;
    threads_in_turn(100, 4, life);
    size_t rss = rss_bytes();
    last_calls = 0;
    threads_in_turn(threads, 4, life);
    EXPECT_EQ(last_calls, threads * (2 * KEYS * ROUNDS + 3));
    expect_flat(rss, size_t(10) << 20);
    expect_nothing_left(slab, 8);
}

TEST(SlabThreads, strangers_free_what_a_thread_allocated_while_it_ends_and_others_take_over_its_pages)
{
    Decay decay(1000000);
    for (uint32_t flags : {0u, QUIRE_SLAB_KEEP_NOTHING, QUIRE_SLAB_DEFRAG}) {
        Slab slab(BYTES, flags);
        Table table;
        Noise on;
        std::atomic<bool> stop{false};
        std::vector<std::thread> freers;
        for (unsigned f = 0; f < 3; f++)
            freers.emplace_back([&, f] {
                for (size_t at = f, empty = 0; !stop; at++)
                    if (void *p = table.swap(at, nullptr)) {
                        EXPECT_TRUE(is_painted(p, BYTES));
                        quire_slab_free(slab, p);
                        empty = 0;
                    } else if (++empty == Table::PLACES) {
                        empty = 0;
                        sched_yield(); /* the table is empty: who fills it needs a CPU */
                    }
            });
        freers.emplace_back([&] {
            while (!stop) {
                quire_slab_trim(slab);
                EXPECT_TRUE(adds_up(stats_of(slab)));
                sched_yield();
            }
        });
        const unsigned threads = test_long() ? scaled(300) : BUILT_WITH_TSAN || under_asan() ? 32 : 160; /* of each of three kinds of slab */
        threads_in_turn(threads, 4, [&](unsigned t) {
            for (unsigned i = 0; i < 200; i++)
                if (void *old = table.swap(t * 64 + i, painted(slab)))
                    quire_slab_free(slab, old);
        });
        stop = true;
        for (auto &thread : freers)
            thread.join();
        EXPECT_EQ(slab.live(), table.count());
        table.drain(slab, BYTES);
        expect_nothing_left(slab, 16);
    }
}

TEST(SlabThreads, a_thread_that_frees_but_never_allocated_leaves_no_set_of_pages)
{
    Slab slab(BYTES);
    std::vector<void *> mine;
    for (int i = 0; i < 4000; i++)
        mine.push_back(painted(slab));
    threads_in_turn(400, 4, [&](unsigned t) {
        for (unsigned i = 0; i < 10; i++)
            quire_slab_free(slab, mine[t * 10 + i]);
    });
    EXPECT_EQ(slab.live(), 0u);
    EXPECT_LE(stats_of(slab).caches, 8u);
}

namespace {
/* A thread allocates `count` elements, then sleeps until it is woken. */
class Sleeper {
public:
    Sleeper(quire_slab *slab, size_t count) : thread([=] { run(slab, count); })
    {
        while (!asleep)
            sleep_ms(1);
    }
    ~Sleeper()
    {
        awake = true;
        thread.join();
    }
    std::vector<void *> elements;

private:
    void run(quire_slab *slab, size_t count)
    {
        for (size_t i = 0; i < count; i++)
            elements.push_back(painted(slab));
        asleep = true;
        while (!awake)
            sleep_ms(5);
        for (int i = 0; i < 100; i++) /* its set of pages is still good */
            quire_slab_free(slab, painted(slab));
    }
    std::atomic<bool> asleep{false}, awake{false};
    std::thread thread;
};

size_t taken_bytes()
{
    struct quire_source_stats out = {.struct_bytes = sizeof out};
    quire_source_stats(quire_source_default(), &out);
    return out.taken_bytes;
}
} // namespace

TEST(SlabThreads, trim_gives_back_what_others_freed_of_a_sleeping_thread)
{
    Slab slab(BYTES);
    Sleeper owner(slab, 20000);
    size_t mapped = stats_of(slab).mapped_bytes;
    threads_in_turn(4, 4, [&](unsigned t) {
        for (size_t i = t; i < owner.elements.size(); i += 4)
            quire_slab_free(slab, owner.elements[i]);
    });
    quire_slab_trim(slab);
    EXPECT_GE(mapped - stats_of(slab).mapped_bytes, size_t(1) << 20) << "most of it before the trim";
    EXPECT_LE(stats_of(slab).mapped_bytes, size_t(128) << 10);
}

TEST(SlabThreads, two_decays_give_back_what_others_freed_of_a_sleeping_thread_without_a_call)
{
    quire_source_trim(quire_source_default());
    size_t before = taken_bytes();
    Slab slab(BYTES);
    Sleeper owner(slab, 20000);
    EXPECT_GE(taken_bytes(), before + (size_t(20000) * BYTES));
    threads_in_turn(4, 4, [&](unsigned t) {
        for (size_t i = t; i < owner.elements.size(); i += 4)
            quire_slab_free(slab, owner.elements[i]);
    });
    Decay decay(100000000);
    for (int late = 0; late < 6000 && taken_bytes() > before + (size_t(128) << 10); late++)
        sleep_ms(5); /* a late thread on a busy machine */
    EXPECT_LE(taken_bytes(), before + (size_t(128) << 10));
}

TEST(SlabThreads, a_page_that_a_sleeping_thread_still_uses_is_left_to_it)
{
    Decay decay(1000000);
    Slab slab(BYTES);
    Sleeper owner(slab, 5000);
    for (size_t i = 0; i < owner.elements.size(); i++)
        if (i % 100)
            quire_slab_free(slab, owner.elements[i]);
    for (int i = 0; i < 20; i++)
        quire_slab_trim(slab), sleep_ms(1);
    EXPECT_EQ(slab.live(), 50u);
    for (size_t i = 0; i < owner.elements.size(); i += 100) {
        EXPECT_TRUE(is_painted(owner.elements[i], BYTES));
        quire_slab_free(slab, owner.elements[i]);
    }
}
