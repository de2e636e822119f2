// SPDX-License-Identifier: MIT
/* What every source promises, for each of them; then what the decorators, the fixed and the memfd source promise besides. */
#include "source_kit.h"
#include "support.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <thread>

namespace {

struct Kind {
    const char *name;
    std::function<quire_source *(const Directory &, std::vector<char> &)> make;
};

const Kind kKinds[] = {
    {"anon", [](const Directory &, std::vector<char> &) { return quire_source_anon(); }},
    {"malloc", [](const Directory &, std::vector<char> &) { return quire_source_malloc(); }},
    {"file", [](const Directory &d, std::vector<char> &) { return quire_source_file(d.path.c_str(), "span"); }},
    {"memfd", [](const Directory &, std::vector<char> &) { return quire_source_memfd("test"); }},
    {"fixed", [](const Directory &, std::vector<char> &b) { return b.resize(12 << 20), quire_source_fixed(b.data(), b.size()); }},
    {"limit", [](const Directory &, std::vector<char> &) { return quire_source_limit(quire_source_anon(), 64 << 20); }},
    {"count", [](const Directory &, std::vector<char> &) { return quire_source_count(quire_source_anon()); }},
    {"fail", [](const Directory &, std::vector<char> &) { return quire_source_fail(quire_source_anon(), UINT64_MAX); }},
};

class Source : public testing::TestWithParam<Kind> {
protected:
    void SetUp() override
    {
        source = GetParam().make(directory, buffer);
        ASSERT_NE(source, nullptr);
        taken_at_rest(source);
        before = stats_of(source); /* anon and malloc are the whole process's */
    }
    void TearDown() override
    {
        EXPECT_EQ(quire_source_check(source), nullptr);
        EXPECT_EQ(taken_settled(source, before.taken_bytes), before.taken_bytes);
        errno = 4711;
        quire_source_destroy(source);
        EXPECT_EQ(errno, 4711);
    }
    Directory directory;
    std::vector<char> buffer;
    quire_source *source = nullptr;
    Stats before = {.struct_bytes = sizeof before};
};

TEST_P(Source, gives_spans_of_the_size_and_alignment_asked_for)
{
    size_t page = os_page_bytes();
    for (size_t bytes : {page, 3 * page, 64 * page, size_t(1) << 20})
        for (size_t align_bytes : {page, 4 * page, size_t(1) << 20, size_t(4) << 20}) {
            quire_span span;
            ASSERT_EQ(take(source, bytes, &span, align_bytes), 0) << bytes << " at " << align_bytes;
            EXPECT_EQ(span.bytes, bytes);
            EXPECT_EQ((uintptr_t)span.start % align_bytes, 0u);
            memset(span.start, 0x5a, bytes);
            give(source, span);
        }
}

TEST_P(Source, says_zero_only_of_spans_that_are)
{
    for (int i = 0; i < 20; i++) {
        quire_span span;
        ASSERT_EQ(take(source, 16 * os_page_bytes(), &span), 0);
        const char *bytes = static_cast<const char *>(span.start);
        if (span.flags & QUIRE_SPAN_ZERO) {
            EXPECT_EQ(std::count(bytes, bytes + span.bytes, 0), (ptrdiff_t)span.bytes);
        }
        memset(span.start, 0xff, span.bytes);
        give(source, span);
    }
}

TEST_P(Source, keeps_the_addresses_of_idle_pages_and_makes_them_writable_again)
{
    quire_span span;
    size_t page = os_page_bytes();
    ASSERT_EQ(take(source, 8 * page, &span), 0);
    char *bytes = static_cast<char *>(span.start);
    memset(bytes, 1, 8 * page);
    source->verbs->idle(source, bytes + 2 * page, 4 * page);
    EXPECT_EQ(source->verbs->busy(source, bytes + 2 * page, 4 * page), 0);
    memset(bytes + 2 * page, 2, 4 * page);
    EXPECT_EQ(bytes[2 * page - 1], 1) << "what is beside them stays";
    EXPECT_EQ(bytes[6 * page], 1);
    give(source, span);
}

TEST_P(Source, refuses_impossible_sizes_and_counts_them)
{
    quire_span span;
    EXPECT_EQ(take(source, SIZE_MAX & ~(os_page_bytes() - 1), &span), -ENOMEM);
    EXPECT_EQ(take(source, size_t(1) << 60, &span), -ENOMEM);
    EXPECT_EQ(stats_of(source).failures, before.failures + 2);
}

TEST_P(Source, keeps_an_account)
{
    quire_span a, b;
    ASSERT_EQ(take(source, 1 << 20, &a), 0);
    ASSERT_EQ(take(source, 2 << 20, &b), 0);
    Stats stats = stats_of(source);
    EXPECT_EQ(stats.taken_bytes, before.taken_bytes + (3 << 20));
    EXPECT_GE(stats.peak_bytes, stats.taken_bytes);
    EXPECT_EQ(stats.takes, before.takes + 2);
    EXPECT_EQ(quire_source_check(source), nullptr);
    give(source, a), give(source, b);
    EXPECT_EQ(stats_of(source).gives, before.gives + 2);
}

TEST_P(Source, serves_eight_threads_at_once)
{
    std::vector<std::thread> threads;
    std::atomic<int> overlaps{0};
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 60; i++) {
                quire_span span;
                if (take(source, (1 + size_t(i) % 7) * os_page_bytes(), &span) != 0)
                    continue;
                memset(span.start, t + 1, span.bytes);
                std::this_thread::yield();
                const char *bytes = static_cast<const char *>(span.start);
                if (std::count(bytes, bytes + span.bytes, t + 1) != (ptrdiff_t)span.bytes)
                    overlaps++;
                give(source, span);
            }
        });
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(overlaps, 0);
}

