// SPDX-License-Identifier: MIT
// Statistics asked for with a struct whose length was never set.
#include <gtest/gtest.h>

#include <quire/heap.h>
#include <quire/slab.h>

TEST(AbiDeathTest, statistics_with_a_length_that_no_version_had)
{
    struct quire_heap_stats heap = {.struct_bytes = 17};
    EXPECT_DEATH(quire_heap_stats(quire_heap_default(), &heap), "^quire: statistics \"quire_heap_stats\": E1 struct_bytes is neither 0 nor a size of this struct: address 0x[0-9a-f]+\n");
    struct quire_source_stats source = {.struct_bytes = size_t(&source)};
    EXPECT_DEATH(quire_source_stats(quire_source_default(), &source), "^quire: statistics \"quire_source_stats\": E1 struct_bytes is neither 0 nor a size of this struct: address 0x[0-9a-f]+\n");
    struct quire_heap_class_stats size = {.struct_bytes = sizeof size - 1};
    EXPECT_DEATH(quire_heap_class_stats(quire_heap_default(), 0, &size), "^quire: statistics \"quire_heap_class_stats\": E1 struct_bytes");
}
