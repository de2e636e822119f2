// SPDX-License-Identifier: MIT
/* Large blocks of the process's heap that a thread has freed and keeps. */
#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <thread>
#include <vector>

#include <quire/source.h>

#include "model/slab_worker.h"
#include "trap_flag.h"
#include "unit/heap_scope.h"
#include "unit/heap_inside.h"


namespace {
quire_heap *const process = quire_heap_default();
enum { BYTES = 100000, KEPT = 4, KEPT_BYTES_MOST = 256 << 10 };

class HeapLargeCache : public testing::Test {
protected:
    void SetUp() override
    {
        if (memory_is_watched())
            GTEST_SKIP() << "there every block goes";
        quire_heap_free(process, quire_heap_alloc(process, 16)); /* this thread has a local */
        quire_heap_trim(process);
    }
    void TearDown() override
    {
        quire_heap_trim(process);
        EXPECT_EQ(quire_heap_check(process), nullptr);
    }
};

bool is_zero(const char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (p[i])
            return false;
    return true;
}

int walked(void *p, size_t bytes, void *found)
{
    (void)bytes;
    static_cast<std::set<void *> *>(found)->insert(p);
    return 0;
}

std::set<void *> walk()
{
    std::set<void *> found;
    EXPECT_EQ(quire_heap_walk(process, walked, &found), 0);
    return found;
}
} // namespace

TEST_F(HeapLargeCache, a_block_of_as_many_pages_is_the_one_that_was_freed)
{
    for (size_t bytes : {size_t(40000), size_t(BYTES), size_t(KEPT_BYTES_MOST) - 2 * os_page_bytes()}) {
        char *p = static_cast<char *>(quire_heap_alloc(process, bytes));
        memset(p, 1, bytes);
        quire_heap_free(process, p);
        char *again = static_cast<char *>(quire_heap_alloc_zero(process, 1, bytes - 100));
        EXPECT_EQ(again, p) << bytes;
        EXPECT_TRUE(is_zero(again, bytes - 100));
        EXPECT_TRUE(quire_heap_owns(process, again));
        EXPECT_GE(quire_heap_usable_bytes(again), bytes - 100);
        quire_heap_free(process, again);
    }
}

TEST_F(HeapLargeCache, what_is_kept_does_not_live)
{
    char *p = static_cast<char *>(quire_heap_alloc(process, BYTES)), *other = static_cast<char *>(quire_heap_alloc(process, BYTES));
    size_t live = heap_stats(process).large_bytes;
    quire_heap_free(process, p);
    EXPECT_FALSE(quire_heap_owns(process, p));
    EXPECT_EQ(walk().count(p), 0u);
    EXPECT_EQ(walk().count(other), 1u);
    EXPECT_EQ(quire_heap_check(process), nullptr);
    HeapStats after = heap_stats(process);
    EXPECT_EQ(after.large_bytes, live - quire_heap_usable_bytes(other));
    EXPECT_EQ(after.mapped_bytes, after.live_bytes + after.free_bytes + after.meta_bytes);
    quire_heap_free(process, other);
}

TEST_F(HeapLargeCache, four_are_kept_below_256_KiB_and_any_thread_gives_them_back)
{
    const size_t page = os_page_bytes();
    std::vector<void *> blocks;
    for (size_t i = 0; i < 3 * KEPT; i++)
        blocks.push_back(quire_heap_alloc(process, BYTES + i * page));
    blocks.push_back(quire_heap_alloc(process, KEPT_BYTES_MOST));
    size_t before = size_load_relaxed(&process->account.mapped_bytes);
    for (void *p : blocks)
        quire_heap_free(process, p);
    size_t kept = size_load_relaxed(&process->account.mapped_bytes);
    EXPECT_LE(before - kept, KEPT_BYTES_MOST + 3 * KEPT * (BYTES + 3 * KEPT * page));
    EXPECT_GE(before - kept, KEPT_BYTES_MOST + 2 * KEPT * size_t(BYTES));
    Worker().run([] { quire_heap_trim(process); });
    EXPECT_LE(size_load_relaxed(&process->account.mapped_bytes), kept - KEPT * size_t(BYTES));
    for (size_t i = 0; i < blocks.size(); i++)
        EXPECT_FALSE(quire_heap_owns(process, blocks[i])) << i;
}

TEST_F(HeapLargeCache, a_thread_that_ends_keeps_nothing)
{
    size_t before = size_load_relaxed(&process->account.mapped_bytes);
    std::thread([] {
        for (size_t bytes : {40000, 80000, int(BYTES), 200000})
            quire_heap_free(process, quire_heap_alloc(process, bytes));
    }).join();
    quire_heap_trim(process);
    EXPECT_LE(size_load_relaxed(&process->account.mapped_bytes), before + 8 * os_page_bytes());
}

