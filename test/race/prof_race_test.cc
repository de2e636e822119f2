// SPDX-License-Identifier: MIT
/* Threads that allocate, resize and free each other's sampled blocks, while others write the profile and fork, all at once. */
#include "prof_kit.h"

#include <array>
#include <atomic>
#include <sys/wait.h>
#include <thread>

#include "prof/guard.h"

namespace {

enum { PLACES = 256 };
std::array<std::atomic<unsigned char *>, PLACES> table;

__attribute__((noinline)) unsigned char *deep(int depth, size_t bytes)
{
    unsigned char *p = depth == 0 ? static_cast<unsigned char *>(profiled_malloc(bytes)) : deep(depth - 1, bytes);
    p[0] = static_cast<unsigned char>(bytes);
    return p;
}

void exchange(uint64_t seed, int rounds)
{
    Random random(seed);
    for (int i = 0; i < rounds; i++) {
        unsigned char *theirs = table[random.below(PLACES)].exchange(deep(int(random.below(6)), 20 + random.below(600)));
        if (theirs && random.below(4) == 0)
            theirs = static_cast<unsigned char *>(profiled_realloc(theirs, 300 + random.below(50000)));
        profiled_free(theirs);
    }
}

TEST(ProfRace, threads_share_samples_while_the_profile_is_written)
{
    Profile profile(2048, 1 << 20);
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (uint64_t seed = 1; seed <= 4; seed++)
        threads.emplace_back(exchange, seed, BUILT_WITH_TSAN ? 4000 : 15000);
    std::thread writer([&] {
        while (!done) {
            EXPECT_NE(Profile::text().find("MAPPED_LIBRARIES"), std::string::npos);
            (void)prof_due();
            EXPECT_EQ(prof_check(), nullptr);
        }
    });
    for (auto &thread : threads)
        thread.join();
    done = true;
    writer.join();
    for (auto &place : table)
        profiled_free(place.exchange(nullptr));
    struct prof_stats stats = Profile::stats();
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.live_blocks, 0u);
    EXPECT_GT(stats.samples, 5000u);
    EXPECT_EQ(stats.lost, 0u);
    EXPECT_EQ(quire_heap_check(quire_heap_default()), nullptr);
}

TEST(ProfRace, a_child_forked_in_the_middle_can_go_on)
{
    if (under_asan())
        GTEST_SKIP() << "the other thread may hold LeakSanitizer's own lock, which no child of a fork gets back";
    Profile profile(1024);
    std::atomic<bool> done{false};
    std::thread busy([&] {
        Random random(9);
        while (!done)
            profiled_free(deep(int(random.below(20)), 500));
    });
    for (int i = 0; i < 40; i++) {
        pid_t child = fork();
        if (child == 0) {
            prof_after_fork();
            for (int k = 0; k < 300; k++)
                profiled_free(deep(k % 25, 400));
            _exit(Profile::stats().samples > 0 ? 0 : 1);
        }
        int status;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    done = true;
    busy.join();
}

TEST(ProfRace, threads_exchange_guarded_blocks)
{
    ASSERT_EQ(guard_start(), 0);
    std::vector<std::thread> threads;
    std::atomic<int> none{0};
    for (uint64_t seed = 1; seed <= 4; seed++)
        threads.emplace_back([&none, seed] {
            Random random(seed);
            for (int i = 0; i < (BUILT_WITH_TSAN ? 1500 : 5000); i++) {
                size_t bytes = 4 + random.below(4000);
                auto *mine = static_cast<unsigned char *>(guard_alloc(bytes, 16, 0, PROF_CALLER));
                none += mine == nullptr;
                if (mine)
                    memset(mine, int(bytes), bytes);
                if (unsigned char *theirs = table[random.below(PLACES)].exchange(mine)) {
                    size_t had = guard_bytes(theirs);
                    EXPECT_EQ(theirs[had - 1], (unsigned char)had);
                    guard_free(theirs, PROF_CALLER);
                }
            }
        });
    for (auto &thread : threads)
        thread.join();
    for (auto &place : table)
        if (unsigned char *p = place.exchange(nullptr))
            guard_free(p, PROF_CALLER);
    size_t live = 0;
    guard_walk([](void *, size_t, void *arg) { return ++*static_cast<size_t *>(arg), 0; }, &live);
    EXPECT_EQ(live, 0u);
    EXPECT_LT(none, 6000);
}

} // namespace
