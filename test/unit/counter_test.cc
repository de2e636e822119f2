// SPDX-License-Identifier: MIT
/* Each sentence of quire/counter.h: nothing is lost, a sum is exact at rest, a read is at most a millisecond old. */
#include <gtest/gtest.h>

#include <functional>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <quire/counter.h>

#include "percpu/counter_policy.h"
#include "unit/percpu_scope.h"

namespace {

/* A counter for the length of a scope. */
class Counter {
public:
    explicit Counter(quire_percpu *pool) { EXPECT_EQ(quire_counter_init(&counter, pool), 0) << "errno " << errno; }
    Counter(const Counter &) = delete;
    Counter &operator=(const Counter &) = delete;
    ~Counter() { quire_counter_fini(&counter); }
    operator quire_counter *() { return &counter; }
    quire_counter *operator->() { return &counter; }
    intptr_t sum() const { return quire_counter_sum(&counter); }
    intptr_t read() { return quire_counter_read(&counter); }

private:
    quire_counter counter;
};

quire_percpu_opts of_cpus(unsigned cpus)
{
    quire_percpu_opts opts = {};
    opts.cpus = cpus;
    opts.name = "counters";
    return opts;
}
const unsigned many = COUNTER_CPUS_CHEAP + 1; /* copies, so that reads are remembered */

bool all_zero(const quire_counter &counter)
{
    return !counter.pool && !counter.ref.bits && !counter.read_ns && !counter.read_sum;
}

int init_errno(quire_counter *counter, quire_percpu *pool)
{
    memset(static_cast<void *>(counter), 7, sizeof *counter);
    errno = 0;
    return quire_counter_init(counter, pool) == -1 ? errno : 0;
}

void run_threads(unsigned count, const std::function<void(unsigned)> &body)
{
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; i++)
        threads.emplace_back(body, i);
    for (std::thread &thread : threads)
        thread.join();
}

} // namespace

/* ---- init and fini ---- */

TEST(Counter, a_new_counter_is_at_0_also_where_another_one_was)
{
    Pool pool;
    for (int round = 0; round < 3; round++) {
        Counter counter(pool);
        EXPECT_EQ(counter.sum(), 0);
        EXPECT_EQ(counter.read(), 0);
        quire_counter_add(counter, 1234);
    }
}

TEST(Counter, init_without_a_pool_is_EINVAL_and_leaves_the_counter_all_zero)
{
    quire_counter counter;
    EXPECT_EQ(init_errno(&counter, nullptr), EINVAL);
    EXPECT_TRUE(all_zero(counter));
}

TEST(Counter, init_without_memory_is_ENOMEM_and_leaves_the_counter_all_zero)
{
    quire_percpu_opts opts = of_cpus(2);
    opts.chunk_bytes = os_page_bytes();
    opts.limit_bytes = 64 * os_page_bytes();
    Pool pool(opts);
    Refs refs = pool.alloc_until_refused(sizeof(intptr_t));
    quire_counter counter;
    EXPECT_EQ(init_errno(&counter, pool), ENOMEM);
    EXPECT_TRUE(all_zero(counter));
    pool.free(refs.back());
    refs.pop_back();
    EXPECT_EQ(init_errno(&counter, pool), 0) << "and works again when there is room";
    quire_counter_fini(&counter);
    pool.free(refs);
}

TEST(Counter, fini_gives_the_memory_back_and_may_come_twice_or_to_nothing)
{
    Pool pool;
    quire_counter counter;
    ASSERT_EQ(quire_counter_init(&counter, pool), 0);
    EXPECT_EQ(pool.stats().live_objects, 1u);
    errno = 77;
    quire_counter_fini(&counter);
    EXPECT_EQ(errno, 77);
    EXPECT_EQ(pool.stats().live_objects, 0u);
    EXPECT_TRUE(all_zero(counter));
    quire_counter_fini(&counter);
    quire_counter_fini(nullptr);
    EXPECT_EQ(errno, 77);
}

/* ---- add and sum ---- */

