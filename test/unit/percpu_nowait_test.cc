// SPDX-License-Identifier: MIT
/*
 * quire_percpu_alloc_nowait(): without a system call, from what the thread has and from the reserve; and how the reserve is filled again.
 *
 * System calls are counted by a seccomp filter in a forked child: any call but those that end a process is a SIGSYS, which counts it.
 */
#include <gtest/gtest.h>

#include <csignal>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>

#include "model/slab_worker.h"
#include "unit/percpu_scope.h"
#include "unit/source_kit.h"

namespace {
const size_t page = os_page_bytes();
const size_t kib = 1024;

volatile sig_atomic_t calls, first_call;

void count_call(int, siginfo_t *info, void *)
{
    if (calls == 0)
        first_call = info->si_syscall;
    calls = calls + 1;
}

/* From now on this thread's system calls are counted and do nothing.  False: filters cannot be had here. */
bool count_calls()
{
    struct sigaction handle = {};
    handle.sa_sigaction = count_call;
    handle.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &handle, nullptr);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum { CALLED_THE_KERNEL = 100, TOO_FEW, NOT_ZERO, NOT_ENOMEM };

/* The child ends with `status`, or with CALLED_THE_KERNEL; by the call itself: sanitizers do much in _exit(). */
int leave(int status) { return int(syscall(SYS_exit_group, calls ? int(CALLED_THE_KERNEL) : status)); }

/* Objects of 64 bytes until none is left, each looked at and some freed: 0 when it took no system call and at least `least` were had. */
int without_a_call(quire_percpu *pool, size_t least)
{
    static Ref refs[100000];
    if (!count_calls())
        return CHILD_SKIPS;
    size_t count = 0;
    errno = 0;
    while (count < 100000 && (refs[count] = quire_percpu_alloc_nowait(pool, 64, 0)).bits)
        if (quire_percpu_sum(pool, refs[count++]) != 0)
            return leave(NOT_ZERO);
    return leave(errno != ENOMEM ? NOT_ENOMEM : count < least ? TOO_FEW : 0);
}

/* Runs it in a child; explains what went wrong. */
void expect_no_call(const std::function<int()> &body)
{
    int status = in_child(body);
    if (status == CHILD_SKIPS)
        GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(status, 0) << "100: a system call; 101: too few objects; 102: not zero; 103: errno; 128 and more: a signal";
}

class PercpuNowait : public testing::TestWithParam<os_rseq_mode> {
protected:
    PercpuNowait() : mode(GetParam()) {}
    Mode mode;
};
INSTANTIATE_TEST_SUITE_P(By, PercpuNowait, testing::Values(OS_RSEQ_AUTO, OS_RSEQ_OFF),
                         [](const testing::TestParamInfo<os_rseq_mode> &info) { return info.param == OS_RSEQ_AUTO ? "auto" : "off"; });
} // namespace

/* ---- no system call ---- */

TEST_P(PercpuNowait, a_thread_that_has_nothing_lives_on_the_reserve_without_a_system_call)
{
    expect_no_call([] {
        quire_percpu_opts opts = {.chunk_bytes = unit_of(256 * kib), .cpus = 4, .reserve_bytes = 100 * kib};
        return without_a_call(quire_percpu_create(&opts), 100 * kib / 64);
    });
}

TEST_P(PercpuNowait, a_thread_with_chunks_uses_these_first_and_then_the_reserve_without_a_system_call)
{
    expect_no_call([] {
        quire_percpu_opts opts = {.chunk_bytes = unit_of(256 * kib + (page > 4096 ? 2 * page : 0)), .cpus = 4, .reserve_bytes = 200 * kib};
        quire_percpu *pool = quire_percpu_create(&opts);
        Refs refs;
        for (int i = 0; i < 100; i++)
            quire_percpu_alloc(pool, 500, 0);
        return without_a_call(pool, (200 * kib + 190 * kib) / 64);
    });
}

TEST_P(PercpuNowait, what_the_thread_itself_freed_serves_it_without_a_system_call)
{
    expect_no_call([] {
        quire_percpu_opts opts = {.chunk_bytes = unit_of(64 * kib), .cpus = 4};
        quire_percpu *pool = quire_percpu_create(&opts);
        Refs refs;
        for (int i = 0; i < 4000; i++)
            refs.push_back(quire_percpu_alloc(pool, 64, 0));
        for (size_t i = 0; i < 4000; i += 2)
            quire_percpu_free(pool, refs[i]);
        return without_a_call(pool, 2000);
    });
}

