// SPDX-License-Identifier: MIT
// Misuse of the slab itself: destroyed twice, used afterwards, released too often; and what the line says.
#include "death/slab_death.h"

/* ---- the slab itself ---- */

TEST(SlabHandleDeathTest, a_slab_without_a_name_is_refused_without_one)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    void *p = quire_slab_alloc(slab);
    quire_slab_free(slab, p);
    EXPECT_DEATH(quire_slab_free(slab, p), "^quire: slab: E1 the element is free already: address 0x[0-9a-f]+\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, names_are_copied_and_cut_to_31_bytes)
{
    char name[] = "0123456789012345678901234567890123456789";
    quire_slab_opts opts = {};
    opts.name = name;
    quire_slab *slab = quire_slab_create(64, &opts);
    memset(name, 'x', sizeof name - 1);
    EXPECT_DEATH(quire_slab_free(slab, name), "^quire: slab \"0123456789012345678901234567890\": E2 not an address of a slab: address 0x[0-9a-f]+\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, the_line_says_the_address_that_was_given)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    EXPECT_DEATH(quire_slab_free(slab, reinterpret_cast<void *>(0x1234560L)), "^quire: slab: E2 not an address of a slab: address 0x1234560\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, the_panic_hook_gets_the_line_and_the_address)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    quire_on_panic([](const char *message, const void *address) { fprintf(stderr, "hook: %s, %p\n", message, address); });
    EXPECT_DEATH(quire_slab_free(slab, reinterpret_cast<void *>(0x1234560L)),
                 "hook: quire: slab: E2 not an address of a slab: address 0x1234560, 0x1234560\n");
    quire_on_panic(nullptr);
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, destroyed_twice)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_SINGLE_THREAD}) {
        quire_slab_opts opts = {};
        opts.name = "conn", opts.flags = flags;
        quire_slab *slab = quire_slab_create(64, &opts);
        quire_slab_destroy(slab);
        EXPECT_DEATH(quire_slab_destroy(slab), e5);
    }
}

TEST(SlabHandleDeathTest, destroyed_by_a_pointer_to_something_else)
{
    static long long not_a_slab[512];
    EXPECT_DEATH(quire_slab_destroy(reinterpret_cast<quire_slab *>(not_a_slab)), e5);
    EXPECT_DEATH(quire_slab_destroy(reinterpret_cast<quire_slab *>(4096L)), e5);
    quire_slab *slab = quire_slab_create(64, nullptr);
    void *p = quire_slab_alloc(slab);
    EXPECT_DEATH(quire_slab_destroy(static_cast<quire_slab *>(p)), e5) << "an element of it";
    quire_arena *arena = quire_arena_create(nullptr);
    EXPECT_DEATH(quire_slab_destroy(reinterpret_cast<quire_slab *>(arena)), e5);
    quire_arena_destroy(arena);
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, used_after_destroy)
{
    if (!QUIRE_CHECK || BUILT_WITH_ASAN)
        GTEST_SKIP() << "the check build promises this; AddressSanitizer has words of its own";
    for (uint32_t flags : {0u, QUIRE_SLAB_SINGLE_THREAD}) {
        quire_slab_opts opts = {};
        opts.name = "conn", opts.flags = flags;
        quire_slab *slab = quire_slab_create(64, &opts);
        void *p = quire_slab_alloc(slab), *batch[2] = {p, nullptr};
        struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
        quire_slab_destroy(slab);
        EXPECT_DEATH(quire_slab_alloc(slab), e5);
        EXPECT_DEATH(quire_slab_alloc_zero(slab), e5);
        EXPECT_DEATH(quire_slab_alloc_batch(slab, batch, 2), e5);
        EXPECT_DEATH(quire_slab_free(slab, p), e5);
        EXPECT_DEATH(quire_slab_free_batch(slab, batch, 2), e5);
        EXPECT_DEATH(quire_slab_trim(slab), e5);
        EXPECT_DEATH(quire_slab_stats(slab, &stats), e5);
        EXPECT_DEATH(quire_slab_check(slab), e5);
        EXPECT_DEATH(quire_slab_set_defrag(slab, 1), e5);
        EXPECT_DEATH(quire_slab_walk(slab, [](void *, void *) { return 0; }, nullptr), e5);
        EXPECT_DEATH(quire_slab_owns(slab, p), e5);
    }
}

