// SPDX-License-Identifier: MIT
/* What a slab may hold: limits, page sizes, room at the start; and that being over a limit harms nothing. */
#include <gtest/gtest.h>

#include "model/slab_worker.h"
#include "unit/slab_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;

size_t taken_bytes(struct quire_source *source)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    return stats.taken_bytes;
}
} // namespace

/* ---- limit_bytes ---- */

TEST(SlabLimit, less_than_one_os_page_is_enomem_and_one_page_is_a_slab)
{
    for (size_t limit : {size_t(1), page / 2, page - 1}) {
        quire_slab_opts opts = {.limit_bytes = limit};
        errno = 0;
        EXPECT_EQ(quire_slab_create(64, &opts), nullptr);
        EXPECT_EQ(errno, ENOMEM);
    }
    Slab slab(16, {.limit_bytes = page});
    EXPECT_LE(slab.stats().mapped_bytes, page);
}

TEST(SlabLimit, is_used_nearly_in_full_and_never_passed)
{
    for (size_t limit : {size_t(64) << 10, size_t(200000), mib, 10 * mib})
        for (size_t bytes : {size_t(16), size_t(64), size_t(1000), size_t(8200)}) {
            Slab slab(bytes, {.name = "tenant", .limit_bytes = limit});
            Elements elements = slab.alloc_until_refused();
            struct quire_slab_stats stats = slab.stats();
            EXPECT_EQ(stats.limit_bytes, limit);
            EXPECT_LE(stats.mapped_bytes, limit);
            EXPECT_LE(stats.peak_bytes, limit);
            if (!memory_is_watched() && limit >= 16 * page) {
                EXPECT_GE(elements.size() * bytes, limit >= mib ? limit / 4 * 3 : limit / 2) << bytes << " under " << limit;
            }
            EXPECT_EQ(quire_slab_alloc(slab), nullptr) << "again";
            EXPECT_EQ(quire_slab_alloc_zero(slab), nullptr);
            EXPECT_EQ(quire_slab_check(slab), nullptr);
            slab.free(elements);
            EXPECT_GE(slab.alloc_until_refused().size(), elements.size() / 10 * 9) << "the slab stays usable";
            EXPECT_LE(slab.stats().peak_bytes, limit);
        }
}

TEST(SlabLimit, a_batch_over_it_brings_what_there_is)
{
    Slab slab(1000, {.limit_bytes = 100000});
    Elements elements(1000, nullptr);
    errno = 0;
    size_t got = quire_slab_alloc_batch(slab, elements.data(), 1000);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_GT(got, 50u);
    EXPECT_LT(got, 100u);
    EXPECT_EQ(quire_slab_alloc(slab), nullptr) << "it brought all";
    EXPECT_EQ(slab.stats().live_elements, got);
    quire_slab_free_batch(slab, elements.data(), 10);
    errno = 0;
    EXPECT_EQ(quire_slab_alloc_batch(slab, elements.data(), 20), 10u);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(quire_slab_alloc_batch(slab, elements.data(), 20), 0u);
    EXPECT_EQ(errno, ENOMEM);
}

TEST(SlabLimit, an_element_that_anybody_frees_makes_room_at_once)
{
    for (uint32_t flags : {0u, QUIRE_SLAB_KEEP_NOTHING, QUIRE_SLAB_SINGLE_THREAD, QUIRE_SLAB_DEFRAG}) {
        Slab slab(100, {.limit_bytes = 300000, .flags = flags});
        Worker other;
        Elements elements = slab.alloc_until_refused();
        for (size_t i = 0; i < elements.size(); i += 37) {
            if (i % 2)
                quire_slab_free(slab, elements[i]);
            else
                other.run([&] { quire_slab_free(slab, elements[i]); });
            elements[i] = quire_slab_alloc(slab);
            ASSERT_NE(elements[i], nullptr) << i << " flags " << flags;
            ASSERT_EQ(quire_slab_alloc(slab), nullptr) << "one, not two";
        }
    }
}

