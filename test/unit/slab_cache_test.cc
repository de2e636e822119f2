// SPDX-License-Identifier: MIT
/* What threads cache of a slab: that a mark by chance does no harm, and that caches are bounded by use and not by threads. */
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <thread>

#include "model/slab_worker.h"
#include "unit/slab_scope.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wextra"
#include "os/os.h"
#include "slab/slab_internal.h"
#pragma GCC diagnostic pop

namespace {

/* All that caches hold: slots, magazines' own memory not counted, and the threads' arrays of caches. */
size_t cached_bytes(const std::vector<quire_slab *> &slabs)
{
    size_t bytes = slab_thread_bytes(), caches = 0;
    for (quire_slab *slab : slabs) {
        bytes += slab_caches_count(slab, &caches) * slab->slot_bytes;
        slab_lock(slab);
        bytes += magazines_count(slab->depot.full) * slab->slot_bytes;
        slab_unlock(slab);
    }
    return bytes;
}

/* The threads stay until the end of the scope, asleep. */
class Sleepers {
public:
    template <typename Work> Sleepers(size_t count, const Work &work)
    {
        for (size_t i = 0; i < count; i++)
            threads.emplace_back([this, work] {
                work();
                asleep++;
                while (!awake)
                    sleep_ms(20);
            });
        while (asleep != count)
            sleep_ms(1);
    }
    ~Sleepers()
    {
        awake = true;
        for (std::thread &thread : threads)
            thread.join();
    }

private:
    std::atomic<size_t> asleep{0};
    std::atomic<bool> awake{false};
    std::vector<std::thread> threads;
};

/* Magazines there are, unless somebody watches. */
class SlabCache : public testing::Test {
protected:
    void SetUp() override
    {
        Slab slab(64);
        if (static_cast<quire_slab *>(slab)->straight)
            GTEST_SKIP() << "nothing is cached here";
    }
};

uint64_t *words(void *p) { return static_cast<uint64_t *>(p); }

} // namespace

TEST_F(SlabCache, an_element_that_holds_the_very_mark_of_a_free_one_is_freed_all_the_same)
{
    Slab slab(64);
    Elements elements = slab.alloc(300);
    for (void *p : elements)
        words(p)[0] = slots_mark(p, slots_key ^ UINT64_C(3) << 48);
    EXPECT_EQ(slab.stats().live_elements, 300u);
    slab.free(elements);
    EXPECT_EQ(slab.stats().live_elements, 0u);
    EXPECT_EQ(slab.walk(), Elements{});
    EXPECT_EQ(slab.alloc(300).size(), 300u) << "and is handed out again";
}

TEST_F(SlabCache, a_thousand_idle_threads_that_used_ten_slabs_once_hold_64_kib_a_cpu_after_two_decays)
{
    CpuCount two(2);
    std::vector<std::unique_ptr<Slab>> all;
    std::vector<quire_slab *> slabs;
    for (size_t i = 0; i < 10; i++) {
        all.push_back(std::make_unique<Slab>(64 + 16 * i));
        slabs.push_back(*all.back());
    }
    Sleepers threads(1000, [&] {
        for (quire_slab *slab : slabs)
            quire_slab_free(slab, quire_slab_alloc(slab));
    });
    const size_t allowed = size_t(64 << 10) * os_cpu_count();
    EXPECT_GT(cached_bytes(slabs), 10 * allowed) << "before";
    {
        Decay decay(30000000);
        quire_slab_free(slabs[0], quire_slab_alloc(slabs[0]));
        EXPECT_TRUE(at_last([&] { return cached_bytes(slabs) <= allowed; })) << cached_bytes(slabs);
    }
    for (quire_slab *slab : slabs)
        EXPECT_EQ(quire_slab_check(slab), nullptr);
}

TEST_F(SlabCache, what_busy_threads_have_cached_is_a_fiftieth_of_what_lives_and_64_kib_a_cpu_after_a_tick)
{
    CpuCount two(2);
    Slab slab(64);
    Elements live = slab.alloc(20000);
    Sleepers threads(8, [&] {
        for (int round = 0; round < 4; round++)
            slab.free(slab.alloc(10000));
    });
    const size_t allowed = size_t(64 << 10) * os_cpu_count() + live.size() * 64 / 50;
    EXPECT_GT(cached_bytes({slab}), 2 * allowed) << "they are made for that";
    {
        Decay decay(30000000);
        EXPECT_TRUE(at_last([&] { return cached_bytes({slab}) <= allowed; })) << cached_bytes({slab});
    }
    EXPECT_EQ(slab.walk(), sorted(live));
}

