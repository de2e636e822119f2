// SPDX-License-Identifier: MIT
/* What a slab holds beyond its elements, and when it gives it back. */
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <random>
#include <sched.h>
#include <string>
#include <thread>

#include "base/bias.h"
#include "model/slab_worker.h"
#include "unit/slab_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;

class SlabMemory : public testing::Test {
protected:
    void SetUp() override
    {
        if (memory_is_watched())
            GTEST_SKIP() << "shadow memory and red zones are memory too";
    }
};

/* The VmFlags of the mapping that an address lies in. */
std::string vm_flags(const void *p)
{
    std::ifstream smaps("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(smaps, line);) {
        unsigned long start, end;
        if (sscanf(line.c_str(), "%lx-%lx ", &start, &end) == 2)
            inside = uintptr_t(p) >= start && uintptr_t(p) < end;
        else if (inside && line.rfind("VmFlags:", 0) == 0)
            return line + " ";
    }
    return "";
}

/* Every second element freed, so that no page is empty. */
Elements halve(quire_slab *slab, const Elements &elements)
{
    Elements rest;
    for (size_t i = 0; i < elements.size(); i++)
        if (i % 2)
            rest.push_back(elements[i]);
        else
            quire_slab_free(slab, elements[i]);
    return rest;
}
} // namespace

/* ---- how much ---- */

TEST_F(SlabMemory, a_million_elements_of_64_bytes_cost_at_most_half_a_byte_each_above_payload)
{
    const size_t million = 1000000;
    size_t rss = rss_bytes();
    Slab slab(64);
    for (size_t i = 0; i < million; i++)
        memset(quire_slab_alloc(slab), 1, 64);
    struct quire_slab_stats stats = slab.stats();
    EXPECT_LE(stats.mapped_bytes, 64 * million + million / 2);
    EXPECT_LE(rss_bytes() - rss, 64 * million + million / 2 + mib / 2) << "what the system counts";
    Slab batch(64);
    Elements elements(million);
    ASSERT_EQ(quire_slab_alloc_batch(batch, elements.data(), million), million);
    EXPECT_LE(batch.stats().mapped_bytes, 64 * million + million / 2);
}

TEST_F(SlabMemory, is_all_back_within_one_mebibyte_after_a_trim)
{
    quire_source_trim(quire_source_default());
    Elements elements(1000000, &elements); /* its own pages are there from now on */
    size_t rss = rss_bytes();
    Slab slab(64);
    for (void *&p : elements)
        memset(p = quire_slab_alloc(slab), 1, 64);
    std::mt19937_64 order(1);
    std::shuffle(elements.begin(), elements.end(), order);
    slab.free(elements);
    EXPECT_LE(slab.stats().mapped_bytes, mib) << "empty pages are back already, their headers perhaps not";
    EXPECT_GT(quire_slab_trim(slab), 0u);
    EXPECT_LE(slab.stats().mapped_bytes, mib / 8) << "its tables, and an OS page of each chunk of headers";
    quire_source_trim(quire_source_default());
    EXPECT_LE(rss_bytes(), rss + mib);
}

static void used_once()
{
    quire_slab *slab = quire_slab_create(100, nullptr);
    quire_slab_free(slab, quire_slab_alloc(slab));
    quire_slab_trim(slab);
    quire_slab_destroy(slab);
    quire_source_trim(quire_source_default());
}

TEST_F(SlabMemory, a_thousand_slabs_that_once_held_an_element_are_a_thousand_os_pages)
{
    CpuCount two(2);
    std::vector<quire_slab *> slabs(1000);
    used_once(); /* code and a thread's record, which are there once, are not the slabs' memory */
    size_t rss = rss_bytes(), mapped = 0;
    for (size_t i = 0; i < slabs.size(); i++) {
        slabs[i] = quire_slab_create(16 + i % 50 * 8, nullptr);
        void *p = quire_slab_alloc(slabs[i]);
        memset(p, 1, 16);
        quire_slab_free(slabs[i], p);
    }
    for (quire_slab *slab : slabs)
        mapped += slab_stats(slab).mapped_bytes;
    EXPECT_LE(mapped, 1024 * page + mib / 8);
    EXPECT_LE(rss_bytes() - rss, 1024 * page + mib / 2);
    for (quire_slab *slab : slabs)
        quire_slab_trim(slab);
    {
        Decay decay(30000000);
        EXPECT_TRUE(at_last([&] {
            quire_source_trim(quire_source_default());
            return rss_bytes() - rss <= 4 * mib + mib / 8;
        })) << rss_bytes() - rss << ": this thread's caches of a thousand slabs go back at a tick";
    }
    for (quire_slab *slab : slabs)
        quire_slab_destroy(slab);
}

