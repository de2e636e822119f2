// SPDX-License-Identifier: MIT
/* Every mix of allocations, own frees, strangers' frees and batches, with everything else a slab can do going on beside them. */
#include "race/slab_race.h"

#include <set>

#include "slab/slab_mark.h"

namespace {
const std::vector<unsigned> THREADS = memory_is_watched() && !test_long() ? std::vector<unsigned>{2, 8} : std::vector<unsigned>{2, 8, 32};

/* The whole mix at 2, 8 and 32 threads, with `others` beside it. */
void everything(quire_slab *slab, size_t bytes, unsigned steps, const std::vector<std::function<void()>> &others = {})
{
    for (unsigned threads : THREADS) {
        Table table;
        Worker::Job job = {slab, bytes, &table};
        {
            Noise on;
            work(job, threads, scaled(steps / threads), others);
        }
        settle(job);
    }
}

void expect_sound_now(quire_slab *slab)
{
    SlabStats s = stats_of(slab);
    EXPECT_TRUE(adds_up(s)) << "mapped " << s.mapped_bytes << " live " << s.live_bytes << " free " << s.free_bytes << " meta " << s.meta_bytes;
    EXPECT_LE(s.empty_pages, s.pages);
}
} // namespace

TEST(SlabRace, no_element_has_two_owners_whoever_frees_it)
{
    for (size_t bytes : {8, 64, 1000, 8200}) {
        Slab slab(bytes);
        everything(slab, bytes, 60000);
    }
}

TEST(SlabRace, pages_of_one_os_page_come_and_go_under_every_mix)
{
    quire_slab_opts opts = {};
    opts.page_bytes_max = os_page_bytes();
    opts.flags = QUIRE_SLAB_KEEP_NOTHING;
    const unsigned steps = test_long() ? 60000 : 20000; /* short: every third step here is a system call */
    for (size_t bytes : {64, 512, 2048}) {
        Slab slab(bytes, opts);
        everything(slab, bytes, steps, {[&] { quire_slab_trim(slab), sched_yield(); }});
    }
}

TEST(SlabRace, trim_by_two_strangers_takes_nothing_that_lives)
{
    Slab slab(64);
    auto trim = [&] { quire_slab_trim(slab), sched_yield(); };
    everything(slab, 64, 60000, {trim, trim});
}

TEST(SlabRace, ticks_of_a_decay_of_a_millisecond_take_nothing_that_lives)
{
    Decay decay(1000000);
    for (uint32_t flags : {0u, QUIRE_SLAB_DEFRAG}) {
        Slab slab(256, flags);
        everything(slab, 256, 80000, {[] { sleep_ms(1), quire_source_trim(quire_source_default()); }});
    }
}

TEST(SlabRace, without_decay_every_empty_page_goes_at_once_and_nothing_that_lives)
{
    Decay decay(0);
    Slab slab(256);
    everything(slab, 256, 60000);
}

TEST(SlabRace, the_defragmenter_goes_on_and_off_under_every_mix)
{
    Slab slab(64);
    uint32_t on = 0;
    everything(slab, 64, 80000, {[&] { quire_slab_set_defrag(slab, on ^= 1), sched_yield(); }});
}

TEST(SlabRace, statistics_add_up_and_checks_hold_at_every_moment_of_the_mix)
{
    Slab slab(64);
    everything(slab, 64, 60000, {[&] { expect_sound_now(slab); }, [&] { EXPECT_STREQ(quire_slab_check(slab), nullptr); }});
}

