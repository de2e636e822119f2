// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <atomic>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <quire/source.h>

#include "base/atomic.h"
#include "pages/source_internal.h"
#include "support.h"

namespace {
const size_t page = os_page_bytes();
quire_source *source = quire_source_default();

/* At one of twenty atomic steps the thread lets another run: on few cores nothing else makes races meet. */
thread_local uint64_t noise_state;
void noise()
{
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    if ((noise_state >> 40) % 20 == 0)
        yield_sparingly();
}

struct Owned {
    quire_span span;
    uint64_t stamp;
};

/* Take, stamp every page, verify and give, in random order: two owners of one page would see each other's stamp. */
void churn(unsigned seed, unsigned steps)
{
    Random random(seed);
    noise_state = seed;
    std::vector<Owned> live;
    for (unsigned i = 0; i < steps; i++) {
        if (live.size() > 12 || (!live.empty() && random.below(2))) {
            size_t k = random.below(live.size());
            Owned owned = live[k];
            for (size_t at = 0; at < owned.span.bytes; at += page)
                ASSERT_EQ(*reinterpret_cast<uint64_t *>(static_cast<char *>(owned.span.start) + at), owned.stamp);
            source->verbs->give(source, &owned.span);
            live[k] = live.back();
            live.pop_back();
        } else {
            Owned owned = {{}, random.next()};
            size_t bytes = random.below(50) == 0 ? size_t(4) << 20 : (size_t(1) << random.below(6)) * page + (random.below(4) == 0 ? page : 0);
            ASSERT_EQ(source->verbs->take(source, bytes, page, &owned.span), 0);
            if (random.below(4) == 0)
                (void)source_fill(source, &owned.span); /* also what others have behind it by then */
            for (size_t at = 0; at < bytes; at += page) {
                uint64_t *word = reinterpret_cast<uint64_t *>(static_cast<char *>(owned.span.start) + at);
                if (owned.span.flags & QUIRE_SPAN_ZERO) {
                    ASSERT_EQ(*word, 0u);
                }
                *word = owned.stamp;
            }
            live.push_back(owned);
        }
    }
    for (auto &owned : live)
        source->verbs->give(source, &owned.span);
}
} // namespace

TEST(SourceDefaultRace, no_page_has_two_owners_while_threads_churn_and_memory_decays)
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    const size_t others_bytes = stats.taken_bytes;         /* nothing, unless other tests ran before in this process */
    ASSERT_EQ(quire_source_set_decay(source, 2000000), 0); /* the reaper ticks all the time */
    const bool is_short = memory_is_watched() && !test_long();
    for (unsigned threads : {2u, 8u, 32u}) {
        set_noise(noise);
        std::vector<std::thread> all;
        for (unsigned t = 0; t < threads; t++)
            all.emplace_back(churn, threads * 100 + t, is_short ? 1000 / threads + 100 : 6000 / threads + 500);
        for (int i = 0; i < 20; i++) {
            quire_source_trim(source);
            EXPECT_EQ(quire_source_check(source), nullptr);
            quire_source_stats(source, &stats);
        }
        for (auto &thread : all)
            thread.join();
        set_noise(nullptr);
        EXPECT_EQ(quire_source_check(source), nullptr);
    }
    quire_source_set_decay(source, DECAY_STILL_NS);
    for (int i = 0; i < 1000; i++) { /* what the reaper is carrying home at this moment counts as taken */
        quire_source_stats(source, &stats);
        if (stats.taken_bytes <= others_bytes)
            break;
        sleep_ms(5);
    }
    EXPECT_LE(stats.taken_bytes, others_bytes);
}

TEST(SourceDefaultRace, where_nothing_is_to_stay_idle_nothing_is_filled_ahead_that_does)
{
    const bool is_short = memory_is_watched() && !test_long();
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    std::vector<quire_span> held; /* so much that a 128th of it is more than what is filled */
    for (int i = 0; i < 64; i++) {
        held.emplace_back();
        ASSERT_EQ(source->verbs->take(source, size_t(1) << 20, page, &held.back()), 0);
    }
    for (int round = 0; round < (is_short ? 20 : 100); round++) {
        ASSERT_EQ(quire_source_set_decay(source, DECAY_STILL_NS), 0);
        std::atomic<bool> begun{false};
        std::thread filler([&] {
            for (int i = 0; i < 20; i++) {
                quire_span span;
                quire_source_trim(source); /* or all there is has been filled */
                begun = true;
                if (source->verbs->take(source, 4 * page, page, &span) != 0)
                    return;
                (void)source_fill(source, &span);
                source->verbs->give(source, &span);
            }
        });
        while (!begun)
            sched_yield();
        ASSERT_EQ(quire_source_set_decay(source, 0), 0);
        filler.join();
        quire_source_stats(source, &stats);
        ASSERT_EQ(stats.idle_bytes, 0u) << "round " << round;
        ASSERT_EQ(quire_source_check(source), nullptr);
    }
    for (quire_span &span : held)
        source->verbs->give(source, &span);
    ASSERT_EQ(quire_source_set_decay(source, DECAY_STILL_NS), 0);
}

TEST(SourceDefaultRace, children_forked_from_busy_threads_can_take_and_give)
{
#if BUILT_WITH_TSAN
    GTEST_SKIP() << "ThreadSanitizer does not follow a fork of many threads";
#endif
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (unsigned t = 0; t < 4; t++)
        busy.emplace_back([&, t] {
            while (!stop)
                churn(t + 1, 50);
        });
    /* Short: a fork of a process that AddressSanitizer watches takes a tenth of a second. */
    const int forks = test_long() ? 1000 : under_asan() ? 8 : 25;
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            alarm(100);
            bool good = quire_source_check(source) == nullptr;
            quire_span a, b;
            for (int k = 0; k < 20; k++) {
                good = good && source->verbs->take(source, 16 * page, page, &a) == 0 && source->verbs->take(source, 3 * page, page, &b) == 0;
                if (!good)
                    break;
                memset(a.start, 1, a.bytes);
                memset(b.start, 2, b.bytes);
                source->verbs->give(source, &a);
                source->verbs->give(source, &b);
            }
            quire_source_trim(source);
            _exit(good && quire_source_check(source) == nullptr ? 0 : 1);
        }
        int status;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "fork " << i << " status " << status;
    }
    stop = true;
    for (auto &thread : busy)
        thread.join();
    EXPECT_EQ(quire_source_check(source), nullptr);
}
