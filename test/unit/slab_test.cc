// SPDX-License-Identifier: MIT
/* Each sentence of quire/slab.h about elements: where they lie, what is in them, who may free them, what is told of them. */
#include <gtest/gtest.h>

#include <thread>

#include "model/slab_worker.h"
#include "unit/slab_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;

/* The errno with which a slab is refused; 0: it is not. */
int refusal(size_t element_bytes, quire_slab_opts opts = {})
{
    errno = 0;
    quire_slab *slab = quire_slab_create(element_bytes, &opts);
    int error = errno;
    quire_slab_destroy(slab);
    return slab ? 0 : error;
}

size_t taken_by_default()
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(quire_source_default(), &stats);
    return stats.taken_bytes;
}
} // namespace

/* ---- creation ---- */

TEST(Slab, elements_of_every_size_are_aligned_apart_and_whole)
{
    for (size_t bytes : {size_t(0), size_t(1), size_t(7), size_t(8), size_t(15), size_t(16), size_t(17), size_t(24), size_t(63), size_t(64), size_t(65),
                         size_t(100), size_t(255), size_t(256), size_t(1000), size_t(1024), page - 1, page, page + 1, size_t(8200), size_t(65536),
                         size_t(100000), mib - 1, mib}) {
        Slab slab(bytes);
        size_t real = bytes ? bytes : 1, count = bytes > 10000 ? 20 : 700;
        Elements elements = slab.alloc(count);
        for (size_t i = 0; i < count; i++) {
            ASSERT_EQ(uintptr_t(elements[i]) % 16, 0u) << bytes;
            memset(elements[i], int(i), real);
        }
        for (size_t i = 0; i < count; i++)
            ASSERT_TRUE(holds_only(elements[i], real, char(i))) << bytes;
        Elements places = sorted(elements);
        for (size_t i = 1; i < count; i++)
            ASSERT_GE(static_cast<char *>(places[i]) - static_cast<char *>(places[i - 1]), ptrdiff_t(real));
        EXPECT_EQ(slab.stats().live_elements, count);
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        slab.free(elements);
        EXPECT_EQ(slab.stats().live_elements, 0u);
    }
}

TEST(Slab, every_alignment_is_met_for_every_size)
{
    for (size_t align = 1; align <= 65536; align *= 2)
        for (size_t bytes : {size_t(0), size_t(1), size_t(24), size_t(100), page, 3 * page + 8}) {
            Slab slab(bytes, {.align_bytes = align});
            for (void *p : slab.alloc(50)) {
                ASSERT_EQ(uintptr_t(p) % align, 0u) << bytes;
                memset(p, 3, bytes ? bytes : 1);
            }
            size_t real = std::max<size_t>(bytes, 1), slot = (real + align - 1) / align * align;
            if (memory_is_watched()) {
                EXPECT_GE(slab.stats().slot_bytes, slot);
                EXPECT_EQ(slab.stats().slot_bytes % align, 0u);
            } else {
                EXPECT_EQ(slab.stats().slot_bytes, slot) << "the element rounded up to the alignment: nothing is added";
            }
        }
}

TEST(Slab, null_options_and_all_zero_options_are_the_defaults)
{
    quire_slab *slab = quire_slab_create(24, nullptr);
    ASSERT_NE(slab, nullptr);
    Slab zero(24);
    EXPECT_EQ(slab_stats(slab).element_bytes, 24u);
    EXPECT_EQ(slab_stats(slab).slot_bytes, zero.stats().slot_bytes);
    EXPECT_EQ(slab_stats(slab).limit_bytes, 0u);
    EXPECT_EQ(slab_stats(slab).live_elements, 0u);
    EXPECT_EQ(quire_slab_check(slab), nullptr);
    quire_slab_destroy(slab);
}

TEST(Slab, alignments_that_are_no_power_of_two_and_unknown_flags_are_einval)
{
    for (size_t align : {size_t(3), size_t(24), size_t(48), size_t(65535), SIZE_MAX, SIZE_MAX / 2 + 2})
        EXPECT_EQ(refusal(64, {.align_bytes = align}), EINVAL) << align;
    for (uint32_t flag = 32; flag != 0; flag *= 2)
        EXPECT_EQ(refusal(64, {.flags = flag}), EINVAL) << flag;
    EXPECT_EQ(refusal(64, {.flags = 31}), 0) << "all flags there are";
}

