// SPDX-License-Identifier: MIT
// What programs have compiled in of quire_slab_alloc() and quire_slab_free() (quire/slab_inline.h): when it serves, and when it leaves a call to the library.
#include <thread>

#include <quire/source.h>

#include "slab_scope.h"

namespace {

const quire_slab_window *window(const Slab &slab)
{
    return reinterpret_cast<const quire_slab_window *>(static_cast<quire_slab *>(slab));
}

/* An element that went through this thread's magazine: the next ones go the short way. */
void warm_up(const Slab &slab)
{
    quire_slab_free(slab, quire_slab_alloc(slab));
}

bool serves(const Slab &slab)
{
    void *p = quire_slab_alloc_try(window(slab));
    return p && quire_slab_free_try(window(slab), p);
}

bool has_caches(const Slab &slab)
{
    warm_up(slab);
    return serves(slab);
}

TEST(SlabInline, what_was_freed_is_had_again_without_a_call)
{
    Slab slab(64);
    if (!has_caches(slab))
        GTEST_SKIP() << "no thread has caches here";
    void *p = quire_slab_alloc_try(window(slab));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(*static_cast<uint64_t *>(p), 0u) << "the mark is gone";
    EXPECT_EQ(slab_stats(slab).live_elements, 1u);
    memset(p, 0xff, 64);
    EXPECT_TRUE(quire_slab_free_try(window(slab), p));
    EXPECT_EQ(slab_stats(slab).live_elements, 0u);
    EXPECT_EQ(quire_slab_alloc(slab), p);
    quire_slab_free(slab, p);
}

TEST(SlabInline, what_it_cannot_settle_is_left_as_it_was)
{
    Slab slab(64), other(64);
    alignas(64) char foreign[64] = "not ours";
    warm_up(slab), warm_up(other);
    void *p = quire_slab_alloc(slab), *theirs = quire_slab_alloc(other);
    EXPECT_FALSE(quire_slab_free_try(window(slab), nullptr));
    EXPECT_FALSE(quire_slab_free_try(window(slab), static_cast<char *>(p) + 8)) << "inside an element";
    EXPECT_FALSE(quire_slab_free_try(window(slab), theirs)) << "another slab's";
    EXPECT_FALSE(quire_slab_free_try(window(slab), foreign));
    EXPECT_FALSE(quire_slab_free_try(window(slab), reinterpret_cast<void *>(UINT64_C(0xdeadbeef00000000)))) << "nothing is followed";
    EXPECT_STREQ(foreign, "not ours");
    EXPECT_EQ(slab_stats(slab).live_elements, 1u);
    quire_slab_free(slab, p);
    EXPECT_FALSE(quire_slab_free_try(window(slab), p)) << "free already";
    quire_slab_free(other, theirs);
}

TEST(SlabInline, a_slab_that_wants_to_see_every_call_does)
{
    quire_slab_opts exact = {};
    exact.flags = QUIRE_SLAB_EXACT;
    Slab first(64, exact), defragmented(64);
    warm_up(first);
    EXPECT_FALSE(serves(first));
    bool before = has_caches(defragmented);
    void *p = quire_slab_alloc(defragmented);
    quire_slab_set_defrag(defragmented, 1);
    EXPECT_FALSE(quire_slab_free_try(window(defragmented), p)) << "frees go to their pages";
    quire_slab_free(defragmented, p);
    quire_slab_set_defrag(defragmented, 0);
    EXPECT_EQ(has_caches(defragmented), before);
}

TEST(SlabInline, slabs_beyond_the_gates_are_called)
{
    std::vector<std::unique_ptr<Slab>> slabs;
    for (int i = 0; i < 40; i++)
        slabs.push_back(std::make_unique<Slab>(64));
    warm_up(*slabs.back());
    EXPECT_FALSE(serves(*slabs.back()));
    void *p = quire_slab_alloc(*slabs.back());
    EXPECT_FALSE(quire_slab_free_try(window(*slabs.back()), p));
    quire_slab_free(*slabs.back(), p);
}

TEST(SlabInline, an_element_goes_from_thread_to_thread)
{
    Slab slab(48);
    warm_up(slab);
    void *p = quire_slab_alloc(slab);
    std::thread([&] {
        warm_up(slab);
        if (!quire_slab_free_try(window(slab), p))
            quire_slab_free(slab, p);
    }).join();
    EXPECT_EQ(slab_stats(slab).live_elements, 0u);
    EXPECT_STREQ(quire_slab_check(slab), nullptr);
}

/* Of the live elements, how many a free does not find by the table: each is freed and had again, so that magazines stay as they are. */
size_t not_found(const Slab &slab, const Elements &elements)
{
    size_t missed = 0;
    for (void *p : elements)
        if (!quire_slab_free_try(window(slab), p))
            missed++;
        else if (void *again = quire_slab_alloc(slab); again != p)
            ADD_FAILURE() << "another came back";
    return missed;
}

TEST(SlabInline, a_large_slab_has_one_entry_for_a_page_and_many_where_pages_do_not_lie_at_multiples_of_their_size)
{
    if (!has_caches(Slab(64)))
        GTEST_SKIP() << "no thread has caches here";
    const size_t count = (24 << 20) / 64, page = os_page_bytes(), bytes = 64 << 20;
    void *buffer;
    ASSERT_EQ(os_map(bytes, 64 << 10, &buffer), 0);
    quire_source *fixed = quire_source_fixed(buffer, bytes);
    quire_span first;
    ASSERT_EQ(fixed->verbs->take(fixed, page, page, &first), 0);
    for (quire_source *source : {quire_source_default(), fixed}) {
        quire_slab_opts opts = {};
        opts.source = source;
        Slab slab(64, opts);
        Elements elements = slab.alloc(count);
        EXPECT_LT(not_found(slab, elements), count / 50);
        size_t meta = slab.stats().meta_bytes;
        EXPECT_LT(meta, source == fixed ? count * 8 / 10 : count * 5 / 10);
        for (void *p : elements)
            quire_slab_free(slab, p);
        quire_slab_trim(slab);
        Elements few = slab.alloc(16000);
        auto [low, high] = std::minmax_element(few.begin(), few.end());
        /* One of 150 times the default source has pages in two places, and some of one share an entry with some of the other. */
        bool are_together = source == fixed || uintptr_t(*high) - uintptr_t(*low) < 2 * few.size() * 64;
        EXPECT_LT(not_found(slab, few), few.size() / (are_together ? 10 : 2)) << "it is small again";
        for (void *p : few)
            quire_slab_free(slab, p);
    }
    fixed->verbs->give(fixed, &first);
    quire_source_destroy(fixed);
    os_unmap(buffer, bytes);
}

} // namespace
