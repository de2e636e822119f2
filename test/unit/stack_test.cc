// SPDX-License-Identifier: MIT
/* How much of the caller's stack calls take: also threads with 16 KiB, and coroutines with less, allocate. */
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include <quire/arena.h>
#include <quire/percpu.h>

#include "support.h"
#include "unit/heap_scope.h"
#include "unit/slab_scope.h"

namespace {
#define SKIP_WATCHED() \
    if (memory_is_watched()) \
    GTEST_SKIP() << "frames are a sanitizer's here"

const size_t PAINTED = 64 << 10;
const size_t DEPTH_MAX = QUIRE_CHECK ? 6144 : 2048; /* not optimised, frames are three times as large; the deepest call starts the clock's thread */
const size_t COUNT = 40000; /* of 256 bytes: 10 MB, all of which is freed in another order, and allocated again */

/* Below the caller's frame, where the call to be measured will have its own. */
__attribute__((noinline)) void paint()
{
    volatile unsigned char stack[PAINTED];
    for (volatile unsigned char &byte : stack)
        byte = 0xA5;
}

__attribute__((noinline)) size_t painted_over()
{
    volatile unsigned char stack[PAINTED];
    __asm__ volatile("" : "=m"(stack)); /* it has what paint() and the call left */
    size_t untouched = 0;
    while (untouched < PAINTED && stack[untouched] == 0xA5)
        untouched++;
    return PAINTED - untouched;
}

size_t depth(const std::function<void()> &call)
{
    paint();
    call();
    return painted_over();
}

struct Many {
    std::vector<void *> all = std::vector<void *>(COUNT);
    uint64_t random = 88172645463325252u;
    void shuffle()
    {
        for (void *&block : all) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            std::swap(block, all[(random >> 33) % COUNT]);
        }
    }
};

/* Twice, since what is freed is kept in other ways once it has been missed. */
template <class Alloc, class Free> void expect_shallow(Alloc alloc, Free free)
{
    Many blocks;
    for (int round = 0; round < 3; round++) {
        EXPECT_LE(depth([&] { for (void *&block : blocks.all) block = alloc(); }), DEPTH_MAX) << "alloc, round " << round;
        blocks.shuffle();
        EXPECT_LE(depth([&] { for (void *block : blocks.all) free(block); }), DEPTH_MAX) << "free, round " << round;
    }
}
} // namespace

TEST(Stack, what_is_painted_over_is_seen)
{
    SKIP_WATCHED();
    EXPECT_GE(depth([] { volatile char frame[9000] = {}; frame[0] = frame[8999]; }), 9000u);
    EXPECT_LE(depth([] {}), 512u);
}

TEST(Stack, a_slab_takes_little_of_it)
{
    SKIP_WATCHED();
    for (size_t bytes : {64, 256, 4096}) {
        Slab slab(bytes);
        expect_shallow([&] { return quire_slab_alloc(slab); }, [&](void *element) { quire_slab_free(slab, element); });
        EXPECT_LE(depth([&] { (void)quire_slab_trim(slab); }), DEPTH_MAX);
    }
}

TEST(Stack, a_heap_takes_little_of_it)
{
    SKIP_WATCHED();
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE})
        for (size_t bytes : {64, 256, 100000}) {
            quire_heap_opts opts = {};
            opts.flags = flags;
            Heap heap(opts);
            expect_shallow([&] { return quire_heap_alloc(heap, bytes); }, [&](void *block) { quire_heap_free(heap, block); });
            EXPECT_LE(depth([&] { quire_heap_free(heap, quire_heap_realloc(heap, quire_heap_alloc(heap, bytes), 3 * bytes)); }), DEPTH_MAX);
            EXPECT_LE(depth([&] { (void)quire_heap_trim(heap); }), DEPTH_MAX);
        }
}

TEST(Stack, a_pool_takes_little_of_it)
{
    SKIP_WATCHED();
    struct quire_percpu *pool = quire_percpu_create(nullptr);
    std::vector<quire_percpu_ref> refs(COUNT);
    for (int round = 0; round < 3; round++) {
        EXPECT_LE(depth([&] { for (quire_percpu_ref &ref : refs) ref = quire_percpu_alloc(pool, 64, 0); }), DEPTH_MAX);
        EXPECT_LE(depth([&] { for (quire_percpu_ref ref : refs) quire_percpu_free(pool, ref); }), DEPTH_MAX);
    }
    quire_percpu_destroy(pool);
}

TEST(Stack, an_arena_takes_little_of_it)
{
    SKIP_WATCHED();
    struct quire_arena *arena = nullptr;
    EXPECT_LE(depth([&] { arena = quire_arena_create(nullptr); }), DEPTH_MAX);
    EXPECT_LE(depth([&] { for (size_t i = 0; i < COUNT; i++) (void)quire_arena_alloc(arena, i % 3000); }), DEPTH_MAX);
    EXPECT_LE(depth([&] { quire_arena_reset(arena); }), DEPTH_MAX);
    EXPECT_LE(depth([&] { quire_arena_destroy(arena); }), DEPTH_MAX);
}
