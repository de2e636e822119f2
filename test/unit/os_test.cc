// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <link.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "os/os.h"
#include "support.h"

namespace {
const size_t page = os_page_bytes();
}

extern "C" size_t os_page_bytes_pretended(); /* pretended_pages.cc */

TEST(Os, the_page_size_is_the_kernels_or_what_the_tests_pretend)
{
    size_t pretended = os_page_bytes_pretended();
    EXPECT_EQ(page, pretended ? pretended : size_t(sysconf(_SC_PAGESIZE)));
    EXPECT_EQ(size_t(1) << os_page_shift(), page);
}

TEST(Os, mapped_memory_is_zero_and_aligned_as_asked)
{
    for (size_t align = page; align <= (size_t(64) << 20); align *= 2) {
        void *p;
        ASSERT_EQ(os_map(3 * page, align, &p), 0);
        EXPECT_EQ(uintptr_t(p) % align, 0u);
        for (size_t i = 0; i < 3 * page; i += 512)
            EXPECT_EQ(static_cast<char *>(p)[i], 0);
        EXPECT_EQ(os_unmap(p, 3 * page), 0);
    }
}

TEST(Os, aligned_mappings_leave_no_ends_behind)
{
    if (memory_is_watched())
        GTEST_SKIP() << "shadow memory is mapped too";
    size_t before = count_lines("/proc/self/maps");
    for (int i = 0; i < 100; i++) {
        void *p;
        ASSERT_EQ(os_map(page, 1 << 20, &p), 0);
        ASSERT_EQ(os_unmap(p, page), 0);
    }
    EXPECT_LE(count_lines("/proc/self/maps"), before + 1);
}

TEST(Os, reserved_addresses_become_memory_when_committed_and_zero_again_when_discarded)
{
    void *p;
    ASSERT_EQ(os_reserve(64 * page, page, &p), 0);
    ASSERT_EQ(os_commit(p, 2 * page), 0);
    char *c = static_cast<char *>(p);
    memset(c, 7, 2 * page);
    ASSERT_EQ(os_discard(p, page), 0);
    EXPECT_EQ(c[0], 0);
    EXPECT_EQ(c[page], 7);
    EXPECT_DEATH(c[3 * page] = 1, "");
    ASSERT_EQ(os_unmap(p, 64 * page), 0);
}

static bool is_all(const char *p, size_t bytes, char what)
{
    return bytes == 0 || (*p == what && memcmp(p, p + 1, bytes - 1) == 0);
}

TEST(Os, contents_leave_for_other_addresses_and_the_pages_stay)
{
    for (size_t align : {page, size_t(2) << 20}) {
        size_t bytes = align + page, more = 3 * align; /* with a huge page, where there are any, and with a piece of one */
        void *from, *to;
        ASSERT_EQ(os_map(bytes, align, &from), 0);
        memset(from, 'x', bytes);
        ASSERT_EQ(os_reserve(more, align, &to), 0);
        os_fault_set(OS_REMAP, 1, false);
        EXPECT_EQ(os_leave(from, bytes, more, to), -ENOMEM);
        errno = 7;
        int first = os_leave(from, bytes, more, to);
        EXPECT_EQ(errno, 7);
        if (first == -ENOMEM)
            GTEST_SKIP() << "Linux before 5.7";
        ASSERT_EQ(first, 0);
        EXPECT_TRUE(is_all(static_cast<char *>(to), bytes, 'x') && is_all(static_cast<char *>(to) + bytes, more - bytes, 0));
        EXPECT_TRUE(is_all(static_cast<char *>(from), bytes, 0));
        EXPECT_EQ(os_remap(to, more, 2 * page, nullptr), 0) << "one mapping: a second is refused";
        EXPECT_EQ(os_unmap(to, 2 * page), 0);
        memset(from, 'y', bytes);
        ASSERT_EQ(os_reserve(more, align, &to), 0);
        os_fault_set(OS_REMAP, 2, false);
        EXPECT_EQ(os_leave(from, bytes, more, to), -EFAULT);
        EXPECT_TRUE(is_all(static_cast<char *>(from), bytes, 'y')) << "it is as it was";
        EXPECT_EQ(os_unmap(to, more), 0);
        ASSERT_EQ(mprotect(from, bytes, PROT_READ), 0);
        ASSERT_EQ(os_reserve(more, align, &to), 0);
        EXPECT_EQ(os_leave(from, bytes, more, to), 0);
        EXPECT_TRUE(is_all(static_cast<char *>(to), bytes, 'y'));
        memset(from, 'y', bytes); /* the protection has left, too */
        EXPECT_EQ(os_unmap(to, more), 0);
        ASSERT_EQ(mprotect(from, page, PROT_READ), 0);
        ASSERT_EQ(os_reserve(more, align, &to), 0);
        EXPECT_EQ(os_leave(from, bytes, more, to), -ENOMEM) << "two mappings";
        EXPECT_TRUE(is_all(static_cast<char *>(from), bytes, 'y'));
        EXPECT_EQ(os_unmap(to, more), 0);
        EXPECT_EQ(os_unmap(from, bytes), 0);
    }
}

