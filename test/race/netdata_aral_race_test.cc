// SPDX-License-Identifier: MIT
/* The Array Allocator's names under threads: marks against frees, sums that many share, arrays that come and go, fork in the middle. */
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <quire/compat/netdata.h>
#include <quire/slab.h>

#include "base/compiler.h"
#include "os/os.h"
#include "support.h"

namespace {

using AralStats = struct aral_statistics;

void noise()
{
    thread_local uint64_t state = reinterpret_cast<uintptr_t>(&state);
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((state >> 40) % 20 == 0)
        yield_sparingly();
}

ARAL *array_of(const char *name, size_t size, AralStats *stats = nullptr, size_t page_bytes = 0)
{
    return aral_create(name, size, 0, page_bytes, stats, nullptr, nullptr, false, false, false);
}

template <typename Body> void in_threads(unsigned count, Body body)
{
    std::vector<std::thread> all;
    for (unsigned t = 0; t < count; t++)
        all.emplace_back(body, t);
    for (auto &thread : all)
        thread.join();
}

/* What tests do so and so often they do a quarter of the times where every access is watched, but in the long run. */
template <typename Count> Count part(Count count) { return memory_is_watched() && !test_long() ? count / 4 : count; }

bool is_zero(const AralStats &stats)
{
    static const AralStats zero = {};
    return memcmp(&stats, &zero, sizeof zero) == 0;
}

/* A place where threads leave elements for each other. */
struct Exchange {
    std::atomic<uint64_t *> places[64] = {};
    uint64_t *swap(size_t place, uint64_t *p) { return places[place % 64].exchange(p); }
};

} // namespace

TEST(AralRace, elements_that_others_free_unmark_and_count_are_never_lost_or_doubled)
{
    for (unsigned threads : {2u, 8u, 32u}) {
        AralStats stats = {};
        ARAL *ar = array_of("race", 48, &stats, 4096);
        Exchange exchange;
        set_noise(noise);
        in_threads(threads, [&](unsigned t) {
            Random random(t + 1);
            for (unsigned step = 0; step < part(64000u) / threads; step++) {
                bool marked = random.below(2) == 0;
                uint64_t *p = static_cast<uint64_t *>(marked ? aral_mallocz_marked(ar) : aral_mallocz(ar));
                for (int i = 0; i < 6; i++)
                    p[i] = reinterpret_cast<uintptr_t>(p) + i;
                uint64_t *q = exchange.swap(random.next(), p);
                if (!q)
                    continue;
                for (int i = 0; i < 6; i++)
                    ASSERT_EQ(q[i], reinterpret_cast<uintptr_t>(q) + i);
                if (random.below(2) == 0)
                    aral_unmark_allocation(ar, q);
                aral_freez(ar, q);
            }
        });
        set_noise(nullptr);
        size_t left = 0;
        for (auto &place : exchange.places)
            left += place.load() != nullptr;
        EXPECT_EQ(stats.malloc.used_bytes, left * 48);
        EXPECT_EQ(aral_used_bytes(ar), left * 48);
        EXPECT_EQ(quire_slab_check(aral_slab(ar)), nullptr);
        for (auto &place : exchange.places)
            aral_freez(ar, place.load());
        EXPECT_EQ(stats.malloc.used_bytes, 0u);
        aral_destroy(ar);
        EXPECT_TRUE(is_zero(stats)) << threads << " threads";
    }
}

TEST(AralRace, unmarking_meets_the_free_of_the_same_element)
{
    ARAL *ar = array_of("race", 64, nullptr, 4096);
    std::atomic<void *> shared{nullptr};
    std::atomic<bool> done{false};
    set_noise(noise);
    std::thread unmarks([&] {
        while (!done)
            if (void *p = shared.load())
                aral_unmark_allocation(ar, p); /* it may be free by now, or marked again: one mark is gone then, and nothing else */
    });
    for (int round = 0; round < part(20000); round++) {
        void *p = aral_mallocz_marked(ar), *neighbour = aral_mallocz_marked(ar);
        shared = p;
        if (round % 3 == 0)
            sched_yield();
        aral_freez(ar, p);
        aral_freez(ar, neighbour);
    }
    done = true;
    unmarks.join();
    set_noise(nullptr);
    EXPECT_EQ(aral_used_bytes(ar), 0u);
    EXPECT_EQ(quire_slab_check(aral_slab(ar)), nullptr);
    aral_destroy(ar);
}

TEST(AralRace, statistics_that_many_arrays_and_threads_share_are_exactly_nothing_at_the_end)
{
    for (unsigned threads : {2u, 8u, 32u}) {
        AralStats stats = {};
        set_noise(noise);
        in_threads(threads, [&](unsigned t) {
            Random random(t + 1);
            for (unsigned round = 0; round < (memory_is_watched() && !test_long() ? 32 : 128) / threads; round++) {
                ARAL *ar = array_of("shared", 1 + random.below(300), &stats);
                for (int i = 0; i < 300; i++) {
                    void *p = aral_callocz(ar);
                    if (random.below(3) != 0)
                        aral_freez(ar, p);
                }
                ASSERT_GE(aral_used_bytes_from_stats(&stats), aral_used_bytes(ar)) << "others only add to it";
                aral_destroy(ar);
            }
        });
        set_noise(nullptr);
        EXPECT_TRUE(is_zero(stats)) << threads << " threads";
    }
}