TEST_F(SlabCache, threads_work_on_after_a_tick_has_taken_all_they_had)
{
    Decay decay(2000000);
    Slab slab(64);
    std::vector<std::unique_ptr<Worker>> workers(4);
    for (auto &worker : workers)
        worker = std::make_unique<Worker>();
    for (int round = 0; round < 30; round++) {
        for (auto &worker : workers)
            worker->run([&] {
                Elements mine = slab.alloc(2000);
                for (void *p : mine)
                    words(p)[0] = uintptr_t(p);
                for (void *p : mine)
                    ASSERT_EQ(words(p)[0], uintptr_t(p));
                slab.free(mine);
            });
        sleep_ms(3);
    }
    EXPECT_EQ(slab.stats().live_elements, 0u);
}

TEST_F(SlabCache, more_slabs_than_a_thread_has_gates_are_all_cached)
{
    std::vector<std::unique_ptr<Slab>> all;
    for (size_t i = 0; i < 100; i++)
        all.push_back(std::make_unique<Slab>(64));
    auto all_are_cached = [&] {
        for (auto &slab : all)
            slab->free(slab->alloc(50));
        return std::all_of(all.begin(), all.end(), [](auto &slab) { return cached_bytes({*slab}) > slab_thread_bytes(); });
    };
    EXPECT_TRUE(at_last(all_are_cached)) << "again, if the last tick of the test before came between";
}

TEST_F(SlabCache, much_that_was_freed_in_any_order_is_handed_out_by_rising_addresses)
{
    for (size_t bytes : {256, 320, 1024}) {
        const size_t count = (3 << 19) / bytes;
        Slab slab(bytes);
        for (int i = 0; i < 3; i++)
            slab.free(shuffled(slab.alloc(count))); /* that it turns is learned */
        for (int i = 0; i < 3; i++) {
            Elements elements = slab.alloc(count);
            EXPECT_GT(rising(elements), count * 9 / 10) << bytes;
            EXPECT_EQ(std::set<void *>(elements.begin(), elements.end()).size(), count) << "none twice";
            EXPECT_EQ(quire_slab_check(slab), nullptr);
            slab.free(shuffled(elements));
            EXPECT_EQ(quire_slab_check(slab), nullptr);
        }
    }
}

/* As where threads fill pages side by side: each has every fourth stretch of 64 KiB, over four times as many addresses. */
TEST_F(SlabCache, what_lies_among_others_is_handed_out_by_rising_addresses_too)
{
    for (size_t bytes : {256, 512}) {
        const size_t all = (16 << 20) / bytes;
        Slab slab(bytes);
        Elements rest, mine;
        for (void *p : slab.alloc(all))
            (reinterpret_cast<uintptr_t>(p) >> 16 & 3 ? rest : mine).push_back(p);
        ASSERT_GT(mine.size(), all / 8);
        for (int i = 0; i < 3; i++) {
            slab.free(shuffled(mine));
            mine = slab.alloc(mine.size());
        }
        EXPECT_GT(rising(mine), mine.size() * 9 / 10) << bytes;
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        mine.insert(mine.end(), rest.begin(), rest.end());
        EXPECT_EQ(std::set<void *>(mine.begin(), mine.end()).size(), all) << "none twice";
        slab.free(mine);
    }
}

/* A slab's first page lies behind the slab itself, so its slots are no multiples of their size: they stay where they are, and the others are sorted. */
TEST_F(SlabCache, slots_that_lie_otherwise_than_the_rest_do_not_keep_these_from_being_sorted)
{
    const size_t count = (5 << 20) / 512;
    Slab slab(512);
    Elements elements;
    for (int i = 0; i < 4; i++) {
        elements = slab.alloc(count);
        if (i < 3)
            slab.free(shuffled(elements));
    }
    size_t odd = size_t(std::count_if(elements.begin(), elements.end(), [](void *p) { return reinterpret_cast<uintptr_t>(p) % 512 != 0; }));
    EXPECT_GT(odd, 0u);
    EXPECT_GT(rising(elements), count * 9 / 10);
    EXPECT_EQ(std::set<void *>(elements.begin(), elements.end()).size(), count) << "none twice";
    EXPECT_EQ(quire_slab_check(slab), nullptr);
    slab.free(elements);
}

TEST_F(SlabCache, who_only_allocates_passes_its_empty_magazines_on_to_who_only_frees)
{
    Slab slab(64);
    Worker other;
    for (int i = 0; i < 100; i++) {
        Elements elements = slab.alloc(1000);
        other.run([&] { slab.free(elements); });
    }
    struct Spares {
        const quire_slab *slab;
        size_t count;
    } spares = {slab, 0};
    auto add = [](struct slab_thread *thread, void *arg) {
        auto *sum = static_cast<Spares *>(arg);
        const struct slab_cache *cache = slab_visited_cache(thread, sum->slab);
        for (const struct magazine *mag = cache ? cache->slots.spare : nullptr; mag; mag = mag->next)
            sum->count++;
    };
    registry_lock(&slab_registry);
    slab_visit_all(add, &spares, true);
    registry_unlock(&slab_registry);
    EXPECT_LE(spares.count, 20u) << "800 were passed on";
}

