// SPDX-License-Identifier: MIT
/* The clock's guests: whom a trim of the default source asks. */
#include <gtest/gtest.h>

#include <quire/source.h>

#include "pages/reaper.h"

namespace {
atomic_u32 used, pending;
size_t ticks, trims;
const struct reaper_guest guest = {&used, &pending, [] { return ++ticks; }, [] { return ++trims; }};
} // namespace

TEST(Reaper, a_trim_asks_nobody_who_has_made_nothing_yet)
{
    static bool joined; /* --gtest_repeat */
    if (!joined)
        reaper_join(&guest);
    joined = true;
    trims = 0;
    u32_store_relaxed(&used, 0);
    (void)reaper_guests_trim();
    EXPECT_EQ(trims, 0u);
    u32_store_relaxed(&used, 1);
    EXPECT_GE(reaper_guests_trim(), 1u) << "what the guest says it gave";
    EXPECT_EQ(trims, 1u);
    u32_store_relaxed(&used, 0);
    EXPECT_EQ(ticks, 0u);
}