TEST(Os, impossible_sizes_are_refused_with_errno_kept)
{
    void *p;
    errno = 77;
    EXPECT_EQ(os_map(SIZE_MAX - page + 1, page, &p), -ENOMEM);
    EXPECT_EQ(os_reserve(SIZE_MAX / 2 + 1, size_t(1) << 40, &p), -ENOMEM);
    EXPECT_EQ(os_libc_alloc(SIZE_MAX / 2, page, &p), -ENOMEM);
    EXPECT_EQ(errno, 77);
}

TEST(Os, each_kind_of_call_fails_when_told_to_and_only_then)
{
    void *p;
    {
        Fault fault(OS_MAP, 2);
        ASSERT_EQ(os_map(page, page, &p), 0);
        void *q;
        EXPECT_EQ(os_map(page, page, &q), -ENOMEM);
        ASSERT_EQ(os_map(page, page, &q), 0);
        os_unmap(q, page);
    }
    {
        Fault fault(OS_DISCARD, 1, true);
        EXPECT_EQ(os_discard(p, page), -ENOMEM);
        EXPECT_EQ(os_discard(p, page), -ENOMEM);
    }
    EXPECT_EQ(os_discard(p, page), 0);
    {
        Fault fault(OS_UNMAP, 1);
        EXPECT_EQ(os_unmap(p, page), -ENOMEM);
    }
    EXPECT_EQ(os_unmap(p, page), 0);
    os_fault_set(OS_PROTECT, 1000, false);
    ASSERT_EQ(os_map(page, page, &p), 0);
    os_commit(p, page);
    EXPECT_EQ(os_fault_set(OS_PROTECT, 0, false), 1u) << "calls are counted";
    os_unmap(p, page);
}

TEST(Os, the_cpu_id_is_one_that_this_thread_may_run_on)
{
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < 1000; i++)
        EXPECT_TRUE(CPU_ISSET(os_cpu_id(), &set));
    EXPECT_GE(os_cpu_count(), unsigned(CPU_COUNT(&set)));
}

TEST(Os, time_goes_forward_and_entropy_differs)
{
    uint64_t a = os_time_ns();
    sleep_ms(2);
    EXPECT_GE(os_time_ns() - a, 1000000u);
    uint64_t x = 0, y = 0;
    ASSERT_EQ(os_entropy(&x, sizeof x), 0);
    ASSERT_EQ(os_entropy(&y, sizeof y), 0);
    EXPECT_NE(x, y);
}

