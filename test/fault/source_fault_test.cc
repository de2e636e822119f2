// SPDX-License-Identifier: MIT
/* The nth system call of each kind fails, for each source and every n until none does: an error, nothing lost, and the next success works. */
#include "unit/source_kit.h"

#include <cstring>
#include <sys/resource.h>

#include "base/compiler.h"
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

void every_call_fails_once(const char *name, const std::function<quire_source *()> &make, const Directory &directory)
{
    program(make); /* what is had once for the process */
    for (int kind = 0; kind < OS_CALL_COUNT; kind++) {
        /* What cannot be unmapped stays as addresses without memory, and is counted: there the maps may grow.  A sanitizer maps for itself. */
        bool maps_stay = kind != OS_UNMAP && !under_asan() && !BUILT_WITH_TSAN;
        uint64_t seen = 1;
        for (uint64_t nth = 1; nth <= seen && nth < 200; nth++) {
            size_t maps = count_lines("/proc/self/maps"), fds = fd_count();
            os_fault_set(os_call(kind), nth, false);
            program(make);
            seen = os_fault_set(os_call(kind), 0, false);
            EXPECT_EQ(fd_count(), fds) << name << " kind " << kind << " nth " << nth;
            if (maps_stay) {
                EXPECT_EQ(count_lines("/proc/self/maps"), maps) << name << " kind " << kind << " nth " << nth;
            }
            for (const std::string &file : directory.list())
                EXPECT_EQ(file, "span.lock") << name << " kind " << kind << " nth " << nth;
            program(make); /* works again, and clears up */
            EXPECT_EQ(directory.list(), Names{}) << name << " kind " << kind << " nth " << nth;
        }
        /* From then on: still an error each time and no crash. */
        os_fault_set(os_call(kind), 1, true);
        program(make);
        os_fault_set(os_call(kind), 0, false);
        program(make);
        EXPECT_EQ(directory.list(), Names{}) << name;
    }
}

} // namespace

TEST(SourceFault, every_nth_system_call_of_the_file_source)
{
    Directory directory;
    every_call_fails_once("file", [&] { return quire_source_file(directory.path.c_str(), "span"); }, directory);
}

TEST(SourceFault, every_nth_system_call_of_the_memfd_source)
{
    Directory directory;
    every_call_fails_once("memfd", [] { return quire_source_memfd("test"); }, directory);
}

TEST(SourceFault, every_nth_system_call_of_the_anonymous_and_the_malloc_source)
{
    Directory directory;
    every_call_fails_once("anon", [] { return quire_source_anon(); }, directory);
    every_call_fails_once("malloc", [] { return quire_source_malloc(); }, directory);
}

TEST(SourceFault, every_nth_system_call_under_decorators)
{
    Directory directory;
    every_call_fails_once("limit", [] { return quire_source_limit(quire_source_anon(), 1 << 20); }, directory);
    every_call_fails_once("count", [] { return quire_source_count(quire_source_anon()); }, directory);
    every_call_fails_once("fail", [] { return quire_source_fail(quire_source_anon(), 3); }, directory);
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
