// SPDX-License-Identifier: MIT
/* What a process learns of its memory, and what it does at SIGTERM, when system calls fail. */
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>

#include <quire/heap.h>

#include "base/lock.h"
#include "fake_root.h"
#include "pages/pressure.h"
#include "support.h"

extern "C" void heap_thread_leave_for_good(void); /* heap/heap_internal.h is C alone */

namespace {
const uint64_t mib = 1 << 20;
const FakeRoot::Files files = {{"proc/meminfo", "MemTotal: 1048576 kB\n"},         {"proc/self/cgroup", "0::/a/b\n"},
                               {"sys/fs/cgroup/a/b/memory.max", "104857600\n"},     {"sys/fs/cgroup/a/memory.max", "52428800\n"},
                               {"sys/fs/cgroup/a/b/memory.pressure", "some total=1\n"}, {"sys/fs/cgroup/a/b/memory.events.local", "high 2\nmax 1\n"}, {"sys/fs/cgroup/a/memory.events.local", "high 0\nmax 4\n"}, {"proc/pressure/memory", "some total=2\n"}};

ptrdiff_t open_files()
{
    std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
}

struct Shared {
    uint64_t process, own, sum, is_copy, may_end;
};
Shared *shared; /* with the copies */

void in_copy()
{
    os_repair();
    shared->process = os_process_id();
    shared->own = uint64_t(getpid());
    shared->is_copy = os_is_copy();
    shared->sum++;
}
/* A heap's source that is asked for a page inside of an allocation; there the process is copied, and the copy looks at all heaps. */
int interrupted_take(struct quire_source *, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    *out = {aligned_alloc(align_bytes, bytes), bytes, 0, 0};
    shared->own = 1 + uint64_t(-os_in_copy(
        [] {
            struct quire_heap_stats stats = {};
            lock_forget_all();
            heap_thread_leave_for_good();
            os_repair();
            quire_heap_stats(reinterpret_cast<quire_heap *>(shared->process), &stats);
            shared->sum += stats.live_blocks;
            shared->is_copy += quire_heap_check(reinterpret_cast<quire_heap *>(shared->process)) == nullptr;
        },
        2));
    return 0;
}
void interrupted_give(struct quire_source *, const struct quire_span *span) { free(span->start); }

void never_ends()
{
    for (;;)
        pause();
}
void says_so_and_stays()
{
    __atomic_store_n(&shared->own, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&shared->may_end, __ATOMIC_ACQUIRE))
        usleep(1000);
}
void crashes() { raise(SIGSEGV); }
void may_not_be_called(int) { shared->sum += 1000; }
} // namespace

TEST(MemoryFault, a_file_that_cannot_be_opened_is_passed_over_and_no_descriptor_is_lost)
{
    FakeRoot root(files);
    ptrdiff_t fds = open_files();
    uint64_t failed = 0;
    for (uint64_t nth = 1, now = 1; now != 0; nth++, failed += now) {
        Fault fault(OS_OPEN, nth);
        uint64_t bytes = os_memory_bytes(), us = 0, hits = 0;
        EXPECT_TRUE(bytes == 50 * mib || bytes == 100 * mib || bytes == 1024 * mib) << bytes;
        int error = os_memory_stalled_us(&us);
        EXPECT_TRUE(error == 0 && (us == 1 || us == 2)) << error;
        error = os_memory_limit_hits(&hits);
        EXPECT_TRUE(error == 0 ? hits == 7 : error == -EMFILE || error == -ENOENT) << error << ' ' << hits;
        now = os_fault_failed(OS_OPEN);
    }
    EXPECT_GE(failed, 11u);
    Fault all(OS_OPEN, 1, true);
    uint64_t us;
    EXPECT_EQ(os_memory_bytes(), 0u);
    EXPECT_EQ(os_memory_stalled_us(&us), -EMFILE);
    EXPECT_EQ(os_memory_limit_hits(&us), -ENOENT);
    EXPECT_EQ(open_files(), fds);
}