INSTANTIATE_TEST_SUITE_P(EachKind, Source, testing::ValuesIn(kKinds),
                         [](const testing::TestParamInfo<Kind> &kind) { return std::string(kind.param.name); });

} // namespace

TEST(SourceDestroy, leaves_null_and_the_processes_own_sources_alone)
{
    quire_source_destroy(nullptr);
    for (quire_source *source : {quire_source_default(), quire_source_anon(), quire_source_malloc()}) {
        quire_source_destroy(source);
        quire_span span;
        ASSERT_EQ(take(source, 1 << 16, &span), 0);
        give(source, span);
    }
}

TEST(SourceDestroyDeathTest, with_spans_still_taken_stops_the_process)
{
    Directory directory;
    std::vector<char> buffer;
    for (const Kind &kind : kKinds) {
        quire_source *source = kind.make(directory, buffer);
        quire_span span;
        if (source == quire_source_anon() || source == quire_source_malloc())
            continue;
        ASSERT_EQ(take(source, os_page_bytes(), &span), 0);
        EXPECT_DEATH(quire_source_destroy(source), "^quire: source \"[a-z]+\": S1 destroyed with spans still taken: address 0x") << kind.name;
        give(source, span);
        quire_source_destroy(source);
    }
}

TEST(SourceDecorators, need_an_inner_source)
{
    for (auto make : {+[] { return quire_source_limit(nullptr, 1); }, +[] { return quire_source_count(nullptr); },
                      +[] { return quire_source_fail(nullptr, 1); }}) {
        errno = 0;
        EXPECT_EQ(make(), nullptr);
        EXPECT_EQ(errno, EINVAL);
    }
}

TEST(SourceLimit, ends_exactly_at_its_budget)
{
    size_t page = os_page_bytes();
    quire_source *limit = quire_source_limit(quire_source_anon(), 10 * page);
    quire_span a, b, c;
    EXPECT_EQ(take(limit, 11 * page, &a), -ENOMEM);
    ASSERT_EQ(take(limit, 6 * page, &a), 0);
    EXPECT_EQ(take(limit, 5 * page, &b), -ENOMEM);
    ASSERT_EQ(take(limit, 4 * page, &b), 0);
    EXPECT_EQ(take(limit, page, &c), -ENOMEM);
    EXPECT_EQ(stats_of(limit).taken_bytes, 10 * page);
    EXPECT_EQ(stats_of(limit).limit_bytes, 10 * page);
    EXPECT_EQ(stats_of(limit).failures, 3u);
    give(limit, a);
    ASSERT_EQ(take(limit, 6 * page, &a), 0) << "what is given back is budget again";
    give(limit, a), give(limit, b);
    EXPECT_EQ(stats_of(limit).peak_bytes, 10 * page);
    quire_source_destroy(limit);
}

