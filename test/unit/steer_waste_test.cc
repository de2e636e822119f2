// SPDX-License-Identifier: MIT
/* What all pools and threads together hold that is dead is bounded.  Each test is a child: pools that were sent back stay so. */
#include "steer_kit.h"

#include <sys/wait.h>
#include <thread>

namespace {

enum { THREADS = 8, STAYS_OF = 100, BLOCK_BYTES = 112 };

struct Held {
    size_t most, live, sent_back;
};

Held in_child(Held (*body)())
{
    int pipes[2];
    Held held = {};
    EXPECT_EQ(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        held = body();
        _exit(write(pipes[1], &held, sizeof held) == ssize_t(sizeof held) ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(read(pipes[0], &held, sizeof held), ssize_t(sizeof held));
    close(pipes[0]);
    close(pipes[1]);
    return held;
}

size_t held_of_all()
{
    size_t sum = 0;
    for (unsigned pool = 1; pool <= POOLS; pool++)
        sum += size_load_relaxed(&steer_plan.pool[pool].held_bytes);
    return sum;
}

size_t sent_back()
{
    size_t sum = 0;
    for (unsigned pool = 1; pool <= POOLS; pool++)
        sum += u32_load_relaxed(&steer_plan.pool[pool].is_sent_back);
    return sum;
}

/* One block of a hundred stays: each chunk is pinned. */
void pin_chunks(unsigned place, int blocks, Held *held)
{
    for (int i = 0; i < blocks; i++) {
        void *p = alloc_at(place, BLOCK_BYTES);
        if (i % STAYS_OF != 0)
            steer_free(p);
    }
    held->live += size_t(blocks) / STAYS_OF * BLOCK_BYTES;
}

size_t bound(const Held &held, size_t lanes)
{
    return held.live + held.live * STEER_WASTE_PERCENT / 100 + 2 * steer_waste_slack() + lanes * steer_plan.pool[1].chunk_bytes;
}

}

TEST(SteerWaste, of_many_pools_is_no_more_than_of_one)
{
    steer_up();
    Held held = in_child([] {
        Held sum = {};
        for (int round = 0; round < 100; round++)
            for (unsigned place = 1; place <= POOLS; place++) {
                pin_chunks(place, 400, &sum);
                sum.most = std::max(sum.most, held_of_all());
            }
        return sum;
    });
    EXPECT_LE(held.most, bound(held, POOLS));
}

TEST(SteerWaste, of_many_threads_is_no_more_than_of_one)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "it knows no threads of a child's own";
    steer_up();
    size_t before = sent_back();
    Held held = in_child([] {
        Held of[THREADS] = {}, sum = {};
        std::vector<std::thread> threads;
        for (auto &one : of)
            threads.emplace_back([&one] {
                for (int round = 0; round < 100; round++) {
                    pin_chunks(1, 400, &one);
                    one.most = std::max(one.most, held_of_all());
                }
            });
        for (auto &thread : threads)
            thread.join();
        for (auto &one : of) {
            sum.most = std::max(sum.most, one.most);
            sum.live += one.live;
        }
        sum.sent_back = sent_back();
        return sum;
    });
    EXPECT_LE(held.most, bound(held, THREADS));
    EXPECT_EQ(held.sent_back, before + 1);
}

TEST(SteerWaste, of_one_pool_leaves_the_others_alone)
{
    steer_up();
    size_t before = sent_back();
    Held held = in_child([] {
        Held sum = {};
        std::vector<void *> full;
        pin_chunks(1, 100000, &sum);
        for (unsigned place = 2; place <= POOLS; place++)
            for (int i = 0; i < 20000; i++)
                full.push_back(alloc_at(place, BLOCK_BYTES));
        sum.sent_back = sent_back();
        sum.most = is_steered(full.back()) ? 1 : 0;
        return sum;
    });
    EXPECT_EQ(held.sent_back, before + 1);
    EXPECT_EQ(held.most, 1u);
}
