// SPDX-License-Identifier: MIT
/* Blocks of arenas: their memory, sizes and ends; the bound on what is dead. */
#include "steer_kit.h"

#include <atomic>
#include <sys/wait.h>
#include <thread>

TEST(Steer, blocks_lie_behind_each_other_aligned_and_do_not_overlap)
{
    steer_up();
    std::vector<char *> blocks;
    for (size_t i = 0; i < 2000; i++) {
        size_t bytes = i % 300;
        char *p = static_cast<char *>(alloc_at(1, bytes));
        ASSERT_TRUE(is_steered(p));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 16, 0u);
        EXPECT_GE(steer_usable_bytes(p), bytes);
        EXPECT_LT(steer_usable_bytes(p), bytes + 17);
        memset(p, int(i), bytes);
        blocks.push_back(p);
    }
    EXPECT_EQ(steer_check(), nullptr);
    for (size_t i = 0; i < blocks.size(); i++)
        for (size_t b = 0; b < i % 300; b++)
            ASSERT_EQ(blocks[i][b], char(i));
    for (char *p : blocks)
        steer_free(p);
    EXPECT_EQ(steer_check(), nullptr);
}

TEST(Steer, a_generation_whose_last_block_dies_begins_anew_at_the_same_place)
{
    steer_up();
    std::vector<void *> first, second;
    for (auto *blocks : {&first, &second}) {
        for (int i = 0; i < 50; i++)
            blocks->push_back(alloc_at(2, 100));
        for (void *p : *blocks)
            steer_free(p);
    }
    EXPECT_EQ(first, second);
}

TEST(Steer, a_block_that_outlives_its_generation_keeps_its_chunk_and_no_more)
{
    steer_up();
    char *lasting = static_cast<char *>(alloc_at(3, 64));
    strcpy(lasting, "still here");
    for (int round = 0; round < 20; round++) {
        std::vector<void *> blocks;
        for (int i = 0; i < 20000; i++)
            blocks.push_back(alloc_at(3, 64));
        for (void *p : blocks)
            steer_free(p);
    }
    EXPECT_STREQ(lasting, "still here");
    EXPECT_LE(held_of(3), 3 * steer_plan.pool[3].chunk_bytes);
    steer_free(lasting);
}

TEST(Steer, the_last_block_freed_first_is_taken_back_as_from_a_stack)
{
    steer_up();
    void *below = alloc_at(4, 100), *first = alloc_at(4, 200);
    steer_free(first);
    for (int i = 0; i < 1000; i++) {
        void *p = alloc_at(4, 200);
        EXPECT_EQ(p, first);
        steer_free(p);
    }
    steer_free(below);
    EXPECT_EQ(steer_check(), nullptr);
}

TEST(Steer, what_is_dead_passes_no_bound_and_then_the_site_is_the_heaps_for_good)
{
    steer_up();
    std::vector<void *> kept;
    size_t most = 0;
    for (int i = 0; i < (BUILT_WITH_TSAN ? 100000 : 400000); i++) { /* one of a hundred stays: each chunk is pinned */
        void *p = alloc_at(5, 100);
        if (i % 100 == 0)
            kept.push_back(p);
        else
            steer_free(p);
        most = held_of(5) > most ? held_of(5) : most;
    }
    size_t live = kept.size() * 112;
    EXPECT_LE(most, live + live / 4 + STEER_WASTE_SLACK_BYTES + 3 * steer_plan.pool[5].chunk_bytes);
    EXPECT_TRUE(u32_load_relaxed(&steer_plan.pool[5].is_sent_back));
    struct steer_site_stats stats = site_stats_of(105);
    EXPECT_EQ(stats.pool, 0u);
    void *p = alloc_at(5, 100);
    EXPECT_FALSE(is_steered(p));
    steer_free(p);
    for (void *one : kept)
        steer_free(one);
    EXPECT_EQ(held_of(5), 0u);
}