TEST(Counter, a_sum_is_what_was_added_and_wraps_around)
{
    Pool pool;
    Counter counter(pool);
    quire_counter_add(counter, 40);
    quire_counter_add(counter, -50);
    quire_counter_add(counter, 3);
    EXPECT_EQ(counter.sum(), -7);
    quire_counter_add(counter, INTPTR_MAX);
    quire_counter_add(counter, 8);
    EXPECT_EQ(counter.sum(), INTPTR_MIN);
}

TEST(Counter, the_function_in_the_library_adds_as_the_inlined_one)
{
    Pool pool;
    Counter counter(pool);
    void (*volatile add)(quire_counter *, intptr_t) = quire_counter_add;
    for (int i = 0; i < 100; i++) {
        add(counter, 5);
        quire_counter_add(counter, 2);
    }
    EXPECT_EQ(counter.sum(), 700);
}

TEST(Counter, counters_of_one_pool_do_not_meet)
{
    Pool pool;
    std::vector<quire_counter> counters(1000);
    for (quire_counter &counter : counters)
        ASSERT_EQ(quire_counter_init(&counter, pool), 0);
    for (size_t i = 0; i < counters.size(); i++)
        quire_counter_add(&counters[i], intptr_t(i));
    for (size_t i = 0; i < counters.size(); i++)
        EXPECT_EQ(quire_counter_sum(&counters[i]), intptr_t(i));
    for (quire_counter &counter : counters)
        quire_counter_fini(&counter);
}

TEST(Counter, eight_threads_lose_nothing_and_a_growing_sum_never_goes_back)
{
    for (os_rseq_mode mode : {OS_RSEQ_AUTO, OS_RSEQ_OFF}) {
        Mode scope(mode);
        Pool pool;
        Counter counter(pool);
        const intptr_t each = test_long() ? 20000000 : 200000;
        run_threads(9, [&](unsigned thread) {
            for (intptr_t i = 0; i < each && thread < 8; i++)
                quire_counter_add(counter, 1);
            for (intptr_t last = 0, now; last < each * 8 && thread == 8; last = now)
                ASSERT_GE(now = counter.sum(), last);
        });
        EXPECT_EQ(counter.sum(), each * 8);
    }
}

TEST(Counter, what_was_added_on_every_cpu_and_on_those_without_a_copy_is_in_the_sum)
{
    for (os_rseq_mode mode : {OS_RSEQ_FAKE, OS_RSEQ_OFF}) {
        Mode scope(mode);
        Pool pool(of_cpus(many));
        Counter counter(pool);
        for (unsigned cpu = 0; cpu < many + 3; cpu++) {
            pool.move_to(cpu);
            quire_counter_add(counter, intptr_t(1) << cpu);
        }
        EXPECT_EQ(counter.sum(), (intptr_t(1) << (many + 3)) - 1);
        EXPECT_EQ(counter.read(), counter.sum());
    }
}

