// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <dlfcn.h>
#include <fstream>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <vector>

#include <quire/source.h>

#include "base/align.h"
#include "base/compiler.h"
#include "os/sanitize.h"
#include "pages/lost.h"
#include "pages/pagemap.h"
#include "pages/region_internal.h"
#include "pages/source_internal.h"
#include "support.h"

namespace {
const size_t page = os_page_bytes();
const size_t mib = 1 << 20;
quire_source *source = quire_source_default();

quire_span take(size_t bytes, size_t align = 0)
{
    quire_span span = {};
    EXPECT_EQ(source->verbs->take(source, bytes, align ? align : page, &span), 0) << bytes;
    return span;
}
void give(const quire_span &span) { source->verbs->give(source, &span); }
void touch(const quire_span &span)
{
    for (size_t i = 0; i < span.bytes; i += size_t(sysconf(_SC_PAGESIZE))) /* the kernel's, also where larger ones are pretended */
        static_cast<volatile char *>(span.start)[i] = 1;
}
struct quire_source_stats stats()
{
    struct quire_source_stats out = {.struct_bytes = sizeof out};
    quire_source_stats(source, &out);
    return out;
}
/* Not into a CPU's cache. */
void give_past_caches(const quire_span &span) { region_give(&span, true); }
/* From now on some MiB may be idle, also where many CPUs have their part of a small process's allowance. */
void raise_peak()
{
    std::vector<quire_span> spans(16);
    for (quire_span &span : spans)
        span = take(4 * mib);
    for (quire_span &span : spans)
        give(span);
    quire_source_trim(source);
}
bool all_zero(const quire_span &span)
{
    const char *p = static_cast<const char *>(span.start);
    return p[0] == 0 && memcmp(p, p + 1, span.bytes - 1) == 0;
}
/* Run in a child, so that limits, options and threads of one test do not meet the next; the child's status is the result. */
template <typename Body> void in_child(Body body)
{
    fflush(nullptr);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        body();
        fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}
} // namespace

TEST(SourceDefault, what_is_kept_for_a_cpu_is_touched_when_the_process_runs_there)
{
    auto faults_on = [](int cpu) {
        struct rusage before = {}, after = {};
        os_cpu_fake(cpu);
        getrusage(RUSAGE_THREAD, &before);
        give(take(page));
        getrusage(RUSAGE_THREAD, &after);
        os_cpu_fake(-1);
        return after.ru_minflt - before.ru_minflt;
    };
    for (int i = 0; i < 100; i++)
        faults_on(0); /* limbo, and a sanitizer's own memory */
    for (int cpu : {17, 40, 63}) {
        long first = faults_on(cpu);
        EXPECT_GT(first, faults_on(cpu)) << "CPU " << cpu; /* of 64 CPUs all would be half a megabyte */
    }
}

TEST(SourceDefault, spans_are_whole_pages_aligned_and_writable)
{
    for (size_t bytes : {page, 2 * page, 3 * page, 16 * page, 100 * page, 2 * mib, 4 * mib, 65 * mib, 300 * mib})
        for (size_t align : {page, 16 * page, mib, 4 * mib}) {
            quire_span span = take(bytes, align);
            ASSERT_NE(span.start, nullptr);
            EXPECT_EQ(span.bytes, bytes);
            EXPECT_EQ(uintptr_t(span.start) % align, 0u);
            static_cast<char *>(span.start)[0] = 1;
            static_cast<char *>(span.start)[bytes - 1] = 1;
            give(span);
        }
    EXPECT_EQ(quire_source_check(source), nullptr);
    quire_source_trim(source);
}

