// SPDX-License-Identifier: MIT
/* What the operations on this CPU's copy do, the same in every mode: add, sum, cmpxchg, push, pop; also on CPUs that have no copy. */
#include <gtest/gtest.h>

#include <csignal>
#include <sched.h>
#include <thread>

#include "model/slab_worker.h"
#include "unit/percpu_scope.h"

namespace {

struct Way {
    const char *name;
    os_rseq_mode mode;
};

/* Pools that tests of every mode run on; where the mode lets the test say the CPU, it starts on CPU 0. */
class PercpuOps : public testing::TestWithParam<Way> {
protected:
    PercpuOps() : mode(GetParam().mode) { go_to(0); }
    /* AUTO goes to the one real CPU there is sure to be. */
    static void go_to(unsigned cpu)
    {
        if (GetParam().mode != OS_RSEQ_AUTO)
            os_cpu_fake_set(int(cpu));
    }
    Mode mode;
};

/* Those of FAKE and OFF, where threads run on whatever CPU they say. */
class PercpuFakeOps : public PercpuOps {};

const Way ways[] = {{"auto", OS_RSEQ_AUTO}, {"fake", OS_RSEQ_FAKE}, {"off", OS_RSEQ_OFF}};
auto way_name = [](const testing::TestParamInfo<Way> &info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(By, PercpuOps, testing::ValuesIn(ways), way_name);
INSTANTIATE_TEST_SUITE_P(By, PercpuFakeOps, testing::Values(ways[1], ways[2]), way_name);

struct Node {
    Node *link;
    int number;
};

/* All that one CPU's list holds, the last put first. */
std::vector<int> drain(quire_percpu *pool, Ref list)
{
    std::vector<int> numbers;
    while (Node *node = static_cast<Node *>(quire_percpu_pop(pool, list)))
        numbers.push_back(node->number);
    return numbers;
}

/* The calling thread stays on one real CPU until the end of the scope. */
class Pinned {
public:
    explicit Pinned(unsigned nth = 0)
    {
        sched_getaffinity(0, sizeof was, &was);
        cpu_set_t one;
        CPU_ZERO(&one);
        for (unsigned id = 0, seen = 0; id < CPU_SETSIZE; id++)
            if (CPU_ISSET(id, &was) && seen++ == nth % unsigned(CPU_COUNT(&was)))
                cpu = id;
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    Pinned(const Pinned &) = delete;
    ~Pinned() { sched_setaffinity(0, sizeof was, &was); }
    unsigned cpu = 0;

private:
    cpu_set_t was;
};

} // namespace

/* ---- add and sum ---- */

TEST_P(PercpuOps, the_sum_is_what_was_added_with_every_sign_and_wraps_around)
{
    Pool pool({.chunk_bytes = unit_of(64 << 10)});
    Ref ref = pool.alloc();
    EXPECT_EQ(quire_percpu_sum(pool, ref), 0);
    for (intptr_t value : {intptr_t(1), intptr_t(-1), intptr_t(5), intptr_t(-7), intptr_t(1) << 40, -(intptr_t(1) << 40), intptr_t(0)})
        quire_percpu_add(pool, ref, value);
    EXPECT_EQ(quire_percpu_sum(pool, ref), -2);
    quire_percpu_add(pool, ref, INTPTR_MAX);
    quire_percpu_add(pool, ref, 4);
    EXPECT_EQ(quire_percpu_sum(pool, ref), INTPTR_MIN + 1);
    quire_percpu_add(pool, ref, INTPTR_MIN);
    EXPECT_EQ(quire_percpu_sum(pool, ref), 1);
}

TEST_P(PercpuOps, what_was_written_into_copies_and_what_was_added_is_summed_together)
{
    Pool pool({.chunk_bytes = unit_of(64 << 10), .cpus = 5});
    Ref ref = pool.alloc();
    for (unsigned cpu = 0; cpu < 5; cpu++)
        *reinterpret_cast<intptr_t *>(pool.at(ref, cpu)) = intptr_t(100) * cpu;
    quire_percpu_add(pool, ref, 3);
    EXPECT_EQ(quire_percpu_sum(pool, ref), 1003);
}

TEST_P(PercpuOps, neighbours_are_not_touched)
{
    Pool pool({.chunk_bytes = unit_of(64 << 10), .cpus = 4});
    Refs refs = pool.alloc_many(3, 8);
    pool.fill(refs[0], 8, 0x11), pool.fill(refs[2], 8, 0x22);
    intptr_t expected = 0;
    for (int i = 0; i < 1000; i++) {
        quire_percpu_add(pool, refs[1], i);
        intptr_t held = -1;
        EXPECT_FALSE(quire_percpu_cmpxchg(pool, refs[1], &held, 5));
        expected += i + quire_percpu_cmpxchg(pool, refs[1], &held, held + 1);
    }
    EXPECT_EQ(quire_percpu_sum(pool, refs[1]), expected);
    EXPECT_TRUE(pool.holds(refs[0], 8, 0x11));
    EXPECT_TRUE(pool.holds(refs[2], 8, 0x22));
}

TEST_P(PercpuOps, members_of_an_object_are_refs_that_are_moved)
{
    Pool pool({.chunk_bytes = unit_of(64 << 10), .cpus = 4});
    Ref object = pool.alloc(5 * sizeof(intptr_t));
    auto member = [&](unsigned k) { return Ref{object.bits + k * sizeof(intptr_t)}; };
    for (int i = 0; i < 100; i++)
        for (unsigned k = 0; k < 5; k++)
            quire_percpu_add(pool, member(k), intptr_t(k));
    for (unsigned k = 0; k < 5; k++) {
        EXPECT_EQ(quire_percpu_sum(pool, member(k)), 100 * intptr_t(k));
        EXPECT_EQ(pool.at(member(k), 2), pool.at(object, 2) + k * sizeof(intptr_t));
    }
    pool.free(object);
}

TEST_P(PercpuOps, a_million_adds_from_threads_that_wander_are_exact)
{
    Pool pool;
    Ref a = pool.alloc(), b = pool.alloc();
    const intptr_t rounds = BUILT_WITH_TSAN ? 20000 : 250000;
    auto work = [&](unsigned seed) {
        Random random(seed);
        for (intptr_t i = 0; i < rounds; i++) {
            quire_percpu_add(pool, a, 1);
            if (i % 16 == 0)
                quire_percpu_add(pool, b, i);
            if (i % 4096 == 0 && GetParam().mode == OS_RSEQ_AUTO)
                Pinned(unsigned(random.below(4))), sched_yield();
        }
    };
    if (GetParam().mode == OS_RSEQ_FAKE) { /* real threads on one CPU of the test's own would not be restarted: each on its own */
        std::vector<std::thread> threads;
        for (unsigned k = 0; k < 4; k++)
            threads.emplace_back([&, k] { os_cpu_fake_set(int(k)), work(k); });
        for (std::thread &thread : threads)
            thread.join();
    } else {
        std::thread one(work, 1), two(work, 2), three(work, 3);
        work(4);
        one.join(), two.join(), three.join();
    }
    EXPECT_EQ(quire_percpu_sum(pool, a), 4 * rounds);
    intptr_t expected = 0;
    for (intptr_t i = 0; i < rounds; i += 16)
        expected += 4 * i;
    EXPECT_EQ(quire_percpu_sum(pool, b), expected);
}

TEST_P(PercpuFakeOps, an_add_goes_to_the_copy_of_the_cpu_that_the_thread_runs_on)
{
    Pool pool({.chunk_bytes = unit_of(64 << 10), .cpus = 70});
    Ref ref = pool.alloc();
    for (unsigned cpu : {0u, 1u, 7u, 31u, 63u, 64u, 69u, 0u, 64u}) {
        pool.move_to(cpu);
        intptr_t before = pool.word(ref, cpu);
        quire_percpu_add(pool, ref, intptr_t(cpu) + 1);
        EXPECT_EQ(pool.word(ref, cpu), before + intptr_t(cpu) + 1) << cpu;
    }
    EXPECT_EQ(quire_percpu_sum(pool, ref), 1 + 2 + 8 + 32 + 64 + 65 + 70 + 1 + 65);
    for (unsigned cpu : {2u, 30u, 62u, 65u})
        EXPECT_EQ(pool.word(ref, cpu), 0) << cpu;
}

TEST_P(PercpuFakeOps, sparse_cpu_numbers_and_those_without_a_copy_are_summed_and_touch_nothing_else)
{
    Pool pool({.chunk_bytes = unit_of(16 << 10), .cpus = 6});
    Refs refs = pool.alloc_many(100, 8);
    intptr_t expected = 0;
    for (unsigned cpu : {5u, 6u, 7u, 64u, 65u, 511u, 4095u, 8192u, 65536u, 1000000u, 0x7ffffffeu, 3u}) {
        pool.move_to(cpu);
        for (Ref ref : refs)
            quire_percpu_add(pool, ref, intptr_t(cpu) + 11);
        expected += intptr_t(cpu) + 11;
        for (Ref ref : refs)
            ASSERT_EQ(quire_percpu_sum(pool, ref), expected) << cpu;
        EXPECT_EQ(quire_percpu_check(pool), nullptr) << cpu;
    }
    for (Ref ref : refs) {
        for (unsigned cpu : {0u, 1u, 2u, 4u})
            EXPECT_EQ(pool.word(ref, cpu), 0);
        EXPECT_EQ(pool.word(ref, 3), 14);
        EXPECT_EQ(pool.word(ref, 5), 16);
    }
    pool.free(refs);
    for (Ref ref : pool.alloc_many(100, 8)) {
        EXPECT_EQ(quire_percpu_sum(pool, ref), 0) << "the copy that all of those share is zero again too";
    }
}

TEST_P(PercpuFakeOps, a_cpu_that_goes_away_keeps_its_value_and_one_that_comes_back_goes_on_with_it)
{
    Pool pool({.chunk_bytes = unit_of(16 << 10), .cpus = 4});
    Ref ref = pool.alloc();
    pool.move_to(3);
    quire_percpu_add(pool, ref, 30);
    pool.move_to(0);
    quire_percpu_add(pool, ref, 1);
    EXPECT_EQ(quire_percpu_sum(pool, ref), 31);
    EXPECT_EQ(pool.word(ref, 3), 30);
    pool.move_to(3);
    quire_percpu_add(pool, ref, 3);
    EXPECT_EQ(pool.word(ref, 3), 33);
    EXPECT_EQ(quire_percpu_sum(pool, ref), 34);
}

TEST_P(PercpuFakeOps, threads_on_cpus_without_a_copy_share_one_more_and_lose_nothing)
{
    Pool pool({.chunk_bytes = unit_of(16 << 10), .cpus = 1});
    Ref ref = pool.alloc(), list = pool.alloc();
    std::vector<std::thread> threads;
    const int rounds = BUILT_WITH_TSAN ? 5000 : 50000;
    std::vector<Node> nodes(400);
    for (unsigned k = 0; k < 4; k++)
        threads.emplace_back([&, k] {
            os_cpu_fake_set(int(100 + k * 1000));
            for (int i = 0; i < rounds; i++)
                quire_percpu_add(pool, ref, 1);
            for (unsigned i = 0; i < 100; i++) {
                nodes[k * 100 + i].number = int(k * 100 + i);
                quire_percpu_push(pool, list, &nodes[k * 100 + i]);
                if (i % 2)
                    quire_percpu_pop(pool, list);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(quire_percpu_sum(pool, ref), 4 * rounds);
    EXPECT_EQ(pool.word(ref, 0), 0);
    pool.move_to(77);
    EXPECT_EQ(drain(pool, list).size(), 200u);
}

TEST(PercpuOpsAuto, a_process_that_is_bound_to_one_cpu_writes_that_copy_and_follows_when_it_is_bound_to_another)
{
    Pool pool;
    Ref ref = pool.alloc(), scratch = pool.alloc();
    intptr_t added = 0;
    for (unsigned nth = 0; nth < 6; nth++) {
        Pinned pinned(nth);
        for (int i = 0; i < 32; i++)
            quire_percpu_add(pool, scratch, 0);
        intptr_t before = pinned.cpu < pool.cpus() ? pool.word(ref, pinned.cpu) : 0;
        quire_percpu_add(pool, ref, 10);
        added += 10;
        if (pinned.cpu < pool.cpus()) {
            EXPECT_EQ(pool.word(ref, pinned.cpu), before + 10);
        }
    }
    EXPECT_EQ(quire_percpu_sum(pool, ref), added);
}

TEST(PercpuOpsAuto, pools_keep_the_mode_that_they_were_created_with)
{
    Pool real;
    quire_percpu *off = nullptr, *fake = nullptr;
    {
        Mode mode(OS_RSEQ_OFF);
        off = quire_percpu_create(nullptr);
    }
    {
        Mode mode(OS_RSEQ_FAKE);
        fake = quire_percpu_create(nullptr);
    }
    Ref refs[3] = {real.alloc(), quire_percpu_alloc(off, 8, 0), quire_percpu_alloc(fake, 8, 0)};
    for (int i = 0; i < 10000; i++) {
        quire_percpu_add(real, refs[0], 1);
        quire_percpu_add(off, refs[1], 2);
        quire_percpu_add(fake, refs[2], 3);
    }
    EXPECT_EQ(quire_percpu_sum(real, refs[0]), 10000);
    EXPECT_EQ(quire_percpu_sum(off, refs[1]), 20000);
    EXPECT_EQ(quire_percpu_sum(fake, refs[2]), 30000);
    EXPECT_EQ(quire_percpu_check(off), nullptr);
    EXPECT_EQ(quire_percpu_check(fake), nullptr);
    quire_percpu_destroy(off), quire_percpu_destroy(fake);
}

TEST_P(PercpuOps, a_signal_handler_may_add_sum_and_look_in_the_middle_of_an_add)
{
    if (GetParam().mode == OS_RSEQ_FAKE)
        GTEST_SKIP() << "the kernel does not know that area";
    static quire_percpu *pool;
    static Ref mine, handlers;
    static volatile sig_atomic_t ran;
    Pool scope;
    pool = scope, mine = scope.alloc(), handlers = scope.alloc(), ran = 0;
    struct sigaction handle = {}, was;
    handle.sa_handler = [](int) {
        quire_percpu_add(pool, mine, 1000000);
        quire_percpu_add(pool, handlers, 1);
        if (quire_percpu_sum(pool, handlers) <= 0 || !quire_percpu_at(pool, mine, 0))
            abort();
        ran = ran + 1;
    };
    sigaction(SIGUSR1, &handle, &was);
    pthread_t self = pthread_self();
    uint32_t stop = 0;
    std::thread shooter([&] {
        while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
            pthread_kill(self, SIGUSR1), usleep(20);
    });
    intptr_t adds = 0;
    for (; ran < 500 && adds < 500000000; adds++)
        quire_percpu_add(pool, mine, 1);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    shooter.join();
    sigaction(SIGUSR1, &was, nullptr);
    EXPECT_EQ(quire_percpu_sum(pool, handlers), ran);
    EXPECT_EQ(quire_percpu_sum(pool, mine), adds + intptr_t(ran) * 1000000);
}

/* ---- cmpxchg ---- */

TEST_P(PercpuFakeOps, cmpxchg_changes_this_cpus_copy_when_it_is_as_expected_and_says_what_it_is_otherwise)
{
    Pool pool({.chunk_bytes = unit_of(16 << 10), .cpus = 3});
    Ref ref = pool.alloc();
    intptr_t sum = 0;
    for (unsigned cpu : {0u, 2u, 9u}) { /* the last has no copy: the shared one */
        pool.move_to(cpu);
        intptr_t expected = 7;
        EXPECT_FALSE(quire_percpu_cmpxchg(pool, ref, &expected, 8));
        EXPECT_EQ(expected, 0) << cpu;
        EXPECT_TRUE(quire_percpu_cmpxchg(pool, ref, &expected, 5));
        EXPECT_EQ(expected, 0) << "a success leaves it";
        EXPECT_FALSE(quire_percpu_cmpxchg(pool, ref, &expected, 6));
        EXPECT_EQ(expected, 5);
        EXPECT_TRUE(quire_percpu_cmpxchg(pool, ref, &expected, 5)) << "the same again is a success";
        EXPECT_TRUE(quire_percpu_cmpxchg(pool, ref, &expected, -1));
        sum -= 1;
        EXPECT_EQ(quire_percpu_sum(pool, ref), sum);
        if (cpu < 3) {
            EXPECT_EQ(pool.word(ref, cpu), -1);
        }
    }
    EXPECT_EQ(pool.word(ref, 1), 0);
}

TEST_P(PercpuOps, cmpxchg_from_four_threads_counts_exactly)
{
    Pool pool;
    Ref ref = pool.alloc();
    const int rounds = BUILT_WITH_TSAN ? 3000 : 30000;
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; k++)
        threads.emplace_back([&, k] {
            if (GetParam().mode == OS_RSEQ_FAKE)
                os_cpu_fake_set(k);
            for (int i = 0; i < rounds; i++)
                for (intptr_t held = 0; !quire_percpu_cmpxchg(pool, ref, &held, held + 1);) {
                }
        });
    for (std::thread &thread : threads)
        thread.join();
    EXPECT_EQ(quire_percpu_sum(pool, ref), 4 * rounds);
}

/* ---- lists ---- */

TEST_P(PercpuFakeOps, each_cpu_has_a_list_of_its_own_from_which_the_last_comes_first)
{
    Pool pool({.chunk_bytes = unit_of(16 << 10), .cpus = 3});
    Ref list = pool.alloc(sizeof(void *));
    std::vector<Node> nodes(60);
    const unsigned cpus[] = {0, 2, 40};
    for (int i = 0; i < 60; i++) {
        nodes[size_t(i)].number = i;
        pool.move_to(cpus[i % 3]);
        quire_percpu_push(pool, list, &nodes[size_t(i)]);
    }
    pool.move_to(1);
    EXPECT_EQ(quire_percpu_pop(pool, list), nullptr) << "its own list is empty, others' are not";
    for (int k = 0; k < 3; k++) {
        pool.move_to(cpus[k]);
        std::vector<int> expected;
        for (int i = 57 + k; i >= 0; i -= 3)
            expected.push_back(i);
        EXPECT_EQ(drain(pool, list), expected);
        EXPECT_EQ(quire_percpu_pop(pool, list), nullptr);
    }
    for (unsigned cpu = 0; cpu < 3; cpu++)
        EXPECT_EQ(pool.word(list, cpu), 0);
}

TEST_P(PercpuFakeOps, the_first_word_of_a_node_is_its_link_and_the_rest_is_not_touched)
{
    Pool pool({.chunk_bytes = unit_of(16 << 10), .cpus = 2});
    Ref list = pool.alloc();
    Node a = {&a, 1}, b = {&b, 2};
    pool.move_to(1);
    quire_percpu_push(pool, list, &a);
    EXPECT_EQ(a.link, nullptr);
    quire_percpu_push(pool, list, &b);
    EXPECT_EQ(b.link, &a);
    EXPECT_EQ(pool.word(list, 1), intptr_t(&b));
    EXPECT_EQ(a.number + b.number, 3);
    EXPECT_EQ(quire_percpu_pop(pool, list), &b);
    EXPECT_EQ(quire_percpu_pop(pool, list), &a);
}

TEST_P(PercpuOps, nodes_that_threads_push_and_pop_are_each_held_by_one)
{
    Pool pool;
    Ref list = pool.alloc();
    const unsigned count = 64, rounds = BUILT_WITH_TSAN ? 2000 : 20000;
    std::vector<Node> nodes(4 * count);
    std::vector<std::thread> threads;
    for (unsigned k = 0; k < 4; k++)
        threads.emplace_back([&, k] {
            if (GetParam().mode == OS_RSEQ_FAKE)
                os_cpu_fake_set(int(k));
            for (unsigned i = 0; i < count; i++)
                quire_percpu_push(pool, list, &nodes[k * count + i]);
            for (unsigned i = 0; i < rounds; i++)
                if (Node *node = static_cast<Node *>(quire_percpu_pop(pool, list))) {
                    node->number++; /* a race here if two had it */
                    quire_percpu_push(pool, list, node);
                }
        });
    for (std::thread &thread : threads)
        thread.join();
    size_t found = 0;
    for (unsigned cpu = 0; cpu < pool.cpus(); cpu++)
        for (Node *node = reinterpret_cast<Node *>(pool.word(list, cpu)); node && found <= nodes.size(); node = node->link)
            found++;
    if (GetParam().mode == OS_RSEQ_FAKE) { /* CPUs past the last share one list */
        os_cpu_fake_set(int(pool.cpus()));
        found += drain(pool, list).size();
    }
    EXPECT_EQ(found, nodes.size());
}

TEST_P(PercpuOps, what_operations_wrote_is_zero_again_in_the_next_object_of_that_place)
{
    Pool pool({.chunk_bytes = 4096, .cpus = 2});
    Node node = {};
    for (int i = 0; i < 300; i++) {
        Ref ref = pool.alloc();
        ASSERT_TRUE(pool.holds(ref, 8, 0));
        ASSERT_EQ(quire_percpu_sum(pool, ref), 0);
        intptr_t zero = 0;
        if (i % 3 == 0)
            quire_percpu_add(pool, ref, -1);
        else if (i % 3 == 1)
            quire_percpu_push(pool, ref, &node);
        else
            EXPECT_TRUE(quire_percpu_cmpxchg(pool, ref, &zero, 99));
        pool.free(ref);
    }
}
