// SPDX-License-Identifier: MIT
/* A secure heap's large block grows while the system refuses something: it is whole, zero where it is new, and closed behind. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include <quire/heap.h>

#include "support.h"

static const size_t step = 256 << 10;

TEST(HeapSealedFault, a_secure_block_that_grows_and_cannot_be_moved_or_its_room_be_closed_is_whole)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not resized in place there";
    const std::tuple<os_call, uint64_t, bool> ways[] = {
        {OS_REMAP, 1, false}, {OS_REMAP, 1, true}, {OS_MAP, 1, false}, {OS_MAP, 2, true}, {OS_PROTECT, 1, false}, {OS_SEAL, 1, true}};
    for (auto [kind, nth, onwards] : ways) {
        quire_heap_opts opts = {};
        opts.flags = QUIRE_HEAP_SECURE;
        quire_heap *heap = quire_heap_create(&opts);
        char *p = static_cast<char *>(quire_heap_alloc(heap, 2 * step));
        memset(p, 'x', 2 * step);
        for (size_t bytes = 3 * step; bytes < 20 * step; bytes += step) {
            char *grown;
            {
                Fault fault(kind, nth, onwards);
                grown = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
            }
            p = grown ? grown : static_cast<char *>(quire_heap_realloc(heap, p, bytes));
            ASSERT_NE(p, nullptr) << kind << ", " << bytes;
            ASSERT_TRUE(std::all_of(p, p + bytes - step, [](char c) { return c == 'x'; })) << kind << ", " << bytes;
            ASSERT_TRUE(std::all_of(p + bytes - step, p + bytes, [](char c) { return c == 0; })) << kind << ", " << bytes;
            ASSERT_FALSE(os_is_readable(p + bytes)) << kind << ", " << bytes;
            memset(p, 'x', bytes);
        }
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        quire_heap_free(heap, p);
        quire_heap_destroy(heap);
    }
}
