// SPDX-License-Identifier: MIT
/* Each sentence of quire/heap.h about single blocks: where they lie, what is in them, which sizes there are, who may free them. */
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "model/slab_worker.h"
#include "unit/heap_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;

/* Around every border there may be: multiples of 16, eighths of a doubling, the last small size, whole pages. */
std::vector<size_t> border_sizes()
{
    std::set<size_t> sizes = {0, 1, 2, 7, 8, 9};
    for (size_t middle = 16; middle <= 512; middle += 16)
        sizes.insert({middle - 1, middle, middle + 1});
    for (size_t doubling = 512; doubling <= 2 * SMALL_BYTES_MAX; doubling *= 2)
        for (size_t eighths = 8; eighths < 16; eighths++)
            sizes.insert({doubling / 8 * eighths - 1, doubling / 8 * eighths, doubling / 8 * eighths + 1});
    for (size_t large : {size_t(100000), size_t(131072), mib - 1, mib, mib + 1, 3 * mib + 5})
        sizes.insert(large);
    return {sizes.begin(), sizes.end()};
}

/* The errno of an allocation that must fail. */
int refusal(quire_heap *heap, size_t bytes, size_t align_bytes)
{
    errno = 0;
    void *p = align_bytes ? quire_heap_alloc_aligned(heap, unknown(bytes), unknown(align_bytes)) : quire_heap_alloc(heap, unknown(bytes));
    int error = errno;
    quire_heap_free(heap, p);
    return p ? 0 : error;
}
} // namespace

/* ---- sizes ---- */

