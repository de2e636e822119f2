// SPDX-License-Identifier: MIT
/* The nth system call, or the nth span, cannot be had: NULL + ENOMEM, nothing lost, and the next success works.  For every n until none fails. */
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <vector>

#include <quire/arena.h>

#include "each_call.h"
#include "support.h"

namespace {

/* A little of everything, going on after each failure.  Returns how many calls failed. */
int program(struct quire_source *source)
{
    int failed = 0, ran = 0;
    auto check = [&](const void *p) {
        if (!p) {
            EXPECT_EQ(errno, ENOMEM);
            failed++;
        }
        errno = 0;
        return p != nullptr;
    };
    quire_arena_opts opts = {};
    opts.source = source;
    quire_arena *arena = nullptr;
    for (int tries = 0; tries < 8 && !check(arena = quire_arena_create(&opts)); tries++) {
    }
    if (!arena)
        return failed;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 300; i++) {
            void *p = quire_arena_alloc(arena, 1000);
            if (check(p))
                memset(p, 1, 1000);
        }
        char *large = static_cast<char *>(quire_arena_alloc(arena, 5 << 20));
        if (check(large)) {
            large[0] = large[(5 << 20) - 1] = 1;
            void *moved = quire_arena_resize(arena, large, 5 << 20, 6 << 20);
            if (!check(moved)) {
                EXPECT_EQ(large[0], 1) << "a resize that fails leaves the block alone";
            }
        }
        struct quire_arena_mark mark = quire_arena_mark(arena);
        if (quire_arena_defer(arena, [](void *n) { ++*static_cast<int *>(n); }, &ran) != 0)
            failed++;
        check(quire_arena_alloc_aligned(arena, 100, 1 << 20));
        check(quire_arena_alloc_zero(arena, 1000, 1000));
        EXPECT_EQ(quire_arena_check(arena), nullptr);
        quire_arena_rewind(arena, mark);
        EXPECT_EQ(quire_arena_check(arena), nullptr);
        quire_arena_reset(arena);
        EXPECT_EQ(quire_arena_check(arena), nullptr);
    }
    quire_arena_destroy(arena);
    return failed;
}

} // namespace

TEST(ArenaFault, for_every_span_that_cannot_be_had_nothing_is_lost)
{
    uint64_t nth = 1;
    for (int failed = 1; failed; nth++) {
        struct quire_source *count = quire_source_count(quire_source_default()), *fail = quire_source_fail(count, nth);
        failed = program(fail) || nth < 20 ? 1 : 0;
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(fail, &stats);
        failed = stats.failures != 0;
        EXPECT_EQ(taken_settled(count, 0), 0u) << "n " << nth;
        quire_source_destroy(fail);
        quire_source_destroy(count);
    }
    EXPECT_GE(nth, 10u) << "the program takes many spans";
}

TEST(ArenaFault, for_every_system_call_that_fails_once_or_from_then_on_nothing_is_lost)
{
    struct Case {
        const char *name;
        std::function<struct quire_source *()> source;
        std::vector<os_call> kinds;
    } cases[] = {{"default", [] { return quire_source_default(); }, {OS_DISCARD}},
                 {"anon", [] { return quire_source_anon(); }, {OS_MAP, OS_UNMAP}},
                 {"malloc", [] { return quire_source_malloc(); }, {OS_LIBC}},
                 {"memfd", [] { return quire_source_memfd("fault"); }, {OS_MAP, OS_UNMAP, OS_GROW, OS_MEMFD}}};
    for (auto &[name, make, kinds] : cases) {
        struct quire_source *source = make();
        ASSERT_NE(source, nullptr);
        size_t before = taken_at_rest(source);
        EachCall each(
            name, 1, 200, [&](int) { program(source); },
            [&] {
                EXPECT_EQ(taken_settled(source, before), before);
                EXPECT_EQ(quire_source_check(source), nullptr);
                quire_source_trim(source);
            });
        each.leave_out_what_is_not_called();
        for (int kind = 0; kind < OS_CALL_COUNT; kind++)
            for (bool onwards : {false, true})
                if (!onwards || kind != OS_THREAD) /* has a test of its own */
                    each.fail(kind, onwards);
        each.expect_failed(kinds);
        EXPECT_EQ(program(source), 0) << name << ": afterwards everything works";
        quire_source_destroy(source);
    }
}

TEST(ArenaFault, an_arena_over_a_budget_takes_no_more_and_gives_all_back)
{
    for (size_t pages = 1; pages < 40; pages += 3) {
        struct quire_source *limit = quire_source_limit(quire_source_default(), pages * os_page_bytes());
        program(limit);
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(limit, &stats);
        EXPECT_LE(stats.peak_bytes, pages * os_page_bytes());
        EXPECT_EQ(stats.taken_bytes, 0u);
        quire_source_destroy(limit);
    }
}
