// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include <quire/arena.h>

#include "arena/arena_internal.h"
#include "os/sanitize.h"
#include "support.h"
#include "unit/arena_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;

size_t redzone() { return sanitize_watched() ? REDZONE_BYTES : 0; }
} // namespace

TEST(Arena, blocks_are_aligned_distinct_and_writable_for_every_size)
{
    Arena arena;
    char *before = nullptr;
    for (size_t bytes = 0; bytes < 6000; bytes++) {
        char *p = static_cast<char *>(quire_arena_alloc(arena, bytes));
        ASSERT_NE(p, nullptr);
        EXPECT_EQ(uintptr_t(p) % 16, 0u);
        EXPECT_NE(p, before);
        memset(p, 1, bytes);
        before = p;
    }
}

TEST(Arena, every_alignment_is_met_up_to_many_pages)
{
    Arena arena;
    for (size_t align = 1; align <= 4 * mib; align *= 2)
        for (size_t bytes : {size_t(0), size_t(1), size_t(100), page, 3 * page}) {
            char *p = static_cast<char *>(quire_arena_alloc_aligned(arena, bytes, align));
            ASSERT_NE(p, nullptr);
            EXPECT_EQ(uintptr_t(p) % align, 0u);
            memset(p, 2, bytes);
        }
}

TEST(Arena, bad_alignments_are_einval)
{
    Arena arena;
    for (size_t align : {size_t(0), size_t(3), size_t(24), SIZE_MAX}) {
        errno = 0;
        EXPECT_EQ(quire_arena_alloc_aligned(arena, 8, align), nullptr);
        EXPECT_EQ(errno, EINVAL) << align;
    }
}