/* A random tenth of so many elements: the others are freed. */
static Elements random_tenth(const Slab &slab, size_t many, std::mt19937_64 &random)
{
    Elements elements = slab.alloc(many);
    std::shuffle(elements.begin(), elements.end(), random);
    while (elements.size() > many / 10) {
        quire_slab_free(slab, elements.back());
        elements.pop_back();
    }
    return elements;
}

TEST_F(SlabMemory, a_random_tenth_churned_again_and_again_stays_dense)
{
    const int rounds = test_long() ? 300 : 100; /* a tenth of what lives in each */
    for (uint32_t flags : {0u, QUIRE_SLAB_DEFRAG}) {
        Slab slab(64, {.flags = flags});
        size_t many = test_long() ? 1000000 : 500000;
        std::mt19937_64 random(7);
        Elements elements = random_tenth(slab, many, random);
        for (int round = 0; round < rounds; round++) {
            for (size_t i = 0; i < many / 100; i++) {
                std::swap(elements[i], elements[i + random() % (elements.size() - i)]);
                quire_slab_free(slab, elements[i]);
            }
            for (size_t i = 0; i < many / 100; i++)
                ASSERT_NE(elements[i] = quire_slab_alloc(slab), nullptr);
        }
        quire_slab_trim(slab);
        struct quire_slab_stats stats = slab.stats();
        double ratio = double(stats.mapped_bytes) / double(stats.live_bytes);
        RecordProperty(flags ? "held_defragmented" : "held", std::to_string(ratio));
        EXPECT_LE(ratio, flags ? (test_long() ? 1.05 : 1.12) : 1.3) << "flags " << flags;
        slab.free(elements);
    }
}

TEST_F(SlabMemory, where_a_random_nine_tenths_were_freed_half_as_many_as_before_take_no_page_more)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_DEFRAG}) {
        Slab slab(64, {.flags = flags});
        const size_t many = test_long() ? 1000000 : 200000;
        std::mt19937_64 random(7);
        Elements elements = random_tenth(slab, many, random);
        const struct quire_slab_stats before = slab.stats();
        Elements more = slab.alloc(many / 2 - elements.size());
        const struct quire_slab_stats after = slab.stats();
        RecordProperty(flags ? "pages_defragmented" : "pages", std::to_string(before.pages) + " " + std::to_string(after.pages));
        EXPECT_LE(after.pages, before.pages) << "flags " << flags;
        EXPECT_LE(after.mapped_bytes, before.mapped_bytes) << "flags " << flags;
        slab.free(elements);
        slab.free(more);
    }
}

/* ---- giving back ---- */

TEST(SlabTrim, gives_every_empty_page_back_and_says_how_many_bytes)
{
    Slab slab(500);
    Elements elements = slab.alloc(5000);
    EXPECT_EQ(quire_slab_trim(slab), 0u) << "nothing is empty";
    slab.free(elements);
    struct quire_slab_stats before = slab.stats();
    size_t given = quire_slab_trim(slab);
    struct quire_slab_stats after = slab.stats();
    EXPECT_EQ(before.mapped_bytes - given, after.mapped_bytes);
    EXPECT_LE(after.empty_pages, 1u);
    EXPECT_LE(after.mapped_bytes, 10 * page + 4096) << "tables that were outgrown stay";
    EXPECT_EQ(quire_slab_trim(slab), 0u);
    slab.alloc(100);
}

