// SPDX-License-Identifier: MIT
/* Threads that begin and end while others free what they allocated: their chunks are had again, what lies in their inboxes is freed. */
#include "race/percpu_race.h"
#include "race/thread_kit.h"

namespace {
/* Each holds its own bits, over all CPUs. */
quire_percpu_ref marked(quire_percpu *pool, size_t bytes = 64)
{
    quire_percpu_ref ref = quire_percpu_alloc(pool, bytes, 0);
    EXPECT_FALSE(is_none(ref));
    EXPECT_EQ(quire_percpu_sum(pool, ref), 0);
    quire_percpu_add(pool, ref, intptr_t(ref.bits));
    return ref;
}

size_t free_all(quire_percpu *pool, const std::vector<quire_percpu_ref> &list)
{
    for (quire_percpu_ref ref : list) {
        EXPECT_EQ(quire_percpu_sum(pool, ref), intptr_t(ref.bits));
        quire_percpu_free(pool, ref);
    }
    return list.size();
}

void expect_nothing_left(quire_percpu *pool)
{
    quire_percpu_trim(pool);
    PercpuStats s = stats_of(pool);
    EXPECT_EQ(s.live_objects, 0u);
    EXPECT_EQ(s.chunks, 0u);
    EXPECT_STREQ(quire_percpu_check(pool), nullptr);
}

/* An object for each of `count`, allocated by a thread that ends when it is told to. */
class Owner {
public:
    Owner(quire_percpu *pool, size_t count, size_t bytes = 64) : refs(count)
    {
        thread = std::thread([=] {
            for (quire_percpu_ref &ref : refs)
                ref = marked(pool, bytes);
            stage = 1;
            while (stage == 1)
                sched_yield();
        });
        while (stage == 0)
            sched_yield();
    }
    ~Owner()
    {
        stage = 2;
        if (thread.joinable())
            thread.join();
    }
    void end_now() { stage = 2; }
    std::vector<quire_percpu_ref> refs;

private:
    std::atomic<int> stage{0};
    std::thread thread;
};
} // namespace

TEST(PercpuThreads, thousands_of_short_ones_lose_nothing_and_chunks_stay_flat)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        Left<quire_percpu_ref> left;
        auto life = [&](unsigned t) {
            std::vector<quire_percpu_ref> mine;
            for (size_t i = 0; i < 20; i++)
                mine.push_back(marked(pool, 8 + i * 4));
            left.add(mine[t % 20]);
            mine.erase(mine.begin() + t % 20);
            free_all(pool, mine);
        };
        threads_in_turn(200, 4, life);
        size_t freed = free_all(pool, left.take_all());
        PercpuStats early = stats_of(pool);
        unsigned threads = scaled(2000) / 4 * 4;
        for (unsigned done = 0; done < threads; done += 200) {
            threads_in_turn(200, 4, life);
            EXPECT_EQ(pool.live(), 200u);
            freed += free_all(pool, left.take_all());
        }
        PercpuStats late = stats_of(pool);
        EXPECT_EQ(freed, late.frees - late.frees / 20 * 19);
        EXPECT_LE(late.chunks_peak, early.chunks_peak + 8) << "200 threads, 4 at a time, needed " << early.chunks_peak;
        EXPECT_LE(late.caches, early.caches + 4);
        EXPECT_LE(late.meta_bytes, early.meta_bytes + (size_t(256) << 10));
        expect_nothing_left(pool);
    }
}

TEST(PercpuThreads, what_ended_threads_left_is_had_again_by_those_that_come)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        std::vector<quire_percpu_ref> lasting;
        for (unsigned t = 0; t < scaled(300); t++)
            std::thread([&] { lasting.push_back(marked(pool, 128)); }).join();
        PercpuStats s = stats_of(pool);
        EXPECT_EQ(s.live_objects, lasting.size());
        EXPECT_LE(s.chunks, lasting.size() * 128 / (s.unit_bytes / 2) + 2) << "a chunk for each thread would be " << lasting.size();
        EXPECT_EQ(free_all(pool, lasting), lasting.size());
        expect_nothing_left(pool);
    }
}

TEST(PercpuThreads, what_others_freed_before_a_thread_ended_is_freed)
{
    for (os_rseq_mode mode : MODES)
        for (size_t count : {1, 10, 63, 64, 65, 200}) {
            SCOPED_TRACE(name_of(mode));
            Mode set(mode);
            Pool pool(small_units());
            {
                Owner owner(pool, count);
                EXPECT_EQ(free_all(pool, owner.refs), count);
                EXPECT_EQ(pool.live(), 0u);
            }
            EXPECT_EQ(pool.live(), 0u);
            expect_nothing_left(pool);
        }
}