TEST(SourceLimit, is_never_passed_by_eight_threads)
{
    size_t page = os_page_bytes(), budget = 10 * page;
    quire_source *count = quire_source_count(quire_source_anon()), *limit = quire_source_limit(count, budget);
    std::atomic<size_t> held{0};
    std::atomic<int> over{0}, served{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 3000; i++) {
                quire_span span;
                if (take(limit, size_t(1 + (i + t) % 5) * page, &span) != 0)
                    continue;
                served++;
                if (held.fetch_add(span.bytes) + span.bytes > budget)
                    over++;
                if (i % 16 == 0)
                    std::this_thread::yield();
                held -= span.bytes;
                give(limit, span);
            }
        });
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(over, 0);
    EXPECT_GT(served, 0);
    EXPECT_LE(stats_of(limit).peak_bytes, budget);
    EXPECT_LE(stats_of(count).peak_bytes, budget) << "what reached the inner source";
    EXPECT_EQ(stats_of(limit).taken_bytes, 0u);
    quire_source_destroy(limit), quire_source_destroy(count);
}

TEST(SourceFail, fails_the_nth_take_and_no_other)
{
    for (uint64_t nth = 1; nth <= 5; nth++) {
        quire_source *fail = quire_source_fail(quire_source_anon(), nth);
        for (uint64_t i = 1; i <= 6; i++) {
            quire_span span;
            int error = take(fail, os_page_bytes(), &span);
            EXPECT_EQ(error, i == nth ? -ENOMEM : 0);
            if (!error)
                give(fail, span);
        }
        EXPECT_EQ(stats_of(fail).failures, 1u);
        quire_source_destroy(fail);
    }
}

TEST(SourceMemfd, is_shared_with_a_forked_child_and_named_in_the_maps)
{
    quire_source *source = quire_source_memfd("tenant-7");
    quire_span span;
    ASSERT_EQ(take(source, os_page_bytes(), &span), 0);
    char *bytes = static_cast<char *>(span.start), line[512];
    EXPECT_EQ(in_child([&] { return bytes[0] = 42, quire_span{}.bytes ? 1 : 0; }), 0);
    EXPECT_EQ(bytes[0], 42);
    bool named = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        named |= strstr(line, "memfd:tenant-7") != nullptr;
    fclose(maps);
    EXPECT_TRUE(named);
    give(source, span);
    quire_source_destroy(source);
    source = quire_source_memfd(std::string(1000, 'n').c_str());
    ASSERT_NE(source, nullptr) << "a name too long for the kernel is cut";
    ASSERT_EQ(take(source, os_page_bytes(), &span), 0);
    give(source, span);
    quire_source_destroy(source);
}

TEST(SourceFixed, refuses_no_buffer_and_one_without_room)
{
    static char buffer[64 << 10];
    EXPECT_EQ(quire_source_fixed(nullptr, 1 << 20), nullptr);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(quire_source_fixed(buffer, SIZE_MAX), nullptr);
    EXPECT_EQ(errno, EINVAL);
    for (size_t bytes : {size_t(0), size_t(1), size_t(63), os_page_bytes() - 1, os_page_bytes()}) {
        errno = 0;
        EXPECT_EQ(quire_source_fixed(buffer, bytes), nullptr) << bytes;
        EXPECT_EQ(errno, ENOMEM);
    }
}

