// SPDX-License-Identifier: MIT
/* The nth system call of each kind fails, for each source and every n until none does: an error, nothing lost, and the next success works. */
#include "unit/source_kit.h"

#include <cstring>
#include <sys/resource.h>

#include "base/compiler.h"
#include "each_call.h"
#include "support.h"

namespace {

/* Create, take, use, give back, end; going on after each failure.  True when something failed. */
bool program(const std::function<quire_source *()> &make)
{
    bool failed = false;
    quire_source *source = make();
    if (!source) {
        EXPECT_TRUE(errno == ENOMEM || errno == EMFILE) << errno;
        return true;
    }
    for (int i = 0; i < 3; i++) {
        quire_span spans[2];
        size_t page = os_page_bytes();
        for (auto &span : spans) {
            int error = take(source, 16 * page, &span, i == 2 ? 64 * page : page);
            if (error) {
                EXPECT_EQ(error, -ENOMEM);
                span.start = nullptr;
                failed = true;
                continue;
            }
            char *bytes = static_cast<char *>(span.start);
            memset(bytes, 1, span.bytes);
            source->verbs->idle(source, bytes + page, 4 * page);
            if (source->verbs->busy(source, bytes + page, 4 * page) == 0)
                memset(bytes, 2, span.bytes);
            else
                failed = true;
        }
        for (auto &span : spans)
            if (span.start)
                give(source, span);
        EXPECT_EQ(quire_source_check(source), nullptr);
    }
    EXPECT_EQ(stats_of(source).taken_bytes, source == quire_source_anon() || source == quire_source_malloc() ? stats_of(source).taken_bytes : 0);
    quire_source_destroy(source);
    return failed;
}

void every_call_fails_once(const char *name, const std::function<quire_source *()> &make, const Directory &directory, const std::vector<os_call> &kinds)
{
    program(make); /* what is had once for the process */
    size_t maps = 0, fds = 0;
    bool maps_stay = false;
    EachCall each(
        name, 1, 200,
        [&](int) {
            maps = count_lines("/proc/self/maps"), fds = fd_count();
            program(make);
        },
        [&] {
            EXPECT_EQ(fd_count(), fds);
            EXPECT_TRUE(!maps_stay || count_lines("/proc/self/maps") == maps);
            for (const std::string &file : directory.list())
                EXPECT_EQ(file, "span.lock");
            program(make); /* works again, and clears up */
            EXPECT_EQ(directory.list(), Names{});
        });
    each.leave_out_what_is_not_called();
    for (int kind = 0; kind < OS_CALL_COUNT; kind++) {
        /* What cannot be unmapped stays as addresses without memory, and is counted: there the maps may grow.  A sanitizer maps for itself. */
        maps_stay = kind != OS_UNMAP && !under_asan() && !BUILT_WITH_TSAN;
        each.fail(kind, false);
        /* From then on: still an error each time and no crash. */
        os_fault_set(os_call(kind), 1, true);
        program(make);
        os_fault_set(os_call(kind), 0, false);
        program(make);
        EXPECT_EQ(directory.list(), Names{}) << name;
    }
    each.expect_failed(kinds);
}

} // namespace

TEST(SourceFault, every_nth_system_call_of_the_file_source)
{
    Directory directory;
    every_call_fails_once("file", [&] { return quire_source_file(directory.path.c_str(), "span"); }, directory,
                           {OS_MAP, OS_UNMAP, OS_DISCARD, OS_OPEN, OS_GROW, OS_UNLINK, OS_FLOCK});
}

TEST(SourceFault, every_nth_system_call_of_the_memfd_source)
{
    Directory directory;
    every_call_fails_once("memfd", [] { return quire_source_memfd("test"); }, directory, {OS_MAP, OS_UNMAP, OS_DISCARD, OS_GROW, OS_MEMFD});
}

TEST(SourceFault, every_nth_system_call_of_the_anonymous_and_the_malloc_source)
{
    Directory directory;
    every_call_fails_once("anon", [] { return quire_source_anon(); }, directory, {OS_MAP, OS_UNMAP, OS_DISCARD});
    every_call_fails_once("malloc", [] { return quire_source_malloc(); }, directory, {OS_LIBC});
}

