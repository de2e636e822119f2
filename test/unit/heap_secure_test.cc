// SPDX-License-Identifier: MIT
/* QUIRE_HEAP_SECURE: the same promises, and what it adds that can be seen without a misuse. */
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include <sys/mman.h>

#include "model/slab_worker.h"
#include "unit/heap_scope.h"
#include "unit/heap_inside.h"

namespace {
const size_t mib = 1 << 20;
const quire_heap_opts secure = {.name = "vault", .flags = QUIRE_HEAP_SECURE};
} // namespace

TEST(HeapSecure, blocks_of_every_size_are_aligned_whole_and_writable_to_their_last_byte)
{
    Heap heap(secure);
    std::vector<std::pair<char *, size_t>> blocks;
    for (size_t bytes = 0; bytes <= 3000; bytes += bytes < 300 ? 1 : 31)
        blocks.push_back({heap.alloc(bytes), bytes});
    for (size_t bytes : {size_t(5000), SMALL_BYTES_MAX - 16, SMALL_BYTES_MAX - 8, SMALL_BYTES_MAX - 1, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, size_t(100000), mib})
        blocks.push_back({heap.alloc(bytes), bytes});
    for (size_t align = 1; align <= mib; align *= 2)
        for (size_t bytes : {size_t(0), size_t(24), size_t(1000), size_t(50000)}) {
            blocks.push_back({static_cast<char *>(quire_heap_alloc_aligned(heap, bytes, align)), bytes});
            ASSERT_TRUE(blocks.back().first && uintptr_t(blocks.back().first) % align == 0) << bytes << " aligned to " << align;
        }
    for (size_t i = 0; i < blocks.size(); i++) {
        size_t usable = quire_heap_usable_bytes(blocks[i].first);
        ASSERT_EQ(uintptr_t(blocks[i].first) % 16, 0u);
        ASSERT_GE(usable, blocks[i].second);
        fill(blocks[i].first, usable, i);
    }
    EXPECT_EQ(heap.walk().size(), blocks.size());
    for (size_t i = 0; i < blocks.size(); i++) {
        ASSERT_TRUE(holds(blocks[i].first, quire_heap_usable_bytes(blocks[i].first), i)) << blocks[i].second;
        ASSERT_TRUE(quire_heap_owns(heap, blocks[i].first));
        quire_heap_free(heap, blocks[i].first);
    }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapSecure, no_byte_of_a_block_of_no_bytes_can_be_touched_whatever_its_alignment)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch give it bytes";
    Heap heap(secure);
    for (size_t bytes : {size_t(24), size_t(100000)})
        for (size_t align = 1; align <= 2 * mib; align *= 2) {
            auto *p = static_cast<char *>(quire_heap_alloc_aligned(heap, 0, align));
            ASSERT_TRUE(p && uintptr_t(p) % align == 0) << align;
            EXPECT_FALSE(os_is_readable(p)) << align;
            EXPECT_EQ(quire_heap_usable_bytes(p), 0u) << align;
            EXPECT_TRUE(quire_heap_owns(heap, p) && heap_size_fits(p, 0, align) && !heap_size_fits(p, 1, align)) << align;
            EXPECT_EQ(quire_heap_check(heap), nullptr) << align;
            p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
            fill(p, bytes, 1);
            quire_heap_free(heap, p);
            quire_heap_free(heap, quire_heap_alloc_aligned(heap, 0, align));
        }
    EXPECT_EQ(heap.stats().live_blocks, 0u);
}

TEST(HeapSecure, an_aligned_block_fits_its_size_at_its_alignment_alone)
{
    Heap heap(secure);
    void *p = quire_heap_alloc_aligned(heap, 128, 64);
    EXPECT_TRUE(heap_size_fits(p, 128, 64));
    EXPECT_FALSE(heap_size_fits(p, 128, 4096) || heap_size_fits(p, 128, 1 << 20));
    EXPECT_TRUE(memory_is_watched() || !heap_size_fits(p, 127, 64)) << "those who watch know its class";
}

TEST(HeapSecure, slots_come_in_no_order_and_another_one_in_each_heap)
{
    std::set<std::vector<long>> orders;
    for (int round = 0; round < 5; round++) {
        Heap heap(secure);
        Blocks blocks = heap.alloc_many(20, 64);
        EXPECT_FALSE(std::is_sorted(blocks.begin(), blocks.end()));
        std::vector<long> order;
        for (void *p : blocks)
            order.push_back(static_cast<char *>(p) - static_cast<char *>(blocks[0]));
        orders.insert(order);
        heap.free(blocks);
    }
    EXPECT_GE(orders.size(), 4u);
}

