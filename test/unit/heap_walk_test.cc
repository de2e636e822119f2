// SPDX-License-Identifier: MIT
/* A heap's walk: its function may use the heap, and what it is shown stays where it is while it looks. */
#include <functional>
#include <set>
#include <sys/wait.h>
#include <thread>

#include "heap_scope.h"

namespace {
const size_t mib = 1 << 20;

struct Walk {
    quire_heap *heap;
    std::map<void *, size_t> seen;
    std::function<int(void *p, size_t bytes)> fn;
};

int call(void *p, size_t bytes, void *arg)
{
    Walk *walk = static_cast<Walk *>(arg);
    EXPECT_TRUE(walk->seen.emplace(p, bytes).second) << "each once";
    return walk->fn(p, bytes);
}

/* Blocks of every kind: several sizes to a page, and large ones. */
Blocks some(const Heap &heap)
{
    Blocks blocks;
    for (size_t bytes : {size_t(16), size_t(100), size_t(3000), size_t(20000), size_t(100000), 3 * mib})
        for (int i = 0; i < (bytes < mib ? 20 : 2); i++)
            blocks.push_back(heap.alloc(bytes)), memset(blocks.back(), int(bytes), bytes);
    return blocks;
}

int walk_by(quire_heap *heap, std::map<void *, size_t> *seen, const std::function<int(void *p, size_t bytes)> &fn)
{
    Walk walk = {heap, {}, fn};
    int result = quire_heap_walk(heap, call, &walk);
    if (seen)
        *seen = walk.seen;
    return result;
}
} // namespace

class HeapWalk : public ::testing::TestWithParam<uint32_t> {
protected:
    HeapWalk() : heap(options()) {}
    static quire_heap_opts options()
    {
        quire_heap_opts opts = {};
        opts.flags = GetParam();
        return opts;
    }
    Heap heap;
};
INSTANTIATE_TEST_SUITE_P(Plain, HeapWalk, ::testing::Values(0u, uint32_t(QUIRE_HEAP_SECURE)));

