// SPDX-License-Identifier: MIT
/* Threads that allocate at the same sites, free each other's blocks, end, and fork, all at once. */
#include "steer_kit.h"

#include <array>
#include <atomic>
#include <sys/wait.h>
#include <thread>

namespace {

enum { PLACES = 512 };
std::array<std::atomic<unsigned char *>, PLACES> table;

/* A block says how large it is and what it is painted with. */
unsigned char *painted(Random &random)
{
    size_t bytes = 8 + random.below(120);
    auto *p = static_cast<unsigned char *>(alloc_at(1 + unsigned(random.below(4)), bytes));
    if (!p)
        return nullptr;
    unsigned char paint = static_cast<unsigned char>(random.next());
    memset(p, paint, bytes);
    p[0] = static_cast<unsigned char>(bytes);
    p[1] = paint;
    return p;
}

bool is_whole(const unsigned char *p)
{
    for (size_t i = 2; i < p[0]; i++)
        if (p[i] != p[1])
            return false;
    return true;
}

void exchange(uint64_t seed, int rounds, std::atomic<int> *torn)
{
    Random random(seed);
    for (int i = 0; i < rounds; i++) {
        unsigned char *mine = painted(random), *theirs = table[random.below(PLACES)].exchange(mine, std::memory_order_acq_rel);
        if (theirs && !is_whole(theirs))
            ++*torn;
        if (random.below(4) == 0 && theirs)
            theirs = static_cast<unsigned char *>(steer_realloc(theirs, 200));
        steer_free(theirs);
    }
}

void empty_table()
{
    for (auto &place : table)
        steer_free(place.exchange(nullptr));
}

uint64_t live_blocks()
{
    struct steer_stats stats;
    steer_stats(&stats);
    return stats.live_blocks;
}

} // namespace

TEST(SteerRace, threads_that_free_each_others_blocks_and_end_lose_none)
{
    steer_up_with_room();
    std::atomic<int> torn{0};
    for (int generation = 0; generation < (BUILT_WITH_TSAN ? 3 : 10); generation++) {
        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < 4; i++)
            threads.emplace_back(exchange, generation * 10 + i + 1, BUILT_WITH_TSAN ? 3000 : 20000, &torn);
        for (auto &thread : threads)
            thread.join();
        EXPECT_EQ(steer_check(), nullptr);
    }
    empty_table();
    EXPECT_EQ(torn, 0);
    EXPECT_EQ(live_blocks(), 0u);
    EXPECT_EQ(steer_check(), nullptr);
}

TEST(SteerRace, children_of_a_process_whose_threads_are_all_at_work_find_every_block_whole)
{
    steer_up_with_room();
    std::atomic<int> torn{0};
    std::vector<std::thread> threads;
    std::atomic<bool> stop{false};
    for (uint64_t i = 0; i < 3; i++)
        threads.emplace_back([&, i] {
            for (uint64_t round = 1; !stop; round++)
                exchange(i * 1000 + round, 500, &torn);
        });
    for (int i = 0; i < (BUILT_WITH_TSAN ? 3 : 30); i++) {
        pid_t child = fork();
        if (child == 0) {
            for (auto &place : table) {
                unsigned char *p = place.exchange(nullptr);
                if (p && !is_whole(p))
                    _exit(1);
                steer_free(p);
            }
            Random random(7);
            for (int n = 0; n < 2000; n++) {
                unsigned char *p = painted(random);
                if (!p || !is_whole(p))
                    _exit(2);
                steer_free(p);
            }
            _exit(steer_check() ? 3 : 0);
        }
        int status;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    stop = true;
    for (auto &thread : threads)
        thread.join();
    empty_table();
    EXPECT_EQ(torn, 0);
    EXPECT_EQ(live_blocks(), 0u);
}

TEST(SteerRace, a_call_site_that_many_threads_meet_first_has_one_place)
{
    steer_up_with_room();
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (unsigned place = 1; place <= 8; place++) {
                void *p = alloc_at(place, 10);
                wrong += pool_of_block(p) != place;
                steer_free(p);
            }
            for (unsigned place = 120; place < 250; place++) {
                void *p = alloc_at(place, 10);
                wrong += is_steered(p);
                steer_free(p);
            }
        });
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_LE(steer_learnt(), 8u + 130u + 8u);
}

/* Two frees of one block at one moment: whoever is second is stopped, at once or when the chunk's last block goes; never silently. */
TEST(SteerRace, two_threads_that_free_one_block_at_the_same_moment_are_stopped)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "it is a race";
    for (int i = 0; i < 10; i++)
        EXPECT_DEATH(
            ([] {
                steer_up_with_room();
                std::vector<void *> blocks;
                for (int n = 0; n < 20000; n++)
                    blocks.push_back(alloc_at(2, 40));
                std::atomic<int> ready{0};
                auto all = [&] {
                    for (++ready; ready < 2;) {
                    }
                    for (void *p : blocks)
                        steer_free(p);
                };
                std::thread other(all);
                all();
                other.join();
            })(),
            "quire: heap: E[12] ");
}