TEST(AralRace, arrays_by_size_are_shared_by_all_who_hold_them_and_gone_afterwards)
{
    set_noise(noise);
    in_threads(8, [](unsigned t) {
        Random random(t + 1);
        for (int round = 0; round < part(300); round++) {
            size_t size = 60 + random.below(4);
            ARAL *ar = aral_by_size_acquire(size), *again = aral_by_size_acquire(size);
            ASSERT_EQ(ar, again);
            ASSERT_EQ(aral_requested_element_size(ar), size);
            void *p = aral_mallocz(ar);
            memset(p, 1, size);
            aral_by_size_release(again);
            aral_freez(ar, p);
            aral_by_size_release(ar);
        }
    });
    set_noise(nullptr);
    EXPECT_TRUE(is_zero(*aral_by_size_statistics()));
}

TEST(AralRace, the_page_size_is_set_while_arrays_come_and_go)
{
    std::atomic<bool> done{false};
    set_noise(noise);
    std::thread sets([&] {
        for (size_t i = 0; !done; i++)
            aral_optimal_malloc_page_size_set((16 << 10) << i % 4);
    });
    in_threads(4, [](unsigned t) {
        Random random(t + 1);
        for (int round = 0; round < part(100); round++) {
            ARAL *ar = array_of("pages", 100);
            for (size_t i = random.below(2000); i > 0; i--)
                aral_mallocz(ar);
            ASSERT_EQ(quire_slab_check(aral_slab(ar)), nullptr);
            aral_destroy(ar);
        }
    });
    done = true;
    sets.join();
    set_noise(nullptr);
    aral_optimal_malloc_page_size_set(64 << 10);
}

namespace {
/* A creation that stops at its nth atomic step until another thread has set the page size, or waits for a lock of the creation's. */
struct Seam {
    unsigned steps = 0, nth = 0;
    std::atomic<bool> now{false}, done{false};
} *seam;
thread_local bool creating;

void stop_at_seam()
{
    if (!creating || ++seam->steps != seam->nth)
        return;
    seam->now = true;
    for (int i = 0; i < 100 && !seam->done; i++)
        usleep(20);
}
} // namespace

TEST(AralRace, a_page_size_set_at_any_moment_of_a_creation_holds_for_the_array)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "only the check build stops at atomic steps";
    const size_t least = std::max(size_t(16 << 10), os_page_bytes()), count = 4 * least;
    bool reached = true;
    for (unsigned nth = 1; reached; nth += memory_is_watched() && !test_long() ? 13 : 1) {
        Seam here;
        here.nth = nth;
        seam = &here;
        aral_optimal_malloc_page_size_set(4 * least);
        std::thread sets([&] {
            while (!here.now)
                sched_yield();
            aral_optimal_malloc_page_size_set(least);
            here.done = true;
        });
        set_noise(stop_at_seam);
        creating = true;
        ARAL *ar = array_of("seam", 16);
        creating = false;
        set_noise(nullptr);
        reached = here.steps >= nth;
        here.now = true;
        sets.join();
        for (size_t i = 0; i < count; i++)
            aral_mallocz(ar);
        ASSERT_GE(aral_get_statistics(ar)->malloc.allocations, count * 16 / least) << "set at step " << nth;
        aral_destroy(ar);
        ASSERT_LT(nth, 5000u);
    }
    aral_optimal_malloc_page_size_set(64 << 10);
}

TEST(AralRace, the_child_of_a_fork_uses_every_array_whatever_others_were_doing)
{
    std::atomic<bool> done{false};
    ARAL *kept = array_of("kept", 40);
    set_noise(noise);
    std::vector<std::thread> busy;
    for (int t = 0; t < 4; t++)
        busy.emplace_back([&, t] {
            while (!done) {
                ARAL *ar = array_of("busy", 24), *shared = aral_by_size_acquire(100);
                aral_freez(shared, aral_mallocz(shared));
                aral_freez(kept, aral_mallocz(kept));
                aral_mallocz(ar);
                if (t == 0)
                    aral_optimal_malloc_page_size_set(32 << 10);
                aral_by_size_release(shared);
                aral_destroy(ar);
            }
        });
    for (int round = 0; round < (test_long() ? 1000 : under_asan() ? 15 : 40); round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(100); /* a lock that nobody will ever drop */
            aral_optimal_malloc_page_size_set(16 << 10);
            ARAL *ar = array_of("child", 24), *shared = aral_by_size_acquire(100);
            for (int i = 0; i < 100; i++)
                aral_freez(kept, aral_mallocz(kept)), aral_mallocz(ar);
            aral_freez(shared, aral_mallocz(shared));
            aral_by_size_release(shared);
            aral_destroy(ar);
            _exit(quire_slab_check(aral_slab(kept)) == nullptr ? 0 : 1);
        }
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "round " << round << ", status " << status;
    }
    done = true;
    for (auto &thread : busy)
        thread.join();
    set_noise(nullptr);
    aral_optimal_malloc_page_size_set(64 << 10);
    EXPECT_EQ(aral_used_bytes(kept), 0u);
    aral_destroy(kept);
}