TEST(Heap, blocks_of_every_size_are_aligned_apart_and_whole)
{
    Heap heap;
    std::map<char *, size_t> places; /* start -> usable bytes */
    for (size_t bytes : border_sizes())
        for (int i = 0; i < 3; i++) {
            char *p = heap.alloc(bytes);
            size_t usable = quire_heap_usable_bytes(p);
            ASSERT_EQ(uintptr_t(p) % 16, 0u) << bytes;
            ASSERT_GE(usable, bytes);
            auto after = places.lower_bound(p);
            ASSERT_TRUE(after == places.end() || p + usable <= after->first) << bytes << ": overlaps the next";
            ASSERT_TRUE(after == places.begin() || std::prev(after)->first + std::prev(after)->second <= p) << bytes << ": overlaps the one before";
            places[p] = usable;
            fill(p, usable, bytes);
            ASSERT_TRUE(quire_heap_of(p) == heap && quire_heap_owns(heap, p)) << bytes;
        }
    EXPECT_EQ(heap.stats().live_blocks, places.size());
    EXPECT_EQ(quire_heap_check(heap), nullptr);
    for (auto &[p, usable] : places) {
        ASSERT_EQ(quire_heap_usable_bytes(p), usable) << "the same later";
        quire_heap_free(heap, p);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(Heap, what_is_written_to_the_last_usable_byte_stays_until_the_block_is_freed)
{
    Heap heap;
    std::vector<size_t> sizes = border_sizes();
    Blocks blocks;
    for (size_t i = 0; i < sizes.size(); i++) {
        blocks.push_back(heap.alloc(sizes[i]));
        fill(blocks[i], quire_heap_usable_bytes(blocks[i]), i);
    }
    for (size_t i = 0; i < sizes.size(); i++)
        ASSERT_TRUE(holds(blocks[i], quire_heap_usable_bytes(blocks[i]), i)) << sizes[i];
    heap.free(blocks);
}

TEST(Heap, rounding_is_an_eighth_at_most)
{
    if (memory_is_watched())
        GTEST_SKIP() << "red zones take room";
    Heap heap;
    for (size_t bytes = 1; bytes <= SMALL_BYTES_MAX; bytes += bytes < 1100 ? 1 : 37) {
        void *p = heap.alloc(bytes);
        size_t usable = quire_heap_usable_bytes(p);
        ASSERT_LE(usable, bytes <= 512 ? (bytes + 15) / 16 * 16 : bytes + bytes / 8 + 16) << bytes;
        quire_heap_free(heap, p);
    }
    for (size_t bytes : {SMALL_BYTES_MAX + 1, size_t(100000), mib + 1})
        EXPECT_LE(quire_heap_usable_bytes(heap.alloc(bytes)), (bytes + page - 1) / page * page) << "a large block is whole pages";
}

TEST(Heap, blocks_of_no_bytes_are_each_a_block_of_its_own)
{
    Heap heap;
    std::set<void *> seen;
    for (int i = 0; i < 1000; i++) {
        seen.insert(heap.alloc(0));
        seen.insert(quire_heap_alloc_zero(heap, 0, 8));
        seen.insert(quire_heap_alloc_zero(heap, 8, 0));
        seen.insert(quire_heap_alloc_aligned(heap, 0, 256));
    }
    EXPECT_EQ(seen.size(), 4000u);
    EXPECT_EQ(seen.count(nullptr), 0u);
    EXPECT_EQ(heap.stats().live_blocks, 4000u);
    heap.free({seen.begin(), seen.end()});
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(Heap, a_fresh_page_is_handed_out_upwards)
{
    for (size_t bytes : {size_t(1), size_t(16), size_t(48), size_t(64), size_t(100), size_t(500), size_t(1000)}) {
        Heap heap;
        uintptr_t last = 0, slot = 0;
        for (int i = 0; i < 12; i++) {
            uintptr_t at = uintptr_t(heap.alloc(bytes));
            ASSERT_GT(at, last) << bytes;
            ASSERT_TRUE(slot == 0 || at - last == slot) << bytes << ": without holes";
            slot = i ? at - last : 0;
            last = at;
        }
    }
}

TEST(Heap, freed_slots_come_again_before_untouched_ones)
{
    if (memory_is_watched())
        GTEST_SKIP() << "red zones change how many fit a word";
    for (size_t count : {size_t(1), size_t(4), size_t(30)}) {
        Heap heap;
        Blocks blocks = heap.alloc_many(60, 64), expected(blocks.begin(), blocks.begin() + long(count));
        heap.free(expected);
        EXPECT_EQ(sorted(heap.alloc_many(count, 64)), sorted(expected)) << "what is in the caches already";
    }
}

/* ---- refusals ---- */

TEST(Heap, sizes_past_PTRDIFF_MAX_are_enomem_at_every_alignment)
{
    Heap heap;
    for (size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 16, SIZE_MAX - 4095, SIZE_MAX - 4096, SIZE_MAX - 65536, SIZE_MAX / 2 + 2,
                         size_t(PTRDIFF_MAX) + 1, size_t(PTRDIFF_MAX), size_t(PTRDIFF_MAX) - 1, size_t(PTRDIFF_MAX) - 4096, size_t(1) << 62,
                         size_t(1) << 48}) {
        EXPECT_EQ(refusal(heap, bytes, 0), ENOMEM) << bytes;
        for (size_t align = 1; align != 0; align *= 2)
            EXPECT_EQ(refusal(heap, bytes, align), ENOMEM) << bytes << " aligned to " << align;
        errno = 0;
        EXPECT_EQ(quire_heap_alloc_zero(heap, unknown(bytes), 1), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        errno = 0;
        EXPECT_EQ(quire_heap_alloc_zero(heap, 1, unknown(bytes)), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        char *p = heap.alloc(100);
        fill(p, 100, 1);
        errno = 0;
        EXPECT_EQ(quire_heap_realloc(heap, p, unknown(bytes)), nullptr);
        EXPECT_EQ(errno, ENOMEM);
        EXPECT_TRUE(holds(unknown(p), 100, 1)) << "as it was";
        quire_heap_free(heap, p);
        errno = 0;
        EXPECT_EQ(quire_heap_realloc(heap, nullptr, unknown(bytes)), nullptr);
        EXPECT_EQ(errno, ENOMEM);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
    EXPECT_NE(heap.alloc(10), nullptr) << "and usable";
}

TEST(Heap, alignments_that_cannot_be_are_enomem_and_those_that_are_none_einval)
{
    Heap heap;
    for (size_t bytes : {size_t(0), size_t(1), size_t(100), size_t(40000), mib})
        for (size_t align = size_t(1) << 48; align != 0; align *= 2)
            EXPECT_EQ(refusal(heap, bytes, align), ENOMEM) << bytes << " aligned to " << align;
    for (size_t bytes : {size_t(0), size_t(1), size_t(100), size_t(40000), SIZE_MAX})
        for (size_t align : {size_t(3), size_t(24), size_t(48), size_t(4097), SIZE_MAX, SIZE_MAX / 2 + 2})
            EXPECT_EQ(refusal(heap, bytes, align), EINVAL) << bytes << " aligned to " << align;
    errno = 0;
    EXPECT_EQ(quire_heap_alloc_aligned(heap, 8, unknown(size_t(0))), nullptr);
    EXPECT_EQ(errno, EINVAL) << "zero is no power of two";
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(Heap, products_that_overflow_are_enomem_and_all_others_are_as_large_as_they_say)
{
    Heap heap;
    Random random(4);
    for (int i = 0; i < (memory_is_watched() ? 4000 : 20000); i++) {
        size_t count = random.next() >> random.below(64), bytes = random.next() >> random.below(64);
        unsigned __int128 product = static_cast<unsigned __int128>(count) * bytes;
        if (product > 100000 && product < (static_cast<unsigned __int128>(1) << 48))
            continue; /* what the machine may or may not have */
        errno = 0;
        void *p = quire_heap_alloc_zero(heap, count, bytes);
        ASSERT_EQ(p != nullptr, product <= 100000) << count << " of " << bytes;
        ASSERT_TRUE(p || errno == ENOMEM);
        ASSERT_TRUE(!p || quire_heap_usable_bytes(p) >= size_t(product));
        quire_heap_free(heap, p);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(Heap, a_huge_block_that_nobody_touches_costs_nothing_by_its_size)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is memory too";
    Heap heap;
    size_t rss = rss_bytes();
    char *p = static_cast<char *>(quire_heap_alloc(heap, unknown(size_t(4) << 30)));
    if (!p)
        GTEST_SKIP() << "no 4 GiB of address space here";
    p[0] = p[(size_t(4) << 30) - 1] = 1;
    EXPECT_TRUE(quire_heap_owns(heap, p + (size_t(3) << 30)));
    EXPECT_LE(rss_bytes(), rss + mib);
    quire_heap_free(heap, p);
}

/* ---- alignment ---- */

TEST(Heap, every_alignment_is_met_for_every_size)
{
    Heap heap;
    for (size_t align = 1; align <= 2 * mib; align *= 2) {
        Blocks blocks;
        std::vector<size_t> usable;
        for (size_t bytes : {size_t(0), size_t(1), size_t(16), size_t(24), size_t(100), size_t(500), page - 1, page, page + 1, size_t(20000), SMALL_BYTES_MAX,
                             SMALL_BYTES_MAX + 1, size_t(200000)})
            for (int i = 0; i < 2; i++) {
                blocks.push_back(quire_heap_alloc_aligned(heap, bytes, align));
                ASSERT_TRUE(blocks.back()) << bytes << " aligned to " << align;
                ASSERT_EQ(uintptr_t(blocks.back()) % align, 0u) << bytes;
                ASSERT_EQ(uintptr_t(blocks.back()) % 16, 0u) << bytes << " aligned to " << align << ": never less than any other block";
                usable.push_back(quire_heap_usable_bytes(blocks.back()));
                ASSERT_GE(usable.back(), bytes);
                fill(blocks.back(), usable.back(), blocks.size());
            }
        ASSERT_EQ(heap.walk().size(), blocks.size());
        for (size_t i = 0; i < blocks.size(); i++)
            ASSERT_TRUE(holds(blocks[i], usable[i], i + 1)) << "aligned to " << align;
        ASSERT_EQ(quire_heap_check(heap), nullptr);
        heap.free(blocks);
        ASSERT_EQ(heap.stats().live_blocks, 0u);
    }
}

TEST(Heap, aligned_blocks_may_be_reallocated_like_any_other)
{
    Heap heap;
    for (size_t align : {size_t(64), page, 16 * page, mib}) {
        char *p = static_cast<char *>(quire_heap_alloc_aligned(heap, 1000, align));
        fill(p, 1000, align);
        for (size_t bytes : {size_t(1000), size_t(3000), size_t(50000), size_t(300000), size_t(1000)}) {
            p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
            ASSERT_TRUE(p && holds(p, 1000, align)) << bytes;
        }
        quire_heap_free(heap, p);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

/* ---- contents ---- */

TEST(Heap, zeroed_blocks_are_zero_also_where_older_ones_were)
{
    Heap heap;
    for (size_t bytes : {size_t(1), size_t(24), size_t(100), size_t(1000), size_t(9000), SMALL_BYTES_MAX, size_t(40000), size_t(300000), 2 * mib}) {
        size_t count = bytes > 30000 ? 4 : 200;
        for (int round = 0; round < 3; round++) {
            Blocks blocks;
            for (size_t i = 0; i < count; i++) {
                blocks.push_back(heap.alloc(bytes));
                memset(blocks.back(), 0xee, quire_heap_usable_bytes(blocks.back()));
            }
            heap.free(blocks);
            blocks.clear();
            for (size_t i = 0; i < count + 3; i++) {
                blocks.push_back(i % 2 ? quire_heap_alloc_zero(heap, 1, bytes) : quire_heap_alloc_zero(heap, bytes, 1));
                ASSERT_TRUE(blocks.back() && holds_only(blocks.back(), bytes, 0)) << bytes;
                memset(blocks.back(), 0xdd, bytes);
            }
            heap.free(blocks);
            quire_heap_trim(heap);
        }
    }
}

/* ---- freeing ---- */

TEST(Heap, freeing_null_does_nothing_and_freeing_and_destroying_keep_errno)
{
    quire_heap *heap = quire_heap_create(nullptr);
    Blocks small, large;
    for (int i = 0; i < 300; i++)
        small.push_back(quire_heap_alloc(heap, 3000));
    for (int i = 0; i < 4; i++)
        large.push_back(quire_heap_alloc(heap, mib));
    errno = 42;
    quire_heap_free(heap, nullptr);
    for (size_t i = 0; i < 150; i++)
        quire_heap_free(heap, small[i]);
    quire_heap_free(heap, large[0]);
    Worker().run([&] {
        errno = 43;
        for (size_t i = 150; i < 290; i++)
            quire_heap_free(heap, small[i]);
        quire_heap_free(heap, large[1]);
        EXPECT_EQ(errno, 43);
    });
    EXPECT_EQ(errno, 42);
    quire_heap_destroy(heap);
    quire_heap_destroy(nullptr);
    EXPECT_EQ(errno, 42);
    EXPECT_EQ(quire_heap_usable_bytes(nullptr), 0u);
    EXPECT_EQ(quire_heap_of(nullptr), nullptr);
}

/* What may be had for magazines: 64 KiB, as for free slots. */
static const size_t magazines_bytes = 64 << 10;

TEST(Heap, what_is_freed_is_allocated_again_before_more_memory_is_taken)
{
    Heap heap;
    for (size_t bytes : {size_t(64), size_t(1000), size_t(20000), size_t(100000)}) {
        size_t count = bytes > 10000 ? 50 : 3000;
        Blocks blocks = heap.alloc_many(count, bytes);
        struct quire_heap_stats before = heap.stats();
        for (int round = 0; round < 8; round++) {
            heap.free(blocks);
            blocks = heap.alloc_many(count, bytes);
            struct quire_heap_stats now = heap.stats();
            EXPECT_LE(now.mapped_bytes - now.meta_bytes, before.mapped_bytes - before.meta_bytes + before.mapped_bytes / 50 + 2 * page) << bytes;
            EXPECT_LE(now.meta_bytes, before.meta_bytes + before.mapped_bytes / 50 + 2 * page + magazines_bytes) << bytes;
        }
        heap.free(blocks);
    }
}

TEST(Heap, what_another_thread_freed_the_owner_allocates_again_before_more_memory_is_taken)
{
    Heap heap;
    Worker other;
    other.run([&] { heap.free(heap.alloc_many(1, 64)); }); /* what it costs that there is another thread */
    Blocks blocks = heap.alloc_many(5000, 64);
    struct quire_heap_stats before = heap.stats();
    for (int round = 0; round < 8; round++) {
        other.run([&] { heap.free(blocks); });
        EXPECT_EQ(heap.stats().live_blocks, 0u) << "freed is freed, whether collected or not";
        blocks = heap.alloc_many(5000, 64);
        struct quire_heap_stats now = heap.stats();
        EXPECT_LE(now.mapped_bytes - now.meta_bytes, before.mapped_bytes - before.meta_bytes + 16 * page);
        EXPECT_LE(now.meta_bytes, before.meta_bytes + magazines_bytes);
    }
    heap.free(blocks);
}

TEST(Heap, blocks_go_round_a_ring_of_threads_and_stay_whole)
{
    Heap heap;
    std::vector<std::unique_ptr<Worker>> ring;
    for (int i = 0; i < 4; i++)
        ring.push_back(std::make_unique<Worker>());
    std::vector<std::pair<char *, size_t>> blocks;
    Random random(11);
    for (size_t turn = 0; turn < 40; turn++)
        ring[turn % 4]->run([&] {
            for (size_t i = 0; i < blocks.size(); i++)
                ASSERT_TRUE(holds(blocks[i].first, blocks[i].second, blocks[i].second));
            while (blocks.size() > 50) {
                quire_heap_free(heap, blocks.back().first);
                blocks.pop_back();
            }
            while (blocks.size() < 250) {
                size_t bytes = random.below(40) ? random.below(600) : random.below(100000);
                blocks.push_back({heap.alloc(bytes), bytes});
                fill(blocks.back().first, bytes, bytes);
            }
        });
    EXPECT_EQ(heap.stats().live_blocks, blocks.size());
    EXPECT_EQ(quire_heap_check(heap), nullptr);
    for (auto &[p, bytes] : blocks)
        quire_heap_free(heap, p);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(Heap, a_thread_that_ended_left_its_blocks_alive_and_its_room_to_others)
{
    Heap heap;
    Blocks blocks;
    std::thread([&] { blocks = heap.alloc_many(2000, 100); }).join();
    for (size_t i = 0; i < blocks.size(); i++)
        ASSERT_TRUE(holds_only(blocks[i], 100, char(i)));
    EXPECT_EQ(heap.stats().live_blocks, 2000u);
    EXPECT_EQ(heap.walk().size(), 2000u);
    size_t mapped = heap.stats().mapped_bytes;
    heap.free(blocks);
    EXPECT_EQ(heap.stats().live_blocks, 0u);
    std::thread([&] { blocks = heap.alloc_many(2000, 100); }).join();
    EXPECT_LE(heap.stats().mapped_bytes, mapped + 16 * page) << "the next thread has what the last one left";
    heap.free(blocks);
}

/* As in a slab (slots/sort.c): what goes through magazines alone, so not in a secure heap. */
TEST(HeapCache, much_that_was_freed_in_any_order_is_handed_out_by_rising_addresses)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not cached there";
    const size_t buffer_bytes = 2 << 20; /* so that they lie near each other */
    for (size_t bytes : {256, 320, 1024}) {
        const size_t count = (3 << 19) / bytes;
        void *buffer;
        ASSERT_EQ(os_map(buffer_bytes, os_page_bytes(), &buffer), 0);
        quire_heap_opts opts = {};
        opts.source = quire_source_fixed(buffer, buffer_bytes);
        {
            Heap heap(opts);
            auto free_shuffled = [&](const Blocks &blocks) {
                for (void *p : shuffled(blocks))
                    quire_heap_free(heap, p);
            };
            for (int i = 0; i < 4; i++)
                free_shuffled(heap.alloc_many(count, bytes)); /* that it turns is learned */
            for (int i = 0; i < 3; i++) {
                Blocks blocks = heap.alloc_many(count, bytes);
                EXPECT_GT(rising(blocks), count * 9 / 10) << bytes;
                EXPECT_EQ(std::set<void *>(blocks.begin(), blocks.end()).size(), count) << "none twice";
                EXPECT_EQ(quire_heap_check(heap), nullptr);
                free_shuffled(blocks);
                EXPECT_EQ(quire_heap_check(heap), nullptr);
            }
        }
        quire_source_destroy(opts.source);
        os_unmap(buffer, buffer_bytes);
    }
}