TEST(SlabTrim, gives_a_sleeping_threads_empty_pages_back)
{
    Slab slab(500);
    Worker sleeper;
    sleeper.run([&] {
        for (int i = 0; i < 3; i++) /* so that it learns to keep them */
            slab.free(slab.alloc(5000));
    });
    EXPECT_GT(slab.stats().mapped_bytes, mib);
    EXPECT_GT(quire_slab_trim(slab), mib);
    EXPECT_LE(slab.stats().mapped_bytes, mib / 4);
    sleeper.run([&] { slab.free(slab.alloc(5000)); });
    EXPECT_EQ(quire_slab_check(slab), nullptr);
}

TEST(SlabTrim, gives_pages_back_that_others_emptied_for_a_sleeping_thread)
{
    Slab slab(500);
    Worker sleeper, other;
    Elements elements;
    sleeper.run([&] { elements = slab.alloc(5000); });
    size_t mapped = slab.stats().mapped_bytes;
    other.run([&] { quire_slab_free_batch(slab, elements.data(), elements.size()); });
    EXPECT_EQ(slab.stats().empty_pages, slab.stats().pages);
    quire_slab_trim(slab);
    EXPECT_GT(mapped - slab.stats().mapped_bytes, mib) << "most of it before the trim";
    EXPECT_LE(slab.stats().mapped_bytes, mib / 4);
    EXPECT_EQ(quire_slab_check(slab), nullptr);
}

TEST(SlabTrim, gives_back_what_an_ended_thread_left)
{
    Slab slab(500);
    Elements elements;
    std::thread([&] { elements = slab.alloc(5000); }).join();
    size_t mapped = slab.stats().mapped_bytes;
    slab.free(elements);
    quire_slab_trim(slab);
    EXPECT_GT(mapped - slab.stats().mapped_bytes, mib) << "most of it before the trim";
    EXPECT_LE(slab.stats().mapped_bytes, mib / 4);
}

TEST(SlabTrim, leaves_live_elements_as_they_are)
{
    Slab slab(500);
    Elements rest = halve(slab, slab.alloc(5000));
    for (void *p : rest)
        memset(p, 7, 500);
    quire_slab_trim(slab);
    for (void *p : rest)
        ASSERT_TRUE(holds_only(p, 500, 7));
    EXPECT_EQ(slab.walk(), sorted(rest));
}

TEST(SlabDecay, two_of_them_give_empty_pages_back_without_anybody_calling)
{
    CpuCount two(2);
    Slab slab(500);
    Worker sleeper, other;
    Elements elements;
    sleeper.run([&] { elements = slab.alloc(3000); });
    other.run([&] { slab.free(elements); });
    for (int i = 0; i < 3; i++)
        slab.free(slab.alloc(3000));
    EXPECT_GT(slab.stats().mapped_bytes, mib);
    Decay decay(50000000);
    size_t most = std::max(mib / 4, 6 * os_page_bytes()); /* a table, and the first OS page of what were headers, stay */
    /* Looking at it does not make it young. */
    EXPECT_TRUE(at_last([&] { return slab.stats().mapped_bytes <= most; })) << slab.stats().mapped_bytes;
    EXPECT_EQ(quire_slab_check(slab), nullptr);
}

TEST(SlabDecay, keeps_pages_that_are_in_use_again_and_again)
{
    Slab slab(500);
    slab.free(slab.alloc(3000));
    EXPECT_LE(slab.stats().empty_pages, 3u) << "at first they go back at once";
    for (int round = 0; round < 3; round++)
        slab.free(slab.alloc(3000));
    EXPECT_GT(slab.stats().pages, 20u);
    bool is_still = false;
    for (int attempt = 0; attempt < 3 && !is_still; attempt++) { /* the last tick of a test before this one may come in the middle, once */
        size_t pages = slab.stats().pages;
        is_still = true;
        for (int round = 0; round < 5; round++) {
            slab.free(slab.alloc(3000));
            is_still &= slab.stats().pages == pages;
        }
    }
    EXPECT_TRUE(is_still) << "no decay has passed";
}

TEST(SlabDecay, of_zero_gives_a_page_back_at_once_unless_it_is_the_last)
{
    Decay decay(0);
    Slab slab(3000);
    Elements elements = slab.alloc(1000);
    size_t mapped = slab.stats().mapped_bytes;
    slab.free(elements);
    EXPECT_LE(slab.stats().empty_pages, 2u);
    EXPECT_LT(slab.stats().mapped_bytes, mapped / 4);
}

