// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include <quire/arena.h>

#include "os/os.h"
#include "os/sanitize.h"
#include "support.h"
#include "unit/arena_scope.h"

namespace {
const size_t page = os_page_bytes();
const size_t pocket = 1024; /* of strings */

size_t redzone() { return sanitize_watched() ? REDZONE_BYTES : 0; }
} // namespace

TEST(ArenaText, short_strings_lie_side_by_side_whatever_comes_between_them)
{
    Arena arena;
    if (redzone() != 0)
        GTEST_SKIP() << "each string has a red zone here";
    const char *first = quire_arena_strdup(arena, "one");
    EXPECT_EQ(quire_arena_strdup(arena, "two"), first + 4);
    void *block = quire_arena_alloc(arena, 40);
    EXPECT_EQ(uintptr_t(block) % 16, 0u);
    EXPECT_EQ(quire_arena_printf(arena, "%d", 333), first + 8);
    EXPECT_EQ(arena.stats().live_bytes, pocket + 48);
    for (int i = 0; i < 1000; i++) { /* as a query makes them: 18 bytes, and a node */
        EXPECT_EQ(strlen(quire_arena_strdup(arena, "seventeen letters")), 17u);
        EXPECT_EQ(uintptr_t(quire_arena_alloc(arena, 64)) % 16, 0u);
    }
    EXPECT_LE(arena.stats().live_bytes, 48u + 1000 * 64 + (1000 / (pocket / 18) + 1) * pocket);
    EXPECT_EQ(quire_arena_check(arena), nullptr);
}

TEST(ArenaText, strings_in_a_row_leave_nothing_between_pockets)
{
    Arena arena;
    if (redzone() != 0)
        GTEST_SKIP() << "each string has a red zone here";
    for (int i = 0; i < 60; i++) /* all in the first page */
        quire_arena_strdup(arena, "seventeen letters");
    EXPECT_LE(arena.stats().live_bytes, 60u * 18 + pocket);
    std::string longer(pocket, 'l');
    size_t before = arena.stats().live_bytes;
    const char *block = quire_arena_strdup(arena, longer.c_str());
    EXPECT_EQ(arena.stats().live_bytes, before + pocket + 16) << "a block of its own";
    EXPECT_LT(quire_arena_strdup(arena, "x"), block) << "the pocket stays open";
}

TEST(ArenaText, a_string_made_after_a_mark_is_freed_with_it_and_one_before_it_is_not_written_over)
{
    Arena arena;
    const char *before = quire_arena_strdup(arena, "before");
    struct quire_arena_mark mark = quire_arena_mark(arena);
    size_t used = arena.stats().live_bytes;
    for (int i = 0; i < 100; i++) {
        const char *text = quire_arena_printf(arena, "text %d", i);
        ASSERT_TRUE(quire_arena_owns(arena, text));
        quire_arena_rewind(arena, mark);
        ASSERT_FALSE(quire_arena_owns(arena, text));
        ASSERT_EQ(arena.stats().live_bytes, used);
    }
    quire_arena_strdup(arena, "after");
    EXPECT_STREQ(before, "before");
    quire_arena_reset(arena);
    EXPECT_NE(quire_arena_strdup(arena, "next round"), nullptr);
    EXPECT_EQ(quire_arena_check(arena), nullptr);
}

TEST(ArenaText, a_string_grows_into_a_block_of_its_own)
{
    Arena arena;
    char *first = quire_arena_strdup(arena, "123456789 123456"); /* 17 bytes */
    for (int i = 0; i < 200; i++) {
        char *last = quire_arena_strdup(arena, "fifteen letters");
        char *longer = static_cast<char *>(quire_arena_resize(arena, last, 16, 40));
        bool moved = longer != last;
        memset(longer, 'g', 40);
        ASSERT_STREQ(quire_arena_strdup(arena, "behind it"), "behind it");
        ASSERT_TRUE(all_bytes(longer, 40, 'g')) << i;
        ASSERT_TRUE(!moved || !strcmp(last, "fifteen letters")) << i;
    }
    EXPECT_STREQ(first, "123456789 123456");
}

TEST(ArenaText, the_last_string_grows_and_shrinks_where_it_is)
{
    Arena arena;
    quire_arena_strdup(arena, "abc");
    char *text = quire_arena_strdup(arena, "x");
    for (size_t bytes = 2; bytes < 500; bytes++) {
        char *longer = static_cast<char *>(quire_arena_resize(arena, text, bytes, bytes + 1));
        ASSERT_TRUE(longer == text || redzone() != 0);
        text = longer;
        memcpy(text + bytes - 1, "y", 2);
    }
    EXPECT_EQ(strlen(text), 500u - 1);
    char *shorter = static_cast<char *>(quire_arena_resize(arena, text, 500, 0));
    EXPECT_NE(quire_arena_strdup(arena, ""), shorter) << "of no bytes, and yet different from all others";
    EXPECT_EQ(quire_arena_check(arena), nullptr);
}