TEST(Arena, sizes_that_cannot_be_are_enomem_and_the_arena_goes_on)
{
    Arena arena;
    for (size_t bytes : {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 16, SIZE_MAX - 4096, size_t(PTRDIFF_MAX) + 1, size_t(PTRDIFF_MAX), size_t(1) << 62})
        for (size_t align = 1; align != 0; align *= 2) {
            volatile size_t hidden = bytes; /* the compiler refuses such sizes when it sees them */
            errno = 0;
            EXPECT_EQ(quire_arena_alloc_aligned(arena, hidden, align), nullptr);
            EXPECT_EQ(errno, ENOMEM);
        }
    volatile size_t large = SIZE_MAX / 2 + 2;
    errno = 0;
    EXPECT_EQ(quire_arena_alloc_zero(arena, large, 2), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(quire_arena_alloc_zero(arena, large, 4), nullptr) << "the product overflows to something small";
    EXPECT_EQ(errno, ENOMEM);
    void *p = quire_arena_alloc(arena, 16);
    ASSERT_NE(p, nullptr);
    volatile size_t grown = SIZE_MAX;
    errno = 0;
    EXPECT_EQ(quire_arena_resize(arena, p, 16, grown), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_NE(quire_arena_alloc(arena, 16), nullptr);
}

TEST(Arena, products_overflow_exactly_where_128_bits_say_so)
{
    Arena arena({.limit_bytes = mib});
    Random random(11);
    for (int i = 0; i < 1000000; i++) {
        volatile size_t count = random.next() >> random.below(64), bytes = random.next() >> random.below(64);
        unsigned __int128 product = static_cast<unsigned __int128>(count) * bytes;
        if (product > 64 && product <= mib)
            continue; /* those cost time, or depend on what is left */
        void *p = quire_arena_alloc_zero(arena, count, bytes);
        ASSERT_EQ(p != nullptr, product <= 64) << count << " " << bytes;
        if (i % 1000 == 0)
            quire_arena_reset(arena);
    }
}

TEST(Arena, zero_bytes_give_pointers_that_differ)
{
    Arena arena;
    void *a = quire_arena_alloc(arena, 0), *b = quire_arena_alloc(arena, 0), *c = quire_arena_alloc_zero(arena, 0, 8);
    EXPECT_TRUE(a && b && c && a != b && b != c);
    EXPECT_TRUE(quire_arena_owns(arena, a) && quire_arena_owns(arena, b));
}

TEST(Arena, copies_of_strings_and_memory_are_equal)
{
    Arena arena;
    EXPECT_STREQ(quire_arena_strdup(arena, ""), "");
    EXPECT_STREQ(quire_arena_strdup(arena, "one way"), "one way");
    std::string text(100000, 'x');
    EXPECT_EQ(text, quire_arena_strdup(arena, text.c_str()));
    EXPECT_EQ(memcmp(quire_arena_memdup(arena, text.data(), text.size()), text.data(), text.size()), 0);
    EXPECT_NE(quire_arena_memdup(arena, nullptr, 0), nullptr);
    errno = 0;
    EXPECT_EQ(quire_arena_strdup(arena, nullptr), nullptr);
    EXPECT_EQ(errno, EINVAL);
    errno = 0;
    EXPECT_EQ(quire_arena_memdup(arena, nullptr, 1), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST(Arena, zeroed_blocks_are_zero_also_where_older_blocks_were)
{
    Random random(5);
    Arena arena;
    for (int round = 0; round < 60; round++) {
        struct quire_arena_mark mark = quire_arena_mark(arena);
        for (int i = 0; i < 200; i++) {
            size_t bytes = random.below(20) == 0 ? random.below(200000) : random.below(300);
            bool zeroed = random.below(2);
            void *p = zeroed ? quire_arena_alloc_zero(arena, bytes, 1) : quire_arena_alloc(arena, bytes);
            ASSERT_NE(p, nullptr);
            if (zeroed) {
                ASSERT_TRUE(all_bytes(p, bytes, 0)) << bytes;
            }
            memset(p, 0xee, bytes);
            if (random.below(10) == 0)
                p = quire_arena_resize(arena, p, bytes, random.below(bytes + 1)); /* shrinks leave dirt behind */
            if (random.below(60) == 0)
                quire_arena_rewind(arena, mark);
        }
        if (random.below(2))
            quire_arena_reset(arena);
    }
}

TEST(Arena, fresh_memory_is_not_cleared_again)
{
    if (sanitize_watched())
        GTEST_SKIP() << "watched memory is always cleared";
    Arena arena({.source = quire_source_anon()});
    size_t before = rss_bytes();
    ASSERT_NE(quire_arena_alloc_zero(arena, 1, 64 * mib), nullptr);
    EXPECT_LT(rss_bytes() - before, 4 * mib) << "clearing would have touched 64 MiB";
}

TEST(Arena, the_last_block_grows_and_shrinks_where_it_is)
{
    Arena arena({.size_hint_bytes = mib});
    char *p = static_cast<char *>(quire_arena_alloc(arena, 100));
    memset(p, 3, 100);
    EXPECT_EQ(quire_arena_resize(arena, p, 100, 5000), p);
    EXPECT_TRUE(all_bytes(p, 100, 3));
    memset(p, 4, 5000);
    EXPECT_EQ(quire_arena_resize(arena, p, 5000, 10), p);
    EXPECT_EQ(quire_arena_alloc(arena, 1), p + 16 + redzone()) << "what shrinking freed is used again";
    char *q = static_cast<char *>(quire_arena_resize(arena, p, 10, 200));
    EXPECT_NE(q, p) << "not the last any more";
    EXPECT_TRUE(all_bytes(q, 10, 4));
    EXPECT_EQ(quire_arena_resize(arena, p, 10, 5), p) << "shrinking never moves";
    EXPECT_NE(quire_arena_resize(arena, nullptr, 0, 5), nullptr);
}

TEST(Arena, a_large_block_grows_in_its_span_and_moves_beyond_it)
{
    Arena arena;
    char *p = static_cast<char *>(quire_arena_alloc(arena, 64 * mib));
    memset(p, 5, 64 * mib);
    char *same = static_cast<char *>(quire_arena_resize(arena, p, 64 * mib, 64 * mib + 16));
    EXPECT_EQ(same, p) << "the rest of its last page is there";
    char *moved = static_cast<char *>(quire_arena_resize(arena, same, 64 * mib + 16, 80 * mib));
    EXPECT_TRUE(all_bytes(moved, 64 * mib, 5));
    quire_arena_alloc(arena, 10);
    char *shrunk = static_cast<char *>(quire_arena_resize(arena, moved, 80 * mib, mib));
    EXPECT_EQ(shrunk, moved);
    EXPECT_LT(arena.stats().live_bytes, 64 * mib + mib + 4096);
}

TEST(Arena, one_request_of_64_MiB_in_the_middle_changes_nothing_for_later_growth)
{
    Arena plain, with;
    auto grow = [](quire_arena *arena, bool large) {
        for (int i = 0; i < 3000; i++) {
            quire_arena_alloc(arena, 100);
            if (large && i == 1500)
                quire_arena_alloc(arena, 64 * mib);
        }
    };
    grow(plain, false), grow(with, true);
    struct quire_arena_stats a = plain.stats(), b = with.stats();
    EXPECT_EQ(b.large_blocks, 1u);
    EXPECT_EQ(b.spans, a.spans + 1);
    EXPECT_EQ(b.free_bytes, a.free_bytes);
    EXPECT_EQ(b.live_bytes, a.live_bytes + 64 * mib + redzone());
    EXPECT_LE(b.mapped_bytes - a.mapped_bytes, 64 * mib + 2 * mib);
}

TEST(Arena, requests_that_each_nearly_fill_a_span_do_not_get_stuck_with_spans_of_their_own)
{
    Arena arena;
    for (int i = 0; i < 1000; i++)
        quire_arena_alloc(arena, 5000);
    EXPECT_LE(arena.stats().large_blocks, 4u);
    EXPECT_LE(arena.stats().spans, 20u);
}

TEST(Arena, the_choice_of_a_place_is_a_table)
{
    EXPECT_EQ(arena_choose(9000, 8000, 0, true), ARENA_PLACE_LARGE) << "larger than the next span";
    EXPECT_EQ(arena_choose(100, 8000, 4000, true), ARENA_PLACE_CHAIN) << "small";
    EXPECT_EQ(arena_choose(5000, 8000, 100, true), ARENA_PLACE_CHAIN) << "the tail is nothing";
    EXPECT_EQ(arena_choose(5000, 8000, 3900, true), ARENA_PLACE_LARGE) << "the tail is half a span, and in use";
    EXPECT_EQ(arena_choose(5000, 8000, 3900, false), ARENA_PLACE_CHAIN) << "nobody has used the tail since";
}

TEST(Arena, growth_doubles_from_the_hint_to_four_mebibytes)
{
    Arena arena;
    size_t mapped = arena.stats().mapped_bytes, last = mapped;
    EXPECT_EQ(mapped, page);
    while (last < 4 * mib) {
        size_t spans = arena.stats().spans;
        while (arena.stats().spans == spans)
            quire_arena_alloc(arena, 64);
        size_t grown = arena.stats().mapped_bytes - mapped;
        EXPECT_EQ(grown, 2 * last);
        last = grown, mapped += grown;
    }
    size_t spans = arena.stats().spans;
    while (arena.stats().spans == spans)
        quire_arena_alloc(arena, 1024);
    EXPECT_EQ(arena.stats().mapped_bytes - mapped, 4 * mib);
}

TEST(Arena, a_hint_is_the_size_of_the_first_span)
{
    for (size_t hint : {size_t(1), page, 10 * page, mib, 3 * mib, 70 * mib}) {
        Arena arena({.size_hint_bytes = hint});
        EXPECT_GE(arena.stats().mapped_bytes, hint);
        EXPECT_LE(arena.stats().mapped_bytes, 2 * hint + page);
        EXPECT_EQ(arena.stats().spans, 1u);
    }
    for (size_t hint : {SIZE_MAX, SIZE_MAX / 2 + 2 * page}) {
        quire_arena_opts impossible = {.size_hint_bytes = hint};
        errno = 0;
        EXPECT_EQ(quire_arena_create(&impossible), nullptr);
        EXPECT_EQ(errno, ENOMEM);
    }
}

TEST(Arena, under_a_limit_of_1_MiB_a_demand_of_10_MiB_ends_in_enomem_and_the_arena_stays_usable)
{
    Arena arena({.name = "tenant", .limit_bytes = mib});
    size_t got = 0;
    for (void *p; (p = quire_arena_alloc(arena, 10000)); got += 10000)
        memset(p, 1, 10000);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_GE(got, mib * 3 / 4) << "the limit can be used nearly in full";
    EXPECT_LE(arena.stats().mapped_bytes, mib);
    EXPECT_EQ(quire_arena_alloc(arena, 2 * mib), nullptr);
    EXPECT_EQ(quire_arena_check(arena), nullptr);
    quire_arena_reset(arena);
    EXPECT_NE(quire_arena_alloc(arena, 10000), nullptr);
    EXPECT_NE(quire_arena_alloc(arena, 400000), nullptr) << "spans kept by the reset make room";
    EXPECT_LE(arena.stats().mapped_bytes, mib);
}

TEST(Arena, limits_below_a_page_are_enomem_and_unknown_flags_einval)
{
    quire_arena_opts tight = {.limit_bytes = page - 1}, strange = {.flags = 1u << 31};
    errno = 0;
    EXPECT_EQ(quire_arena_create(&tight), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(quire_arena_create(&strange), nullptr);
    EXPECT_EQ(errno, EINVAL);
}

TEST(Arena, marks_nest_and_rewinding_frees_what_came_after)
{
    Arena arena;
    void *a = quire_arena_alloc(arena, 100);
    struct quire_arena_mark outer = quire_arena_mark(arena);
    void *b = quire_arena_alloc(arena, 100);
    struct quire_arena_mark inner = quire_arena_mark(arena);
    void *large = quire_arena_alloc(arena, 64 * mib);
    for (int i = 0; i < 10000; i++)
        quire_arena_alloc(arena, 100);
    quire_arena_rewind(arena, inner);
    EXPECT_FALSE(quire_arena_owns(arena, large));
    EXPECT_TRUE(quire_arena_owns(arena, b));
    quire_arena_rewind(arena, inner);
    quire_arena_rewind(arena, outer);
    EXPECT_FALSE(quire_arena_owns(arena, b));
    EXPECT_TRUE(quire_arena_owns(arena, a));
    EXPECT_EQ(quire_arena_alloc(arena, 100), b);
    quire_arena_rewind(arena, outer);
}

TEST(Arena, a_loop_of_marks_stays_in_the_same_memory)
{
    Arena arena;
    quire_arena_alloc(arena, 3000);
    size_t mapped = 0;
    for (int i = 0; i < 1000; i++) {
        struct quire_arena_mark mark = quire_arena_mark(arena);
        quire_arena_alloc(arena, 2000);
        quire_arena_alloc(arena, 200000);
        quire_arena_rewind(arena, mark);
        if (i == 1)
            mapped = arena.stats().mapped_bytes;
    }
    EXPECT_EQ(arena.stats().mapped_bytes, mapped);
}

TEST(Arena, defers_run_last_first_once_and_only_as_far_as_the_rewind)
{
    static std::string order;
    order.clear();
    auto note = [](void *text) { order += static_cast<const char *>(text); };
    quire_arena *arena = quire_arena_create(nullptr);
    char a[] = "a", b[] = "b", c[] = "c", d[] = "d";
    EXPECT_EQ(quire_arena_defer(arena, note, a), 0);
    struct quire_arena_mark mark = quire_arena_mark(arena);
    EXPECT_EQ(quire_arena_defer(arena, note, b), 0);
    EXPECT_EQ(quire_arena_defer(arena, note, c), 0);
    quire_arena_rewind(arena, mark);
    EXPECT_EQ(order, "cb");
    EXPECT_EQ(quire_arena_defer(arena, note, d), 0);
    quire_arena_reset(arena);
    EXPECT_EQ(order, "cbda");
    EXPECT_EQ(quire_arena_defer(arena, note, a), 0);
    errno = 42;
    quire_arena_destroy(arena);
    EXPECT_EQ(order, "cbdaa");
    EXPECT_EQ(errno, 42);
    quire_arena_destroy(nullptr);
}

TEST(Arena, a_defer_without_a_function_is_einval)
{
    Arena arena;
    EXPECT_EQ(quire_arena_defer(arena, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST(Arena, reset_keeps_what_the_round_used_and_lets_go_of_what_it_did_not)
{
    Arena arena;
    auto round = [&](int blocks) {
        for (int i = 0; i < blocks; i++)
            quire_arena_alloc(arena, 1000);
        quire_arena_reset(arena);
        return arena.stats().mapped_bytes;
    };
    size_t large = round(20000);
    EXPECT_GE(large, 20u * 1000000);
    EXPECT_EQ(round(20000), large) << "the same round takes nothing new";
    EXPECT_LE(round(10), mib) << "a small round lets go of the rest";
}

TEST(Arena, trim_gives_back_what_reset_kept)
{
    Arena arena;
    for (int i = 0; i < 20000; i++)
        quire_arena_alloc(arena, 1000);
    quire_arena_alloc(arena, 8 * mib);
    quire_arena_reset(arena);
    size_t mapped = arena.stats().mapped_bytes;
    EXPECT_EQ(quire_arena_trim(arena), mapped - page);
    EXPECT_EQ(arena.stats().mapped_bytes, page);
    EXPECT_EQ(quire_arena_trim(arena), 0u);
    EXPECT_NE(quire_arena_alloc(arena, 10000), nullptr);
}

TEST(Arena, owns_knows_its_blocks_and_nothing_else)
{
    Arena arena, other;
    char local, *p = static_cast<char *>(quire_arena_alloc(arena, 100));
    char *large = static_cast<char *>(quire_arena_alloc(arena, 10 * mib));
    EXPECT_TRUE(quire_arena_owns(arena, p) && quire_arena_owns(arena, p + 99) && quire_arena_owns(arena, large + 10 * mib - 1));
    EXPECT_FALSE(quire_arena_owns(other, p));
    EXPECT_FALSE(quire_arena_owns(arena, static_cast<quire_arena *>(arena))) << "its own header is not a block";
    for (const void *q : {static_cast<const void *>(nullptr), static_cast<const void *>(&local), reinterpret_cast<const void *>(-1L)})
        EXPECT_FALSE(quire_arena_owns(arena, q));
    quire_arena_reset(arena);
    EXPECT_FALSE(quire_arena_owns(arena, p));
}

TEST(Arena, a_hint_as_large_as_the_limit_does_not_pass_it)
{
    for (size_t limit : {5 * page, 7 * page, 100 * page}) {
        Arena arena({.size_hint_bytes = limit, .limit_bytes = limit});
        for (int i = 0; i < 100; i++)
            quire_arena_alloc(arena, mib);
        EXPECT_LE(arena.stats().mapped_bytes, limit);
    }
    for (size_t limit : {page + 1, 2 * page - 1, size_t(100000)}) /* no whole pages */
        for (size_t hint : {limit - 1, limit, limit + 1}) {
            Arena arena({.size_hint_bytes = hint, .limit_bytes = limit});
            EXPECT_LE(arena.stats().mapped_bytes, limit);
            EXPECT_GT(arena.stats().mapped_bytes, 0u) << limit << " with " << hint;
        }
}

TEST(Arena, a_hint_as_large_as_the_source_is_not_rounded_up_past_it)
{
    for (size_t pages : {5, 7, 100}) {
        struct quire_source *budget = quire_source_limit(quire_source_default(), pages * page);
        quire_arena_opts opts = {.source = budget, .size_hint_bytes = pages * page};
        struct quire_arena *arena = quire_arena_create(&opts);
        EXPECT_NE(arena, nullptr) << pages;
        quire_arena_destroy(arena);
        quire_source_destroy(budget);
    }
}

TEST(Arena, a_block_older_than_the_newest_mark_is_found_as_it_was_after_the_rewind)
{
    Arena arena;
    char *p = static_cast<char *>(quire_arena_alloc(arena, 32));
    memset(p, 'A', 32);
    struct quire_arena_mark mark = quire_arena_mark(arena);
    char *grown = static_cast<char *>(quire_arena_resize(arena, p, 32, 512));
    EXPECT_NE(grown, p);
    memset(grown, 'G', 512);
    EXPECT_EQ(quire_arena_resize(arena, p, 32, 8), p);
    quire_arena_rewind(arena, mark);
    char *q = static_cast<char *>(quire_arena_alloc(arena, 512));
    memset(q, 'B', 512);
    EXPECT_TRUE(all_bytes(p, 8, 'A'));
    if (!redzone()) {
        EXPECT_TRUE(all_bytes(p, 32, 'A'));
    }
    quire_arena_rewind(arena, mark);
}

TEST(Arena, a_large_block_older_than_the_newest_mark_does_not_grow_by_a_few_bytes_either)
{
    Arena arena;
    for (size_t bytes : {size_t(100), mib}) {
        char *p = static_cast<char *>(quire_arena_alloc(arena, bytes - 9));
        ASSERT_NE(p, nullptr);
        memset(p, 'A', bytes - 9);
        struct quire_arena_mark mark = quire_arena_mark(arena);
        EXPECT_EQ(quire_arena_resize(arena, p, bytes - 9, bytes - 9), p);
        EXPECT_NE(quire_arena_resize(arena, p, bytes - 9, bytes - 4), p) << bytes;
        quire_arena_rewind(arena, mark);
        EXPECT_TRUE(all_bytes(p, bytes - 9, 'A'));
    }
}

TEST(Arena, shrinking_between_marks_leaves_both_marks_good)
{
    Arena arena;
    void *p = quire_arena_alloc(arena, 1000), *large = quire_arena_alloc(arena, mib);
    struct quire_arena_mark outer = quire_arena_mark(arena);
    quire_arena_resize(arena, large, mib, 100);
    quire_arena_resize(arena, p, 1000, 100);
    struct quire_arena_mark inner = quire_arena_mark(arena);
    quire_arena_alloc(arena, 50);
    quire_arena_rewind(arena, inner);
    quire_arena_rewind(arena, outer);
    EXPECT_EQ(quire_arena_check(arena), nullptr);
}

TEST(Arena, marks_nest_a_thousand_deep)
{
    Arena arena;
    struct quire_arena_mark marks[1000];
    for (auto &mark : marks) {
        quire_arena_alloc(arena, 16);
        mark = quire_arena_mark(arena);
        quire_arena_alloc(arena, 16);
        quire_arena_rewind(arena, mark); /* each level is rewound to, and stays */
    }
    EXPECT_EQ(quire_arena_check(arena), nullptr);
    for (int i = 999; i >= 0; i--)
        quire_arena_rewind(arena, marks[i]);
    EXPECT_EQ(arena.stats().live_bytes, 16 + redzone());
}