TEST(SlabDecay, is_not_waited_for_by_a_slab_that_keeps_nothing)
{
    for (uint32_t more : {0u, QUIRE_SLAB_SINGLE_THREAD, QUIRE_SLAB_DEFRAG}) {
        Slab slab(page * 3 / 4, {.flags = QUIRE_SLAB_KEEP_NOTHING | more}); /* too large for the page of the slab itself, which stays */
        Elements elements = slab.alloc(1000);
        size_t mapped = slab.stats().mapped_bytes, pages = slab.stats().pages;
        slab.free(Elements(elements.begin(), elements.begin() + 500));
        EXPECT_LE(slab.stats().pages, pages / 2 + 4);
        slab.free(Elements(elements.begin() + 500, elements.end()));
        EXPECT_LE(slab.stats().empty_pages, 1u);
        EXPECT_LT(slab.stats().mapped_bytes, mapped / 4);
    }
}

TEST(SlabDecay, lets_the_page_go_that_single_elements_come_from)
{
    Decay decay(1000000);
    for (uint64_t flags : {uint64_t(QUIRE_SLAB_KEEP_NOTHING), uint64_t(QUIRE_SLAB_EXACT)}) {
        Slab slab(page / 4, {.page_bytes_max = page, .flags = flags});
        Elements elements = slab.alloc(20);
        for (size_t pages = slab.stats().pages; slab.stats().pages == pages;)
            elements.push_back(quire_slab_alloc(slab));
        quire_slab_free(slab, elements.back());
        if (flags == QUIRE_SLAB_KEEP_NOTHING) {
            EXPECT_EQ(slab.stats().empty_pages, 0u) << "at once";
        }
        EXPECT_TRUE(at_last([&] { return slab.stats().empty_pages == 0; })) << flags;
    }
}

/* ---- the defragmenter ---- */

TEST(SlabDefrag, drains_sparse_pages_so_that_they_go_back)
{
    Slab slab(64);
    Elements elements = slab.alloc(100000);
    Elements rest;
    Random random(3);
    for (void *p : elements)
        if (random.below(10) == 0)
            rest.push_back(p);
        else
            quire_slab_free(slab, p);
    quire_slab_set_defrag(slab, 1);
    for (int i = 0; i < (BUILT_WITH_TSAN ? 30000 : 300000); i++) {
        size_t k = random.below(rest.size());
        quire_slab_free(slab, rest[k]);
        rest[k] = quire_slab_alloc(slab);
    }
    quire_slab_trim(slab);
    struct quire_slab_stats stats = slab.stats();
    if (!memory_is_watched()) {
        EXPECT_LE(stats.mapped_bytes, stats.live_bytes * 115 / 100 + 16 * page);
    }
    EXPECT_EQ(slab.walk(), sorted(rest));
}

TEST(SlabDefrag, is_switched_on_and_off_while_elements_come_and_go)
{
    Slab slab(64, {.flags = QUIRE_SLAB_DEFRAG});
    Worker other;
    Elements elements;
    Random random(4);
    for (int i = 0; i < 60000; i++) {
        if (i % 1000 == 0)
            quire_slab_set_defrag(slab, uint32_t(i / 1000 % 2));
        if (elements.empty() || random.below(100) < 53) {
            elements.push_back(quire_slab_alloc(slab));
        } else {
            size_t k = random.below(elements.size());
            quire_slab_free(slab, elements[k]);
            elements[k] = elements.back();
            elements.pop_back();
        }
        if (i % 5000 == 0)
            other.run([&] {
                elements.push_back(quire_slab_alloc(slab));
                quire_slab_free(slab, elements[0]);
                elements[0] = elements.back();
                elements.pop_back();
            });
        if (i % 500 == 0) {
            ASSERT_EQ(quire_slab_check(slab), nullptr) << i;
        }
    }
    EXPECT_EQ(slab.walk(), sorted(elements));
}

/* ---- core dumps ---- */

