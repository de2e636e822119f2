// SPDX-License-Identifier: MIT
// One misuse a test, and the exact line it stops the process with.
#include <gtest/gtest.h>

#include <quire/arena.h>
#include <quire/compat/netdata.h>
#include <quire/quire.h>

#include "base/compiler.h"
#include "support.h"

namespace {
quire_arena *named() {
    static const quire_arena_opts opts = {.name = "query"};
    return quire_arena_create(&opts);
}
} // namespace

TEST(ArenaDeathTest, destroyed_twice)
{
    quire_arena *arena = named();
    quire_arena_destroy(arena);
    EXPECT_DEATH(quire_arena_destroy(arena), "^quire: arena: A1 destroyed: not a live arena: address 0x[0-9a-f]+\n");
}

TEST(ArenaDeathTest, destroyed_by_a_pointer_to_something_else)
{
    static long long not_an_arena[64];
    EXPECT_DEATH(quire_arena_destroy(reinterpret_cast<quire_arena *>(not_an_arena)), "^quire: arena: A1 destroyed: not a live arena: address 0x[0-9a-f]+\n");
    quire_arena *arena = named();
    EXPECT_DEATH(quire_arena_destroy(reinterpret_cast<quire_arena *>(reinterpret_cast<char *>(arena) + 1)), "^quire: arena: A1 destroyed: not a live arena");
    quire_arena_destroy(arena);
}

TEST(ArenaDeathTest, reset_after_destroy)
{
    quire_arena *arena = named();
    quire_arena_destroy(arena);
    EXPECT_DEATH(quire_arena_reset(arena), "^quire: arena: A1 reset: not a live arena: address 0x[0-9a-f]+\n");
}

TEST(ArenaDeathTest, rewound_with_a_mark_of_another_arena)
{
    quire_arena *a = named(), *b = named();
    struct quire_arena_mark mark = quire_arena_mark(b);
    EXPECT_DEATH(quire_arena_rewind(a, mark), "^quire: arena \"query\": A3 mark of another arena: address 0x[0-9a-f]+\n");
    quire_arena_destroy(a), quire_arena_destroy(b);
}

TEST(ArenaDeathTest, rewound_with_a_mark_that_was_rewound_past)
{
    quire_arena *arena = named();
    struct quire_arena_mark outer = quire_arena_mark(arena);
    quire_arena_alloc(arena, 100);
    struct quire_arena_mark inner = quire_arena_mark(arena);
    quire_arena_rewind(arena, outer);
    quire_arena_alloc(arena, 1000); /* the place of the inner mark is passed again: it is stale all the same */
    EXPECT_DEATH(quire_arena_rewind(arena, inner), "^quire: arena \"query\": A4 mark was rewound past: address 0x[0-9a-f]+\n");
    quire_arena_destroy(arena);
}

TEST(ArenaDeathTest, rewound_with_a_mark_from_before_a_reset)
{
    quire_arena *arena = named();
    quire_arena_alloc(arena, 100);
    struct quire_arena_mark mark = quire_arena_mark(arena);
    quire_arena_reset(arena);
    quire_arena_alloc(arena, 1000);
    EXPECT_DEATH(quire_arena_rewind(arena, mark), "^quire: arena \"query\": A4 mark was rewound past: address 0x[0-9a-f]+\n");
    quire_arena_destroy(arena);
}

TEST(ArenaDeathTest, rewound_with_a_stale_mark_after_many_other_rewinds)
{
    quire_arena *arena = named();
    for (int i = 0; i < 100; i++)
        quire_arena_alloc(arena, 1000);
    struct quire_arena_mark stale = quire_arena_mark(arena);
    quire_arena_reset(arena);
    quire_arena_alloc(arena, 200000);
    for (int i = 0; i < 20; i++) {
        quire_arena_alloc(arena, 16);
        struct quire_arena_mark mark = quire_arena_mark(arena);
        quire_arena_rewind(arena, mark);
    }
    EXPECT_DEATH(quire_arena_rewind(arena, stale), "^quire: arena \"query\": A4 mark was rewound past: address 0x[0-9a-f]+\n");
    quire_arena_destroy(arena);
}