TEST(SlabLimit, what_one_thread_has_cached_another_gets_when_memory_is_out)
{
    Slab slab(100, {.limit_bytes = 300000});
    Worker sleeper, other;
    Elements theirs, mine = slab.alloc(1);
    other.run([&] { mine.push_back(quire_slab_alloc(slab)); });
    sleeper.run([&] {
        theirs = slab.alloc_until_refused();
        slab.free(theirs); /* and sleeps on a set of empty pages */
    });
    Elements got = slab.alloc_until_refused();
    EXPECT_GE(got.size() + 200, theirs.size()) << "empty pages of a sleeping thread";
    for (size_t i = 0; i < got.size(); i += 2)
        quire_slab_free(slab, got[i]);
    size_t halves = (got.size() + 1) / 2;
    other.run([&] { EXPECT_EQ(slab.alloc_until_refused().size(), halves) << "holes in pages of a thread that is elsewhere"; });
}

TEST(SlabLimit, an_element_that_a_thread_freed_elsewhere_is_room_for_a_third_that_was_never_here)
{
    Slab slab(100, {.limit_bytes = 300000});
    Worker owner, freer, newcomer;
    Elements theirs;
    owner.run([&] { theirs = slab.alloc_until_refused(); });
    freer.run([&] { slab.free(Elements(theirs.begin(), theirs.begin() + long(theirs.size() / 2))); });
    newcomer.run([&] { EXPECT_NE(quire_slab_alloc(slab), nullptr); });
}

TEST(SlabLimit, what_the_only_thread_freed_every_other_thread_gets)
{
    Slab slab(64, {.limit_bytes = 65536});
    Elements elements = slab.alloc_until_refused();
    for (size_t i = 0; i < elements.size(); i += 2)
        quire_slab_free(slab, elements[i]);
    for (int thread = 0; thread < 5; thread++)
        Worker().run([&] {
            for (int i = 0; i < 20; i++)
                EXPECT_NE(quire_slab_alloc(slab), nullptr) << "thread " << thread;
        });
    EXPECT_LE(slab.stats().peak_bytes, 65536u);
}