TEST(SlabRace, a_walk_visits_what_lives_all_along_once_and_only_elements)
{
    Slab slab(64);
    std::vector<void *> lasting;
    for (int i = 0; i < 3000; i++) {
        lasting.push_back(quire_slab_alloc(slab));
        paint(lasting.back(), 64, 7);
        if (i % 3)
            quire_slab_free(slab, lasting.back()), lasting.pop_back();
    }
    std::set<void *> wanted(lasting.begin(), lasting.end());
    auto walk = [&] {
        std::vector<void *> seen;
        struct Seen {
            std::vector<void *> *list;
            quire_slab *slab;
        } arg = {&seen, slab};
        auto see = [](void *p, void *seen_) {
            Seen *s = static_cast<Seen *>(seen_);
            s->list->push_back(p);
            if (s->list->size() % 1000 == 0)
                quire_slab_free(s->slab, quire_slab_alloc(s->slab)); /* fn may use the slab */
            return 0;
        };
        EXPECT_EQ(quire_slab_walk(slab, see, &arg), 0);
        size_t found = 0;
        std::set<void *> once;
        for (void *p : seen)
            found += wanted.count(p) && once.insert(p).second;
        EXPECT_EQ(found, wanted.size());
        size_t visits = 0;
        for (void *p : seen)
            visits += wanted.count(p);
        EXPECT_EQ(visits, wanted.size()) << "one was visited twice";
    };
    for (unsigned threads : THREADS) {
        Table table;
        Noise on;
        work({slab, 64, &table}, threads, scaled(30000 / threads), {walk, [&] { quire_slab_trim(slab); }});
        table.drain(slab, 64);
    }
    for (void *p : lasting)
        EXPECT_TRUE(is_painted(p, 64) && stamp_of(p) == 7);
    EXPECT_EQ(slab.live(), lasting.size());
    quire_slab_free_batch(slab, lasting.data(), lasting.size());
}

TEST(SlabRace, a_walk_visits_what_ended_threads_left_while_others_take_over_their_pages)
{
    quire_slab_opts opts = {};
    opts.page_bytes_max = os_page_bytes();
    for (unsigned round = 0; round < scaled(20); round++) {
        Slab slab(64, opts);
        std::vector<void *> lasting;
        for (int t = 0; t < 8; t++)
            std::thread([&] {
                for (int i = 0; i < 200; i++) {
                    void *p = quire_slab_alloc(slab);
                    i % 4 ? quire_slab_free(slab, p) : lasting.push_back(p);
                }
            }).join();
        std::set<void *> wanted(lasting.begin(), lasting.end());
        std::atomic<bool> stop{false};
        std::vector<std::thread> takers;
        for (int t = 0; t < 3; t++)
            takers.emplace_back([&] {
                while (!stop)
                    std::thread([&] {
                        std::vector<void *> mine(50);
                        quire_slab_alloc_batch(slab, mine.data(), mine.size());
                        sched_yield();
                        quire_slab_free_batch(slab, mine.data(), mine.size());
                    }).join();
            });
        for (int walks = 0; walks < 30; walks++) {
            std::vector<void *> seen;
            quire_slab_walk(slab, [](void *p, void *list) { return static_cast<std::vector<void *> *>(list)->push_back(p), 0; }, &seen);
            size_t visits = 0;
            for (void *p : seen)
                visits += wanted.count(p);
            EXPECT_EQ(visits, wanted.size());
        }
        stop = true;
        for (auto &thread : takers)
            thread.join();
        quire_slab_free_batch(slab, lasting.data(), lasting.size());
        ASSERT_EQ(slab.live(), 0u);
    }
}

TEST(SlabRace, two_walks_that_free_what_they_visit_and_a_trim_come_to_an_end)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_KEEP_NOTHING}) {
        Decay decay(1000000);
        quire_slab_opts opts = {};
        opts.page_bytes_max = os_page_bytes();
        opts.flags = flags;
        Slab slab(512, opts);
        for (unsigned round = 0; round < scaled(40); round++) {
            std::vector<void *> all(400);
            ASSERT_EQ(quire_slab_alloc_batch(slab, all.data(), all.size()), all.size());
            for (size_t i = 0; i < all.size(); i++)
                paint(all[i], 512, i);
            std::vector<std::thread> walkers;
            for (uint64_t half = 0; half < 2; half++)
                walkers.emplace_back([&, half] {
                    std::set<void *> mine;
                    for (size_t i = half; i < all.size(); i += 2)
                        mine.insert(all[i]);
                    std::pair<quire_slab *, std::set<void *> *> arg(slab, &mine);
                    auto free_mine = [](void *p, void *arg_) {
                        auto *a = static_cast<std::pair<quire_slab *, std::set<void *> *> *>(arg_);
                        if (a->second->erase(p))
                            quire_slab_free(a->first, p);
                        return 0;
                    };
                    quire_slab_walk(slab, free_mine, &arg);
                    EXPECT_TRUE(mine.empty());
                });
            quire_slab_trim(slab);
            for (auto &thread : walkers)
                thread.join();
            ASSERT_EQ(slab.live(), 0u);
        }
    }
}