TEST_P(HeapWalk, its_function_may_use_the_heap_in_every_way)
{
    Blocks blocks = some(heap), more;
    std::map<void *, size_t> seen;
    EXPECT_EQ(walk_by(heap, &seen, [&](void *, size_t bytes) {
        more.push_back(heap.alloc(bytes));
        void *grown = quire_heap_realloc(heap, heap.alloc(40), 200000);
        EXPECT_NE(grown, nullptr);
        quire_heap_free(heap, grown);
        if (more.size() % 25 == 0) {
            EXPECT_EQ(quire_heap_check(heap), nullptr);
            EXPECT_GT(heap.stats().live_blocks, blocks.size());
            quire_heap_trim(heap);
        }
        return 0;
    }), 0);
    for (void *p : blocks)
        EXPECT_EQ(seen.count(p), 1u);
    heap.free(blocks), heap.free(more);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST_P(HeapWalk, its_function_may_free_what_it_is_shown_and_all_goes_back)
{
    Blocks blocks = some(heap);
    size_t all = blocks.size();
    std::map<void *, size_t> seen;
    EXPECT_EQ(walk_by(heap, &seen, [&](void *p, size_t) {
        quire_heap_free(heap, p);
        EXPECT_EQ(heap.stats().live_blocks, --all);
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        return 0;
    }), 0);
    EXPECT_EQ(seen.size(), blocks.size());
    quire_heap_trim(heap);
    HeapStats stats = heap.stats();
    EXPECT_EQ(stats.live_blocks, 0u);
    if (GetParam() == 0) {
        EXPECT_EQ(stats.pages, 0u) << "no page is kept for a walk that has ended";
        EXPECT_EQ(stats.mapped_bytes, stats.meta_bytes);
    }
}

TEST_P(HeapWalk, what_its_function_frees_ahead_of_it_can_be_read_if_it_is_visited)
{
    Blocks blocks = some(heap);
    std::set<void *> freed;
    int seen = 0;
    EXPECT_EQ(walk_by(heap, nullptr, [&](void *block, size_t usable) {
        seen += static_cast<volatile char *>(block)[usable / 2] < 0;
        if (freed.empty())
            for (void *p : blocks)
                if (p != block && freed.insert(p).second)
                    quire_heap_free(heap, p);
        return 0;
    }), 0);
    EXPECT_LE(seen, int(blocks.size()));
    EXPECT_EQ(heap.stats().live_blocks, 1u);
}

TEST_P(HeapWalk, a_block_that_another_thread_frees_meanwhile_can_be_read)
{
    if (memory_is_watched())
        GTEST_SKIP() << "a sanitizer sees to it that nobody does";
    for (size_t bytes : {size_t(100), size_t(3000), size_t(100000), 3 * mib}) {
        char *p = heap.alloc(bytes);
        memset(p, 1, bytes);
        int seen = 0;
        EXPECT_EQ(walk_by(heap, nullptr, [&](void *block, size_t usable) {
            EXPECT_EQ(block, p);
            std::thread([&] {
                quire_heap_free(heap, p);
                quire_heap_trim(heap);
                quire_source_trim(quire_source_default());
            }).join();
            for (size_t i = 16; i < usable; i += 512) /* behind its mark */
                seen += static_cast<volatile char *>(block)[i] <= 1; /* as it was, or wiped */
            EXPECT_EQ(heap.stats().live_blocks, 0u);
            EXPECT_EQ(quire_heap_check(heap), nullptr);
            return 0;
        }), 0);
        EXPECT_GT(seen, 0);
        quire_heap_trim(heap);
        EXPECT_EQ(heap.stats().large_blocks, 0u);
    }
}

TEST_P(HeapWalk, a_large_block_is_copied_and_not_moved_while_a_walk_stands_on_it)
{
    if (memory_is_watched())
        GTEST_SKIP() << "there every realloc copies";
    char *p = heap.alloc(3 * mib), *moved = nullptr;
    fill(p, 3 * mib, 1);
    EXPECT_EQ(walk_by(heap, nullptr, [&](void *block, size_t usable) {
        if (moved)
            return 0; /* the copy: allocated meanwhile */
        moved = static_cast<char *>(quire_heap_realloc(heap, block, 64 * mib));
        EXPECT_NE(moved, block);
        EXPECT_NE(static_cast<volatile char *>(block)[usable - 1], 77);
        return 0;
    }), 0);
    ASSERT_NE(moved, nullptr);
    std::vector<char> wanted(3 * mib);
    fill(wanted.data(), 3 * mib, 1);
    EXPECT_EQ(memcmp(moved, wanted.data(), 3 * mib), 0);
    EXPECT_EQ(heap.stats().large_blocks, 1u);
    quire_heap_free(heap, quire_heap_realloc(heap, moved, 80 * mib));
}

TEST_P(HeapWalk, walks_may_be_inside_one_another)
{
    Blocks blocks = some(heap);
    int outer = 0, inner = 0;
    EXPECT_EQ(walk_by(heap, nullptr, [&](void *, size_t) {
        outer++;
        return walk_by(heap, nullptr, [&](void *, size_t) { return ++inner % 1000 == 0 ? 5 : 0; });
    }), 5);
    EXPECT_EQ(inner, 1000);
    EXPECT_EQ(outer, 1000 / int(blocks.size()) + 1);
    heap.free(blocks);
    quire_heap_trim(heap);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST_P(HeapWalk, more_walks_than_a_page_can_count_keep_it_for_good_and_nothing_else)
{
    char *p = heap.alloc(100), *large = heap.alloc(100000);
    int depth = 0;
    std::function<int(void *, size_t)> deeper = [&](void *block, size_t) {
        if (block != (depth < 300 ? static_cast<void *>(p) : large))
            return 0;
        return ++depth < 600 ? walk_by(heap, nullptr, deeper) : 9;
    };
    EXPECT_EQ(walk_by(heap, nullptr, deeper), 9);
    quire_heap_free(heap, p), quire_heap_free(heap, large);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST_P(HeapWalk, its_function_may_fork)
{
    Blocks blocks = some(heap);
    int forks = 0;
    EXPECT_EQ(walk_by(heap, nullptr, [&](void *p, size_t) {
        if (++forks % 30 != 0)
            return 0;
        pid_t child = fork();
        if (child == 0) {
            quire_heap_free(heap, p);
            void *fresh = quire_heap_alloc(heap, 100);
            _exit(!fresh || quire_heap_check(heap) ? 1 : 0);
        }
        int status = -1;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        return 0;
    }), 0);
    heap.free(blocks);
}

TEST_P(HeapWalk, the_child_of_a_fork_goes_on_with_the_walk)
{
    Blocks blocks = some(heap);
    bool is_child = false;
    size_t count = 0;
    int result = walk_by(heap, nullptr, [&](void *p, size_t) {
        if (++count == blocks.size() / 2)
            is_child = fork() == 0;
        if (is_child)
            quire_heap_free(heap, p);
        return 0;
    });
    if (is_child)
        _exit(result != 0 || count != blocks.size() || quire_heap_trim(heap) == 0 || quire_heap_check(heap) ? 1 : 0);
    int status = -1;
    EXPECT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(count, blocks.size());
    heap.free(blocks);
}
