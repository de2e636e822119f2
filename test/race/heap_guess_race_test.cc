// SPDX-License-Identifier: MIT
/* What `free` finds in the page map for an address that is not ours, while others give back what it leads to. */
#include "race/heap_race.h"

#define class class_ /* a parameter's name there */
#include "heap/heap_quick.h"
#undef class

/* By the short way of `free` such an address leads to the header of a page of ours, which others give back meanwhile: it is read while that is still one. */
TEST(HeapGuessRace, addresses_of_others_that_lead_to_pages_which_go_are_left_alone)
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
            for (; !is_over; looked++)
                EXPECT_FALSE(heap_quick_free_guessed(heap_tls.self, reinterpret_cast<void *>(some ^ far), false, 0));
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

/* Whoever is inside may have found a header there: its memory stays until he was seen outside. */
TEST(HeapGuessRace, headers_that_nobody_uses_any_more_stay_while_a_thread_is_inside)
{
    quire_heap *heap = quire_heap_default();
    std::vector<void *> blocks;
    for (size_t i = 0; i < 20000; i++)
        blocks.push_back(quire_heap_alloc(heap, 3000));
    for (void *p : blocks)
        quire_heap_free(heap, p);
    lock_take(&heap->lock);
    bool has_idle = headers_idle(&heap->headers);
    lock_drop(&heap->lock);
    ASSERT_TRUE(has_idle) << "the pages of 60 MB went, and their headers with them";
    std::atomic<int> step{0};
    auto reaches = [&](int wanted) {
        for (int ms = 0; step < wanted && ms < 5000; ms++)
            usleep(1000);
        return step >= wanted;
    };
    std::thread inside([&] {
        quire_heap_free(heap, quire_heap_alloc(heap, 16)); /* a local of its own */
        step = bias_enter(&heap_tls.self->door.bias) ? 1 : 2; /* by the short way alone: where there is none, nobody looks by guess */
        if (step == 1 && reaches(2)) {
            usleep(50000);
            step = 3;
            bias_leave(&heap_tls.self->door.bias);
        }
    });
    ASSERT_TRUE(reaches(1));
    bool has_short_way = step == 1;
    heap_list_lock();
    step = 2;
    heap_chunks_trim(heap);
    EXPECT_TRUE(!has_short_way || step == 3) << "they went at step " << step;
    heap_list_unlock();
    inside.join();
}
