// SPDX-License-Identifier: MIT
/* Every mix of allocations, own frees, strangers' frees and adds, with everything else that a pool can do going on beside them. */
#include "race/percpu_race.h"

#include <set>

namespace {
const std::vector<unsigned> THREADS = memory_is_watched() && !test_long() ? std::vector<unsigned>{2, 8} : std::vector<unsigned>{2, 8, 32};

/* The whole mix at 2, 8 and 32 threads in both modes, with `others(pool)` beside it. */
using Others = std::function<std::vector<std::function<void()>>(quire_percpu *)>;
void everything(const quire_percpu_opts &opts, unsigned steps, bool nowait = false, const Others &others = nullptr)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        for (unsigned threads : THREADS) {
            Pool pool(opts);
            PercpuTable table;
            PercpuWorker::Job job = {pool, &table, {}, nowait};
            percpu_work(job, threads, scaled(steps) / threads, others ? others(pool) : std::vector<std::function<void()>>());
        }
    }
}

void expect_sound_now(quire_percpu *pool)
{
    PercpuStats s = stats_of(pool);
    EXPECT_EQ(s.mapped_bytes, s.live_bytes + s.free_bytes + s.meta_bytes);
    EXPECT_LE(s.empty_chunks, s.chunks);
    EXPECT_LE(s.longest_free_bytes, s.unit_free_bytes);
    EXPECT_STREQ(quire_percpu_check(pool), nullptr);
}
} // namespace

TEST(PercpuRace, no_object_has_two_owners_whoever_frees_it)
{
    everything({}, 15000);
}

TEST(PercpuRace, chunks_of_one_page_come_and_go_under_every_mix)
{
    everything(small_units(), 15000);
}

TEST(PercpuRace, trim_by_two_strangers_takes_nothing_that_lives)
{
    everything(small_units(4), 12000, false, [](quire_percpu *pool) -> std::vector<std::function<void()>> {
        auto trim = [pool] { quire_percpu_trim(pool), sched_yield(); };
        return {trim, trim};
    });
}

TEST(PercpuRace, statistics_add_up_and_checks_hold_at_every_moment_of_the_mix)
{
    everything(small_units(), 12000, false, [](quire_percpu *pool) -> std::vector<std::function<void()>> {
        return {[pool] { expect_sound_now(pool); }, [pool] { EXPECT_STREQ(quire_percpu_check(pool), nullptr), sched_yield(); }};
    });
}

TEST(PercpuRace, nowait_and_the_filling_of_the_reserve_share_nothing)
{
    quire_percpu_opts opts = small_units(4);
    opts.reserve_bytes = 2 * os_page_bytes();
    everything(opts, 12000, true, [](quire_percpu *pool) -> std::vector<std::function<void()>> { return {[pool] { quire_percpu_trim(pool), sched_yield(); }}; });
}

TEST(PercpuRace, a_limit_that_is_reached_by_all_at_once_is_kept_and_costs_nothing)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        quire_percpu_opts opts = small_units();
        opts.limit_bytes = (os_cpu_count() + 1) * os_page_bytes() * 12;
        Pool pool(opts);
        std::atomic<uint64_t> refused{0}, had{0};
        Noise on;
        auto take_all = [&](unsigned) {
            std::vector<quire_percpu_ref> mine;
            for (unsigned i = 0; i < scaled(400) || refused == 0; i++) { /* where threads come one after the other the last one reaches it */
                quire_percpu_ref ref = quire_percpu_alloc(pool, 512, 0);
                if (is_none(ref)) {
                    EXPECT_EQ(errno, ENOMEM);
                    refused++;
                    for (quire_percpu_ref old : mine)
                        quire_percpu_free(pool, old);
                    mine.clear();
                    continue;
                }
                EXPECT_EQ(quire_percpu_sum(pool, ref), 0);
                quire_percpu_add(pool, ref, 7);
                mine.push_back(ref);
                had++;
            }
            for (quire_percpu_ref ref : mine) {
                EXPECT_EQ(quire_percpu_sum(pool, ref), 7);
                quire_percpu_free(pool, ref);
            }
        };
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 8; t++)
            threads.emplace_back(take_all, t);
        for (auto &thread : threads)
            thread.join();
        EXPECT_GT(refused, 0u);
        EXPECT_GT(had, 0u);
        PercpuStats s = stats_of(pool);
        EXPECT_LE(s.peak_bytes, s.limit_bytes);
        EXPECT_EQ(s.live_objects, 0u);
    }
}

