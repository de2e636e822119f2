// SPDX-License-Identifier: MIT
/* Those who look from outside and those who are looked at: no race that a sanitizer sees, and figures that still add up. */
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <quire/heap.h>
#include <quire/slab.h>
#include <quire/stats.h>

#include "arena/arena_internal.h"
#include "look/live.h"
#include "look/look_out.h"

namespace {

bool adds_up(const arena_glance *glance, void *arg)
{
    const auto &figures = glance->figures;
    if (figures.live_bytes + figures.rest_bytes != figures.mapped_bytes || figures.peak_bytes < figures.mapped_bytes)
        ++*static_cast<int *>(arg);
    return true;
}

/* Named arenas are born, used, go back and end. */
void arena_user(const std::atomic<bool> *stop, std::atomic<int> *rounds)
{
    quire_arena_opts opts = {};
    opts.name = "query";
    while (!*stop) {
        quire_arena *arena = quire_arena_create(&opts);
        for (int round = 0; round < 3; round++) {
            struct quire_arena_mark mark = quire_arena_mark(arena);
            for (int i = 0; i < 300; i++)
                memset(quire_arena_alloc(arena, (size_t)i + 1), 1, (size_t)i + 1);
            quire_arena_alloc(arena, 5 << 20);
            quire_arena_rewind(arena, mark);
            quire_arena_alloc(arena, 20000);
            quire_arena_reset(arena);
        }
        quire_arena_destroy(arena);
        ++*rounds;
    }
}

void slab_and_heap_user(quire_slab *slab, quire_heap *heap, const std::atomic<bool> *stop)
{
    std::vector<void *> elements, blocks;
    while (!*stop) {
        for (int i = 0; i < 200; i++) {
            elements.push_back(quire_slab_alloc(slab));
            blocks.push_back(quire_heap_alloc(heap, (size_t)i * 7 + 1));
        }
        for (void *element : elements)
            quire_slab_free(slab, element);
        for (void *block : blocks)
            quire_heap_free(heap, block);
        elements.clear();
        blocks.clear();
    }
}

} // namespace

TEST(LiveRace, arenas_that_are_looked_at_while_they_work_add_up)
{
    arena_list_begin();
    std::atomic<bool> stop{false};
    std::atomic<int> rounds{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; i++)
        threads.emplace_back(arena_user, &stop, &rounds);
    int wrong = 0, null = open("/dev/null", O_WRONLY);
    for (int i = 0; i < 2000 || rounds < 20; i++) {
        arena_list_each(adds_up, &wrong);
        if (i % 100 == 0) {
            EXPECT_EQ(quire_stats_write(null, QUIRE_STATS_PROMETHEUS), 0);
        }
    }
    stop = true;
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(wrong, 0);
    close(null);
}

TEST(LiveRace, a_map_is_drawn_while_slabs_and_heaps_are_at_work)
{
    std::atomic<bool> stop{false};
    quire_slab *slab = quire_slab_create(56, nullptr);
    quire_heap *heap = quire_heap_create(nullptr);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++)
        threads.emplace_back(slab_and_heap_user, slab, heap, &stop);
    int null = open("/dev/null", O_WRONLY);
    for (int i = 0; i < 40; i++) {
        out out;
        out_begin(&out, null);
        live_map(&out, nullptr);
        EXPECT_EQ(out_end(&out), 0);
    }
    stop = true;
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(quire_slab_check(slab), nullptr);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
    quire_slab_destroy(slab);
    quire_heap_destroy(heap);
    close(null);
}