TEST_F(SlabCache, who_allocates_in_a_row_takes_the_lock_seldom_and_who_frees_then_keeps_little)
{
    Slab slab(64);
    auto *inside = static_cast<quire_slab *>(slab);
    uint64_t turns = inside->turns;
    Elements elements = slab.alloc(10000);
    EXPECT_LT(inside->turns - turns, 10000u / MAGAZINE_SLOTS + 60);
    slab.free(elements);
    size_t caches = 0;
    EXPECT_LE(slab_caches_count(inside, &caches), size_t(SLAB_SMALL_SLOTS)) << "it has been large for what was had, and that is over";
    EXPECT_LE(slab.stats().pages, 3u) << "nor does it hold a page";
}

TEST_F(SlabCache, who_asks_for_dense_memory_has_small_magazines_however_many_are_had_in_a_row)
{
    struct quire_slab_opts opts = {};
    opts.flags = QUIRE_SLAB_DEFRAG;
    Slab dense(64, opts);
    Elements elements = dense.alloc(1000);
    size_t caches = 0;
    EXPECT_LE(slab_caches_count(dense, &caches), size_t(SLAB_SMALL_SLOTS));
    dense.free(elements);
    Decay none(0);
    Slab lean(64);
    elements = lean.alloc(1000);
    EXPECT_LE(slab_caches_count(lean, &caches), size_t(SLAB_SMALL_SLOTS));
    lean.free(elements);
}

/* ---- threads that nobody knows ---- */

namespace {
bool is_among(const std::vector<quire_span> &spans, const void *p)
{
    return std::any_of(spans.begin(), spans.end(), [&](const quire_span &span) { return size_t(static_cast<const char *>(p) - static_cast<char *>(span.start)) < span.bytes; });
}

/* All that the default source has free below, in OS pages: what was given back is among them. */
std::vector<quire_span> take_pages(size_t count)
{
    quire_source *source = quire_source_default();
    std::vector<quire_span> spans(count);
    for (quire_span &span : spans)
        EXPECT_EQ(source->verbs->take(source, os_page_bytes(), os_page_bytes(), &span), 0);
    return spans;
}
} // namespace

/* No grace waits for a thread whose first call is a free: all that such a free reads stays what it is, at whatever step the thread stands. */
TEST_F(SlabCache, what_a_first_free_may_be_reading_stays_until_the_slab_ends)
{
    Slab slab(64);
    Elements few = slab.alloc(100000);
    auto *table = reinterpret_cast<slab_table *>(addr_load_acquire(&static_cast<quire_slab *>(slab)->table));
    std::set<slab_page *> headers;
    for (size_t i = 0; i <= table->mask / sizeof table->entry[0]; i++)
        headers.insert(table->entry[i]);
    ASSERT_GT(headers.size(), 50u);
    Elements many = slab.alloc(300000);
    slab.free(few);
    slab.free(many);
    quire_slab_trim(slab);
    quire_source_trim(quire_source_default());
    for (size_t i = 0; i <= table->mask / sizeof table->entry[0]; i++)
        ASSERT_NE(table->entry[i], nullptr) << i;
    std::vector<quire_span> spans = take_pages((64 << 20) / os_page_bytes());
    EXPECT_FALSE(is_among(spans, table));
    for (slab_page *header : headers)
        EXPECT_FALSE(is_among(spans, header)) << header;
    for (const quire_span &span : spans)
        quire_source_default()->verbs->give(quire_source_default(), &span);
}

TEST_F(SlabCache, tables_and_headers_that_were_kept_are_used_again)
{
    Slab slab(64);
    size_t most = 0, rest = 0, slack = 16 * os_page_bytes();
    for (int turn = 0; turn < 20; turn++) {
        Elements elements = slab.alloc(200000);
        most = turn < 4 ? std::max(most, size_t(slab.stats().meta_bytes)) : most;
        EXPECT_LE(slab.stats().meta_bytes, 2 * most + slack) << turn; /* where pages lie differs, and so do tables; what is not used again adds up to more */
        slab.free(elements);
        quire_slab_trim(slab);
        rest = turn < 4 ? std::max(rest, size_t(slab.stats().meta_bytes)) : rest;
        EXPECT_LE(slab.stats().meta_bytes, 2 * rest + slack) << turn;
    }
    EXPECT_LE(rest, most);
}

/* One element in ten large pages lives on: no memory for headers is idle. */
TEST_F(SlabCache, a_trim_takes_no_memory_for_the_table_of_a_slab_that_is_smaller_now)
{
    Slab slab(8192);
    Elements all = slab.alloc(1024), kept;
    for (size_t i = 0; i < all.size(); i++)
        i % 80 == 0 ? kept.push_back(all[i]) : quire_slab_free(slab, all[i]);
    size_t meta = slab.stats().meta_bytes;
    quire_slab_trim(slab);
    EXPECT_LE(slab.stats().meta_bytes, meta);
    EXPECT_LT(slab.stats().mapped_bytes, size_t{2} << 20);
    slab.free(kept);
}