TEST_P(PercpuNowait, refusals_take_no_system_call_either)
{
    expect_no_call([] {
        quire_percpu *pool = quire_percpu_create(nullptr);
        if (!count_calls())
            return int(CHILD_SKIPS);
        for (size_t bytes : {size_t(8), SIZE_MAX, size_t(1) << 30})
            for (size_t align : {size_t(0), size_t(3), size_t(64), size_t(1) << 30})
                if (quire_percpu_alloc_nowait(pool, bytes, align).bits)
                    return leave(TOO_FEW);
        return leave(0);
    });
}

TEST(PercpuNowaitCount, the_filter_counts_a_call)
{
    int status = in_child([] {
        if (!count_calls())
            return int(CHILD_SKIPS);
        (void)getppid();
        return leave(0);
    });
    /* Where a sanitizer holds signals back, the call that may not be is the end at once. */
    EXPECT_TRUE(status == CALLED_THE_KERNEL || status == CHILD_SKIPS || status == 128 + SIGSYS) << status;
}

/* ---- what it gives ---- */

TEST_P(PercpuNowait, objects_are_like_any_other)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 3, .reserve_bytes = 20 * kib});
    Refs refs;
    for (int i = 0; i < 50; i++) {
        size_t bytes = size_t(8 + i % 5 * 24), align = size_t(8) << i % 4;
        refs.push_back(quire_percpu_alloc_nowait(pool, bytes, align));
        ASSERT_NE(refs.back().bits, 0u);
        ASSERT_TRUE(pool.holds(refs.back(), bytes, 0));
        ASSERT_EQ(uintptr_t(pool.at(refs.back(), 2)) % align, 0u);
        ASSERT_TRUE(quire_percpu_owns(pool, refs.back()));
        quire_percpu_add(pool, refs.back(), i);
    }
    for (int i = 0; i < 50; i++)
        ASSERT_EQ(quire_percpu_sum(pool, refs[size_t(i)]), i);
    EXPECT_EQ(pool.stats().live_objects, 50u);
    EXPECT_EQ(quire_percpu_check(pool), nullptr);
    Worker().run([&] { pool.free(Refs(refs.begin(), refs.begin() + 25)); });
    pool.free(Refs(refs.begin() + 25, refs.end()));
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

TEST_P(PercpuNowait, without_a_reserve_and_chunks_it_is_enomem_and_takes_none)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 3});
    errno = 0;
    EXPECT_EQ(quire_percpu_alloc_nowait(pool, 8, 0).bits, 0u);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(pool.stats().chunks, 0u);
}

TEST_P(PercpuNowait, the_reserve_is_not_touched_by_the_other_way_to_allocate)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .limit_bytes = 64 * kib * 24, .reserve_bytes = 30 * kib});
    pool.alloc_until_refused(100);
    size_t count = 0;
    while (quire_percpu_alloc_nowait(pool, 100, 0).bits)
        count++;
    EXPECT_GE(count, 30 * kib / 100);
}

/* ---- refill ---- */

TEST_P(PercpuNowait, the_next_call_of_the_other_kind_fills_the_reserve_again)
{
    for (int how = 0; how < 3; how++) {
        Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .reserve_bytes = 32 * kib});
        Refs refs = pool.alloc_many(2000, 100);
        for (int round = 0; round < 3; round++) {
            size_t count = 0;
            while (quire_percpu_alloc_nowait(pool, 64, 0).bits)
                count++;
            EXPECT_GE(count, 32 * kib / 64 - 8) << "by way " << how << ", round " << round;
            EXPECT_LT(pool.stats().reserve_bytes, 1000u);
            if (how == 0)
                pool.alloc();
            else if (how == 1)
                quire_percpu_trim(pool);
            else
                pool.free(pool.alloc_many(2000, 100)), pool.alloc();
            EXPECT_GE(pool.stats().reserve_bytes, 32 * kib) << "by way " << how << ", round " << round;
        }
        EXPECT_EQ(quire_percpu_check(pool), nullptr);
        pool.free(refs);
    }
}

