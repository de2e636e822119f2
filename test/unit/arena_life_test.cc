// SPDX-License-Identifier: MIT
/* Arenas among sources, threads and processes. */
#include <gtest/gtest.h>

#include <memory>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <quire/arena.h>

#include "base/compiler.h"
#include "os/sanitize.h"
#include "support.h"
#include "unit/arena_scope.h"

namespace {
const size_t mib = 1 << 20;
} // namespace

TEST(Arena, an_arena_lives_on_any_source)
{
    std::unique_ptr<char[]> buffer(new char[mib]);
    std::vector<quire_source *> sources = {quire_source_default(), quire_source_anon(),
                                           quire_source_malloc(),  quire_source_memfd("arena"),
                                           quire_source_fixed(buffer.get(), mib), quire_source_file("/tmp", "quire-arena-test")};
    for (quire_source *source : sources) {
        ASSERT_NE(source, nullptr);
        quire_source *count = quire_source_count(source);
        {
            Arena arena({.source = count});
            for (int i = 0; i < 2000; i++)
                ASSERT_TRUE(all_bytes(quire_arena_alloc_zero(arena, 1, 100), 100, 0));
            struct quire_source_stats stats = {.struct_bytes = sizeof stats};
            quire_source_stats(count, &stats);
            EXPECT_EQ(stats.taken_bytes, arena.stats().mapped_bytes);
        }
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(count, &stats);
        EXPECT_EQ(stats.taken_bytes, 0u);
        quire_source_destroy(count);
        quire_source_destroy(source);
    }
}

TEST(Arena, after_the_last_arena_and_two_decays_the_memory_is_back)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is resident memory too";
    quire_source_trim(quire_source_default());
    size_t start = rss_bytes();
    {
        Arena arenas[8];
        for (auto &arena : arenas)
            for (int i = 0; i < 10000; i++)
                memset(quire_arena_alloc(arena, 1000), 1, 1000);
        EXPECT_GE(rss_bytes(), start + 70 * mib);
    }
    ASSERT_EQ(quire_source_set_decay(quire_source_default(), 100000000), 0);
    for (int late = 0; late < 3000 && rss_bytes() > start + 2 * mib; late++)
        sleep_ms(10); /* a late thread on a busy machine */
    EXPECT_LE(rss_bytes(), start + 2 * mib);
    quire_source_set_decay(quire_source_default(), DECAY_STILL_NS);
}

TEST(Arena, many_threads_with_an_arena_each_do_not_disturb_one_another)
{
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([t] {
            for (int round = 0; round < 20; round++) {
                Arena arena;
                std::vector<char *> blocks;
                for (int i = 0; i < 2000; i++) {
                    blocks.push_back(static_cast<char *>(quire_arena_alloc(arena, 50)));
                    memset(blocks.back(), t, 50);
                }
                for (char *p : blocks)
                    ASSERT_TRUE(all_bytes(p, 50, char(t)));
            }
        });
    for (auto &thread : threads)
        thread.join();
}

TEST(Arena, a_child_of_a_fork_uses_and_destroys_its_copy)
{
    Arena arena;
    char *p = quire_arena_strdup(arena, "parent");
    pid_t child = fork();
    if (child == 0) {
        strcpy(p, "child!");
        for (int i = 0; i < 10000; i++)
            quire_arena_alloc(arena, 100);
        bool good = quire_arena_check(arena) == nullptr;
        quire_arena_destroy(arena);
        _exit(good ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_STREQ(p, "parent");
}
