// SPDX-License-Identifier: MIT
/* One slab for each size, shared by all who ask and counted. */
#include <gtest/gtest.h>

#include <thread>

#include "unit/slab_scope.h"

TEST(SlabShared, all_who_ask_for_one_size_share_its_slab)
{
    quire_slab *a = quire_slab_shared_acquire(64), *b = quire_slab_shared_acquire(64), *other = quire_slab_shared_acquire(65);
    ASSERT_TRUE(a && other);
    EXPECT_EQ(a, b);
    EXPECT_NE(a, other);
    EXPECT_EQ(slab_stats(a).element_bytes, 64u);
    EXPECT_EQ(slab_stats(other).element_bytes, 65u);
    void *p = quire_slab_alloc(a);
    quire_slab_free(b, p);
    for (quire_slab *slab : {a, b, other})
        quire_slab_shared_release(slab);
}

TEST(SlabShared, the_last_release_ends_it_and_not_one_before)
{
    quire_slab *slab = nullptr;
    for (int i = 0; i < 100; i++)
        slab = quire_slab_shared_acquire(40);
    void *p = quire_slab_alloc(slab);
    for (int i = 0; i < 99; i++)
        quire_slab_shared_release(slab);
    EXPECT_TRUE(quire_slab_owns(slab, p));
    quire_slab_free(slab, p);
    quire_slab_shared_release(slab);
    quire_slab *next = quire_slab_shared_acquire(40);
    EXPECT_EQ(slab_stats(next).live_elements, 0u);
    EXPECT_NE(quire_slab_alloc(next), nullptr) << "what is left is freed";
    quire_slab_shared_release(next);
}

TEST(SlabShared, every_size_up_to_1024_has_its_own_and_above_each_caller)
{
    std::vector<quire_slab *> slabs;
    for (size_t bytes = 0; bytes <= 1024; bytes++) {
        quire_slab *slab = quire_slab_shared_acquire(bytes);
        ASSERT_NE(slab, nullptr) << bytes;
        ASSERT_EQ(quire_slab_shared_acquire(bytes), slab) << bytes;
        ASSERT_LE(std::max<size_t>(bytes, 1), slab_stats(slab).slot_bytes);
        memset(quire_slab_alloc(slab), 1, std::max<size_t>(bytes, 1));
        slabs.push_back(slab);
    }
    std::vector<quire_slab *> different = slabs;
    std::sort(different.begin() + 1, different.end()); /* those of no and of one byte may be one */
    EXPECT_EQ(std::unique(different.begin() + 1, different.end()), different.end());
    for (quire_slab *slab : slabs) {
        quire_slab_shared_release(slab);
        quire_slab_shared_release(slab);
    }
    quire_slab *a = quire_slab_shared_acquire(1025), *b = quire_slab_shared_acquire(1025);
    EXPECT_NE(a, b);
    quire_slab_shared_release(a);
    EXPECT_NE(quire_slab_alloc(b), nullptr);
    quire_slab_shared_release(b);
}

TEST(SlabShared, sizes_that_cannot_be_are_enomem)
{
    for (size_t bytes : {SIZE_MAX, SIZE_MAX - 15, size_t(PTRDIFF_MAX)}) {
        errno = 0;
        EXPECT_EQ(quire_slab_shared_acquire(bytes), nullptr);
        EXPECT_EQ(errno, ENOMEM);
    }
}

TEST(SlabShared, releasing_null_does_nothing_and_releasing_keeps_errno)
{
    errno = 42;
    quire_slab_shared_release(nullptr);
    quire_slab *shared = quire_slab_shared_acquire(32), *own = quire_slab_shared_acquire(4096);
    errno = 43;
    quire_slab_shared_release(shared);
    quire_slab_shared_release(own);
    EXPECT_EQ(errno, 43);
}

TEST(SlabShared, threads_that_come_and_go_at_once_always_find_a_live_one)
{
    auto work = [] {
        for (int i = 0; i < 500; i++) {
            quire_slab *slab = quire_slab_shared_acquire(size_t(48 + i % 2));
            ASSERT_NE(slab, nullptr);
            void *p = quire_slab_alloc(slab);
            ASSERT_NE(p, nullptr);
            memset(p, i, 48);
            quire_slab_free(slab, p);
            quire_slab_shared_release(slab);
        }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back(work);
    for (std::thread &thread : threads)
        thread.join();
}
