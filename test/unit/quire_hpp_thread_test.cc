// SPDX-License-Identifier: MIT
/* quire/quire.hpp with several threads: nodes that others free, caches that go back with their thread, words that all add to. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <quire/quire.hpp>

namespace {

/* A group of its own, so that what its slabs hold can be counted. */
struct Counted {
    static constexpr const char *name = "threads";
};

std::size_t live_in(quire_slab *slab)
{
    return quire::detail::snapshot<quire::slab_stats, const quire_slab>(quire_slab_stats, slab).live_elements;
}

/* A group, and what opens a phase of it at the very end of a thread. */
struct late {
    static constexpr const char *name = "late";
    static constexpr std::size_t size_hint_bytes = 64 << 10;
    static constexpr bool is_kept = true;
    bool is_used = false;
    ~late()
    {
        quire::arena_phase<late> phase;
        is_used = *static_cast<char *>(std::memset(phase.take(100), is_used, 100));
    }
};

/* Its nodes are freed when the main thread's cache is closed. */
std::list<int, quire::slab_allocator<int>> outlives_main;

} // namespace

TEST(QuireHppThreads, nodes_of_all_threads_come_from_one_slab_and_go_back_with_the_thread)
{
    struct node {
        long words[5];
    };
    using nodes_of = quire::slab_allocator<node, Counted>;
    std::vector<node *> handed[4];
    auto fill = [&handed](int me) {
        for (int i = 0; i < 5000; i++)
            handed[me].push_back(nodes_of().allocate(1));
    };
    auto drain = [&handed](int me) {
        for (node *each : handed[(me + 1) % 4])
            nodes_of().deallocate(each, 1);
        std::list<long, quire::slab_allocator<long, Counted>> mine(300, 7L);
        mine.clear();
    };
    for (int part = 0; part < 2; part++) {
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            part == 0 ? threads.emplace_back(fill, i) : threads.emplace_back(drain, i);
        for (std::thread &each : threads)
            each.join();
        EXPECT_EQ(live_in(nodes_of::get()), part == 0 ? 20000u : 0u);
    }
    EXPECT_EQ(quire_slab_check(nodes_of::get()), nullptr);
}

TEST(QuireHppThreads, small_arrays_of_every_type_come_from_a_slab_of_their_size_and_go_back_with_the_thread)
{
    using arrays = quire::detail::array_home<Counted>;
    auto live = [](std::size_t bytes) { return live_in(arrays::slab((bytes - 1) / 16)); };
    std::vector<std::pair<long *, std::size_t>> kept;
    std::thread([&kept] {
        for (std::size_t count = 2; count <= 20; count++)
            for (int i = 0; i < 100; i++) {
                long *one = quire::slab_allocator<long, Counted>().allocate(count);
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one) % 16, 0u);
                std::fill_n(one, count, static_cast<long>(count));
                kept.emplace_back(one, count);
            }
        std::basic_string<char, std::char_traits<char>, quire::slab_allocator<char, Counted>> text(40, 'x'); /* 48 bytes, as six longs */
    }).join();
    EXPECT_EQ(live(16), 100u);
    for (std::size_t bytes = 32; bytes <= 128; bytes += 16)
        EXPECT_EQ(live(bytes), 200u) << bytes;
    for (auto [one, count] : kept)
        for (std::size_t i = 0; i < count; i++)
            ASSERT_EQ(one[i], static_cast<long>(count));
    std::thread([&kept] {
        for (auto [one, count] : kept)
            quire::slab_allocator<long, Counted>().deallocate(one, count);
    }).join();
    for (std::size_t bytes = 16; bytes <= 128; bytes += 16)
        EXPECT_EQ(live(bytes), 0u) << bytes;
}

TEST(QuireHppThreads, threads_with_lists_of_their_own_and_a_shared_one_lose_nothing)
{
    std::mutex lock;
    std::list<int, quire::slab_allocator<int, Counted>> shared;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int round = 0; round < 50; round++) {
                std::list<int, quire::slab_allocator<int, Counted>> mine(100, 1), taken;
                std::lock_guard<std::mutex> held(lock);
                shared.splice(shared.end(), mine);
                taken.splice(taken.end(), shared, shared.begin(), std::next(shared.begin(), 90));
            }
        });
    for (std::thread &each : threads)
        each.join();
    EXPECT_EQ(shared.size(), 4u * 50 * 10);
}

TEST(QuireHppThreads, words_of_per_cpu_objects_are_added_to_by_name)
{
    struct traffic {
        std::intptr_t packets;
        std::uint64_t bytes;
    };
    quire::percpu_pool pool;
    quire::percpu<traffic> seen(pool);
    std::thread other([&seen] { seen.add(&traffic::bytes, 1500); });
    seen.add(&traffic::bytes, 500);
    seen.add(&traffic::packets, 2);
    other.join();
    EXPECT_EQ(seen.sum(&traffic::bytes), 2000u);
    EXPECT_EQ(seen.sum(&traffic::packets), 2);
    std::intptr_t packets = 0;
    seen.for_each([&packets](const traffic &copy) { packets += copy.packets; });
    EXPECT_EQ(packets, 2);
    EXPECT_GE(pool.cpus(), 1u);
    EXPECT_EQ(pool.stats().live_objects, 1u);
}

TEST(QuireHppThreads, containers_may_outlive_their_threads_cache_and_main)
{
    outlives_main.assign(1000, 7);
    std::thread([] {
        static thread_local std::list<int, quire::slab_allocator<int, Counted>> ends_after_the_cache;
        ends_after_the_cache.assign(1000, 7);
    }).join();
    EXPECT_EQ(outlives_main.size(), 1000u);
}

TEST(QuireHppThreads, a_phase_in_a_destructor_that_runs_after_the_threads_kept_arena_went_leaves_nothing)
{
    auto taken = [] { return quire::detail::snapshot<struct quire_source_stats, const quire_source>(quire_source_stats, quire_source_default()).taken_bytes; };
    std::size_t before = 0;
    for (int i = 0; i < 60; i++) {
        std::thread([] {
            static thread_local late outlives;
            outlives.is_used = true;
            quire::arena_phase<late> phase;
        }).join();
        if (i == 9)
            before = taken();
    }
    EXPECT_LT(taken(), before + 20 * late::size_hint_bytes);
}

TEST(QuireHppThreads, a_phase_within_the_end_of_a_phase_leaves_nothing)
{
    struct ends_with_a_phase {
        ~ends_with_a_phase() { quire::arena_phase<late> phase; }
    };
    auto taken = [] { return quire::detail::snapshot<struct quire_source_stats, const quire_source>(quire_source_stats, quire_source_default()).taken_bytes; };
    std::size_t before = 0;
    for (int i = 0; i < 60; i++) {
        quire::arena_phase<late> phase;
        phase.arena().make<ends_with_a_phase>();
        before = i == 9 ? taken() : before;
    }
    EXPECT_LT(taken(), before + 20 * late::size_hint_bytes);
}

TEST(QuireHppThreads, an_emplace_that_finds_its_key_gives_the_node_back_unwritten)
{
    std::map<int, int, std::less<int>, quire::slab_allocator<std::pair<const int, int>>> map;
    for (int i = 0; i < 1000; i++)
        map.emplace(i % 7, i);
    EXPECT_EQ(map.size(), 7u);
}