TEST(MemoryFault, a_copy_does_what_it_is_told_and_the_process_sees_no_child)
{
    if (memory_is_watched() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch follow no clone()";
    shared = static_cast<Shared *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    auto before = signal(SIGCHLD, may_not_be_called);
    for (int signal_of_its_own : {SIGSEGV, SIGALRM})
        signal(signal_of_its_own, may_not_be_called);
    EXPECT_EQ(os_in_copy(in_copy, 5), 0);
    EXPECT_EQ(shared->process, uint64_t(getpid()));
    EXPECT_NE(shared->own, shared->process);
    EXPECT_EQ(shared->is_copy, 1u);
    EXPECT_FALSE(os_is_copy());
    EXPECT_EQ(os_in_copy(crashes, 5), -EIO) << "and the program's handlers are not called";
    EXPECT_EQ(os_in_copy(never_ends, 1), -EIO) << "until its time is up";
    {
        Fault fault(OS_COPY, 1);
        errno = 17;
        EXPECT_EQ(os_in_copy(in_copy, 5), -EAGAIN);
        EXPECT_EQ(errno, 17);
    }
    EXPECT_EQ(os_in_copy(in_copy, 5), 0);
    EXPECT_EQ(shared->sum, 2u);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    signal(SIGCHLD, before);
    for (int signal_of_its_own : {SIGSEGV, SIGALRM})
        signal(signal_of_its_own, SIG_DFL);
    munmap(shared, 4096);
}

TEST(MemoryFault, a_child_that_was_forked_while_another_thread_made_a_copy_can_make_one)
{
    if (memory_is_watched() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch follow no clone()";
    shared = static_cast<Shared *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::atomic<bool> has_ended{false};
    std::thread other([&] {
        EXPECT_EQ(os_in_copy(says_so_and_stays, 60), 0);
        has_ended = true;
    });
    while (!__atomic_load_n(&shared->own, __ATOMIC_ACQUIRE) && !has_ended)
        usleep(1000);
    pid_t child = fork();
    if (child == 0)
        _exit(os_in_copy(in_copy, 5) == 0 && shared->sum == 1 ? 0 : 1);
    EXPECT_EQ(os_in_copy(in_copy, 5), -EBUSY);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    __atomic_store_n(&shared->may_end, 1, __ATOMIC_RELEASE);
    other.join();
    EXPECT_EQ(os_in_copy(in_copy, 5), 0);
    munmap(shared, 4096);
}

TEST(MemoryFault, pressure_that_cannot_be_read_trims_nothing)
{
    FakeRoot root(files);
    pressure_watch(10);
    EXPECT_FALSE(pressure_is_high(1000000000));
    struct pressure_seen seen = {};
    EXPECT_FALSE(pressure_hits_limit(&seen));
    root.write("sys/fs/cgroup/a/b/memory.pressure", "some total=900000\n");
    root.write("sys/fs/cgroup/a/memory.events.local", "high 0\nmax 9\n");
    {
        Fault fault(OS_OPEN, 1, true);
        EXPECT_FALSE(pressure_is_high(2000000000) || pressure_hits_limit(&seen));
    }
    EXPECT_TRUE(pressure_hits_limit(&seen));
    EXPECT_TRUE(pressure_is_high(2000000000)) << "the next look sees what the last one missed";
    pressure_watch(0);
}

TEST(MemoryFault, a_copy_made_inside_of_an_allocation_does_not_wait_for_its_lock)
{
    if (memory_is_watched() || BUILT_WITH_TSAN)
        GTEST_SKIP() << "those who watch follow no clone()";
    shared = static_cast<Shared *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (bool has_barriers : {true, false}) { /* without them each allocation takes the lock */
        Fault barrier(OS_BARRIER, has_barriers ? 0 : 1, true);
        pid_t child = fork(); /* asks for barriers anew */
        if (child == 0) {
            *shared = {};
            struct quire_source_verbs verbs = *quire_source_anon()->verbs;
            verbs.take = interrupted_take, verbs.give = interrupted_give;
            struct quire_source source = {&verbs, "interrupted"};
            struct quire_source_verbs plain = verbs;
            plain.take = [](struct quire_source *, size_t bytes, size_t align_bytes, struct quire_span *out) {
                *out = {aligned_alloc(align_bytes, bytes), bytes, 0, 0};
                return 0;
            };
            source.verbs = &plain;
            quire_heap_opts opts = {};
            opts.source = &source;
            quire_heap *heap = quire_heap_create(&opts);
            shared->process = uint64_t(heap);
            for (int i = 0; i < 10; i++)
                quire_heap_alloc(heap, 100);
            source.verbs = &verbs;
            void *p = quire_heap_alloc(heap, 5000); /* a page of another size */
            _exit(p && shared->own == 1 && shared->sum >= 10 && shared->is_copy >= 1 ? 0 : 1);
        }
        int status = 1;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0) << "barriers " << has_barriers << ", the copy's end " << int64_t(shared->own) - 1 << ", blocks " << shared->sum;
    }
    munmap(shared, 4096);
}