TEST(Steer, chunks_that_other_threads_are_just_letting_go_of_do_not_count_as_dead)
{
    steer_up();
    std::vector<void *> blocks;
    std::thread([&] {
        for (int i = 0; i < 30000; i++)
            blocks.push_back(alloc_at(6, 112));
    }).join();
    struct steer_pool *pool = &steer_plan.pool[6];
    std::vector<std::pair<struct steer_chunk *, uint64_t>> between; /* each second one, as between being listed and being counted */
    int i = 0;
    for (struct steer_chunk *chunk = pool->shared; chunk; chunk = chunk->next)
        if (i++ % 2 == 0)
            between.emplace_back(chunk, u64_load_relaxed(&chunk->balance));
    for (auto &one : between)
        u64_store_relaxed(&one.first->balance, -uint64_t(1));
    void *p = alloc_at(6, 112);
    EXPECT_TRUE(is_steered(p));
    EXPECT_FALSE(u32_load_relaxed(&pool->is_sent_back));
    for (auto &one : between)
        u64_store_relaxed(&one.first->balance, one.second);
    steer_free(p);
    for (void *one : blocks)
        steer_free(one);
    EXPECT_EQ(steer_check(), nullptr);
}

TEST(Steer, zeroed_blocks_are_zero_where_others_have_written)
{
    steer_up();
    for (int round = 0; round < 3; round++) {
        std::vector<void *> blocks;
        for (int i = 0; i < 3000; i++) {
            char *p = static_cast<char *>(steer_alloc_zero(100, call_from(6)));
            for (int b = 0; b < 100; b++)
                ASSERT_EQ(p[b], 0);
            memset(p, 0xff, 100);
            blocks.push_back(p);
        }
        for (void *p : blocks)
            steer_free(p);
    }
}

TEST(Steer, realloc_keeps_what_was_there_in_place_or_moved)
{
    steer_up();
    char *p = static_cast<char *>(alloc_at(7, 20));
    strcpy(p, "nineteen characters");
    EXPECT_EQ(steer_realloc(p, 32), p) << "it has room";
    EXPECT_EQ(steer_realloc(p, 500), p) << "the last block grows";
    EXPECT_EQ(steer_usable_bytes(p), 512u);
    void *behind = alloc_at(7, 20);
    char *moved = static_cast<char *>(steer_realloc(p, 600));
    EXPECT_NE(moved, p);
    EXPECT_STREQ(moved, "nineteen characters");
    EXPECT_FALSE(is_steered(moved));
    moved = static_cast<char *>(steer_realloc(moved, 6000));
    EXPECT_STREQ(moved, "nineteen characters");
    char *small = static_cast<char *>(alloc_at(7, 3000));
    strcpy(small, "shrinks");
    char *shrunk = static_cast<char *>(steer_realloc(small, 8));
    EXPECT_STREQ(shrunk, "shrinks");
    for (void *one : {static_cast<void *>(moved), behind, static_cast<void *>(shrunk)})
        steer_free(one);
    EXPECT_EQ(steer_check(), nullptr);
}

TEST(Steer, blocks_too_large_for_a_tag_are_the_heaps_and_counted)
{
    steer_up();
    uint64_t before = site_stats_of(108).fallbacks;
    void *largest = alloc_at(8, STEER_BLOCK_MAX), *p = alloc_at(8, STEER_BLOCK_MAX + 1);
    EXPECT_TRUE(is_steered(largest));
    EXPECT_FALSE(is_steered(p));
    EXPECT_EQ(site_stats_of(108).fallbacks, before + 1);
    EXPECT_EQ(alloc_at(8, SIZE_MAX), nullptr);
    EXPECT_EQ(alloc_at(8, SIZE_MAX - 15), nullptr);
    EXPECT_EQ(alloc_at(8, PTRDIFF_MAX), nullptr);
    steer_free(largest);
    steer_free(p);
}

TEST(Steer, blocks_and_bytes_are_counted_by_site)
{
    steer_up();
    struct steer_site_stats before = site_stats_of(101);
    struct steer_stats all_before, all;
    steer_stats(&all_before);
    std::vector<void *> blocks;
    for (size_t i = 0; i < 100; i++)
        blocks.push_back(alloc_at(1, i));
    for (int i = 0; i < 40; i++) {
        steer_free(blocks.back());
        blocks.pop_back();
    }
    struct steer_site_stats after = site_stats_of(101);
    steer_stats(&all);
    EXPECT_EQ(after.blocks - before.blocks, 100u);
    EXPECT_EQ(after.bytes - before.bytes, 4950u);
    EXPECT_EQ(all.live_blocks - all_before.live_blocks, 60u);
    EXPECT_EQ(all.needless_frees - all_before.needless_frees, 40u);
    for (void *p : blocks)
        steer_free(p);
}

