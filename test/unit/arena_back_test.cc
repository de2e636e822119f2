// SPDX-License-Identifier: MIT
/* Marks: which are stale, and that going back costs no time and no memory that lasts. */
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include <quire/arena.h>

#include "arena/arena_internal.h"
#include "unit/arena_scope.h"

namespace {
/* Each mark that was ever taken, and whether something went back past it. */
struct Taken {
    struct quire_arena_mark mark;
    bool is_stale;
};

void go_back(std::vector<Taken> &taken, uint64_t position)
{
    for (Taken &each : taken)
        each.is_stale = each.is_stale || each.mark.position > position;
}

void step(struct quire_arena *arena, std::vector<Taken> &taken, std::minstd_rand &random)
{
    unsigned op = unsigned(random() % 100);
    if (op < 40)
        quire_arena_alloc(arena, random() % 20 == 0 ? 300000 : random() % 100);
    else if (op < 70)
        taken.push_back({quire_arena_mark(arena), false});
    else if (op < 97 && !taken.empty()) {
        size_t newest = std::min<size_t>(taken.size(), 1 + random() % 8);
        Taken chosen = taken[taken.size() - newest];
        if (!chosen.is_stale) {
            quire_arena_rewind(arena, chosen.mark);
            go_back(taken, chosen.mark.position);
        }
    } else if (op == 97)
        quire_arena_trim(arena);
    else if (op == 98 && random() % 10 == 0) {
        quire_arena_reset(arena);
        go_back(taken, 0);
    }
}
} // namespace

TEST(ArenaBack, a_mark_is_stale_exactly_when_a_rewind_or_a_reset_went_past_it)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        Arena arena;
        std::minstd_rand random(seed);
        std::vector<Taken> taken;
        for (int look = 0; look < 150; look++) {
            for (int i = 0; i < 10; i++)
                step(arena, taken, random);
            for (const Taken &each : taken)
                ASSERT_EQ(arena_mark_is_stale(arena, &each.mark), each.is_stale) << "seed " << seed << ", look " << look;
        }
    }
}

TEST(ArenaBack, what_is_gone_back_from_again_and_again_costs_no_memory)
{
    Arena arena;
    size_t meta = arena.stats().meta_bytes;
    for (int i = 0; i < 200000; i++) {
        quire_arena_alloc(arena, 16);
        struct quire_arena_mark mark = quire_arena_mark(arena);
        quire_arena_alloc(arena, 100);
        quire_arena_rewind(arena, mark);
    }
    quire_arena_reset(arena);
    quire_arena_reset(arena);
    quire_arena_trim(arena);
    EXPECT_EQ(arena.stats().meta_bytes, meta);
}

TEST(ArenaBack, rewinds_past_marks_are_remembered_in_bounded_memory_that_a_trim_gives_back)
{
    Arena arena;
    size_t meta = arena.stats().meta_bytes;
    std::vector<struct quire_arena_mark> outer;
    struct quire_arena_mark inner = {};
    for (int i = 0; i < 100000; i++) {
        quire_arena_alloc(arena, 16);
        outer.push_back(quire_arena_mark(arena));
        quire_arena_alloc(arena, 16);
        inner = quire_arena_mark(arena);
        quire_arena_rewind(arena, outer.back());
        ASSERT_TRUE(arena_mark_is_stale(arena, &inner));
    }
    for (const struct quire_arena_mark &mark : outer)
        ASSERT_FALSE(arena_mark_is_stale(arena, &mark));
    quire_arena_reset(arena);
    quire_arena_reset(arena);
    EXPECT_GT(arena.stats().meta_bytes, meta);
    EXPECT_LE(arena.stats().meta_bytes, meta + 3 * 64 * 1024);
    quire_arena_trim(arena);
    EXPECT_EQ(arena.stats().meta_bytes, meta);
}

TEST(ArenaBack, what_lies_idle_makes_way_for_what_is_remembered)
{
    quire_arena_opts opts = {};
    opts.limit_bytes = 64 << 10;
    Arena arena(opts);
    struct quire_arena_mark first = quire_arena_mark(arena), inner = {};
    while (quire_arena_alloc(arena, 1024))
        continue;
    quire_arena_rewind(arena, first);
    std::vector<struct quire_arena_mark> stale;
    for (int i = 0; i < 20; i++) {
        quire_arena_alloc(arena, 16);
        struct quire_arena_mark mark = quire_arena_mark(arena);
        quire_arena_alloc(arena, 16);
        inner = quire_arena_mark(arena);
        quire_arena_rewind(arena, mark);
        stale.push_back(inner);
    }
    for (const struct quire_arena_mark &mark : stale)
        EXPECT_TRUE(arena_mark_is_stale(arena, &mark));
}

TEST(ArenaBack, a_mark_of_an_empty_arena_ends_with_a_reset_as_any_other)
{
    Arena arena;
    struct quire_arena_mark empty = quire_arena_mark(arena);
    quire_arena_rewind(arena, empty);
    EXPECT_FALSE(arena_mark_is_stale(arena, &empty));
    quire_arena_reset(arena);
    EXPECT_TRUE(arena_mark_is_stale(arena, &empty));
}