TEST(ArenaDeathTest, rewound_with_a_mark_of_an_arena_that_is_gone_and_another_stands_in_its_place)
{
    quire_arena *arena = named();
    struct quire_arena_mark mark = quire_arena_mark(arena);
    quire_arena *next = arena;
    quire_arena_destroy(arena);
    next = named();
    mark.arena = next; /* as if the address were the same, which it is in the release build */
    EXPECT_DEATH(quire_arena_rewind(next, mark), "^quire: arena \"query\": A3 mark of another arena: address 0x[0-9a-f]+\n");
    quire_arena_destroy(next);
}

TEST(ArenaDeathTest, destroyed_twice_with_another_arena_made_in_between)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build promises this";
    quire_arena *arena = named();
    quire_arena_destroy(arena);
    quire_arena *next = named();
    EXPECT_DEATH(quire_arena_destroy(arena), "^quire: arena: A1 destroyed: not a live arena: address 0x[0-9a-f]+\n");
    quire_arena_destroy(next);
}

TEST(ArenaDeathTest, allocated_from_after_destroy)
{
    if (!QUIRE_CHECK || BUILT_WITH_ASAN)
        GTEST_SKIP() << "the check build promises this; AddressSanitizer has words of its own";
    quire_arena *arena = named();
    quire_arena_destroy(arena);
    quire_arena *next = named();
    EXPECT_DEATH(quire_arena_alloc(arena, 8), "^quire: arena: A1 used: not a live arena: address 0x[0-9a-f]+\n");
    quire_arena_destroy(next);
}

TEST(ArenaDeathTest, the_panic_hook_gets_the_line_and_the_address)
{
    quire_arena *arena = named();
    quire_arena_destroy(arena);
    quire_on_panic([](const char *message, const void *address) { fprintf(stderr, "hook: %s, %p\n", message, address); });
    EXPECT_DEATH(quire_arena_destroy(arena), "hook: quire: arena: A1 destroyed: not a live arena: address 0x[0-9a-f]+, 0x[0-9a-f]+\n");
    quire_on_panic(nullptr);
}

TEST(ArenaDeathTest, a_span_given_twice_to_the_default_source)
{
    quire_source *source = quire_source_default();
    quire_span span;
    for (size_t pages : {1, 3, 16, 1000}) {
        ASSERT_EQ(source->verbs->take(source, pages * os_page_bytes(), os_page_bytes(), &span), 0);
        source->verbs->give(source, &span);
        EXPECT_DEATH(source->verbs->give(source, &span), "^quire: source \"default\": S3 a span that was not taken is given back: address 0x[0-9a-f]+\n");
    }
}

TEST(ArenaDeathTest, asan_sees_writes_behind_a_block_and_after_reset_rewind_and_destroy)
{
    if (!BUILT_WITH_ASAN)
        GTEST_SKIP() << "this is what AddressSanitizer is asked";
    quire_arena *arena = named();
    char *p = static_cast<char *>(quire_arena_alloc(arena, 10));
    volatile int ten = 10, before = -1;
    EXPECT_DEATH(p[ten] = 1, "use-after-poison");
    EXPECT_DEATH(p[before] = 1, "use-after-poison");
    char *shrunk = static_cast<char *>(quire_arena_alloc(arena, 100));
    quire_arena_alloc(arena, 10);
    quire_arena_resize(arena, shrunk, 100, 10);
    EXPECT_DEATH(shrunk[ten] = 1, "use-after-poison");
    struct quire_arena_mark mark = quire_arena_mark(arena);
    char *q = static_cast<char *>(quire_arena_alloc(arena, 10)), *large = static_cast<char *>(quire_arena_alloc(arena, 1 << 20));
    quire_arena_rewind(arena, mark);
    EXPECT_DEATH(*q = 1, "use-after-poison");
    EXPECT_DEATH(*large = 1, "use-after-poison|SEGV");
    quire_arena_reset(arena);
    EXPECT_DEATH(*p = 1, "use-after-poison");
    quire_arena_destroy(arena);
    EXPECT_DEATH(*p = 1, "use-after-poison|SEGV");
}