TEST(HeapSecure, a_freed_block_is_not_the_next_one_handed_out)
{
    Heap heap(secure);
    heap.alloc_many(500, 64);
    size_t at_once = 0;
    for (int i = 0; i < 200; i++) {
        uintptr_t at = uintptr_t(heap.alloc(64));
        quire_heap_free(heap, reinterpret_cast<void *>(at));
        at_once += uintptr_t(heap.alloc(64)) == at;
    }
    EXPECT_LE(at_once, 2u);
}

TEST(HeapSecure, what_was_in_a_freed_block_is_gone_for_the_next_one)
{
    Heap heap(secure);
    for (size_t bytes : {size_t(16), size_t(100), size_t(1000), size_t(20000)}) {
        size_t count = bytes > 10000 ? 20 : 1000;
        for (int round = 0; round < 3; round++) {
            Blocks blocks;
            for (size_t i = 0; i < count; i++) {
                blocks.push_back(heap.alloc(bytes));
                if (!memory_is_watched()) {
                    ASSERT_EQ(memmem(unknown(blocks.back()), bytes, "^^^^", 4), nullptr) << bytes << " in round " << round;
                }
                memset(blocks.back(), '^', bytes);
            }
            Worker().run([&] {
                for (size_t i = 0; i < count / 2; i++)
                    quire_heap_free(heap, blocks[i]);
            });
            for (size_t i = count / 2; i < count; i++)
                quire_heap_free(heap, blocks[i]);
        }
    }
}

TEST(HeapSecure, a_freed_block_reads_as_zero_as_long_as_it_can_be_read)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch forbid the look";
    Heap heap(secure);
    heap.alloc_many(100, 100);
    char *p = heap.alloc(100);
    memset(p, 0x5e, 100);
    quire_heap_free(heap, p);
    EXPECT_EQ(memchr(unknown(p), 0x5e, 100), nullptr);
}

TEST(HeapSecure, statistics_limits_and_reallocation_are_as_ever)
{
    Heap heap({.name = "vault", .limit_bytes = 4 * mib, .flags = QUIRE_HEAP_SECURE});
    for (size_t bytes : {size_t(30), size_t(1000), size_t(60000)}) {
        Blocks blocks = heap.alloc_until_refused(bytes);
        EXPECT_GE(blocks.size() * bytes, memory_is_watched() ? mib / 2 : mib) << bytes;
        EXPECT_EQ(heap.stats().live_blocks, blocks.size());
        EXPECT_LE(heap.stats().peak_bytes, 4 * mib);
        heap.free(blocks);
        EXPECT_EQ(heap.stats().live_blocks, 0u);
    }
    char *p = nullptr;
    size_t last = 0;
    for (size_t bytes = 1; bytes < mib; bytes = bytes * 3 / 2 + 1) {
        p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
        ASSERT_TRUE(p && holds(p, last, 3)) << bytes;
        fill(p, bytes, 3);
        last = bytes;
    }
    for (size_t bytes = last; bytes > 0; bytes /= 2) {
        p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
        ASSERT_TRUE(p && holds(p, bytes, 3)) << bytes;
    }
    quire_heap_free(heap, p);
}

TEST(HeapSecure, memory_comes_back_in_the_end)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is memory too";
    Heap heap(secure);
    size_t rss = rss_bytes();
    heap.free(heap.alloc_many(50000, 400));
    heap.free(heap.alloc_many(20, mib));
    quire_heap_trim(heap);
    EXPECT_LE(heap.stats().mapped_bytes, 2 * mib);
    EXPECT_LE(rss_bytes(), rss + 4 * mib);
}

TEST(HeapSecure, what_arrives_at_a_thread_that_ends_is_free_and_waits_nowhere)
{
    Heap heap(secure);
    Blocks blocks;
    std::atomic<bool> is_full{false}, is_empty{false};
    std::thread owner([&] {
        blocks = heap.alloc_many(1000, 100);
        is_full = true;
        while (!is_empty)
            std::this_thread::yield();
    });
    while (!is_full)
        std::this_thread::yield();
    heap.free(blocks); /* on their way to the owner, which takes them home when it ends */
    is_empty = true;
    owner.join();
    EXPECT_EQ(heap.stats().live_blocks, 0u);
    EXPECT_EQ(heap.stats().pages, 0u) << "the pages of a thread that has ended may become another's: no slot of them is kept back";
}