TEST(SlabHandleDeathTest, an_element_of_a_destroyed_slab_given_to_another)
{
    quire_slab *gone = quire_slab_create(64, nullptr);
    void *p = nullptr;
    for (int i = 0; i < 10000; i++)
        p = quire_slab_alloc(gone);
    quire_slab_destroy(gone);
    quire_slab_opts opts = {};
    opts.name = "conn";
    quire_slab *slab = quire_slab_create(4000, &opts);
    EXPECT_DEATH(quire_slab_free(slab, p), "^quire: slab \"conn\": E[234] [a-z ]+: address 0x[0-9a-f]+\n");
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, released_more_often_than_acquired)
{
    quire_slab *kept = quire_slab_shared_acquire(72), *slab = quire_slab_shared_acquire(80);
    quire_slab_shared_release(slab);
    EXPECT_DEATH(quire_slab_shared_release(slab), e6);
    EXPECT_DEATH({ quire_slab_shared_release(kept); quire_slab_shared_release(kept); }, e6);
    quire_slab *large = quire_slab_shared_acquire(5000);
    EXPECT_DEATH({ quire_slab_shared_release(large); quire_slab_shared_release(large); }, e6);
    quire_slab_shared_release(kept), quire_slab_shared_release(large);
}

TEST(SlabHandleDeathTest, released_though_it_was_not_acquired)
{
    quire_slab *slab = quire_slab_create(64, nullptr);
    static long long not_a_slab[512];
    EXPECT_DEATH(quire_slab_shared_release(slab), e6);
    EXPECT_DEATH(quire_slab_shared_release(reinterpret_cast<quire_slab *>(not_a_slab)), e6);
    quire_slab_destroy(slab);
}

TEST(SlabHandleDeathTest, asan_sees_uses_of_freed_elements_and_writes_beside_live_ones)
{
    if (!BUILT_WITH_ASAN)
        GTEST_SKIP() << "this is what AddressSanitizer is asked";
    for (uint32_t flags : {0u, QUIRE_SLAB_SINGLE_THREAD}) {
        quire_slab_opts opts = {};
        opts.flags = flags;
        quire_slab *slab = quire_slab_create(10, &opts);
        char *p = static_cast<char *>(quire_slab_alloc(slab)), *q = static_cast<char *>(quire_slab_alloc(slab));
        volatile int behind = 10, before = -1;
        p[0] = p[9] = q[0] = q[9] = 1;
        EXPECT_DEATH(p[behind] = 1, "use-after-poison");
        EXPECT_DEATH(q[before] = 1, "use-after-poison") << "into the one before it";
        EXPECT_DEATH(q[behind] = 1, "use-after-poison");
        void *batch[40];
        ASSERT_EQ(quire_slab_alloc_batch(slab, batch, 40), 40u);
        EXPECT_DEATH(static_cast<char *>(batch[20])[behind] = 1, "use-after-poison");
        quire_slab_free(slab, p);
        EXPECT_DEATH(*p = 1, "use-after-poison");
        Worker().run([&] { quire_slab_free(slab, q); });
        EXPECT_DEATH(*q = 1, "use-after-poison");
        quire_slab_free_batch(slab, batch, 40);
        EXPECT_DEATH(*static_cast<char *>(batch[20]) = 1, "use-after-poison");
        quire_slab_trim(slab);
        EXPECT_DEATH(*static_cast<char *>(batch[20]) = 1, "use-after-poison|SEGV");
        quire_slab_destroy(slab);
        EXPECT_DEATH(*p = 1, "use-after-poison|SEGV");
    }
}