TEST(Slab, sizes_and_alignments_that_cannot_be_are_enomem_and_nothing_is_left)
{
    size_t before = taken_by_default();
    for (size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 4096, size_t(PTRDIFF_MAX) + 1, size_t(PTRDIFF_MAX), size_t(1) << 62})
        for (size_t align = 1; align != 0; align *= 2)
            EXPECT_EQ(refusal(bytes, {.align_bytes = align}), ENOMEM) << bytes << " aligned to " << align;
    for (size_t align = size_t(1) << 48; align != 0; align *= 2)
        EXPECT_EQ(refusal(8, {.align_bytes = align}), ENOMEM) << align;
    EXPECT_EQ(taken_by_default(), before);
}

TEST(Slab, an_impossible_number_of_initial_elements_is_a_hint_like_any_other)
{
    for (size_t count : {SIZE_MAX, SIZE_MAX / 64, SIZE_MAX / 64 + 1, size_t(PTRDIFF_MAX)})
        EXPECT_EQ(refusal(64, {.initial_elements = count}), 0) << count;
}

TEST(Slab, creating_costs_one_os_page)
{
    if (memory_is_watched())
        GTEST_SKIP() << "red zones take room";
    Slab slab(64);
    EXPECT_LE(slab.stats().mapped_bytes, page);
    slab.alloc(1);
    EXPECT_LE(slab.stats().mapped_bytes, 4 * page) << "and the first element little more";
}

/* ---- contents ---- */

TEST(Slab, zeroed_elements_are_zero_also_where_older_ones_were)
{
    for (size_t bytes : {size_t(1), size_t(24), size_t(100), size_t(1000), size_t(9000)}) {
        Slab slab(bytes);
        for (int round = 0; round < 4; round++) {
            Elements elements = slab.alloc(300);
            for (void *p : elements)
                memset(p, 0xee, bytes);
            slab.free(elements);
            elements.clear();
            for (int i = 0; i < 400; i++) {
                elements.push_back(quire_slab_alloc_zero(slab));
                ASSERT_TRUE(elements.back() && holds_only(elements.back(), bytes, 0)) << bytes;
                memset(elements.back(), 0xdd, bytes);
            }
            slab.free(elements);
            quire_slab_trim(slab);
        }
    }
}

/* ---- batches ---- */

TEST(Slab, a_batch_is_as_many_single_elements)
{
    Slab slab(48);
    for (size_t count : {size_t(0), size_t(1), size_t(2), size_t(63), size_t(64), size_t(65), size_t(1000), size_t(100000)}) {
        Elements elements(count + 1, &slab);
        errno = 42;
        ASSERT_EQ(quire_slab_alloc_batch(slab, elements.data(), count), count);
        EXPECT_EQ(errno, 42);
        EXPECT_EQ(elements.back(), &slab) << "no more than asked for is written";
        elements.pop_back();
        EXPECT_EQ(slab.stats().live_elements, count);
        EXPECT_EQ(slab.walk(), sorted(elements)) << "all different, all live";
        for (void *p : elements)
            memset(p, 5, 48);
        quire_slab_free_batch(slab, elements.data(), count);
        EXPECT_EQ(slab.stats().live_elements, 0u);
    }
    quire_slab_free_batch(slab, nullptr, 0);
    EXPECT_EQ(quire_slab_alloc_batch(slab, nullptr, 0), 0u);
}