namespace {
/* Where the default source's next spans lie, of three OS pages: no cache has such. */
std::vector<char *> places(size_t count)
{
    const size_t bytes = 3 * os_page_bytes();
    struct quire_source *source = quire_source_default();
    std::vector<struct quire_span> spans(count);
    std::vector<char *> starts;
    quire_source_trim(source);
    for (auto &span : spans) {
        EXPECT_EQ(source->verbs->take(source, bytes, os_page_bytes(), &span), 0);
        starts.push_back(static_cast<char *>(span.start));
    }
    for (auto &span : spans)
        source->verbs->give(source, &span);
    EXPECT_EQ(quire_source_check(source), nullptr);
    return starts;
}
} // namespace

TEST(HeapSecure, pages_lie_at_random_places_near_the_lowest_while_there_is_one)
{
    const size_t count = 60;
    auto before = places(count);
    EXPECT_TRUE(std::is_sorted(before.begin(), before.end()));
    {
        Heap heap(secure);
        std::set<std::vector<char *>> orders;
        for (int round = 0; round < 5; round++) {
            auto now = places(count);
            EXPECT_EQ(std::set<char *>(now.begin(), now.end()).size(), count);
            EXPECT_LT(*std::max_element(now.begin(), now.end()), before.back() + 3 * os_page_bytes() * 16) << "close together all the same";
            orders.insert(now);
        }
        EXPECT_EQ(orders.size(), 5u);
    }
    auto after = places(count);
    EXPECT_TRUE(std::is_sorted(after.begin(), after.end()));
}

/* One call that opens a block's addresses and one that closes them; those that reserve addresses, and give them back, are few. */
TEST(HeapSecure, a_large_block_costs_two_system_calls_once_its_quarantine_is_full)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not mapped alone there";
    auto calls_of = [](Heap &heap, os_call kind) {
        os_fault_set(kind, UINT64_MAX, false);
        for (int i = 0; i < 300; i++) {
            char *p = heap.alloc(33000 + size_t(i) % 7 * 5000);
            EXPECT_EQ(p[0] | p[32999], 0);
            memset(p, 'x', 33000);
            quire_heap_free(heap, p);
        }
        return os_fault_set(kind, 0, false);
    };
    for (bool marks : {true, false}) {
        if (marks && !system_has_marks())
            continue;
        Heap heap(secure);
        Fault unmarked(OS_MARK, marks ? 0 : 1, true);
        calls_of(heap, OS_MAP);
        for (os_call kind : {OS_PROTECT, marks ? OS_MARK : OS_SEAL}) {
            uint64_t calls = calls_of(heap, kind);
            EXPECT_GE(calls, 300u) << "no use after the free; kind " << kind;
            EXPECT_LE(calls, 302u) << "kind " << kind;
        }
        EXPECT_EQ(marks ? calls_of(heap, OS_SEAL) : 0, 0u);
        EXPECT_LE(calls_of(heap, OS_MAP), 15u);
        EXPECT_LE(calls_of(heap, OS_UNMAP), 100u);
    }
}

/* Marks are the quick way; a mapping without access does the same where the system has none, and for pages that somebody has locked into memory. */
TEST(HeapSecure, a_freed_large_block_and_what_is_around_one_cannot_be_touched_with_marks_and_without)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not mapped alone there";
    const size_t page = os_page_bytes();
    Random random(3);
    for (const char *way : {"marks", "none", "locked", "some"}) {
        Heap heap(secure);
        Fault unmarked(OS_MARK, way == std::string("none") ? 1 : 0, true);
        std::vector<std::pair<char *, size_t>> live;
        for (int i = 0; i < (test_long() ? 1500 : 400); i++) {
            if (way == std::string("some"))
                os_fault_set(OS_MARK, random.below(3) == 0, true);
            size_t bytes = 33000 + random.below(200000), more = random.below(3) == 0 ? random.below(300000) : 0, room = bytes;
            char *p = heap.alloc(bytes);
            ASSERT_TRUE(std::all_of(p, p + bytes, [](char c) { return c == 0; })) << way << ", block " << i;
            size_t written = random.below(3) == 0 ? bytes : 4000;
            memset(p, 'x', written);
            if (more > SMALL_BYTES_MAX) { /* grows or shrinks */
                p = static_cast<char *>(quire_heap_realloc(heap, p, more));
                ASSERT_NE(p, nullptr);
                room = more;
            }
            ASSERT_EQ(p[0], 'x');
            char *end = p + (room + page - 1) / page * page;
            ASSERT_TRUE(os_is_readable(end - 8)) << way << ", block " << i;
            ASSERT_FALSE(os_is_readable(p - 8) || os_is_readable(end)) << way << ", block " << i;
            ASSERT_TRUE(way != std::string("locked") || i % 4 != 0 || mlock(p, page) == 0);
            live.push_back({p, room});
            if (live.size() > 8) {
                std::swap(live[random.below(live.size())], live.back());
                auto [gone, had] = live.back();
                live.pop_back();
                quire_heap_free(heap, gone);
                ASSERT_FALSE(os_is_readable(gone) || os_is_readable(gone + had - 8)) << way << ", block " << i;
            }
        }
        for (auto [p, had] : live)
            quire_heap_free(heap, p);
        EXPECT_EQ(heap.stats().live_blocks, 0u);
    }
}