TEST(SlabLimit, an_allocation_that_fails_is_no_peak)
{
    Slab slab(size_t(1) << 46);
    errno = 0;
    EXPECT_EQ(quire_slab_alloc(slab), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_LE(slab.stats().peak_bytes, mib);
    Slab limited(300000, {.limit_bytes = mib / 4});
    EXPECT_EQ(quire_slab_alloc(limited), nullptr);
    EXPECT_LE(limited.stats().peak_bytes, mib / 4);
}

TEST(SlabLimit, of_a_source_is_as_good_as_one_of_its_own)
{
    struct quire_source *budget = quire_source_limit(quire_source_default(), mib);
    {
        Slab slab(64, {.source = budget});
        Elements elements = slab.alloc_until_refused();
        if (!memory_is_watched()) {
            EXPECT_GE(elements.size() * 64, mib / 2);
        }
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        quire_slab_free(slab, elements.back());
        EXPECT_NE(quire_slab_alloc(slab), nullptr);
        EXPECT_EQ(quire_slab_alloc(slab), nullptr);
    }
    EXPECT_EQ(taken_bytes(budget), 0u);
    quire_source_destroy(budget);
}

TEST(SlabLimit, after_every_refusal_elements_are_whole)
{
    Slab slab(48, {.limit_bytes = 100000});
    Elements elements = slab.alloc_until_refused();
    for (size_t i = 0; i < elements.size(); i++)
        memset(elements[i], int(i), 48);
    for (int i = 0; i < 100; i++)
        EXPECT_EQ(quire_slab_alloc(slab), nullptr);
    for (size_t i = 0; i < elements.size(); i++)
        ASSERT_TRUE(holds_only(elements[i], 48, char(i)));
    EXPECT_EQ(slab.walk(), sorted(elements));
}

/* ---- page_bytes_max and initial_elements ---- */

TEST(SlabPages, no_page_is_larger_than_asked_but_for_one_element)
{
    struct quire_source *count = quire_source_count(quire_source_default());
    for (size_t most : {size_t(1), page, 4 * page, size_t(20000), size_t(64) << 10, 4 * mib})
        for (size_t bytes : {size_t(16), size_t(100), size_t(5000)}) {
            Slab slab(bytes, {.source = count, .page_bytes_max = most});
            size_t largest = std::max({most, page, (slab.stats().slot_bytes + page - 1) / page * page});
            for (int i = 0; i < 20000; i++) {
                size_t before = taken_bytes(count);
                ASSERT_NE(quire_slab_alloc(slab), nullptr);
                ASSERT_LE(taken_bytes(count) - before, largest) << bytes << " in pages of " << most;
            }
            struct quire_slab_stats stats = slab.stats();
            EXPECT_GE(stats.pages * largest, stats.live_bytes);
        }
    quire_source_destroy(count);
}

TEST(SlabPages, are_64_KiB_at_most_by_default_and_hold_eight_elements_when_these_are_large)
{
    struct quire_source *count = quire_source_count(quire_source_default());
    size_t largest = 0;
    {
        Slab slab(64, {.source = count});
        for (int i = 0; i < 100000; i++) {
            size_t before = taken_bytes(count);
            ASSERT_NE(quire_slab_alloc(slab), nullptr);
            largest = std::max(largest, taken_bytes(count) - before);
        }
        if (!memory_is_watched()) {
            EXPECT_EQ(largest, size_t(64) << 10);
        }
        Slab large(30000, {.source = count});
        large.alloc(400);
        EXPECT_LE(large.stats().pages, 400u / 4);
    }
    quire_source_destroy(count);
}

TEST(SlabPages, grow_from_one_os_page)
{
    if (memory_is_watched())
        GTEST_SKIP() << "red zones take room";
    Slab slab(64);
    slab.alloc(1);
    size_t before = slab.stats().mapped_bytes, steps = 0;
    while (slab.stats().mapped_bytes < mib) {
        quire_slab_alloc(slab);
        size_t now = slab.stats().mapped_bytes;
        if (now != before) {
            EXPECT_LE(now, 2 * before + 8 * page) << "it doubles at most";
            steps++;
        }
        before = now;
    }
    EXPECT_GE(steps, 10u);
}

TEST(SlabPages, initial_elements_find_room_on_the_first_page)
{
    for (size_t count : {size_t(1), size_t(100), size_t(900)}) {
        Slab slab(64, {.initial_elements = count});
        slab.alloc(count);
        if (!memory_is_watched()) {
            EXPECT_LE(slab.stats().pages, 2u) << count << ": beside the slab's struct, and the first page";
        }
    }
}

TEST(SlabPages, more_initial_elements_than_a_page_holds_are_a_hint_and_no_error)
{
    Slab slab(64, {.page_bytes_max = 4 * page, .initial_elements = 1000000});
    EXPECT_LE(slab.stats().mapped_bytes, mib);
    slab.alloc(1000);
    EXPECT_EQ(quire_slab_check(slab), nullptr);
}

TEST(SlabPages, may_be_asked_for_in_any_size)
{
    for (size_t most : {SIZE_MAX, SIZE_MAX / 2, size_t(1) << 63, size_t(3) << 40, size_t(PTRDIFF_MAX)})
        for (size_t bytes : {size_t(1), size_t(64), size_t(100000)}) {
            Slab slab(bytes, {.page_bytes_max = most, .initial_elements = 10});
            slab.free(slab.alloc(300));
            EXPECT_LE(slab.stats().mapped_bytes, 300 * bytes * 4 + mib) << "it grows by need all the same";
        }
}