TEST(Slab, nulls_in_a_batch_are_left_alone_wherever_they_are)
{
    Slab slab(32);
    Elements elements = slab.alloc(10), none(20, nullptr);
    quire_slab_free_batch(slab, none.data(), none.size());
    EXPECT_EQ(slab.stats().live_elements, 10u);
    Elements mixed = {nullptr, elements[0], nullptr, nullptr, elements[1], elements[2], nullptr};
    quire_slab_free_batch(slab, mixed.data(), mixed.size());
    EXPECT_EQ(slab.stats().live_elements, 7u);
    Worker other;
    other.run([&] {
        Elements rest = {nullptr, elements[9], elements[8], nullptr, elements[4], nullptr};
        quire_slab_free_batch(slab, rest.data(), rest.size());
    });
    EXPECT_EQ(slab.stats().live_elements, 4u);
}

TEST(Slab, what_a_batch_brought_may_be_freed_alone_and_the_other_way_round)
{
    Slab slab(200);
    Elements batch(500);
    ASSERT_EQ(quire_slab_alloc_batch(slab, batch.data(), 500), 500u);
    slab.free(batch);
    Elements single = slab.alloc(500);
    std::reverse(single.begin(), single.end());
    quire_slab_free_batch(slab, single.data(), single.size());
    EXPECT_EQ(slab.stats().live_elements, 0u);
}

TEST(Slab, a_batch_may_mix_elements_of_two_threads_in_any_order)
{
    const size_t count = 1409; /* a prime: every step below meets each element once */
    Worker other;
    for (size_t step : {size_t(1), size_t(7), size_t(64), count - 1}) {
        Slab slab(16);
        Elements elements = slab.alloc(705), batch;
        other.run([&] {
            for (void *p : slab.alloc(count - 705))
                elements.push_back(p);
        });
        for (size_t i = 0; i < 1000; i++) {
            batch.push_back(elements[i * step % count]);
            elements[i * step % count] = nullptr;
            if (i % 10 == 0)
                batch.push_back(nullptr);
        }
        quire_slab_free_batch(slab, batch.data(), batch.size());
        elements.erase(std::remove(elements.begin(), elements.end(), nullptr), elements.end());
        EXPECT_EQ(slab.walk(), sorted(elements)) << "those of the batch are freed, and no other";
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        other.run([&] { quire_slab_free_batch(slab, elements.data(), elements.size()); });
        EXPECT_EQ(slab.stats().live_elements, 0u);
    }
}

/* ---- freeing ---- */

TEST(Slab, freeing_null_does_nothing_and_freeing_and_destroying_keep_errno)
{
    quire_slab *slab = quire_slab_create(3000, nullptr);
    Elements elements(200);
    ASSERT_EQ(quire_slab_alloc_batch(slab, elements.data(), 200), 200u);
    errno = 42;
    quire_slab_free(slab, nullptr);
    for (size_t i = 0; i < 100; i++)
        quire_slab_free(slab, elements[i]);
    quire_slab_free_batch(slab, &elements[100], 50);
    Worker().run([&] {
        errno = 43;
        quire_slab_free_batch(slab, &elements[150], 25);
        quire_slab_free(slab, elements[175]);
        EXPECT_EQ(errno, 43);
    });
    EXPECT_EQ(errno, 42);
    quire_slab_destroy(slab);
    quire_slab_destroy(nullptr);
    quire_slab_shared_release(nullptr);
    EXPECT_EQ(errno, 42);
}

TEST(Slab, what_is_freed_is_allocated_again_before_more_memory_is_taken)
{
    Slab slab(64);
    Elements elements = slab.alloc(5000);
    size_t mapped = slab.stats().mapped_bytes;
    for (int round = 0; round < 20; round++) {
        slab.free(elements);
        elements = slab.alloc(5000);
        EXPECT_LE(slab.stats().mapped_bytes, mapped);
    }
}

TEST(Slab, what_another_thread_freed_the_owner_allocates_again_before_more_memory_is_taken)
{
    Slab slab(64);
    Worker other;
    Elements elements = slab.alloc(5000);
    size_t mapped = slab.stats().mapped_bytes;
    for (int round = 0; round < 20; round++) {
        other.run([&] { slab.free(elements); });
        EXPECT_EQ(slab.stats().live_elements, 0u) << "freed is freed, whether collected or not";
        elements = slab.alloc(5000);
        EXPECT_LE(slab.stats().mapped_bytes, mapped + 2 * page);
    }
}

