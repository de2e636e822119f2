// SPDX-License-Identifier: MIT
/* A span that comes with its memory, and with some for those behind it (region_fill()). */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <quire/source.h>

#include "pages/region_internal.h"
#include "pages/source_internal.h"
#include "support.h"
#include "unit/source_kit.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;
quire_source *source = quire_source_default();

quire_span take(size_t bytes)
{
    quire_span span = {};
    EXPECT_EQ(source->verbs->take(source, bytes, page, &span), 0) << bytes;
    return span;
}
size_t idle_bytes()
{
    struct quire_source_stats out = {.struct_bytes = sizeof out};
    quire_source_stats(source, &out);
    return out.idle_bytes;
}
bool all_zero(const quire_span &span)
{
    const char *p = static_cast<const char *>(span.start);
    return p[0] == 0 && memcmp(p, p + 1, span.bytes - 1) == 0;
}
/* So much was in memory once that a 128th of it is more than is ever filled ahead; and nothing is idle. */
void raise_peak()
{
    std::vector<quire_span> spans(16);
    for (quire_span &span : spans)
        span = take(4 * mib);
    for (quire_span &span : spans)
        source->verbs->give(source, &span);
    quire_source_trim(source);
}
/* One fault brings two MiB there, whatever is asked for. */
bool huge_always()
{
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string word;
    file >> word;
    return word == "[always]";
}
bool populates()
{
    if (huge_always())
        return false;
    void *probe;
    EXPECT_EQ(os_map(page, page, &probe), 0);
    bool can = os_populate(probe, page) == 0 && os_resident_bytes(probe, page) == page;
    (void)os_unmap(probe, page);
    return can;
}
/* A fresh span is filled: how much more is idle then. */
struct Filled {
    quire_span span;
    size_t ahead;
};
Filled fill_one()
{
    Filled out = {take(4 * page), 0};
    EXPECT_TRUE(out.span.flags & QUIRE_SPAN_ZERO);
    size_t idle = idle_bytes();
    EXPECT_EQ(source_fill(source, &out.span), 0);
    EXPECT_EQ(os_resident_bytes(out.span.start, out.span.bytes), out.span.bytes);
    out.ahead = idle_bytes() > idle ? idle_bytes() - idle : 0;
    return out;
}
/* Until as much came ahead as ever does. */
const size_t most_ahead = 256 << 10;
Filled fill_fresh()
{
    raise_peak();
    Filled out = fill_one();
    for (int i = 0; i < 64 && out.ahead < most_ahead; i++)
        out = fill_one();
    return out;
}
/* In a child: what one test has taken, or set, does not meet the next. */
template <typename Body> void alone(Body body)
{
    EXPECT_EQ(in_child([&] {
                  body();
                  return testing::Test::HasFailure() ? 1 : 0;
              }),
              0);
}
} // namespace