TEST(ArenaText, printf_writes_what_printf_writes_of_any_length_and_passes_its_refusal_on)
{
    Arena arena;
    for (size_t length : {size_t(0), size_t(1), size_t(63), size_t(64), size_t(127), size_t(128), size_t(129), size_t(5000), size_t(300000)}) {
        std::string text(length, 'p');
        ASSERT_EQ(std::string("<") + text + "|7>", quire_arena_printf(arena, "<%s|%d>", text.c_str(), 7));
        ASSERT_STREQ(quire_arena_printf(arena, "%s", ""), "");
    }
    errno = 0;
    const wchar_t none[] = {wchar_t(0x7fffffff), 0}; /* no character of any locale */
    EXPECT_EQ(quire_arena_printf(arena, "%ls", none), nullptr);
    EXPECT_EQ(errno, EILSEQ);
    EXPECT_EQ(quire_arena_check(arena), nullptr);
}

TEST(ArenaText, a_limit_refuses_strings_only_when_they_do_not_fit_themselves)
{
    quire_arena_opts opts = {};
    opts.limit_bytes = page;
    quire_arena *arena = quire_arena_create(&opts);
    size_t strings = 0;
    while (quire_arena_strdup(arena, "eleven more") != nullptr)
        strings++;
    EXPECT_EQ(errno, ENOMEM);
    struct quire_arena_stats stats = {};
    quire_arena_stats(arena, &stats);
    EXPECT_LT(stats.free_bytes, 16 + redzone());
    EXPECT_GE(strings, sanitize_watched() ? 1 : (page - stats.meta_bytes - pocket) / 12);
    EXPECT_EQ(quire_arena_printf(arena, "%s", "eleven more"), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(quire_arena_check(arena), nullptr);
    quire_arena_destroy(arena);
}

TEST(ArenaText, strings_of_every_length_and_place_are_copied_whole_and_nothing_beyond)
{
    Arena arena;
    void *two;
    ASSERT_EQ(os_map(2 * page, page, &two), 0);
    ASSERT_EQ(os_unmap(static_cast<char *>(two) + page, page), 0); /* reading past the page's end would stop the process */
    char *end = static_cast<char *>(two) + page;
    for (size_t gap : {size_t(0), size_t(1), size_t(7), size_t(15), size_t(16), size_t(63), size_t(64), size_t(200)})
        for (size_t length = 0; length + gap + 1 <= 300; length++) {
            char *string = end - gap - length - 1;
            memset(string, 'q', length);
            string[length] = 0;
            char *copy = quire_arena_strdup(arena, string);
            ASSERT_EQ(strlen(copy), length);
            ASSERT_TRUE(all_bytes(copy, length, 'q'));
            char *zeroed = static_cast<char *>(quire_arena_alloc_zero(arena, 1, 100));
            ASSERT_TRUE(all_bytes(zeroed, 100, 0)) << "after a string of " << length;
        }
    os_unmap(two, page);
}

/* A string that fills its place up to a block's end could grow over what is behind it, once a mark had closed the pocket that both lie in. */
TEST(ArenaText, a_string_from_before_a_mark_does_not_grow_over_the_next)
{
    Arena arena;
    if (redzone() != 0)
        GTEST_SKIP() << "each string has a red zone here";
    char *first = quire_arena_strdup(arena, "x");
    for (const char *p = first; p + 1 != first + pocket - 16;)
        p = quire_arena_strdup(arena, "");
    char *one = quire_arena_strdup(arena, "abc"), *two = quire_arena_strdup(arena, "defghij");
    ASSERT_EQ(two, one + 4);
    quire_arena_mark(arena);
    char *grown = static_cast<char *>(quire_arena_resize(arena, one, 4, 12));
    ASSERT_NE(grown, nullptr);
    memset(grown, '#', 12);
    EXPECT_STREQ(two, "defghij");
}

TEST(ArenaText, where_memory_is_short_a_string_has_a_block_of_its_own_over_which_it_may_grow)
{
    if (redzone() != 0)
        GTEST_SKIP() << "each string has a red zone here";
    bool was_large = false;
    for (uint64_t nth = 1; nth < 6; nth++) {
        struct quire_source *fail = quire_source_fail(quire_source_default(), nth);
        {
            quire_arena_opts opts = {};
            opts.source = fail, opts.limit_bytes = 2 * page;
            quire_arena *arena = quire_arena_create(&opts);
            while (arena && quire_arena_alloc(arena, 16)) {
                struct quire_arena_stats stats = {.struct_bytes = sizeof stats};
                quire_arena_stats(arena, &stats);
                if (stats.free_bytes < 64)
                    break;
            }
            char *one = arena ? quire_arena_strdup(arena, "one") : nullptr, *two = one ? quire_arena_strdup(arena, "two") : nullptr;
            if (two) {
                struct quire_arena_stats stats = {.struct_bytes = sizeof stats};
                quire_arena_stats(arena, &stats);
                was_large |= stats.large_blocks != 0;
                if (char *grown = static_cast<char *>(quire_arena_resize(arena, one, 4, 100)))
                    memset(grown, '#', 100);
                EXPECT_STREQ(two, "two") << "refused: " << nth;
            }
            if (arena) {
                EXPECT_EQ(quire_arena_check(arena), nullptr);
                quire_arena_destroy(arena);
            }
        }
        quire_source_destroy(fail);
    }
    EXPECT_TRUE(was_large || page != 4096) << "it was to be tried";
}