TEST(Os, a_thread_starts_with_all_signals_blocked)
{
    static uint32_t done;
    static sigset_t mask;
    done = 0;
    auto fn = [](void *word) {
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        __atomic_store_n(static_cast<uint32_t *>(word), 1, __ATOMIC_RELEASE);
        os_futex_wake(static_cast<uint32_t *>(word), 1);
    };
    ASSERT_EQ(os_thread_start(fn, &done), 0);
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) == 0)
        os_futex_wait(&done, 0, 100000000);
    EXPECT_TRUE(sigismember(&mask, SIGTERM));
    sigset_t own;
    pthread_sigmask(SIG_SETMASK, nullptr, &own);
    EXPECT_FALSE(sigismember(&own, SIGTERM));
}

TEST(Os, the_child_of_a_fork_starts_a_thread_though_another_was_in_the_loader)
{
    if (memory_is_watched())
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own";
    static std::atomic<int> stage;
    stage = 0;
    std::thread in_loader([] {
        auto stay = [](struct dl_phdr_info *, size_t, void *) {
            for (stage = 1; stage == 1;)
                usleep(100);
            return 1;
        };
        dl_iterate_phdr(stay, nullptr);
    });
    while (stage == 0)
        usleep(100);
    pid_t child = fork();
    if (child == 0) {
        bool has_started = os_thread_start([](void *) { stage = 3; }, nullptr) == 0;
        while (has_started && stage != 3)
            usleep(100);
        _exit(has_started ? 0 : 1);
    }
    int status = -1;
    for (int ms = 0; ms < 10000 && waitpid(child, &status, WNOHANG) == 0; ms++)
        usleep(1000);
    EXPECT_EQ(status, 0);
    if (status == -1)
        kill(child, SIGKILL); /* it waits with all signals held */
    stage = 2;
    in_loader.join();
}

TEST(Os, memory_is_told_apart_as_the_kernel_names_it)
{
    uintptr_t start = 0, end = 0;
    void *mapped = nullptr;
    ASSERT_EQ(os_map(4 * os_page_bytes(), os_page_bytes(), &mapped), 0);
    char *at = (char *)mapped + 100;
    EXPECT_EQ(os_memory_of(at, &start, &end), OS_MEMORY_ANON);
    EXPECT_LE(start, (uintptr_t)mapped);
    EXPECT_GE(end, (uintptr_t)mapped + 4 * os_page_bytes());
    ASSERT_EQ(mprotect(mapped, os_page_bytes(), PROT_NONE), 0);
    EXPECT_EQ(os_memory_of(at, &start, &end), OS_MEMORY_NONE) << "it cannot be read";
    ASSERT_EQ(os_unmap(mapped, 4 * os_page_bytes()), 0);
    EXPECT_EQ(os_memory_of(at, &start, &end), OS_MEMORY_NONE);
    EXPECT_EQ(os_memory_of("a constant", &start, &end), OS_MEMORY_OTHER);
    EXPECT_EQ(os_memory_of(&start, &start, &end), OS_MEMORY_OTHER) << "a stack";
    char *data_end = (char *)sbrk(os_page_bytes());
    if (data_end != (char *)-1) { /* a sanitizer may keep it */
        EXPECT_EQ(os_memory_of(data_end, &start, &end), OS_MEMORY_BRK);
    }
}

TEST(Os, a_field_of_a_process_is_found_whatever_its_program_is_called)
{
    const char *stat = "12 (a) Z 3 (b) S 7 8 -1 4294967296 18446744073709551615\n";
    EXPECT_EQ(os_stat_field(stat, 4, 99), 7u);
    EXPECT_EQ(os_stat_field(stat, 5, 99), 8u);
    EXPECT_EQ(os_stat_field(stat, 6, 99), 99u) << "below 0";
    EXPECT_EQ(os_stat_field(stat, 7, 99), UINT64_C(4294967296));
    EXPECT_EQ(os_stat_field(stat, 8, 99), UINT64_MAX);
    EXPECT_EQ(os_stat_field(stat, 9, 99), 99u) << "there is none";
    EXPECT_EQ(os_stat_field("nothing", 4, 99), 99u);
}