TEST(SourceFixed, stays_inside_a_buffer_of_any_offset_and_uses_all_whole_pages)
{
    size_t page = os_page_bytes();
    std::vector<char> memory(24 * page);
    for (size_t offset : {size_t(0), size_t(1), size_t(63), size_t(64), page - 1, page + 17})
        for (size_t bytes = 3 * page; bytes < 20 * page; bytes += page / 2 + 13) {
            std::fill(memory.begin(), memory.end(), char(0x77));
            char *start = memory.data() + offset;
            quire_source *source = quire_source_fixed(start, bytes);
            ASSERT_NE(source, nullptr);
            std::vector<quire_span> spans;
            quire_span span;
            while (take(source, page, &span) == 0) {
                ASSERT_GE((char *)span.start, start);
                ASSERT_LE((char *)span.start + page, start + bytes);
                memset(span.start, 1, page);
                spans.push_back(span);
            }
            EXPECT_GE(spans.size() + 2, bytes / page) << "at most two pages go to bookkeeping and ends";
            EXPECT_EQ(quire_source_check(source), nullptr);
            for (auto &each : spans)
                give(source, each);
            quire_source_destroy(source);
            EXPECT_EQ(std::count(memory.data(), start, 0x77), (ptrdiff_t)offset);
            EXPECT_EQ(std::count(start + bytes, memory.data() + memory.size(), 0x77), (ptrdiff_t)(memory.size() - bytes - offset));
        }
}

TEST(SourceFixed, finds_the_one_place_of_a_large_alignment)
{
    size_t page = os_page_bytes(), large = 256 * page;
    std::vector<char> memory(3 * large);
    uintptr_t aligned = ((uintptr_t)memory.data() + 8 * page + large - 1) & ~(large - 1);
    char *start = (char *)aligned - 8 * page; /* one such address, close to the start */
    quire_source *source = quire_source_fixed(start, 16 * page);
    quire_span span, second;
    ASSERT_EQ(take(source, page, &span, large), 0);
    EXPECT_EQ((uintptr_t)span.start, aligned);
    EXPECT_EQ(take(source, page, &second, large), -ENOMEM);
    give(source, span);
    quire_source_destroy(source);
    source = quire_source_fixed((char *)aligned + page, 16 * page); /* none */
    EXPECT_EQ(take(source, page, &span, large), -ENOMEM);
    EXPECT_EQ(quire_source_check(source), nullptr);
    quire_source_destroy(source);
}

TEST(SourceFixedDeathTest, a_span_that_was_not_taken_is_refused)
{
    size_t page = os_page_bytes();
    std::vector<char> memory(40 * page);
    quire_source *source = quire_source_fixed(memory.data(), memory.size());
    quire_span span;
    ASSERT_EQ(take(source, 4 * page, &span), 0);
    const char *refused = "^quire: source \"fixed\": S3 a span that was not taken is given back: address 0x";
    quire_span wrong = span;
    wrong.bytes = 2 * page;
    EXPECT_DEATH(give(source, wrong), refused) << "another length";
    wrong = span, wrong.start = (char *)span.start + page;
    EXPECT_DEATH(give(source, wrong), refused) << "the middle";
    wrong = span, wrong.start = memory.data() - 100 * page;
    EXPECT_DEATH(give(source, wrong), refused) << "outside";
    EXPECT_DEATH((give(source, span), give(source, span)), refused) << "twice";
    give(source, span);
    quire_source_destroy(source);
}

TEST(SourceFixed, serves_a_child_forked_while_other_threads_hold_its_lock)
{
    size_t page = os_page_bytes();
    std::vector<char> memory(2000 * page);
    quire_source *source = quire_source_fixed(memory.data(), memory.size());
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
        threads.emplace_back([&, t] {
            for (size_t i = 0; !stop; i++) {
                quire_span span;
                if (take(source, (1 + (i + size_t(t)) % 9) * page, &span) == 0)
                    give(source, span);
            }
        });
    for (int round = 0; round < 100; round++) {
        int status = in_child([&] {
            alarm(100); /* a lock that nobody holds any longer */
            quire_span span;
            for (int i = 0; i < 20; i++) {
                if (take(source, 5 * page, &span) != 0)
                    return 1;
                give(source, span);
            }
            return quire_source_check(source) ? 2 : 0;
        });
        ASSERT_EQ(status, 0) << "round " << round;
    }
    stop = true;
    for (auto &thread : threads)
        thread.join();
    EXPECT_EQ(quire_source_check(source), nullptr);
    quire_source_destroy(source);
}