TEST(SourceDefault, a_span_said_to_be_zero_is_zero_and_fresh_ones_are_said_to_be)
{
    in_child([] {
        EXPECT_TRUE(take(16 * page).flags & QUIRE_SPAN_ZERO);
        Random random(3);
        std::vector<quire_span> live;
        for (int i = 0; i < 3000; i++) {
            if (live.size() > 40 || (!live.empty() && random.below(2))) {
                size_t k = random.below(live.size());
                give(live[k]);
                live.erase(live.begin() + long(k));
            } else {
                quire_span span = take((1 + random.below(40)) * page);
                if (span.flags & QUIRE_SPAN_ZERO) {
                    EXPECT_TRUE(all_zero(span));
                }
                memset(span.start, 0xa5, span.bytes);
                live.push_back(span);
            }
            if (i % 500 == 0)
                quire_source_trim(source);
        }
        for (auto &span : live)
            give(span);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
}

TEST(SourceDefault, a_warm_span_costs_no_system_call_and_no_fault)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory faults too";
    os_cpu_fake(0); /* each CPU has spans of its own to warm, and this thread may come to any of them */
    quire_span span = take(16 * page);
    touch(span);
    give(span);
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    os_fault_set(OS_MAP, 1u << 30, false);
    os_fault_set(OS_PROTECT, 1u << 30, false);
    os_fault_set(OS_DISCARD, 1u << 30, false);
    for (int i = 0; i < 10000; i++) {
        span = take(16 * page);
        touch(span);
        give(span);
    }
    EXPECT_EQ(os_fault_set(OS_MAP, 0, false), 0u);
    EXPECT_EQ(os_fault_set(OS_PROTECT, 0, false), 0u);
    EXPECT_LE(os_fault_set(OS_DISCARD, 0, false), 64u) << "the reaper may tick meanwhile";
    getrusage(RUSAGE_THREAD, &after);
    EXPECT_LE(after.ru_minflt - before.ru_minflt, 64) << "another of the CPU's shards may fault one span in";
    os_cpu_fake(-1);
}

TEST(SourceDefault, idle_memory_is_bounded_at_once_and_gone_within_two_decays)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is resident memory too";
    in_child([] {
        std::vector<quire_span> spans((256 * mib) / (16 * page));
        size_t start = rss_bytes();
        for (auto &span : spans) { /* 256 MiB */
            span = take(16 * page);
            touch(span);
        }
        EXPECT_GE(rss_bytes() - start, 16 * page * spans.size() - mib);
        for (auto &span : spans)
            give(span);
        size_t peak = stats().peak_bytes;
        EXPECT_LE(stats().idle_bytes, peak / 4 + 8 * mib);
        EXPECT_LE(rss_bytes(), start + peak / 4 + 8 * mib + mib);
        EXPECT_GE(stats().idle_bytes, mib) << "some of it is kept warm";
        ASSERT_EQ(quire_source_set_decay(source, 100000000), 0);
        for (int late = 0; late < 3000 && rss_bytes() > start + 2 * mib; late++)
            sleep_ms(10); /* a late thread on a busy machine */
        EXPECT_LE(rss_bytes(), start + 2 * mib);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
}

TEST(SourceDefault, without_a_thread_of_its_own_callers_give_idle_memory_back)
{
    in_child([] {
        Fault fault(OS_THREAD, 1, true); /* from the start, or raise_peak() has one begun, which may be late on a busy machine */
        raise_peak();
        ASSERT_EQ(quire_source_set_decay(source, 100000000), 0);
        quire_span span = take(4 * mib), other;
        give(span);
        EXPECT_GE(stats().idle_bytes, 4 * mib);
        for (int i = 0; i < 4; i++) {
            sleep_ms(80);
            other = take(3 * page); /* not a size of the shards: a slow path */
            give(other);
        }
        EXPECT_LE(stats().idle_bytes, mib);
    });
}

#if !BUILT_WITH_TSAN && BUILT_WITH_GLIBC /* a static program, as with musl, has no next pthread_create() */
static std::atomic<unsigned> thread_starter_sleeps_us; /* it loses its CPU when the thread is there */
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*fn)(void *), void *arg)
{
    static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    int error = next(thread, attributes, fn, arg);
    if (thread_starter_sleeps_us)
        usleep(thread_starter_sleeps_us);
    return error;
}

TEST(SourceDefault, a_thread_that_has_nothing_to_do_before_its_starter_goes_on_is_woken_again)
{
    in_child([] {
        os_fault_set(OS_THREAD, 1, true);
        raise_peak();
        ASSERT_EQ(quire_source_set_decay(source, 10000000), 0);
        give(take(4 * mib));
        os_fault_set(OS_THREAD, 0, false);
        thread_starter_sleeps_us = 300000;
        sleep_ms(50);
        give(take(3 * page)); /* a slow path: it ticks, and gets a thread */
        quire_span span = take(8 * mib);
        touch(span), give(span);
        for (int late = 0; late < 300 && stats().idle_bytes > mib; late++)
            sleep_ms(10);
        EXPECT_LE(stats().idle_bytes, mib);
    });
}
#endif

TEST(SourceDefault, decay_zero_keeps_nothing)
{
    in_child([] {
        ASSERT_EQ(quire_source_set_decay(source, 0), 0);
        quire_span small = take(page), large = take(8 * mib);
        give(small);
        give(large);
        EXPECT_EQ(stats().idle_bytes, 0u);
        ASSERT_EQ(quire_source_set_decay(source, DECAY_STILL_NS), 0);
        small = take(page);
        give(small);
        EXPECT_EQ(stats().idle_bytes, page);
    });
}

TEST(SourceDefault, trim_gives_everything_idle_back_and_says_how_much)
{
    raise_peak();
    quire_span a = take(16 * page), b = take(4 * mib);
    touch(a), touch(b);
    give(a), give(b);
    size_t idle = stats().idle_bytes;
    EXPECT_GE(idle, 4 * mib);
    EXPECT_EQ(quire_source_trim(source), idle);
    EXPECT_EQ(stats().idle_bytes, 0u);
    EXPECT_EQ(quire_source_trim(source), 0u);
}