TEST(SlabRace, neither_statistics_nor_a_walk_ever_show_more_elements_than_can_live)
{
    /* An element on its way through several threads is seen in each; a word of slots that nobody has would be seen as 60 more. */
    constexpr size_t LASTING = 1000, THREADS_AT_ONCE = 4, SEEN_TWICE_MAX = 30;
    Slab slab(64);
    std::vector<void *> lasting(LASTING);
    ASSERT_EQ(quire_slab_alloc_batch(slab, lasting.data(), LASTING), LASTING);
    Noise on;
    std::atomic<bool> stop{false};
    std::vector<std::thread> others;
    for (size_t t = 0; t < THREADS_AT_ONCE; t++)
        others.emplace_back([&] {
            while (!stop)
                std::thread([&] { /* claims a word, takes one of it, and ends */
                    for (int i = 0; i < 20; i++)
                        quire_slab_free(slab, quire_slab_alloc(slab));
                }).join();
        });
    for (unsigned looks = 0; looks < scaled(2000); looks++) {
        size_t live = slab.live(), visited = 0;
        EXPECT_TRUE(live >= LASTING && live <= LASTING + SEEN_TWICE_MAX) << live;
        quire_slab_walk(slab, [](void *, void *n) { return ++*static_cast<size_t *>(n), 0; }, &visited);
        EXPECT_GE(visited, LASTING);
        EXPECT_LE(visited, LASTING + SEEN_TWICE_MAX) << "elements that nobody has";
        if (::testing::Test::HasFailure())
            break;
    }
    stop = true;
    for (auto &thread : others)
        thread.join();
    quire_slab_free_batch(slab, lasting.data(), LASTING);
}

TEST(SlabRace, owns_is_true_for_what_a_thread_holds_whatever_the_others_do)
{
    Slab slab(128), stranger(128);
    static long long elsewhere;
    auto ask = [&] {
        char *p = static_cast<char *>(quire_slab_alloc(slab));
        EXPECT_TRUE(quire_slab_owns(slab, p) && quire_slab_owns(slab, p + 127));
        EXPECT_FALSE(quire_slab_owns(stranger, p) || quire_slab_owns(slab, &elsewhere) || quire_slab_owns(slab, nullptr));
        quire_slab_free(slab, p);
    };
    everything(slab, 128, 60000, {ask, [&] { quire_slab_trim(slab); }});
}

TEST(SlabRace, everything_at_once)
{
    Decay decay(1000000);
    quire_slab_opts opts = {};
    opts.page_bytes_max = 2 * os_page_bytes();
    Slab slab(200, opts);
    uint32_t on = 0;
    auto count = [](void *, void *) { return 0; };
    everything(slab, 200, 80000,
               {[&] { quire_slab_trim(slab), sched_yield(); }, [&] { quire_slab_set_defrag(slab, on ^= 1), sched_yield(); },
                [&] { expect_sound_now(slab), sched_yield(); }, [&] { EXPECT_STREQ(quire_slab_check(slab), nullptr); },
                [&] { quire_slab_walk(slab, count, nullptr), sched_yield(); }});
}

TEST(SlabRace, a_limit_holds_at_every_moment_and_running_out_harms_nobody)
{
    quire_slab_opts opts = {};
    opts.limit_bytes = 256 << 10;
    Slab slab(512, opts);
    auto look = [&] { expect_sound_now(slab); };
    for (unsigned threads : THREADS) {
        Table table;
        Worker::Job job = {slab, 512, &table, 60, true};
        work(job, threads, scaled(40000 / threads), {look});
        settle(job);
        EXPECT_LE(stats_of(slab).peak_bytes, opts.limit_bytes);
        void *p = quire_slab_alloc(slab);
        EXPECT_NE(p, nullptr) << "all is free: there is room";
        quire_slab_free(slab, p);
    }
}

TEST(SlabRace, a_source_that_refuses_now_and_then_harms_nobody)
{
    quire_source *budget = quire_source_limit(quire_source_default(), 192 << 10);
    quire_slab_opts opts = {};
    opts.source = budget;
    {
        Slab slab(512, opts);
        Table table;
        Worker::Job job = {slab, 512, &table, 60, true};
        work(job, 8, scaled(5000), {[&] { quire_slab_trim(slab), sched_yield(); }});
        settle(job);
    }
    quire_source_destroy(budget); /* panics when a span is missing */
}