TEST(Counter, a_child_goes_on_from_its_parents_count_with_one_of_its_own)
{
    Pool pool;
    Counter counter(pool);
    quire_counter_add(counter, 10);
    pid_t child = fork();
    if (child == 0) {
        quire_counter_add(counter, 5);
        _exit(counter.sum() == 15 && counter.read() == 15 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(counter.sum(), 10);
}

/* ---- read ---- */

TEST(Counter, few_copies_are_always_added_up)
{
    Pool pool(of_cpus(COUNTER_CPUS_CHEAP));
    Counter counter(pool);
    for (int i = 1; i < 1000; i++) {
        quire_counter_add(counter, 1);
        EXPECT_EQ(counter.read(), i);
    }
    EXPECT_EQ(counter->read_ns, 0u);
}

TEST(Counter, of_many_copies_the_last_sum_is_given_out_while_it_is_fresh)
{
    Pool pool(of_cpus(many));
    Counter counter(pool);
    quire_counter_add(counter, 1);
    EXPECT_EQ(counter.read(), 1) << "the first is a sum";
    EXPECT_NE(counter->read_ns, 0u);
    quire_counter_add(counter, 1);
    bool seen = false;
    for (int i = 0; i < 1000 && !seen; i++) { /* as if another thread had just read; ours may be stopped for long before it does */
        counter->read_ns = (os_time_ns() + COUNTER_READ_AGE_NS / 2) & ~COUNTER_READ_BUSY;
        counter->read_sum = 1;
        seen = counter.read() == 1;
    }
    EXPECT_TRUE(seen);
    EXPECT_EQ(counter.sum(), 2);
}

TEST(Counter, a_read_is_a_new_sum_where_the_clock_was_set_back)
{
    Pool pool(of_cpus(many));
    Counter counter(pool);
    quire_counter_add(counter, 1);
    counter->read_ns = (os_time_ns() + 3600000000000) & ~COUNTER_READ_BUSY; /* before: the child of a fork has an older clock */
    counter->read_sum = 99;
    EXPECT_EQ(counter.read(), 1);
    EXPECT_LE(counter->read_ns, os_time_ns()) << "and it is remembered";
}

TEST(Counter, after_a_millisecond_a_read_is_a_new_sum)
{
    Pool pool(of_cpus(many));
    Counter counter(pool);
    for (intptr_t i = 1; i < 20; i++) {
        quire_counter_add(counter, 1);
        sleep_ms(2);
        EXPECT_EQ(counter.read(), i);
    }
}

TEST(Counter, nobody_waits_for_a_reader_that_is_writing_its_sum_down)
{
    Pool pool(of_cpus(many));
    Counter counter(pool);
    quire_counter_add(counter, 1);
    const uint64_t busy = os_time_ns() | COUNTER_READ_BUSY; /* a thread that was stopped there, or is gone since a fork */
    counter->read_ns = busy;
    counter->read_sum = 99;
    for (intptr_t i = 2; i < 100; i++) {
        quire_counter_add(counter, 1);
        EXPECT_EQ(counter.read(), i);
    }
    EXPECT_EQ(counter->read_ns, busy);
}

TEST(Counter, a_read_has_all_that_was_added_a_millisecond_before_it)
{
    Pool pool(of_cpus(many));
    Counter counter(pool);
    atomic_size added = {0};
    atomic_u32 readers = {4};
    run_threads(5, [&](unsigned thread) {
        if (thread == 0) {
            for (size_t n = 1; u32_load_relaxed(&readers) != 0; n++) {
                quire_counter_add(counter, 1);
                size_store_release(&added, n);
            }
            return;
        }
        for (int i = 0; i < (test_long() ? 1000 : 40); i++) {
            size_t before = size_load_acquire(&added);
            for (uint64_t end_ns = os_time_ns() + COUNTER_READ_AGE_NS; os_time_ns() <= end_ns;)
                EXPECT_GE(counter.read(), 0);
            size_t read = size_t(counter.read()), after = size_load_acquire(&added);
            EXPECT_GE(read, before);
            EXPECT_LE(read, after + 1) << "one may be added and not yet said";
        }
        u32_sub_relaxed(&readers, 1);
    });
    EXPECT_EQ(size_t(counter.sum()), size_load_relaxed(&added));
}

TEST(Counter, the_policy_as_a_table)
{
    EXPECT_TRUE(counter_sum_is_cheap(1));
    EXPECT_TRUE(counter_sum_is_cheap(16));
    EXPECT_FALSE(counter_sum_is_cheap(17));
    const uint64_t ms = 1000000;
    const struct {
        uint64_t read_ns, now_ns;
        bool fresh;
    } rows[] = {
        {0, ms / 2, false},          /* never */
        {5 * ms, 5 * ms, true},      /* just now */
        {5 * ms, 6 * ms - 1, true},  /* */
        {5 * ms, 6 * ms, false},     /* a millisecond */
        {5 * ms, 900 * ms, false},   /* long ago */
        {5 * ms, 4 * ms + 2, true},  /* by somebody who read the clock after us */
        {5 * ms, 4 * ms, false},     /* the clock was set back */
        {900 * ms, 5 * ms, false},   /* far back */
        {5 * ms + 1, 5 * ms, false}, /* being written */
    };
    for (const auto &row : rows)
        EXPECT_EQ(counter_read_is_fresh(row.read_ns, row.now_ns), row.fresh) << row.read_ns << " at " << row.now_ns;
}