TEST(Slab, a_thread_that_ends_leaves_its_pages_to_others)
{
    Slab slab(64);
    Elements elements;
    std::thread([&] { elements = slab.alloc(5000); }).join();
    for (size_t i = 0; i < elements.size(); i += 2)
        quire_slab_free(slab, elements[i]);
    size_t mapped = slab.stats().mapped_bytes;
    std::thread([&] { slab.alloc(2500); }).join();
    EXPECT_LE(slab.stats().mapped_bytes, mapped + 4 * page) << "the holes are used";
    EXPECT_EQ(slab.stats().live_elements, 5000u);
    EXPECT_LE(slab.stats().caches, 2u);
}

TEST(Slab, hundreds_of_threads_one_after_the_other_share_one_set_of_pages)
{
    Slab slab(100);
    size_t mapped = 0;
    for (int i = 0; i < 300; i++) {
        std::thread([&] {
            Elements elements = slab.alloc(100);
            slab.free(elements);
            quire_slab_alloc(slab);
        }).join();
        if (i == 10)
            mapped = slab.stats().mapped_bytes;
    }
    EXPECT_EQ(slab.stats().live_elements, 300u);
    EXPECT_LE(slab.stats().caches, 4u);
    EXPECT_LE(slab.stats().mapped_bytes, mapped + 300 * slab.stats().slot_bytes + 16 * page);
}

TEST(Slab, destroy_frees_what_is_left)
{
    auto live_and_die = [] {
        quire_slab *slab = quire_slab_create(500, nullptr);
        for (int k = 0; k < 1000; k++)
            memset(quire_slab_alloc(slab), 1, 500);
        Worker().run([&] { quire_slab_alloc(slab); });
        quire_slab_destroy(slab);
    };
    live_and_die(); /* the slab that magazines come from is there once, with a page */
    size_t before = taken_by_default();
    for (int i = 0; i < 50; i++)
        live_and_die();
    EXPECT_EQ(taken_by_default(), before);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(Slab, single_thread_slabs_work_from_whichever_thread_has_its_turn)
{
    Slab slab(40, {.flags = QUIRE_SLAB_SINGLE_THREAD});
    Worker other;
    Elements mine = slab.alloc(1000), theirs;
    other.run([&] {
        slab.free(mine);
        theirs = slab.alloc(1000);
    });
    EXPECT_EQ(slab.stats().live_elements, 1000u);
    EXPECT_EQ(slab.walk(), sorted(theirs));
    quire_slab_free_batch(slab, theirs.data(), theirs.size());
    EXPECT_EQ(slab.stats().live_elements, 0u);
}

TEST(Slab, thousands_at_once_are_kept_apart_and_serve_threads_that_came_before_and_after)
{
    Worker before;
    std::vector<quire_slab *> slabs(3000);
    for (int round = 0; round < 2; round++) { /* the second time where the first ones were */
        Elements mine, theirs(slabs.size());
        for (quire_slab *&slab : slabs) {
            ASSERT_NE(slab = quire_slab_create(48, nullptr), nullptr);
            mine.push_back(quire_slab_alloc(slab));
            memset(mine.back(), round, 48);
        }
        Worker after;
        before.run([&] {
            for (size_t i = 0; i < slabs.size(); i += 2)
                memset(theirs[i] = quire_slab_alloc(slabs[i]), 77, 48);
        });
        after.run([&] {
            for (size_t i = 1; i < slabs.size(); i += 2)
                memset(theirs[i] = quire_slab_alloc(slabs[i]), 78, 48);
            for (size_t i = 0; i < slabs.size(); i += 3)
                quire_slab_free(slabs[i], mine[i]);
        });
        for (size_t i = 0; i < slabs.size(); i++) {
            ASSERT_TRUE(holds_only(theirs[i], 48, char(77 + i % 2)));
            ASSERT_EQ(quire_slab_owns(slabs[i], mine[i]), i % 3 != 0);
            ASSERT_FALSE(i + 1 < slabs.size() && quire_slab_owns(slabs[i + 1], theirs[i]));
            quire_slab_destroy(slabs[i]);
        }
    }
}