/* Two threads free the two objects of a chunk at the same moment, while its owner does nothing, allocates, or frees a third. */
TEST(PercpuRace, a_chunk_that_two_strangers_empty_together_goes_back_once)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        Noise on;
        for (unsigned round = 0; round < scaled(500); round++) {
            quire_percpu_ref a = pool.take(64), b = pool.take(64), c = pool.take(64);
            quire_percpu_add(pool, a, 1);
            std::atomic<int> ready{0};
            auto free_one = [&](quire_percpu_ref ref) {
                for (ready++; ready < 3;)
                    sched_yield();
                quire_percpu_free(pool, ref);
            };
            std::thread first(free_one, a), second(free_one, b);
            switch (round % 3) {
            case 0: free_one(c); break;
            case 1: ready++, quire_percpu_free(pool, pool.take(2000)), quire_percpu_free(pool, c); break;
            default: ready++; quire_percpu_trim(pool), quire_percpu_free(pool, c);
            }
            first.join(), second.join();
            ASSERT_EQ(pool.live(), 0u);
            if (round % 50 == 0) {
                ASSERT_STREQ(quire_percpu_check(pool), nullptr);
                quire_percpu_trim(pool);
                ASSERT_EQ(stats_of(pool).chunks, 0u);
            }
        }
    }
}

TEST(PercpuRace, an_owner_that_sleeps_does_not_keep_others_from_freeing)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        std::vector<quire_percpu_ref> all;
        std::atomic<bool> there{false}, stop{false};
        std::thread owner([&] {
            for (int i = 0; i < 1000; i++)
                all.push_back(pool.take(1 + size_t(i) % 100));
            there = true;
            while (!stop)
                sleep_ms(1);
            quire_percpu_free(pool, pool.take(64)); /* and it can go on */
        });
        while (!there)
            sleep_ms(1);
        EXPECT_EQ(pool.live(), 1000u);
        std::vector<std::thread> strangers;
        for (size_t t = 0; t < 4; t++)
            strangers.emplace_back([&, t] {
                for (size_t i = t; i < all.size(); i += 4)
                    quire_percpu_free(pool, all[i]);
            });
        for (auto &thread : strangers)
            thread.join();
        EXPECT_EQ(pool.live(), 0u) << "what lies in an inbox is not live";
        quire_percpu_trim(pool);
        EXPECT_EQ(stats_of(pool).chunks, 0u);
        stop = true;
        owner.join();
        EXPECT_EQ(pool.live(), 0u);
    }
}

TEST(PercpuRace, an_object_is_owned_until_it_is_freed_whoever_asks)
{
    Pool pool(small_units());
    std::vector<quire_percpu_ref> lasting;
    for (int i = 0; i < 100; i++)
        lasting.push_back(pool.take(64));
    auto ask = [&] {
        Random random(7);
        for (quire_percpu_ref ref : lasting)
            EXPECT_TRUE(quire_percpu_owns(pool, ref));
        for (int i = 0; i < 100; i++) /* neighbours of any kind: an answer, whichever */
            quire_percpu_owns(pool, {lasting[0].bits + random.below(1 << 16) - (1 << 15)});
    };
    PercpuTable table;
    {
        Noise on;
        Beside beside({ask, ask, [&] { quire_percpu_trim(pool), sched_yield(); }});
        PercpuWorker worker({pool, &table, lasting[0]}, 1);
        for (unsigned i = 0; i < scaled(5000); i++)
            worker.step();
    }
    table.drain(pool);
    for (quire_percpu_ref ref : lasting)
        quire_percpu_free(pool, ref);
    EXPECT_EQ(pool.live(), 0u);
}

