// SPDX-License-Identifier: MIT
/* What `free` finds beside the page map, while others write it. */
#include "race/heap_race.h"

#define class class_ /* a parameter's name there */
#include "heap/heap_quick.h"
#undef class

/* Neither what lies elsewhere nor what lies between two blocks is freed by the short way, whatever comes and goes there meanwhile. */
TEST(HeapNoteRace, addresses_that_are_no_blocks_are_left_alone_while_pages_come_and_go)
{
    quire_heap *heap = quire_heap_default();
    const uintptr_t far = (size_load_relaxed(&pagemap_near.mask) + 1) * os_page_bytes();
    std::atomic<uintptr_t> some{0};
    std::atomic<bool> is_over{false};
    std::atomic<size_t> looked{0};
    std::vector<std::thread> strangers;
    for (int t = 0; t < 2; t++)
        strangers.emplace_back([&] {
            quire_heap_free(heap, quire_heap_alloc(heap, 16)); /* a local of its own */
            for (; !is_over; looked++) {
                EXPECT_FALSE(heap_quick_free_noted(heap_tls.self, reinterpret_cast<void *>(some ^ far), false, 0));
                EXPECT_FALSE(heap_quick_free_noted(heap_tls.self, reinterpret_cast<void *>(some + 8), false, 0));
            }
        });
    for (unsigned round = 0; round < (test_long() ? 2000 : 100) || looked < 1000; round++) {
        std::vector<void *> blocks;
        for (size_t i = 0; i < 500; i++)
            blocks.push_back(quire_heap_alloc(heap, 1000 + i % 8 * 1000));
        some = reinterpret_cast<uintptr_t>(blocks[round % 500]);
        for (void *p : blocks)
            quire_heap_free(heap, p);
        quire_heap_trim(heap);
    }
    is_over = true;
    for (auto &thread : strangers)
        thread.join();
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}
