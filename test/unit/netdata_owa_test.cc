// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <quire/compat/netdata.h>

#include "base/compiler.h"
#include "support.h"

TEST(OneWayAlloc, every_call_of_the_original_does_what_callers_rely_on)
{
    ONEWAYALLOC *owa = onewayalloc_create(0);
    ASSERT_NE(owa, nullptr);
    EXPECT_NE(onewayalloc_mallocz(owa, 0), nullptr);
    for (size_t size = 1; size < 5000; size += 7) {
        void *p = onewayalloc_mallocz(owa, size);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 16, 0u) << "the original gave 8";
        memset(p, 0xff, size);
    }
    char *zeroed = static_cast<char *>(onewayalloc_callocz(owa, 100, 30));
    for (int i = 0; i < 3000; i++)
        ASSERT_EQ(zeroed[i], 0);
    EXPECT_STREQ(onewayalloc_strdupz(owa, "context"), "context");
    EXPECT_EQ(memcmp(onewayalloc_memdupz(owa, "a\0b", 3), "a\0b", 3), 0);
    char *text = onewayalloc_strdupz(owa, "0123456");
    char *twice = static_cast<char *>(onewayalloc_doublesize(owa, text, 8));
    EXPECT_EQ(twice, text) << "the last block doubles where it is";
    EXPECT_STREQ(twice, "0123456");
    onewayalloc_strdupz(owa, "behind it");
    char *moved = static_cast<char *>(onewayalloc_doublesize(owa, twice, 16));
    EXPECT_NE(moved, twice);
    EXPECT_STREQ(moved, "0123456");
    onewayalloc_freez(owa, moved);
    onewayalloc_freez(owa, nullptr);
    EXPECT_STREQ(moved, "0123456") << "freez does nothing";
    onewayalloc_destroy(owa);
}

TEST(OneWayAlloc, null_arenas_are_left_alone)
{
    onewayalloc_reset(nullptr);
    onewayalloc_destroy(nullptr);
}

TEST(OneWayAlloc, the_memory_of_all_arenas_of_the_process_is_counted)
{
    size_t before = onewayalloc_allocated_memory();
    ONEWAYALLOC *a = onewayalloc_create(100000), *b = onewayalloc_create(0);
    EXPECT_GE(onewayalloc_allocated_memory(), before + 100000 + 4096);
    onewayalloc_destroy(a), onewayalloc_destroy(b);
    EXPECT_EQ(onewayalloc_allocated_memory(), before);
}

TEST(OneWayAlloc, reset_empties_without_clearing_and_keeps_the_pages)
{
    ONEWAYALLOC *owa = onewayalloc_create(0);
    void *first = onewayalloc_mallocz(owa, 100);
    onewayalloc_mallocz(owa, 1 << 20);
    size_t held = onewayalloc_allocated_memory();
    onewayalloc_reset(owa);
    EXPECT_EQ(onewayalloc_allocated_memory(), held);
    EXPECT_EQ(onewayalloc_mallocz(owa, 100), first);
    onewayalloc_destroy(owa);
}

TEST(OneWayAlloc, checked_products_are_products)
{
    EXPECT_EQ(onewayalloc_mul_or_fatal(6, 7, "test"), 42u);
    EXPECT_EQ(onewayalloc_mul_or_fatal(0, SIZE_MAX, "test"), 0u);
    EXPECT_EQ(onewayalloc_mul3_or_fatal(2, 3, 7, "test"), 42u);
}

TEST(OneWayAllocDeathTest, what_cannot_be_had_ends_the_process_with_the_name_of_the_call)
{
    ONEWAYALLOC *owa = onewayalloc_create(0);
    volatile size_t huge = SIZE_MAX;
    EXPECT_DEATH(onewayalloc_mallocz(owa, huge), "^quire: onewayalloc \"mallocz\": N1 out of memory: address 0x[0-9a-f]+\n");
    EXPECT_DEATH(onewayalloc_callocz(owa, huge, 2), "^quire: onewayalloc \"callocz\": N1 out of memory: address 0x[0-9a-f]+\n");
    EXPECT_DEATH(onewayalloc_create(huge), "^quire: onewayalloc \"create\": N1 out of memory: address 0x0\n");
    EXPECT_DEATH(onewayalloc_doublesize(owa, "x", huge / 2 + 1), "^quire: onewayalloc \"doublesize\": N3 the size overflows: address 0x0\n");
    EXPECT_DEATH(onewayalloc_mul_or_fatal(huge, 2, "points"), "^quire: onewayalloc \"points\": N3 the size overflows: address 0x0\n");
    EXPECT_DEATH(onewayalloc_mul3_or_fatal(huge / 2, 2, 2, "rows"), "^quire: onewayalloc \"rows\": N3 the size overflows: address 0x0\n");
    EXPECT_DEATH(onewayalloc_strdupz(owa, nullptr), "^quire: onewayalloc \"strdupz\": N7 a copy of NULL: address 0x");
    EXPECT_DEATH(onewayalloc_memdupz(owa, nullptr, 3), "^quire: onewayalloc \"memdupz\": N7 a copy of NULL: address 0x");
    onewayalloc_destroy(owa);
}

TEST(OneWayAllocDeathTest, freeing_a_foreign_pointer_is_reported_in_the_check_build)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the release build looks at nothing here";
    ONEWAYALLOC *owa = onewayalloc_create(0);
    char local;
    EXPECT_DEATH(onewayalloc_freez(owa, &local), "^quire: onewayalloc \"freez\": N2 a pointer that is not this arena's: address 0x[0-9a-f]+\n");
    onewayalloc_destroy(owa);
}