TEST_F(HeapLargeCache, a_walk_may_stand_on_a_block_that_is_freed_and_had_again)
{
    static void *block, *seen;
    block = quire_heap_alloc(process, BYTES);
    const auto on = [](void *p, size_t, void *) {
        if (p == block) {
            seen = p;
            quire_heap_free(process, p);
            EXPECT_EQ(quire_heap_alloc(process, BYTES), p);
            quire_heap_free(process, p);
            Worker().run([] { quire_heap_trim(process); }); /* it goes while the walk stands on it */
        }
        return 0;
    };
    EXPECT_EQ(quire_heap_walk(process, on, nullptr), 0);
    EXPECT_EQ(seen, block);
    EXPECT_FALSE(quire_heap_owns(process, block));
}

TEST_F(HeapLargeCache, the_last_four_are_kept)
{
    std::vector<void *> blocks;
    for (size_t i = 0; i < 10; i++)
        blocks.push_back(quire_heap_alloc(process, BYTES / 2 + i * os_page_bytes()));
    for (void *p : blocks)
        quire_heap_free(process, p);
    for (size_t i = 10; i-- > 10 - KEPT;)
        EXPECT_EQ(quire_heap_alloc(process, BYTES / 2 + i * os_page_bytes()), blocks[i]) << i;
    for (size_t i = 10 - KEPT; i < 10; i++)
        quire_heap_free(process, blocks[i]);
}

TEST_F(HeapLargeCache, sums_are_judged_while_something_is_kept)
{
    quire_heap_free(process, quire_heap_alloc(process, BYTES));
    size_add_relaxed(&process->account.mapped_bytes, 1000);
    EXPECT_STREQ(quire_heap_check(process), "heap P5");
    size_sub_relaxed(&process->account.mapped_bytes, 1000);
}

/* Who had looked at the block's header before it went, and comes late: the header is another block's now. */
TEST_F(HeapLargeCache, a_second_free_that_comes_late_stops_the_process_and_frees_nobodys_block)
{
    void *p = quire_heap_alloc(process, BYTES), *stays = quire_heap_alloc(process, BYTES); /* or the headers' memory went, too */
    struct heap_page *page = heap_page_find(p);
    quire_heap_free(process, p);
    quire_heap_trim(process);
    quire_source *source = quire_source_default();
    quire_span there; /* where the block was, most likely */
    ASSERT_EQ(source->verbs->take(source, 2 * os_page_bytes(), os_page_bytes(), &there), 0);
    std::vector<void *> others;
    while (others.size() < 64 && (others.empty() || heap_page_find(others.back()) != page))
        others.push_back(quire_heap_alloc(process, BYTES + BYTES / 2));
    ASSERT_EQ(heap_page_find(others.back()), page);
    ASSERT_NE(others.back(), p);
    EXPECT_DEATH(heap_large_free(page, p), "E1 the block is free already");
    others.push_back(stays);
    for (void *other : others)
        quire_heap_free(process, other);
    source->verbs->give(source, &there);
}

#if QUIRE_CPU_X86_64
namespace {
volatile long step, at;
void *volatile got;

void allocate_at_a_step(int, siginfo_t *, void *)
{
    if (step++ == at)
        got = quire_heap_alloc(process, BYTES);
}
} // namespace

/* Not allowed, and no harm. */
TEST_F(HeapLargeCache, a_handler_at_any_instruction_gets_another_block_or_none)
{
    struct sigaction action = {}, before;
    action.sa_sigaction = allocate_at_a_step;
    action.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
    unsigned points = 0, twice = 0;
    for (at = 1; at < 5000; at++) {
        void *first = quire_heap_alloc(process, BYTES), *second = quire_heap_alloc(process, BYTES);
        quire_heap_free(process, first), quire_heap_free(process, second);
        step = 0, got = nullptr;
        trap_begin();
        void *p = quire_heap_alloc(process, BYTES);
        quire_heap_free(process, p);
        trap_end();
        if (step <= at)
            break;
        points++;
        void *q = quire_heap_alloc(process, BYTES), *r = quire_heap_alloc(process, BYTES);
        twice += got && (got == q || got == r);
        quire_heap_free(process, q), quire_heap_free(process, r);
        if (got)
            quire_heap_free(process, got);
    }
    EXPECT_EQ(sigaction(SIGTRAP, &before, nullptr), 0);
    EXPECT_GT(points, 100u);
    EXPECT_EQ(twice, 0u);
}
#endif
