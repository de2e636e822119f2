// SPDX-License-Identifier: MIT
/* Named arenas as they are seen from outside: the same sums as their owners', and none where nobody asked. */
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <quire/stats.h>

#include "arena/arena_internal.h"

namespace {

bool note(const arena_glance *glance, void *arg)
{
    static_cast<std::vector<arena_glance> *>(arg)->push_back(*glance);
    return true;
}

std::vector<arena_glance> glances()
{
    std::vector<arena_glance> seen;
    arena_list_each(note, &seen);
    return seen;
}

quire_arena *named(const char *name, size_t limit_bytes = 0)
{
    quire_arena_opts opts = {};
    opts.name = name;
    opts.limit_bytes = limit_bytes;
    return quire_arena_create(&opts);
}

void expect_same(const quire_arena *arena)
{
    struct quire_arena_stats stats = {.struct_bytes = sizeof stats};
    quire_arena_stats(arena, &stats);
    std::vector<arena_glance> seen = glances();
    ASSERT_EQ(seen.size(), 1u);
    const auto &figures = seen[0].figures;
    EXPECT_EQ(figures.mapped_bytes, stats.mapped_bytes);
    EXPECT_EQ(figures.live_bytes, stats.live_bytes);
    EXPECT_EQ(figures.rest_bytes, stats.free_bytes + stats.lost_bytes + stats.meta_bytes);
    EXPECT_EQ(figures.peak_bytes, stats.peak_bytes);
    EXPECT_EQ(figures.limit_bytes, stats.limit_bytes);
    EXPECT_EQ(figures.large_blocks, stats.large_blocks);
}

} // namespace

TEST(ArenaList, where_nobody_asked_no_arena_is_listed_or_shown)
{
    quire_arena *arena = named("unseen");
    EXPECT_FALSE(arena_list_is_on());
    EXPECT_TRUE(glances().empty());
    char text[1 << 16];
    int fd = memfd_create("stats", 0);
    EXPECT_EQ(quire_stats_write(fd, QUIRE_STATS_JSON), 0);
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    ASSERT_GT(got, 0);
    text[got] = 0;
    EXPECT_EQ(strstr(text, "arenas"), nullptr);
    close(fd);
    quire_arena_destroy(arena);
}

TEST(ArenaList, one_that_was_there_before_stays_out_and_may_end)
{
    quire_arena *before = named("before");
    arena_list_begin();
    EXPECT_TRUE(glances().empty());
    quire_arena_destroy(before);
    EXPECT_TRUE(glances().empty());
}

TEST(ArenaList, named_ones_are_listed_the_youngest_first_and_others_are_not)
{
    arena_list_begin();
    quire_arena *a = named("a"), *b = named("b"), *c = named("c"), *none = quire_arena_create(nullptr), *empty = named("");
    auto names = [] {
        std::string all;
        for (const auto &glance : glances())
            all += glance.name;
        return all;
    };
    EXPECT_EQ(names(), "cba");
    quire_arena_destroy(b);
    EXPECT_EQ(names(), "ca");
    quire_arena_destroy(c);
    EXPECT_EQ(names(), "a");
    quire_arena_destroy(a);
    EXPECT_EQ(names(), "");
    quire_arena *d = named("d");
    EXPECT_EQ(glances().at(0).order, 4u) << "numbers are not used twice";
    for (quire_arena *arena : {d, none, empty})
        quire_arena_destroy(arena);
}

TEST(ArenaList, a_glance_has_the_sums_of_the_owners_statistics_through_an_arenas_life)
{
    arena_list_begin();
    quire_arena *arena = named("life", 64 << 20);
    expect_same(arena);
    for (int i = 0; i < 5000; i++)
        ASSERT_NE(quire_arena_alloc(arena, (size_t)i % 700), nullptr);
    expect_same(arena);
    struct quire_arena_mark mark = quire_arena_mark(arena);
    ASSERT_NE(quire_arena_alloc(arena, 9 << 20), nullptr);
    for (int i = 0; i < 3000; i++)
        ASSERT_NE(quire_arena_alloc(arena, 4000), nullptr);
    expect_same(arena);
    quire_arena_rewind(arena, mark);
    expect_same(arena);
    quire_arena_reset(arena);
    expect_same(arena);
    ASSERT_NE(quire_arena_alloc(arena, 100), nullptr);
    expect_same(arena);
    quire_arena_trim(arena);
    expect_same(arena);
    quire_arena_destroy(arena);
}

TEST(ArenaList, the_child_of_a_fork_goes_on_with_the_list)
{
    arena_list_begin();
    quire_arena *a = named("a"), *b = named("b");
    pid_t child = fork();
    if (child == 0) {
        bool both = glances().size() == 2;
        quire_arena_destroy(b);
        quire_arena *c = named("c");
        std::vector<arena_glance> seen = glances();
        bool right = both && seen.size() == 2 && seen[0].name[0] == 'c' && seen[1].name[0] == 'a';
        quire_arena_destroy(a);
        quire_arena_destroy(c);
        _exit(right && glances().empty() ? 0 : 1);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(glances().size(), 2u);
    quire_arena_destroy(a);
    quire_arena_destroy(b);
}