/* Every second of 64 spans of 64 KiB is idle, and spans of 512 KiB are wanted. */
template <typename Body> void with_holes(Body body)
{
    in_child([&] {
        quire_source_trim(source);
        regions.most_bytes = regions.used_bytes_most = regions.way_bytes = 0; /* whatever came before */
        std::vector<quire_span> spans(64), large(4);
        for (auto &span : spans) {
            span = take(16 * page);
            touch(span);
        }
        for (size_t i = 0; i < spans.size(); i += 2)
            give_past_caches(spans[i]);
        body(large);
        EXPECT_EQ(quire_source_check(source), nullptr);
    });
}

TEST(SourceDefault, idle_memory_that_does_not_fit_makes_way_before_the_process_is_larger_than_it_was)
{
    with_holes([](std::vector<quire_span> &large) {
        size_t most = stats().taken_bytes + stats().idle_bytes, idle = stats().idle_bytes;
        EXPECT_GE(idle, 32 * 16 * page);
        for (auto &span : large) {
            span = take(128 * page);
            EXPECT_LE(stats().taken_bytes + stats().idle_bytes, most + most / 32);
        }
        EXPECT_LE(stats().idle_bytes, idle - 2 * mib + most / 32);
    });
}

TEST(SourceDefault, idle_memory_that_cannot_make_way_is_asked_once_for_each_span)
{
    with_holes([](std::vector<quire_span> &large) {
        size_t idle = stats().idle_bytes;
        os_fault_set(OS_DISCARD, 1, true);
        for (auto &span : large)
            span = take(128 * page);
        uint64_t asked = os_fault_set(OS_DISCARD, 0, false);
        EXPECT_GE(asked, 1u);
        EXPECT_LE(asked, large.size() * regions.count);
        EXPECT_GE(stats().idle_bytes, idle) << "and stays counted";
        EXPECT_GE(quire_source_trim(source), idle);
    });
}

TEST(SourceDefault, the_page_map_of_addresses_that_went_back_goes_back_too)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is resident memory too";
    const size_t each = pagemap_stretch_pages(), pages = 4 * each - 1;
    if (pages * page > 256 * mib)
        GTEST_SKIP() << "an OS page of the map is about more than is ever cut from a region at once";
    alignas(8) static char object[8];
    for (int way = 0; way < 2; way++) {
        quire_source_trim(source);
        quire_span span = take(pages * page);
        auto *entries = &((atomic_addr *)pagemap_near.tables.word)[uintptr_t(span.start) / page & pagemap_near.mask.word];
        char *map = (char *)align_up(uintptr_t(entries), page);
        ASSERT_EQ(pagemap_set(span.start, span.bytes, owner_make(object, OWNER_ARENA)), 0);
        EXPECT_EQ(os_resident_bytes(map, 2 * page), 2 * page);
        pagemap_clear(span.start, span.bytes);
        if (way == 0)
            give(span);
        else
            source_give_cold(source, &span);
        EXPECT_EQ(os_resident_bytes(map, 2 * page), 2 * page) << "not at once: who comes again would fault it in";
        quire_source_trim(source);
        EXPECT_EQ(os_resident_bytes(map, 2 * page), 0u) << (way ? "given cold" : "trimmed");
        EXPECT_EQ(pagemap_find(span.start), 0u);
    }
}

TEST(SourceDefault, memory_that_cannot_be_discarded_stays_counted_and_goes_later)
{
    raise_peak();
    quire_span span = take(4 * mib);
    touch(span);
    give(span);
    {
        Fault fault(OS_DISCARD, 1, true);
        EXPECT_EQ(quire_source_trim(source), 0u);
        EXPECT_EQ(quire_source_check(source), nullptr);
    }
    EXPECT_GE(stats().idle_bytes, 4 * mib);
    EXPECT_GE(quire_source_trim(source), 4 * mib);
}

TEST(SourceDefault, addresses_that_cannot_be_unmapped_are_not_lost)
{
    in_child([] {
        quire_span huge = take(300 * mib); /* mapped directly */
        touch(huge);
        struct region_stats before, after;
        region_stats(&before);
        {
            Fault fault(OS_UNMAP, 1, true);
            give(huge);
            EXPECT_EQ(lost_bytes(), 300 * mib);
            if (!memory_is_watched()) {
                EXPECT_LE(rss_bytes(), 100 * mib) << "its memory is back even so";
            }
        }
        quire_source_trim(source);
        region_stats(&after);
        EXPECT_EQ(lost_bytes(), 0u);
        EXPECT_EQ(after.out_bytes, before.out_bytes - 300 * mib);
    });
}

