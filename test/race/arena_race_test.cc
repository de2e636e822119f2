// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <sched.h>
#include <thread>
#include <vector>

#include <quire/arena.h>
#include <quire/compat/netdata.h>

#include "base/atomic.h"
#include "support.h"

namespace {
void noise()
{
    thread_local uint64_t state = reinterpret_cast<uintptr_t>(&state);
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((state >> 40) % 20 == 0)
        yield_sparingly();
}
} // namespace

TEST(ArenaRace, arenas_of_many_threads_come_and_go_on_one_source_without_meeting)
{
    quire_source *count = quire_source_count(quire_source_default());
    for (unsigned threads : {2u, 8u, 32u}) {
        set_noise(noise);
        std::vector<std::thread> all;
        for (unsigned t = 0; t < threads; t++)
            all.emplace_back([=] {
                Random random(t + 1);
                for (unsigned round = 0; round < 640 / threads; round++) {
                    quire_arena_opts opts = {.name = "race", .source = count, .size_hint_bytes = random.below(100000)};
                    quire_arena *arena = quire_arena_create(&opts);
                    ASSERT_NE(arena, nullptr);
                    std::vector<uint64_t *> blocks;
                    for (int i = 0; i < 100; i++) {
                        size_t words = 1 + random.below(random.below(20) == 0 ? 40000 : 40);
                        uint64_t *p = static_cast<uint64_t *>(quire_arena_alloc(arena, words * 8));
                        ASSERT_NE(p, nullptr);
                        p[0] = p[words - 1] = t * 1000000 + round;
                        blocks.push_back(p);
                    }
                    for (uint64_t *p : blocks)
                        ASSERT_EQ(p[0], t * 1000000 + round);
                    ASSERT_EQ(quire_arena_check(arena), nullptr);
                    quire_arena_destroy(arena);
                }
            });
        for (auto &thread : all)
            thread.join();
        set_noise(nullptr);
    }
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(count, &stats);
    EXPECT_EQ(stats.taken_bytes, 0u);
    EXPECT_EQ(stats.takes, stats.gives);
    quire_source_destroy(count);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(ArenaRace, the_count_of_all_one_way_allocators_is_exact_while_threads_use_them)
{
    size_t before = onewayalloc_allocated_memory();
    std::vector<std::thread> all;
    for (int t = 0; t < 8; t++)
        all.emplace_back([] {
            for (int round = 0; round < 200; round++) {
                ONEWAYALLOC *owa = onewayalloc_create(0);
                for (int i = 0; i < 50; i++)
                    onewayalloc_callocz(owa, 10, 20);
                EXPECT_GE(onewayalloc_allocated_memory(), size_t(10000));
                onewayalloc_destroy(owa);
            }
        });
    for (auto &thread : all)
        thread.join();
    EXPECT_EQ(onewayalloc_allocated_memory(), before);
}