TEST(PercpuRace, whoever_asks_about_an_address_gets_an_answer_while_chunks_come_and_go_there)
{
    for (size_t chunk_bytes : {os_page_bytes(), size_t(1) << 20}) {
        quire_percpu_opts opts = {};
        opts.chunk_bytes = chunk_bytes;
        Pool pool(opts);
        std::atomic<uintptr_t> last{0};
        auto ask = [&] { /* by threads that never allocate, and so have no chunks of their own */
            for (uintptr_t offset : {0, 64, 5000})
                quire_percpu_owns(pool, {last + offset});
            sched_yield();
        };
        Noise on;
        Beside beside({ask, ask});
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 3; t++)
            threads.emplace_back([&, t] {
                for (unsigned i = 0; i < scaled(2000); i++) {
                    quire_percpu_ref ref = quire_percpu_alloc(pool, chunk_bytes - os_page_bytes() / 2, 0);
                    last = ref.bits;
                    EXPECT_TRUE(quire_percpu_owns(pool, ref));
                    quire_percpu_free(pool, ref);
                    if (i % 8 == t)
                        quire_percpu_trim(pool);
                }
            });
        for (auto &thread : threads)
            thread.join();
    }
}

TEST(PercpuRace, the_reserve_is_full_again_after_everybody_was_at_it)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        quire_percpu_opts opts = small_units(4);
        opts.reserve_bytes = os_page_bytes();
        Pool pool(opts);
        std::atomic<uint64_t> had{0};
        {
            Noise on;
            Beside beside({[&] { quire_percpu_free(pool, pool.take(300)); }, [&] { quire_percpu_trim(pool), sched_yield(); }});
            std::vector<std::thread> threads;
            for (unsigned t = 0; t < 4; t++)
                threads.emplace_back([&] {
                    for (unsigned i = 0; i < scaled(3000); i++) {
                        quire_percpu_ref ref = quire_percpu_alloc_nowait(pool, 128, 0);
                        if (is_none(ref)) {
                            EXPECT_EQ(errno, ENOMEM);
                            continue;
                        }
                        had++;
                        EXPECT_EQ(quire_percpu_sum(pool, ref), 0);
                        quire_percpu_add(pool, ref, 1);
                        EXPECT_EQ(quire_percpu_sum(pool, ref), 1);
                        quire_percpu_free(pool, ref);
                    }
                });
            for (auto &thread : threads)
                thread.join();
        }
        EXPECT_GT(had, 0u);
        quire_percpu_trim(pool);
        PercpuStats s = stats_of(pool);
        EXPECT_EQ(s.live_objects, 0u);
        EXPECT_GE(s.reserve_bytes, opts.reserve_bytes);
        std::thread([&] { /* a thread without chunks of its own has the whole reserve */
            std::vector<quire_percpu_ref> mine;
            for (size_t got = 0; got < opts.reserve_bytes; got += 128) {
                mine.push_back(quire_percpu_alloc_nowait(pool, 128, 0));
                EXPECT_FALSE(is_none(mine.back())) << got << " bytes were there";
            }
            for (quire_percpu_ref ref : mine)
                quire_percpu_free(pool, ref);
        }).join();
        EXPECT_EQ(pool.live(), 0u);
    }
}

TEST(PercpuRace, pools_are_made_and_ended_by_many_threads_at_once)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        size_t taken = 0;
        auto make_and_end = [](unsigned rounds, uint64_t seed) {
            Random random(seed);
            for (unsigned i = 0; i < rounds; i++) {
                Pool pool(small_units(1 + unsigned(random.below(4))));
                std::thread other([&] { /* a second set of chunks, left behind */
                    quire_percpu_add(pool, pool.take(64), 1);
                });
                std::set<uintptr_t> mine;
                for (uint64_t n = random.below(200); n > 0; n--) {
                    quire_percpu_ref ref = pool.take(1 + random.below(200));
                    EXPECT_TRUE(mine.insert(ref.bits).second);
                }
                other.join();
                EXPECT_EQ(pool.live(), mine.size() + 1);
            }
        };
        for (int pass = 0; pass < 3; pass++) {
            Noise on;
            std::vector<std::thread> threads;
            for (unsigned t = 0; t < 4; t++)
                threads.emplace_back(make_and_end, scaled(40), t + 1);
            for (auto &thread : threads)
                thread.join();
            size_t now = taken_at_rest(quire_source_anon());
            if (pass > 0) {
                EXPECT_LE(now, taken) << "memory of ended pools stays behind";
            }
            taken = now;
        }
    }
}