TEST(PercpuThreads, others_free_while_the_owner_ends)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        Noise on;
        for (unsigned round = 0; round < scaled(200); round++) {
            constexpr size_t COUNT = 150;
            Owner owner(pool, COUNT, round % 2 ? 64 : 600);
            std::vector<std::thread> strangers;
            for (size_t t = 0; t < 3; t++)
                strangers.emplace_back([&, t] {
                    for (size_t i = t; i < COUNT; i += 3) {
                        if (i == 60 + t)
                            owner.end_now();
                        EXPECT_EQ(quire_percpu_sum(pool, owner.refs[i]), intptr_t(owner.refs[i].bits));
                        quire_percpu_free(pool, owner.refs[i]);
                    }
                });
            for (auto &thread : strangers)
                thread.join();
            ASSERT_EQ(pool.live(), 0u) << "round " << round;
        }
        expect_nothing_left(pool);
    }
}

TEST(PercpuThreads, two_that_free_each_others_while_both_end)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        Noise on;
        for (unsigned round = 0; round < scaled(300); round++) {
            quire_percpu_ref refs[2][80];
            std::atomic<int> ready{0};
            auto one = [&](int me) {
                for (quire_percpu_ref &ref : refs[me])
                    ref = marked(pool, 40);
                for (ready++; ready < 2;)
                    sched_yield();
                for (quire_percpu_ref ref : refs[1 - me]) {
                    EXPECT_EQ(quire_percpu_sum(pool, ref), intptr_t(ref.bits));
                    quire_percpu_free(pool, ref);
                }
            };
            std::thread first(one, 0), second(one, 1);
            first.join(), second.join();
            ASSERT_EQ(pool.live(), 0u) << "round " << round;
        }
        expect_nothing_left(pool);
    }
}

TEST(PercpuThreads, statistics_and_checks_while_threads_come_and_go)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        Left<quire_percpu_ref> left;
        Noise on;
        Beside beside({[&] {
                           PercpuStats s = stats_of(pool);
                           EXPECT_EQ(s.mapped_bytes, s.live_bytes + s.free_bytes + s.meta_bytes);
                           sched_yield();
                       },
                       [&] { EXPECT_STREQ(quire_percpu_check(pool), nullptr), sched_yield(); }, [&] { quire_percpu_trim(pool), sched_yield(); },
                       [&] { free_all(pool, left.take_all()), sched_yield(); }});
        threads_in_turn(scaled(400), 4, [&](unsigned t) {
            std::vector<quire_percpu_ref> mine;
            for (size_t i = 0; i < 30; i++)
                mine.push_back(marked(pool, 8 + (t + i) % 40 * 8));
            for (size_t i = 0; i < 5; i++)
                left.add(mine.back()), mine.pop_back();
            free_all(pool, mine);
        });
    }
}

namespace {
/* ThreadSanitizer lets go of a thread in the last round. */
constexpr unsigned ROUNDS = BUILT_WITH_TSAN ? 2 : PTHREAD_DESTRUCTOR_ITERATIONS;

/* Allocates and frees in a destructor that runs when the thread's own things are gone already, again and again. */
struct Last {
    quire_percpu *pool;
    Left<quire_percpu_ref> *left;
    pthread_key_t key;
    std::atomic<unsigned> runs{0};
};
struct LastOf {
    Last *last;
    unsigned rounds;
};
void run_last(void *arg)
{
    LastOf *mine = static_cast<LastOf *>(arg);
    quire_percpu *pool = mine->last->pool;
    quire_percpu_free(pool, marked(pool));
    mine->last->left->add(marked(pool));
    mine->last->runs++;
    if (--mine->rounds > 0)
        pthread_setspecific(mine->last->key, mine); /* once more, after all others */
    else
        delete mine;
}
} // namespace

TEST(PercpuThreads, last_destructors_may_still_allocate_and_free)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        Left<quire_percpu_ref> left;
        Last last = {pool, &left, 0, {}};
        ASSERT_EQ(pthread_key_create(&last.key, run_last), 0);
        const unsigned threads = scaled(200);
        threads_in_turn(threads, 4, [&](unsigned t) {
            if (t % 2)
                quire_percpu_free(pool, marked(pool));
            pthread_setspecific(last.key, new LastOf{&last, ROUNDS});
        });
        pthread_key_delete(last.key);
        std::vector<quire_percpu_ref> all = left.take_all();
        EXPECT_EQ(all.size(), last.runs.load());
        EXPECT_EQ(last.runs.load(), (threads + 3) / 4 * 4 * ROUNDS);
        EXPECT_EQ(pool.live(), all.size());
        free_all(pool, all);
        expect_nothing_left(pool);
    }
}