TEST_P(PercpuNowait, a_reserve_that_was_split_is_filled_again)
{
    Pool pool({.reserve_bytes = 600 * kib});
    Ref first = quire_percpu_alloc_nowait(pool, 300 * kib, 0);
    EXPECT_NE(quire_percpu_alloc_nowait(pool, 8, 0).bits, 0u);
    pool.free(first);
    EXPECT_NE(quire_percpu_alloc_nowait(pool, 423 * kib, 0).bits, 0u); /* what is left is enough, and in two pieces */
    EXPECT_NE(quire_percpu_alloc(pool, 700 * kib, 0).bits, 0u);
    EXPECT_GE(pool.stats().reserve_bytes, 600 * kib);
    EXPECT_NE(quire_percpu_alloc_nowait(pool, 600 * kib, 0).bits, 0u);
}

TEST_P(PercpuNowait, a_reserve_that_an_alignment_split_is_filled_again)
{
    Pool pool({.chunk_bytes = 5000, .reserve_bytes = 7000});
    EXPECT_NE(quire_percpu_alloc_nowait(pool, 7000, 4096).bits, 0u);
    EXPECT_NE(quire_percpu_alloc(pool, 12288, 0).bits, 0u);
    EXPECT_NE(quire_percpu_alloc_nowait(pool, 7000, 4096).bits, 0u);
}

TEST_P(PercpuNowait, freeing_what_came_from_the_reserve_fills_it)
{
    Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .limit_bytes = 64 * kib * 8, .reserve_bytes = 16 * kib});
    for (int round = 0; round < 5; round++) {
        Refs refs;
        for (Ref ref; (ref = quire_percpu_alloc_nowait(pool, 64, 0)).bits;)
            refs.push_back(ref);
        EXPECT_GE(refs.size(), 16 * kib / 64) << round;
        pool.free(refs);
        quire_percpu_trim(pool);
        EXPECT_EQ(pool.stats().live_objects, 0u);
    }
}

TEST_P(PercpuNowait, a_reserve_that_cannot_be_had_is_enomem_at_creation)
{
    for (size_t nth : {1u, 2u}) {
        struct quire_source *fail = quire_source_fail(quire_source_anon(), nth);
        quire_percpu_opts opts = {.source = fail, .reserve_bytes = 1000};
        errno = 0;
        quire_percpu *pool = quire_percpu_create(&opts);
        EXPECT_EQ(pool == nullptr, nth == 1);
        EXPECT_EQ(errno, nth == 1 ? ENOMEM : 0);
        quire_percpu_destroy(pool);
        quire_source_destroy(fail);
    }
}

TEST_P(PercpuNowait, threads_share_one_reserve)
{
    Pool pool({.chunk_bytes = unit_of(256 * kib), .cpus = 2, .reserve_bytes = 128 * kib});
    std::vector<Refs> got(4);
    std::vector<std::thread> threads;
    for (size_t k = 0; k < 4; k++)
        threads.emplace_back([&, k] {
            for (int i = 0; i < 200; i++) {
                Ref ref = quire_percpu_alloc_nowait(pool, 64, 0);
                if (ref.bits) /* somebody else may be at it this moment */
                    got[k].push_back(ref), quire_percpu_add(pool, ref, 1);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    size_t count = 0;
    for (const Refs &refs : got)
        for (Ref ref : refs) {
            ASSERT_EQ(quire_percpu_sum(pool, ref), 1) << "nobody else has it";
            count++;
        }
    EXPECT_EQ(pool.stats().live_objects, count);
    EXPECT_GE(count, 1u);
    for (const Refs &refs : got)
        pool.free(refs);
    EXPECT_EQ(pool.stats().live_objects, 0u);
}

TEST_P(PercpuNowait, a_reserve_as_large_as_a_unit_holds_an_object_of_every_size_up_to_it)
{
    for (size_t bytes : {size_t(8), page, 30 * kib, unit_of(64 * kib)}) {
        Pool pool({.chunk_bytes = unit_of(64 * kib), .cpus = 2, .reserve_bytes = unit_of(64 * kib)});
        Ref ref = quire_percpu_alloc_nowait(pool, bytes, 4);
        EXPECT_NE(ref.bits, 0u) << bytes;
        pool.free(ref);
    }
}