TEST(SlabRace, threads_that_knew_a_slab_work_with_the_next_one_at_its_address)
{
    constexpr unsigned WORKERS = 8;
    unsigned rounds = scaled(200);
    std::atomic<quire_slab *> now{nullptr};
    std::atomic<unsigned> round_open{0}, done{0};
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < WORKERS; t++)
        workers.emplace_back([&, t] {
            for (unsigned round = 1; round <= rounds; round++) {
                while (round_open.load() < round)
                    sched_yield();
                Table table;
                if ((t + round) % 3) { /* a third of them skip a generation */
                    Worker worker({now.load(), 64, &table}, t + 1);
                    for (unsigned i = 0; i < 50; i++)
                        worker.step();
                }
                table.drain(now.load(), 64);
                done++;
            }
        });
    for (unsigned round = 1; round <= rounds; round++) {
        quire_slab_opts opts = {};
        now = quire_slab_create(64, &opts);
        ASSERT_NE(now.load(), nullptr);
        done = 0;
        round_open = round;
        while (done.load() < WORKERS)
            sched_yield();
        EXPECT_EQ(stats_of(now).live_elements, 0u);
        EXPECT_STREQ(quire_slab_check(now), nullptr);
        quire_slab_destroy(now);
    }
    for (auto &thread : workers)
        thread.join();
}

TEST(SlabRace, many_slabs_come_and_go_on_many_threads_without_meeting)
{
    auto mine = [](unsigned t) {
        for (unsigned round = 0; round < scaled(100); round++) {
            size_t bytes = 8 + 8 * ((t + round) % 40);
            Slab slab(bytes);
            Table table;
            Worker worker({slab, bytes, &table}, t * 1000 + round + 1);
            for (int i = 0; i < 100; i++)
                worker.step();
            table.drain(slab, bytes);
            EXPECT_EQ(slab.live(), worker.count());
            if (round % 2) /* its elements are left to destroy */
                quire_slab_alloc(slab);
        }
    };
    Noise on;
    std::vector<std::thread> all;
    for (unsigned t = 0; t < 8; t++)
        all.emplace_back(mine, t);
    for (auto &thread : all)
        thread.join();
}

TEST(SlabRace, slabs_by_size_are_shared_while_threads_acquire_and_release_them)
{
    Noise on;
    std::vector<std::thread> all;
    for (unsigned t = 0; t < 8; t++)
        all.emplace_back([t] {
            for (unsigned round = 0; round < scaled(400); round++) {
                size_t bytes = 8 * (1 + (t + round) % 3);
                quire_slab *slab = quire_slab_shared_acquire(bytes);
                ASSERT_NE(slab, nullptr);
                EXPECT_EQ(stats_of(slab).element_bytes, bytes);
                void *p = quire_slab_alloc(slab);
                paint(p, bytes, t + 1);
                sched_yield();
                EXPECT_TRUE(stamp_of(p) == t + 1);
                quire_slab_free(slab, p);
                quire_slab_shared_release(slab);
            }
        });
    for (auto &thread : all)
        thread.join();
}

TEST(SlabRace, a_mark_goes_while_another_thread_frees_the_element)
{
    quire_slab_opts opts = {};
    opts.name = "race";
    opts.page_bytes_max = os_page_bytes();
    quire_slab *slab = slab_create_markable(64, &opts);
    ASSERT_NE(slab, nullptr);
    Noise on;
    for (unsigned round = 0; round < scaled(200); round++) {
        void *marked[200];
        for (void *&p : marked)
            paint(p = slab_alloc_marked(slab), 64, round);
        std::thread unmark([&] {
            for (void *p : marked)
                slab_unmark(slab, p); /* false where the free came first */
        });
        std::thread release([&] {
            for (void *p : marked) {
                EXPECT_TRUE(is_painted(p, 64));
                quire_slab_free(slab, p);
            }
        });
        unmark.join(), release.join();
        ASSERT_STREQ(quire_slab_check(slab), nullptr);
        ASSERT_EQ(stats_of(slab).live_elements, 0u);
    }
    quire_slab_destroy(slab);
}