/* Moved some times, and grown where it is in between. */
TEST(HeapSecure, a_large_block_that_grows_again_and_again_is_moved_and_never_copied)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not mapped alone there";
    Heap heap({.name = "vault", .limit_bytes = 30 * mib, .flags = QUIRE_HEAP_SECURE});
    char *p = nullptr;
    size_t had = 0;
    for (size_t bytes : {8 * mib, 9 * mib, 16 * mib, 20 * mib, 26 * mib}) {
        p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
        ASSERT_NE(p, nullptr) << bytes / mib << " MiB: there is no room for both";
        ASSERT_TRUE(std::all_of(p, p + had, [](char c) { return c == 'x'; })) << bytes / mib;
        ASSERT_TRUE(std::all_of(p + had, p + bytes, [](char c) { return c == 0; })) << bytes / mib;
        ASSERT_FALSE(os_is_readable(p - 8) || os_is_readable(p + bytes)) << bytes / mib << ": not its own yet";
        memset(p + had, 'x', bytes - had);
        had = bytes;
    }
    quire_heap_free(heap, p);
    EXPECT_EQ(quire_heap_check(heap), nullptr);
}

TEST(HeapSecure, what_a_locked_block_may_grow_into_has_no_memory)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not mapped alone there";
    Heap heap(secure);
    char *p = heap.alloc(mib);
    memset(p, 'x', mib);
    if (mlock(p, mib) != 0)
        GTEST_SKIP() << "nothing may be locked";
    p = static_cast<char *>(quire_heap_realloc(heap, p, mib + mib / 2));
    ASSERT_NE(p, nullptr);
    EXPECT_TRUE(p[0] == 'x' && p[mib - 1] == 'x' && p[mib] == 0);
    EXPECT_FALSE(os_is_readable(p + mib + mib / 2));
    EXPECT_EQ(os_resident_bytes(p + mib + mib / 2, mib / 2), 0u);
    quire_heap_free(heap, p);
}

TEST(HeapSecure, addresses_of_large_blocks_come_again_late_and_in_no_order_and_are_bounded)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not mapped alone there";
    std::set<std::vector<size_t>> orders;
    for (int round = 0; round < 4; round++) {
        Heap heap(secure);
        std::map<char *, size_t> last; /* where a block was, and which */
        std::vector<size_t> again;
        for (size_t i = 0; i < 1000; i++) {
            char *p = heap.alloc(50000);
            if (last.count(p)) {
                again.push_back(i - last[p]);
                EXPECT_GT(again.back(), 32u) << "the queue alone has as many places";
            }
            last[p] = i;
            quire_heap_free(heap, p);
        }
        EXPECT_GT(again.size(), 300u);
        EXPECT_LT(last.size(), 600u) << "what is kept back is 64 ranges, and 16 wait for their next block";
        orders.insert(again);
    }
    EXPECT_EQ(orders.size(), 4u);
}

TEST(HeapSecure, memory_of_a_large_block_that_was_written_moves_to_the_next_ones_addresses_as_zeros)
{
    if (memory_is_watched())
        GTEST_SKIP() << "blocks are not mapped alone there";
    Heap heap(secure);
    std::vector<char *> places;
    const size_t before = heap.stats().mapped_bytes, most = std::clamp(24 * os_page_bytes(), size_t(200000), size_t(1) << 20);
    os_fault_set(OS_REMAP, UINT64_MAX, false);
    for (size_t i = 0; i < 40; i++) {
        size_t bytes = most - i % 3 * 30000;
        char *p = heap.alloc(bytes);
        EXPECT_TRUE(std::all_of(p, p + bytes, [](char c) { return c == 0; })) << "block " << i;
        EXPECT_EQ(std::count(places.begin(), places.end(), p), 0) << "addresses are kept back as ever";
        memset(p, 'x', bytes);
        places.push_back(p);
        quire_heap_free(heap, p);
        (void)heap.stats(); /* its sum is asserted */
    }
    EXPECT_GE(os_fault_set(OS_REMAP, 0, false), 10u) << "others found none that fits, or it was cold";
    quire_heap_trim(heap);
    EXPECT_LT(heap.stats().mapped_bytes, before + 150000) << "what waits goes when all does";
}

