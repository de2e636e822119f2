// SPDX-License-Identifier: MIT
/* When idle memory makes way, and when it stays: processes that grow, and ones that turn their memory over; and ones that are to have few addresses. */
#include <gtest/gtest.h>

#include <algorithm>
#include <sched.h>
#include <set>
#include <sys/wait.h>
#include <vector>

#include <quire/source.h>

#include "os/os.h"
#include "pages/limbo.h"
#include "pages/region_internal.h"
#include "support.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;
quire_source *source = quire_source_default();

quire_span take(size_t bytes)
{
    quire_span span = {};
    EXPECT_EQ(source->verbs->take(source, bytes / page * page, page, &span), 0) << bytes;
    return span;
}
void give(const quire_span &span) { source->verbs->give(source, &span); }
/* As under a malloc, in a process that has used nothing yet. */
template <typename Body> void in_new_process(Body body)
{
    fflush(nullptr);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        quire_source_set_decay(source, DECAY_STILL_NS);
        quire_source_trim(source);
        region_keep_all();
        regions.most_bytes = regions.used_bytes_most = regions.way_bytes = 0;
        regions.sums.out_bytes_peak = regions.sums.out_bytes;
        body();
        EXPECT_EQ(quire_source_check(source), nullptr);
        fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}
/* 12 places, a random one of them empty and filled again, by 64 KiB to 16 MiB.  How often pages were discarded in the last half. */
uint64_t turn_over(size_t steps, std::vector<quire_span> &places)
{
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < steps; i++) {
        if (i == steps / 2)
            os_fault_set(OS_DISCARD, UINT64_MAX, false);
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        quire_span &span = places[state % places.size()];
        size_t least = size_t(64 << 10) << (state >> 16) % 8;
        if (span.start)
            give(span);
        span = take(least + (state >> 32) % least);
    }
    return os_fault_set(OS_DISCARD, 0, false);
}

TEST(SourceTurns, who_turns_large_memory_over_does_not_fault_it_in_again_and_again)
{
    in_new_process([] {
        std::vector<quire_span> places(12);
        uint64_t discards = turn_over(4000, places);
        EXPECT_TRUE(region_turns_over_locked());
        EXPECT_LE(discards, 100u) << "of 2,000 spans; hundreds without";
        EXPECT_LE(regions.most_bytes, regions.used_bytes_most / 2 * 3 + 8 * mib);
    });
}

/* All are as large as they were, more or less: never half of it, and hardly more than ever. */
TEST(SourceTurns, who_stays_at_one_level_does_not_fault_it_in_again_and_again)
{
    in_new_process([] {
        std::vector<quire_span> places(50);
        uint64_t state = 88172645463325252u, discards = 0;
        for (size_t i = 0; i < 8000; i++) {
            if (i == 4000)
                os_fault_set(OS_DISCARD, UINT64_MAX, false);
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            quire_span &span = places[i < places.size() ? i : state % places.size()];
            if (span.start)
                give(span);
            span = take(300000 + (state >> 32) % 700000);
        }
        discards = os_fault_set(OS_DISCARD, 0, false);
        EXPECT_LE(discards, 20u) << "of 4,000 spans; thousands without";
        EXPECT_LE(regions.most_bytes, regions.used_bytes_most / 2 * 3 + 8 * mib);
    });
}

TEST(SourceTurns, who_grows_makes_way_each_time)
{
    for (double factor : {1.25, 1.5, 2.0})
        in_new_process([=] {
            quire_span span = take(mib);
            for (double bytes = mib * factor; bytes < 200 * mib; bytes *= factor) {
                quire_span larger = take(size_t(bytes));
                give(span);
                span = larger;
                size_t used = regions.sums.out_bytes + size_t(bytes / factor);
                EXPECT_LE(regions.sums.out_bytes + regions.sums.idle_bytes, used + used / 32 + mib) << factor;
            }
            EXPECT_FALSE(region_turns_over_locked()) << factor;
        });
}

TEST(SourceTurns, addresses_that_hold_nothing_can_be_let_go_and_others_come_when_they_are_wanted)
{
    in_new_process([] {
        std::vector<quire_span> spans;
        for (size_t bytes : {page, 16 * page, mib, 2 * mib, 8 * mib, 3 * mib})
            spans.push_back(take(bytes));
        give(spans[1]);
        give(spans[4]);
        for (int round = 0; round < 3; round++) {
            region_let_go();
            EXPECT_EQ(quire_source_check(source), nullptr);
            EXPECT_LE(regions.sums.reserved_bytes, (100u + 64 * unsigned(round)) * mib);
            spans[1] = take(32 * page);
            spans[4] = take(7 * mib);
            for (auto &span : spans)
                static_cast<char *>(span.start)[span.bytes - 1] = 1;
            give(spans[1]);
            give(spans[4]);
        }
        region_after_fork();
        EXPECT_EQ(quire_source_check(source), nullptr);
        size_t out = regions.sums.out_bytes;
        EXPECT_LE(out, 64 * mib) << "what was let go is not out";
        EXPECT_GE(out, 6 * mib);
    });
}

TEST(SourceTurns, addresses_that_the_system_does_not_take_back_stay_unused)
{
    in_new_process([] {
        quire_span span = take(mib);
        os_fault_set(OS_UNMAP, 1, true);
        region_let_go();
        os_fault_set(OS_UNMAP, 0, false);
        quire_span other = take(mib);
        static_cast<char *>(other.start)[0] = static_cast<char *>(span.start)[0] = 1;
        give(span);
        give(other);
    });
}
} // namespace

TEST(SourceTurns, spans_of_any_number_of_pages_stay_with_their_cpu_and_go_to_who_wants_as_many)
{
    in_new_process([] {
        cpu_set_t here;
        CPU_ZERO(&here);
        CPU_SET(sched_getcpu(), &here);
        EXPECT_EQ(sched_setaffinity(0, sizeof here, &here), 0);
        give(take(64 * mib)); /* a process of some size: a CPU may keep more */
        struct region_stats before, after;
        std::vector<quire_span> spans;
        for (size_t pages : {3u, 5u, 3u, 7u})
            spans.push_back(take(pages * page));
        region_stats(&before);
        for (const quire_span &span : spans)
            give(span);
        limbo_drain();
        region_stats(&after);
        EXPECT_EQ(after.out_bytes, before.out_bytes) << "the regions have none of them back";
        std::set<void *> got;
        for (size_t pages : {7u, 3u, 3u, 5u}) {
            quire_span span = take(pages * page);
            EXPECT_TRUE(got.insert(span.start).second) << "nobody else's";
            auto is_it = [&](const quire_span &had) { return had.start == span.start && had.bytes == span.bytes; };
            EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), is_it)) << pages << " pages";
        }
        for (const quire_span &span : spans)
            give(span);
        quire_source_trim(source);
        region_stats(&after);
        EXPECT_EQ(after.out_bytes, before.out_bytes - 18 * page) << "none is lost";
    });
}