TEST(SourceFill, a_span_that_is_filled_brings_some_of_what_is_behind_it)
{
    if (!populates() || memory_is_watched())
        GTEST_SKIP() << "not by this system, or what is watched is in memory by then";
    alone([] {
        Filled filled = fill_fresh();
        char *behind = static_cast<char *>(filled.span.start) + filled.span.bytes;
        EXPECT_EQ(filled.ahead, most_ahead);
        EXPECT_EQ(os_resident_bytes(behind, filled.ahead), filled.ahead);
        EXPECT_LT(os_resident_bytes(behind, filled.ahead + page), filled.ahead + page);
        EXPECT_EQ(quire_source_check(source), nullptr);
        quire_span next = take(4 * page);
        EXPECT_EQ(next.start, behind) << "it is what is taken next";
        EXPECT_TRUE(next.flags & QUIRE_SPAN_ZERO) << "nobody has had it";
        EXPECT_TRUE(all_zero(next));
        memset(next.start, 1, next.bytes);
        size_t left = idle_bytes();
        EXPECT_EQ(source_fill(source, &next), 0);
        EXPECT_EQ(idle_bytes(), left) << "its memory is there: nothing more is filled yet";
        EXPECT_EQ(idle_bytes(), filled.ahead - next.bytes);
        EXPECT_GE(quire_source_trim(source), filled.ahead - next.bytes);
        EXPECT_EQ(idle_bytes(), 0u);
        EXPECT_EQ(os_resident_bytes(behind, filled.ahead), next.bytes);
        source->verbs->give(source, &next);
        source->verbs->give(source, &filled.span);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
}

/* Threads that begin many sizes touch little of each page: what came ahead would be in memory for nothing. */
TEST(SourceFill, what_others_take_is_not_filled_ahead_again)
{
    if (!populates() || memory_is_watched())
        GTEST_SKIP() << "not by this system, or what is watched is in memory by then";
    alone([] {
        raise_peak();
        EXPECT_EQ(fill_one().ahead, 4 * page) << "at first for one span";
        EXPECT_EQ(fill_one().ahead, 0u) << "that is there";
        EXPECT_EQ(fill_one().ahead, 8 * page);
        (void)take(4 * page);
        EXPECT_EQ(fill_one().ahead, 0u) << "the other half was filled";
        EXPECT_EQ(fill_one().ahead, std::min(16 * page, most_ahead));
        while (idle_bytes() >= 4 * page)
            (void)take(4 * page);
        EXPECT_EQ(fill_one().ahead, 0u) << "nobody filled them";
        EXPECT_EQ(fill_one().ahead, 4 * page) << "and it begins anew";
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
}

/* A large block that is to be zero must not be written all over because it begins on pages that came ahead. */
TEST(SourceFill, what_came_ahead_is_zero_until_somebody_has_had_it)
{
    if (!populates() || memory_is_watched())
        GTEST_SKIP() << "not by this system, or what is watched is in memory by then";
    alone([] {
        Filled filled = fill_fresh();
        quire_span large = take(filled.ahead + 63 * page); /* at no multiple of its size */
        EXPECT_EQ(large.start, static_cast<char *>(filled.span.start) + filled.span.bytes);
        EXPECT_TRUE(large.flags & QUIRE_SPAN_ZERO);
        EXPECT_TRUE(all_zero(large));
        EXPECT_EQ(idle_bytes(), 0u);
        memset(large.start, 1, large.bytes);
        region_give(&large, true);
        quire_span again = take(large.bytes);
        EXPECT_EQ(again.start, large.start);
        EXPECT_FALSE(again.flags & QUIRE_SPAN_ZERO) << "somebody had it";
        region_give(&again, true);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
    alone([] { /* from the middle: what is in front may have been had */
        Filled filled = fill_fresh();
        char *behind = static_cast<char *>(filled.span.start) + filled.span.bytes;
        quire_span first = take(5 * page), second = take(5 * page);
        EXPECT_EQ(second.start, behind + first.bytes);
        memset(first.start, 1, first.bytes);
        region_give(&first, true);
        quire_span part = take(3 * page);
        EXPECT_EQ(part.start, behind);
        EXPECT_FALSE(part.flags & QUIRE_SPAN_ZERO);
        quire_span next = take(11 * page);
        EXPECT_EQ(next.start, behind + first.bytes + second.bytes);
        EXPECT_TRUE(next.flags & QUIRE_SPAN_ZERO);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
}

TEST(SourceFill, nothing_is_filled_ahead_that_others_have_or_that_cannot_stay_idle)
{
    if (!populates() || memory_is_watched())
        GTEST_SKIP() << "not by this system, or what is watched is in memory by then";
    alone([] { /* up to the next span that is taken, and around what is idle */
        raise_peak();
        quire_span span[8];
        for (quire_span &each : span)
            each = take(4 * page);
        source->verbs->give(source, &span[2]);
        quire_source_trim(source);
        size_t idle = idle_bytes();
        EXPECT_EQ(source_fill(source, &span[1]), 0);
        EXPECT_EQ(idle_bytes(), idle + span[2].bytes);
        EXPECT_EQ(os_resident_bytes(span[3].start, span[3].bytes), 0u);
        EXPECT_EQ(source_fill(source, &span[1]), 0);
        EXPECT_EQ(idle_bytes(), idle + span[2].bytes);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
    alone([] {
        EXPECT_EQ(quire_source_set_decay(source, 0), 0);
        EXPECT_EQ(fill_fresh().ahead, 0u);
    });
    alone([] { /* places are drawn: nobody knows the next */
        region_scatter(true);
        EXPECT_EQ(fill_fresh().ahead, 0u);
    });
}

TEST(SourceFill, what_the_system_refuses_or_another_source_has_brings_nothing_ahead)
{
    if (!populates() || memory_is_watched())
        GTEST_SKIP() << "not by this system, or what is watched is in memory by then";
    alone([] { /* what is ahead, or all of it */
        raise_peak();
        quire_span span = take(4 * page), next = take(4 * page);
        os_fault_set(OS_ADVISE, 1, false);
        EXPECT_EQ(source_fill(source, &next), 0);
        os_fault_set(OS_ADVISE, 0, false);
        EXPECT_EQ(os_resident_bytes(next.start, next.bytes), next.bytes);
        os_fault_set(OS_ADVISE, 1, true);
        EXPECT_EQ(source_fill(source, &span), -ENOMEM);
        os_fault_set(OS_ADVISE, 0, false);
        quire_source_trim(source);
        EXPECT_EQ(idle_bytes(), 0u);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
    alone([] { /* another source's cookies say nothing of regions */
        quire_source *other = quire_source_anon();
        quire_span span = {};
        EXPECT_EQ(other->verbs->take(other, 4 * page, page, &span), 0);
        size_t idle = idle_bytes();
        EXPECT_EQ(source_fill(other, &span), 0);
        EXPECT_EQ(os_resident_bytes(span.start, span.bytes), span.bytes);
        EXPECT_EQ(idle_bytes(), idle);
    });
}