TEST(HeapSecure, who_asks_in_vain_for_more_than_there_is_has_no_freed_block_handed_out_sooner)
{
    Heap heap(secure);
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 400; i++)
            quire_heap_free(heap, heap.alloc(48));
        char *p = heap.alloc(48);
        auto at = uintptr_t(p);
        quire_heap_free(heap, p);
        ASSERT_EQ(quire_heap_alloc(heap, unknown(size_t(1) << 46)), nullptr);
        for (int i = 0; i < 8; i++) {
            p = heap.alloc(48);
            ASSERT_NE(uintptr_t(p), at) << "after " << i << " others, in round " << round;
            quire_heap_free(heap, p);
        }
    }
}

TEST(HeapSecure, under_a_limit_what_is_kept_back_makes_way_to_a_large_block_that_fits)
{
    quire_heap_opts limited = secure;
    limited.limit_bytes = 4 * mib;
    Heap heap(limited);
    for (int i = 0; i < 100; i++)
        quire_heap_free(heap, heap.alloc(30000));
    size_t room = 4 * mib - heap.stats().meta_bytes;
    char *p = static_cast<char *>(quire_heap_alloc(heap, room - 256 * 1024));
    EXPECT_TRUE(p);
    quire_heap_free(heap, p);
}

TEST(HeapSecure, a_buffer_that_grows_by_small_steps_again_and_again_leaves_no_mappings)
{
    Heap heap(secure);
    auto mappings = [] {
        std::ifstream maps("/proc/self/maps");
        return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
    };
    long before = 0;
    for (int round = 0; round < 2000; round++) {
        char *p = nullptr;
        size_t had = 0;
        for (size_t bytes = 100000; bytes < 190000; bytes += 8192) {
            p = static_cast<char *>(quire_heap_realloc(heap, p, bytes));
            ASSERT_TRUE(p);
            memset(p + had, 1, bytes - had);
            had = bytes;
        }
        quire_heap_free(heap, p);
        if (round == 100)
            before = mappings();
    }
    EXPECT_LT(mappings(), before + 100); /* it was a mapping for each third buffer, and as many GiB of addresses */
}

TEST(HeapSecure, what_others_get_of_its_source_is_wiped)
{
    auto holds_secret = [](const void *start, size_t bytes) { return memmem(start, bytes, "SECRET", 6) != nullptr; };
    quire_source *common = quire_source_default(), *budget = quire_source_limit(common, 64 * mib);
    quire_heap_opts opts = secure;
    opts.source = budget;
    quire_heap *heap = quire_heap_create(&opts);
    ASSERT_TRUE(heap);
    for (int round = 0; round < 20; round++) {
        char *p = static_cast<char *>(quire_heap_alloc(heap, 100000));
        for (int i = 0; i + 8 <= 100000; i += 8)
            memcpy(p + i, "SECRET..", 8);
        quire_heap_free(heap, p);
        char *q = static_cast<char *>(quire_heap_alloc(heap, 98400));
        EXPECT_FALSE(holds_secret(q, quire_heap_usable_bytes(q)));
        quire_heap_free(heap, q);
        quire_span span;
        ASSERT_EQ(common->verbs->take(common, 108 << 10, 4096, &span), 0);
        EXPECT_FALSE(holds_secret(span.start, span.bytes));
        common->verbs->give(common, &span);
    }
    for (int i = 0; i < 300; i++)
        memcpy(quire_heap_alloc(heap, 48), "SECRET", 6);
    quire_heap_destroy(heap);
    std::vector<quire_span> spans(64);
    for (quire_span &span : spans) {
        ASSERT_EQ(common->verbs->take(common, 16 << 10, 4096, &span), 0);
        EXPECT_FALSE(holds_secret(span.start, span.bytes));
    }
    for (quire_span &span : spans)
        common->verbs->give(common, &span);
    quire_source_destroy(budget);
}
