// SPDX-License-Identifier: MIT
/* The clock's guests: whom a trim of the default source asks; and what happens when one of them holds the clock up. */
#include <gtest/gtest.h>

#include <unistd.h>
#include <vector>

#include <quire/source.h>

#include "os/os.h"
#include "pages/reaper.h"
#include "pages/source_internal.h"
#include "support.h"

namespace {
atomic_u32 used, pending, holds;
size_t ticks, trims;

size_t tick()
{
    while (u32_load_relaxed(&holds) != 0)
        usleep(1000);
    u32_store_relaxed(&pending, 0);
    return ++ticks;
}

const struct reaper_guest guest = {&used, &pending, tick, [] { return ++trims; }};

void join()
{
    static bool joined; /* --gtest_repeat */
    if (!joined)
        reaper_join(&guest);
    joined = true;
}
} // namespace

TEST(Reaper, a_trim_asks_nobody_who_has_made_nothing_yet)
{
    join();
    ticks = trims = 0;
    u32_store_relaxed(&used, 0);
    (void)reaper_guests_trim();
    EXPECT_EQ(trims, 0u);
    u32_store_relaxed(&used, 1);
    EXPECT_GE(reaper_guests_trim(), 1u) << "what the guest says it gave";
    EXPECT_EQ(trims, 1u);
    u32_store_relaxed(&used, 0);
    EXPECT_EQ(ticks, 0u);
}

/* As when its thread gets nothing of a CPU: whoever comes to the source does what is due, a part each time. */
TEST(Reaper, where_the_clock_is_late_who_takes_and_gives_lets_idle_memory_go)
{
    constexpr size_t bytes = 4 << 20;
    struct quire_source *source = quire_source_default();
    std::vector<quire_span> spans(16);
    quire_span span;
    join();
    u32_store_relaxed(&holds, 1);
    u32_store_relaxed(&pending, 1);
    ASSERT_EQ(quire_source_set_decay(source, 20000000), 0);
    for (quire_span &each : spans)
        ASSERT_EQ(source->verbs->take(source, bytes, os_page_bytes(), &each), 0);
    for (const quire_span &each : spans)
        source->verbs->give(source, &each);
    reaper_wake();
    for (int i = 0; i < 2000 && source_default_idle_bytes() > 2 * bytes; i++) {
        usleep(5000);
        ASSERT_EQ(source->verbs->take(source, bytes, os_page_bytes(), &span), 0);
        source->verbs->give(source, &span);
    }
    EXPECT_LE(source_default_idle_bytes(), 2 * bytes);
    u32_store_relaxed(&holds, 0);
    ASSERT_EQ(quire_source_set_decay(source, DECAY_STILL_NS), 0);
}