TEST(Steer, another_threads_free_gives_the_block_back_and_the_chunk_with_the_last_one)
{
    steer_up();
    std::vector<void *> blocks;
    size_t before = held_of(2);
    for (int i = 0; i < 100000; i++)
        blocks.push_back(alloc_at(2, 48));
    EXPECT_GT(held_of(2), before + 4000000);
    std::thread([&] {
        for (void *p : blocks)
            steer_free(p);
    }).join();
    for (int i = 0; i < 300000; i++) { /* the owner comes by, and finds them */
        void *p = alloc_at(2, 48);
        steer_free(p);
    }
    EXPECT_EQ(steer_check(), nullptr);
    std::vector<void *> again;
    for (int i = 0; i < 100000; i++)
        again.push_back(alloc_at(2, 48));
    EXPECT_LT(held_of(2), before + 8000000) << "what others freed is used again";
    for (void *p : again)
        steer_free(p);
}

TEST(Steer, a_thread_that_ends_leaves_its_blocks_whole_and_they_go_with_the_last_one)
{
    steer_up();
    size_t before = held_of(1);
    std::vector<char *> blocks;
    std::thread([&] {
        for (int i = 0; i < 30000; i++) {
            blocks.push_back(static_cast<char *>(alloc_at(1, 60)));
            snprintf(blocks.back(), 60, "block %d", i);
        }
    }).join();
    EXPECT_GT(held_of(1), before);
    EXPECT_EQ(steer_check(), nullptr);
    for (size_t i = 0; i < blocks.size(); i++) {
        char expected[60];
        snprintf(expected, sizeof expected, "block %zu", i);
        ASSERT_STREQ(blocks[i], expected);
        steer_free(blocks[i]);
    }
    EXPECT_EQ(held_of(1), before);
}

TEST(Steer, a_child_of_a_fork_frees_what_it_was_left_and_allocates)
{
    steer_up();
    std::vector<char *> blocks;
    for (int i = 0; i < 20000; i++)
        memset(blocks.emplace_back(static_cast<char *>(alloc_at(6, 80))), i, 80);
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < blocks.size(); i++) {
            if (blocks[i][79] != char(i))
                _exit(1);
            steer_free(blocks[i]);
        }
        for (int i = 0; i < 20000; i++)
            if (!alloc_at(6, 80))
                _exit(2);
        _exit(steer_check() ? 3 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    for (size_t i = 0; i < blocks.size(); i++) {
        ASSERT_EQ(blocks[i][79], char(i));
        steer_free(blocks[i]);
    }
}

/* The lock of shared chunks is held, so the thread stops where it has let go of its chunk and has not listed it yet. */
TEST(Steer, a_child_that_is_forked_while_a_thread_lets_go_of_a_chunk_does_not_give_it_to_another)
{
    if (BUILT_WITH_TSAN)
        GTEST_SKIP() << "it knows no threads of a child's own";
    steer_up();
    size_t before = held_of(7);
    std::atomic<int> step{0};
    std::atomic<void *> made{nullptr};
    std::thread ends([&] {
        made = alloc_at(7, 100);
        while (step == 0)
            usleep(100);
    });
    while (!made)
        usleep(100);
    std::thread holder([&] {
        lock_take(&steer_plan.pool[7].lock);
        for (step = 1; step == 1;)
            usleep(100);
        lock_drop(&steer_plan.pool[7].lock);
    });
    while (u32_load_relaxed(&steer_plan.pool[7].lock.word) != LOCK_SLEPT_FOR) /* it has come to the lock, and is in no lock of libc's or a sanitizer's */
        usleep(100);
    pid_t child = fork();
    if (child == 0) {
        bool is_whole = false;
        std::thread([&] {
            void *p = alloc_at(7, 100);
            steer_free(made);
            is_whole = steer_self->lane[7].chunks == owner_object(pagemap_find(p));
            steer_free(p);
        }).join();
        _exit(!is_whole);
    }
    step = 2;
    holder.join();
    ends.join();
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    steer_free(made);
    EXPECT_EQ(held_of(7), before);
}

TEST(Steer, a_timed_free_is_a_free_and_some_of_them_are_timed)
{
    steer_up();
    struct steer_stats before, after;
    steer_stats(&before);
    std::vector<void *> blocks;
    for (int i = 0; i < 10000; i++)
        blocks.push_back(alloc_at(7, 64));
    for (void *p : blocks)
        steer_free_timed(p);
    steer_free_timed(alloc_at(PLACE_HEAP, 10));
    steer_stats(&after);
    EXPECT_NEAR(double(after.timed_frees - before.timed_frees), 10000 / 64.0, 2);
    EXPECT_GT(after.timed_ns, before.timed_ns);
    EXPECT_EQ(after.live_blocks, before.live_blocks);
}