TEST(SlabDump, pages_of_a_slab_that_is_not_dumped_are_marked_so_for_the_kernel)
{
    for (struct quire_source *source : {static_cast<struct quire_source *>(nullptr), quire_source_anon()}) {
        Slab hidden(100, {.source = source, .flags = QUIRE_SLAB_DONT_DUMP}), plain(100, {.source = source});
        for (void *p : hidden.alloc(3000)) {
            *static_cast<char *>(p) = 1;
            if (uintptr_t(p) % page < 128) {
                ASSERT_NE(vm_flags(p).find(" dd "), std::string::npos) << vm_flags(p);
            }
        }
        EXPECT_EQ(vm_flags(plain.alloc(1)[0]).find(" dd "), std::string::npos) << "others are";
    }
}

TEST(SlabDump, memory_that_a_slab_hid_from_dumps_and_gave_back_is_dumped_again)
{
    {
        Slab hidden(1000, {.flags = QUIRE_SLAB_DONT_DUMP});
        hidden.alloc(3000);
    }
    Slab plain(1000);
    size_t hidden = 0;
    const size_t every = (memory_is_watched() ? 16 : 1) * page; /* a sanitizer's process has thousands of lines to read each time */
    for (void *p : plain.alloc(3000))
        hidden += uintptr_t(p) % every < 1024 && vm_flags(p).find(" dd ") != std::string::npos;
    EXPECT_EQ(hidden, 0u);
}

/* A cache is filled twofold, and has a page for itself only when it needs a good part of one: 6.3 MB before. */
TEST_F(SlabMemory, a_hundred_threads_that_need_twenty_elements_share_pages)
{
    Slab slab(64);
    std::atomic<int> ready{0};
    auto use = [&] {
        void *p[20];
        for (int round = 0; round < 2; round++) {
            for (void *&one : p)
                one = quire_slab_alloc(slab);
            for (void *one : p)
                quire_slab_free(slab, one);
        }
        ready++;
        while (ready < 100)
            sched_yield();
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 100; t++)
        threads.emplace_back(use);
    for (auto &thread : threads)
        thread.join();
    EXPECT_LE(slab.stats().peak_bytes, size_t(1) << 20);
}

TEST_F(SlabMemory, threads_that_come_and_go_leave_no_magazines_behind)
{
    Slab slab(16);
    auto come_and_go = [&](int threads) {
        std::vector<void *> elements(6000);
        for (int t = 0; t < threads; t++)
            std::thread([&] {
                for (int round = 0; round < 2; round++) {
                    for (void *&one : elements)
                        one = quire_slab_alloc(slab);
                    for (void *one : elements)
                        quire_slab_free(slab, one);
                }
            }).join();
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(quire_source_default(), &stats);
        return stats.taken_bytes;
    };
    size_t first = come_and_go(20);
    EXPECT_LE(come_and_go(60), first + (256 << 10)) << "each thread left 50 KB";
}

TEST_F(SlabMemory, empty_magazines_that_wait_for_full_ones_do_not_wait_for_ever)
{
    if (!bias_works())
        GTEST_SKIP() << "no magazines here";
    auto taken = [] {
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(quire_source_default(), &stats);
        return stats.taken_bytes;
    };
    Slab slab(16);
    std::vector<void *> elements(200000);
    auto all = [&](auto &&what) {
        for (void *&one : elements)
            what(one);
    };
    all([&](void *&one) { one = quire_slab_alloc(slab); });
    size_t live = taken();
    for (int turn = 0; turn < 5; turn++) { /* what is freed has to be wanted again, before much of it is kept */
        std::thread([&] { all([&](void *one) { quire_slab_free(slab, one); }); }).join();
        all([&](void *&one) { one = quire_slab_alloc(slab); });
    }
    size_t with_vacant = taken();
    EXPECT_GT(with_vacant, live + mib) << "a kilobyte for each 121 elements, or nothing is shown";
    Decay decay(30000000);
    EXPECT_TRUE(at_last([&] { return taken() < live + mib / 4; })) << with_vacant - live << " and now " << taken() - live;
    all([&](void *one) { quire_slab_free(slab, one); });
}
