// SPDX-License-Identifier: MIT
/*
 * arena_scope.h - an arena for the length of a test, checked at its end.
 */
#pragma once

#include <gtest/gtest.h>

#include <quire/arena.h>

/* An arena that is checked and destroyed with its scope. */
class Arena {
public:
    explicit Arena(quire_arena_opts opts = {}) : arena(quire_arena_create(&opts)) { EXPECT_NE(arena, nullptr); }
    ~Arena()
    {
        EXPECT_EQ(quire_arena_check(arena), nullptr);
        quire_arena_destroy(arena);
    }
    operator quire_arena *() const { return arena; }
    struct quire_arena_stats stats() const
    {
        struct quire_arena_stats out = {.struct_bytes = sizeof out};
        quire_arena_stats(arena, &out);
        EXPECT_EQ(out.mapped_bytes, out.live_bytes + out.free_bytes + out.lost_bytes + out.meta_bytes);
        return out;
    }

private:
    quire_arena *arena;
};

inline bool all_bytes(const void *p, size_t bytes, char value)
{
    for (size_t i = 0; i < bytes; i++)
        if (static_cast<const char *>(p)[i] != value)
            return false;
    return true;
}