/* From the first use by a process on, when addresses are reserved. */
TEST(SourceFault, every_nth_system_call_of_the_default_source)
{
    if (memory_is_watched())
        GTEST_SKIP() << "those who watch map memory too";
    if (stats_of(quire_source_default()).reserved_bytes != 0)
        GTEST_SKIP() << "another test of this process has reserved addresses: ctest runs each in its own";
    auto first_use = []() -> const char * {
        quire_source *source = quire_source_default();
        for (size_t pages : {1, 16, 300, 20000, 1, 300}) {
            quire_span span;
            int error = take(source, pages * os_page_bytes(), &span);
            if (error != 0 && (error != -ENOMEM || take(source, pages * os_page_bytes(), &span) != 0))
                return "a span cannot be had after a failure\n";
            static_cast<char *>(span.start)[0] = static_cast<char *>(span.start)[span.bytes - 1] = 1;
            give(source, span);
            quire_source_trim(source);
            if (quire_source_check(source) || taken_settled(source, 0) != 0)
                return "the source is not sound\n";
        }
        return nullptr;
    };
    expect_failed_in_children("default", {OS_MAP, OS_PROTECT, OS_DISCARD, OS_THREAD}, first_use);
    each_call_fails_once_in_a_child(OS_ADVISE, first_use); /* none where the system has no huge pages */
}

TEST(SourceFault, every_nth_system_call_under_decorators)
{
    Directory directory;
    every_call_fails_once("limit", [] { return quire_source_limit(quire_source_anon(), 1 << 20); }, directory, {OS_MAP, OS_UNMAP, OS_DISCARD});
    every_call_fails_once("count", [] { return quire_source_count(quire_source_anon()); }, directory, {OS_MAP, OS_UNMAP, OS_DISCARD});
    every_call_fails_once("fail", [] { return quire_source_fail(quire_source_anon(), 3); }, directory, {OS_MAP, OS_UNMAP, OS_DISCARD});
}

TEST(SourceFault, addresses_that_cannot_be_unmapped_are_counted)
{
    Directory directory;
    for (quire_source *source : {quire_source_file(directory.path.c_str(), "span"), quire_source_memfd("test")}) {
        quire_span span;
        ASSERT_EQ(take(source, 16 * os_page_bytes(), &span), 0);
        memset(span.start, 1, span.bytes);
        {
            Fault fault(OS_UNMAP, 1);
            give(source, span);
        }
        Stats stats = stats_of(source);
        EXPECT_EQ(stats.taken_bytes, 0u);
        EXPECT_EQ(stats.reserved_bytes, span.bytes);
        bool punches = os_mapped_punch(span.start, 0) == 0; /* Linux before 5.14 does not: what is punched could not be had again */
        EXPECT_EQ(*static_cast<char *>(span.start), punches ? 0 : 1) << "the memory is gone all the same";
        quire_source_destroy(source);
        os_unmap(span.start, span.bytes);
    }
}

TEST(SourceFault, the_child_of_a_fork_that_gets_no_lock_of_its_own_leaves_its_parents_files_and_lock_alone)
{
    Directory directory;
    quire_source *source = quire_source_file(directory.path.c_str(), "span");
    quire_span span = {};
    ASSERT_EQ(take(source, os_page_bytes(), &span), 0);
    pid_t child = fork();
    if (child == 0) {
        Fault no_descriptor(OS_OPEN, 1, true);
        give(source, span); /* its copy */
        os_fault_set(OS_OPEN, 0, false); /* there are descriptors again */
        quire_source_destroy(source);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.lock"}));
    quire_source_destroy(quire_source_file(directory.path.c_str(), "span"));
    EXPECT_EQ(directory.list(), (Names{"span.0", "span.lock"})) << "who comes next sees that the parent lives";
    give(source, span);
    quire_source_destroy(source);
    EXPECT_EQ(directory.list(), Names{});
}

TEST(SourceFault, where_addresses_are_few_a_span_is_aligned_to_more_than_a_range_of_them)
{
    if (under_asan() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "sanitizers need more addresses than the limit";
    quire_source *source = quire_source_default();
    if (stats_of(source).reserved_bytes != 0)
        GTEST_SKIP() << "another test of this process has reserved addresses: ctest runs each in its own";
    EXPECT_EQ(in_child([source] {
                  const size_t mib = 1 << 20;
                  struct rlimit limit = {768 * mib, 768 * mib};
                  quire_span span = {};
                  OR_LINE(setrlimit(RLIMIT_AS, &limit) == 0 && take(source, os_page_bytes(), &span) == 0);
                  give(source, span);
                  quire_source_trim(source); /* the range's first page is free: all that is sure of its address is that a range begins there */
                  for (size_t align_bytes = 128 * mib; align_bytes >= 2 * mib; align_bytes /= 2)
                      OR_LINE(take(source, os_page_bytes(), &span, align_bytes) == 0 && uintptr_t(span.start) % align_bytes == 0);
                  OR_LINE(quire_source_check(source) == nullptr);
                  return 0;
              }),
              0);
}