TEST(SourceDefault, a_gibibyte_of_spans_needs_few_vmas)
{
    in_child([] {
        size_t before = count_lines("/proc/self/maps");
        for (int i = 0; i < 16384; i++)
            take(16 * page);
        EXPECT_LE(count_lines("/proc/self/maps") - before, 64u);
    });
}

TEST(SourceDefault, under_a_limit_of_addresses_smaller_ranges_serve_and_the_end_is_enomem)
{
    if (under_asan() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "sanitizers need more addresses than the limit";
    if (stats().reserved_bytes != 0)
        GTEST_SKIP() << "another test of this process has reserved addresses: ctest runs each in its own";
    in_child([] {
        struct rlimit limit = {512 * mib, 512 * mib};
        ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
        std::vector<quire_span> spans;
        spans.reserve(4096);
        quire_span span;
        while (source->verbs->take(source, mib, page, &span) == 0) {
            static_cast<char *>(span.start)[0] = 1;
            spans.push_back(span);
        }
        EXPECT_GE(spans.size(), 250u);
        EXPECT_EQ(source->verbs->take(source, mib, page, &span), -ENOMEM);
        EXPECT_EQ(quire_source_check(source), nullptr);
        EXPECT_GE(stats().failures, 1u);
        give(spans.back());
        EXPECT_EQ(source->verbs->take(source, mib, page, &span), 0) << "what came back can be had again";
    });
}

TEST(SourceDefault, impossible_sizes_are_enomem)
{
    quire_span span;
    EXPECT_EQ(source->verbs->take(source, size_t(PTRDIFF_MAX) + 1, page, &span), -ENOMEM);
    EXPECT_EQ(source->verbs->take(source, align_down(SIZE_MAX, page), page, &span), -ENOMEM);
    EXPECT_EQ(source->verbs->take(source, size_t(1) << 60, page, &span), -ENOMEM);
    EXPECT_EQ(source->verbs->take(source, page, size_t(1) << 62, &span), -ENOMEM);
}

TEST(SourceDefault, the_bound_of_idle_memory_is_a_quarter_of_the_peak_and_eight_mebibytes)
{
    EXPECT_EQ(region_idle_bytes_max(0, 0), 8 * mib);
    EXPECT_EQ(region_idle_bytes_max(100 * mib, 0), 33 * mib);
    EXPECT_EQ(region_idle_bytes_max(100 * mib, 4 * mib), 28 * mib);
    EXPECT_EQ(region_idle_bytes_max(0, 8 * mib), 0u);
}

TEST(SourceDefault, a_child_of_a_fork_can_go_on_at_once)
{
    quire_span kept = take(16 * page);
    memset(kept.start, 0x5a, kept.bytes);
    const int children = memory_is_watched() && !test_long() ? 10 : 50;
    for (int i = 0; i < children; i++)
        in_child([&] {
            EXPECT_EQ(static_cast<char *>(kept.start)[page], 0x5a);
            give(kept);
            quire_span a = take(3 * page), b = take(4 * mib);
            touch(a), touch(b);
            give(a), give(b);
            EXPECT_EQ(quire_source_check(source), nullptr);
        });
    give(kept);
}

TEST(SourceDefault, statistics_add_up_and_failures_are_counted)
{
    quire_source_trim(source);
    struct quire_source_stats before = stats();
    quire_span a = take(16 * page), b = take(3 * page);
    struct quire_source_stats now = stats();
    EXPECT_EQ(now.taken_bytes, before.taken_bytes + 19 * page);
    EXPECT_EQ(now.takes, before.takes + 2);
    EXPECT_GE(now.peak_bytes, now.taken_bytes);
    EXPECT_GE(now.reserved_bytes, now.taken_bytes);
    EXPECT_GT(now.meta_bytes, 0u);
    give(a), give(b);
    now = stats();
    EXPECT_EQ(now.taken_bytes, before.taken_bytes);
    EXPECT_EQ(now.gives, before.gives + 2);
}

TEST(SourceDefault, only_the_default_source_has_a_decay)
{
    EXPECT_EQ(quire_source_set_decay(quire_source_anon(), 1), -1);
    EXPECT_EQ(errno, ENOTSUP);
    EXPECT_EQ(quire_source_set_decay(source, UINT64_MAX), -1);
    EXPECT_EQ(errno, EINVAL);
}

TEST(SourceDefault, a_span_smaller_than_a_huge_page_is_not_rounded_up_to_one_in_memory)
{
    if (memory_is_watched() || os_huge_bytes() == 0)
        GTEST_SKIP() << "needs huge pages, and nobody watching";
    in_child([] {
        quire_source_trim(source);
        quire_span span = take(os_huge_bytes() / 2);
        size_t before = rss_bytes();
        static_cast<char *>(span.start)[0] = 1;
        EXPECT_LE(rss_bytes() - before, 64 * page) << "one page was touched";
    });
}
