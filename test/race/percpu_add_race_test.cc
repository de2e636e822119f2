// SPDX-License-Identifier: MIT
/* Steps on this CPU's copy by threads that are moved and interrupted all the time: nothing is lost, nothing happens twice. */
#include "race/percpu_storm.h"

namespace {
constexpr unsigned OBJECTS = 16;
constexpr intptr_t BIG = INTPTR_MAX / 3; /* sums wrap around */

/* What signal handlers may touch: set before the storm. */
struct Field {
    quire_percpu *pool;
    quire_percpu_ref counters[OBJECTS];
};
Field field;
thread_local volatile uint64_t handler_adds = 0;

void add_in_handler()
{
    uint64_t k = handler_adds;
    quire_percpu_add(field.pool, field.counters[k % OBJECTS], 1);
    handler_adds = k + 1;
}

void set_up(quire_percpu *pool)
{
    field.pool = pool;
    for (unsigned k = 0; k < OBJECTS; k++)
        field.counters[k] = quire_percpu_alloc(pool, k % 3 ? sizeof(intptr_t) : 200, 0);
}

struct Done {
    uint64_t steps, handled; /* by workers, by their signal handlers */
    uint64_t all() const { return steps + handled; }
};

/* Workers of a storm, each `steps_min` times three times `step(worker, i)`, and more until the storm has moved and interrupted `events_min` times. */
template <class Step> Done storm_over(unsigned workers, uint64_t steps_min, uint64_t events_min, Storm::Body body, const Step &step)
{
    Storm storm(workers, body);
    std::atomic<uint64_t> steps{0}, handled{0};
    std::vector<std::thread> threads;
    for (unsigned w = 0; w < workers; w++)
        threads.emplace_back([&, w] {
            uint64_t i = 0;
            {
                Storm::Inside inside(storm, w);
                for (; i < 3 * steps_min || !storm.is_over(events_min); inside.again())
                    for (unsigned k = 0; k < 3; k++)
                        step(w, i++);
            }
            steps += i;
            handled += handler_adds;
        });
    for (auto &thread : threads)
        thread.join();
    return {steps, handled};
}

/* All counters together after adds of 1 by handlers, and of each worker: +1, +BIG, -BIG + 2 in turn. */
void expect_exact(quire_percpu *pool, uint64_t adds)
{
    uintptr_t sum = 0;
    for (quire_percpu_ref ref : field.counters)
        sum += uintptr_t(quire_percpu_sum(pool, ref));
    EXPECT_EQ(sum, adds);
}

void adds_are_exact(os_rseq_mode mode, unsigned workers, uint64_t steps_min, quire_percpu_opts opts = {})
{
    SCOPED_TRACE(name_of(mode));
    Mode set(mode);
    Pool pool(opts);
    set_up(pool);
    Done done = storm_over(workers, steps_min, scaled(500), add_in_handler, [](unsigned w, uint64_t i) {
        static const intptr_t values[] = {1, BIG, 2 - BIG};
        quire_percpu_add(field.pool, field.counters[(i + w) % OBJECTS], values[i % 3]);
    });
    expect_exact(pool, done.all());
}

/* ---- cmpxchg ---- */

/* Adds one to this CPU's copy, whatever it is; the first guess is wrong. */
void increment(quire_percpu *pool, quire_percpu_ref ref)
{
    intptr_t seen = -1;
    while (!quire_percpu_cmpxchg(pool, ref, &seen, seen + 1)) {
    }
}

void increment_in_handler()
{
    uint64_t k = handler_adds;
    increment(field.pool, field.counters[k % OBJECTS]);
    handler_adds = k + 1;
}

/* ---- lists ---- */

struct Node {
    void *link;
    std::atomic<int> taken;
    uint64_t pushed; /* by whoever has it */
};

class Lists {
public:
    Lists(quire_percpu *pool_, size_t count) : pool(pool_), nodes(count)
    {
        for (quire_percpu_ref &list : lists)
            list = quire_percpu_alloc(pool, sizeof(void *), 0);
        for (size_t i = 0; i < count; i++)
            quire_percpu_push(pool, lists[i % 4], &nodes[i]);
    }
    /* A node from one list, if this CPU has one, onto another. */
    void shift(uint64_t from, uint64_t to)
    {
        Node *node = static_cast<Node *>(quire_percpu_pop(pool, lists[from % 4]));
        if (!node)
            return;
        if (node->taken.exchange(1) != 0)
            twice++;
        node->pushed++;
        node->taken = 0;
        quire_percpu_push(pool, lists[to % 4], node);
    }
    /* From each CPU that this process may use; the nodes found, each once. */
    size_t drain()
    {
        size_t found = 0;
        Cpus cpus;
        for (size_t i = 0; i < cpus.count(); i++) {
            EXPECT_TRUE(cpus.bind(0, i));
            for (quire_percpu_ref list : lists)
                for (int nothing = 0; nothing < 40; nothing++) /* without sequences a thread looks only now and then where it is */
                    while (Node *node = static_cast<Node *>(quire_percpu_pop(pool, list)))
                        found += node->taken.exchange(1) == 0;
        }
        for (quire_percpu_ref list : lists) {
            EXPECT_EQ(quire_percpu_sum(pool, list), 0) << "a head is left";
            quire_percpu_free(pool, list);
        }
        return found;
    }
    std::atomic<uint64_t> twice{0};

private:
    quire_percpu *pool;
    quire_percpu_ref lists[4];
    std::vector<Node> nodes;
};
Lists *handlers_lists;

void shift_in_handler()
{
    uint64_t k = handler_adds;
    handlers_lists->shift(k, k + 1);
    handler_adds = k + 1;
}

/* In OFF mode pop and cmpxchg take a lock: not for handlers. */
Storm::Body in_handler(os_rseq_mode mode, Storm::Body body) { return mode == OS_RSEQ_AUTO && os_rseq_works() ? body : nullptr; }
} // namespace

TEST(PercpuAddRace, sums_are_exact_whoever_is_moved_or_interrupted)
{
    for (os_rseq_mode mode : MODES)
        for (unsigned workers : {1u, 8u})
            adds_are_exact(mode, workers, scaled(100000));
}

TEST(PercpuAddRace, a_thousand_million_adds_by_64_threads_are_exact)
{
    if (!test_long())
        GTEST_SKIP() << "part of the long run (QUIRE_TEST_LONG=1)";
    for (os_rseq_mode mode : MODES)
        adds_are_exact(mode, 64, 1000000000 / 3 / 64 + 1);
}

TEST(PercpuAddRace, sums_are_exact_where_cpus_have_no_copy_of_their_own)
{
    quire_percpu_opts opts = {};
    opts.cpus = 1;
    for (os_rseq_mode mode : MODES)
        adds_are_exact(mode, 4, scaled(100000), opts);
}

namespace {
/* This thread has no area from here on; false: the kernel does not take it away. */
bool lose_area(const quire_percpu *pool)
{
    constexpr int UNREGISTER = 1;
    constexpr uint32_t SIGNATURE = QUIRE_CPU_X86_64 ? 0x53053053u : 0xd428bc00u;
    char *area = static_cast<char *>(__builtin_thread_pointer()) + reinterpret_cast<const quire_percpu_window *>(pool)->rseq_offset;
    return syscall(SYS_rseq, area, 32, UNREGISTER, SIGNATURE) == 0;
}
} // namespace

TEST(PercpuAddRace, threads_whose_area_was_taken_away_lose_nothing_beside_those_that_have_one)
{
    if (!os_rseq_works())
        GTEST_SKIP() << "this system or this build has no sequences";
    Pool pool;
    set_up(pool);
    quire_percpu_ref list = pool.take(sizeof(void *));
    std::atomic<bool> refused{false};
    static thread_local bool lost;
    Done done = storm_over(4, scaled(30000), scaled(300), add_in_handler, [&](unsigned w, uint64_t i) {
        if (w % 2 && !lost)
            lost = lose_area(pool), refused = refused || !lost;
        if (i % 5 == 0)
            increment(pool, field.counters[i % OBJECTS]);
        else
            quire_percpu_add(pool, field.counters[i % OBJECTS], 1);
        if (w == 1 && i < 10)
            quire_percpu_push(pool, list, new Node());
    });
    if (refused)
        GTEST_SKIP() << "this libc's area cannot be taken away";
    expect_exact(pool, done.all());
    size_t found = 0;
    std::thread([&] {
        ASSERT_TRUE(lose_area(pool));
        while (Node *node = static_cast<Node *>(quire_percpu_pop(pool, list)))
            delete node, found++;
    }).join();
    EXPECT_EQ(found, 10u) << "all of them share one copy";
    EXPECT_EQ(quire_percpu_sum(pool, list), 0);
}

TEST(PercpuAddRace, nothing_is_lost_when_the_first_write_of_a_cpu_is_raced_for)
{
    for (os_rseq_mode mode : MODES)
        for (Storm::Body body : {Storm::Body(add_in_handler), in_handler(mode, increment_in_handler)}) {
            SCOPED_TRACE(name_of(mode));
            Mode set(mode);
            Noise on;
            for (unsigned round = 0; round < scaled(60); round++) {
                Pool pool(small_units());
                set_up(pool);
                Done done = storm_over(4, 10, 0, body, [&](unsigned w, uint64_t i) {
                    if (i % 4)
                        quire_percpu_add(field.pool, field.counters[(i + w) % OBJECTS], 1);
                    else
                        increment(field.pool, field.counters[(i + w) % OBJECTS]);
                });
                expect_exact(pool, done.all());
            }
        }
}

TEST(PercpuAddRace, a_sum_taken_meanwhile_is_one_that_there_was_between)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool;
        set_up(pool);
        quire_percpu_ref ref = field.counters[1];
        std::atomic<intptr_t> begun{0}, ended{0};
        std::atomic<bool> stop{false};
        std::atomic<uint64_t> looks{0};
        std::thread reader([&] {
            for (; !stop; looks++) {
                intptr_t low = ended, sum = quire_percpu_sum(pool, ref), high = begun;
                EXPECT_TRUE(low <= sum && sum <= high) << low << " <= " << sum << " <= " << high;
            }
        });
        Done done = storm_over(3, scaled(3000), scaled(300), nullptr, [&](unsigned, uint64_t) {
            begun++;
            quire_percpu_add(pool, ref, 1);
            ended++;
        });
        while (looks < 100)
            sched_yield();
        stop = true;
        reader.join();
        EXPECT_EQ(uintptr_t(quire_percpu_sum(pool, ref)), done.steps);
    }
}

namespace {
/* All that a handler may do, whatever it has interrupted. */
void look_in_handler()
{
    quire_percpu_ref ref = field.counters[handler_adds % OBJECTS];
    add_in_handler();
    quire_percpu_sum(field.pool, ref);
    const intptr_t *copy = static_cast<const intptr_t *>(quire_percpu_at(field.pool, ref, 0));
    (void)__atomic_load_n(copy, __ATOMIC_RELAXED);
}
} // namespace

TEST(PercpuAddRace, handlers_add_sum_and_look_whatever_they_interrupt)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool(small_units());
        set_up(pool);
        Done done = storm_over(4, scaled(1000), scaled(500), look_in_handler, [&](unsigned w, uint64_t i) {
            quire_percpu_add(pool, field.counters[(i + w) % OBJECTS], 1);
            quire_percpu_ref refs[12];
            for (quire_percpu_ref &ref : refs)
                ref = quire_percpu_alloc(pool, 8 + i % 700, 0), quire_percpu_add(pool, ref, 1);
            if (i % 50 == w)
                quire_percpu_trim(pool);
            if (i % 50 == w + 10) {
                EXPECT_GE(stats_of(pool).live_objects, OBJECTS);
            }
            for (quire_percpu_ref ref : refs)
                quire_percpu_free(pool, ref);
        });
        expect_exact(pool, done.all());
        EXPECT_EQ(pool.live(), OBJECTS);
    }
}

TEST(PercpuAddRace, every_compare_and_exchange_that_succeeded_counts_once)
{
    for (os_rseq_mode mode : MODES)
        for (unsigned cpus : {0u, 1u}) {
            SCOPED_TRACE(name_of(mode));
            Mode set(mode);
            quire_percpu_opts opts = {};
            opts.cpus = cpus;
            Pool pool(opts);
            set_up(pool);
            Done done = storm_over(4, scaled(3000), scaled(500), cpus ? nullptr : in_handler(mode, increment_in_handler),
                                   [](unsigned w, uint64_t i) { increment(field.pool, field.counters[(i + w) % 2]); });
            expect_exact(pool, done.all());
        }
}

TEST(PercpuAddRace, adds_and_exchanges_of_the_same_word_lose_nothing)
{
    for (os_rseq_mode mode : MODES) {
        SCOPED_TRACE(name_of(mode));
        Mode set(mode);
        Pool pool;
        set_up(pool);
        Done done = storm_over(4, scaled(3000), scaled(500), add_in_handler, [](unsigned w, uint64_t i) {
            if (w % 2)
                increment(field.pool, field.counters[i % OBJECTS]);
            else
                quire_percpu_add(field.pool, field.counters[i % OBJECTS], 1);
        });
        expect_exact(pool, done.all());
    }
}

TEST(PercpuAddRace, a_node_is_on_one_list_or_has_one_taker)
{
    for (os_rseq_mode mode : MODES)
        for (unsigned cpus : {0u, 1u}) {
            SCOPED_TRACE(name_of(mode));
            Mode set(mode);
            quire_percpu_opts opts = {};
            opts.cpus = cpus;
            Pool pool(opts);
            Lists lists(pool, 64);
            handlers_lists = &lists;
            storm_over(4, scaled(3000), scaled(500), cpus ? nullptr : in_handler(mode, shift_in_handler),
                       [&](unsigned w, uint64_t i) { lists.shift(i, i / 4 + w); });
            EXPECT_EQ(lists.twice, 0u);
            EXPECT_EQ(lists.drain(), 64u);
        }
}

TEST(PercpuAddRace, with_noise_at_every_step_of_the_ways_without_sequences)
{
    Mode set(OS_RSEQ_OFF);
    Noise on;
    Pool pool;
    set_up(pool);
    Lists lists(pool, 16);
    Done done = storm_over(4, scaled(3000), scaled(300), add_in_handler, [&](unsigned w, uint64_t i) {
        quire_percpu_add(pool, field.counters[(i + w) % 2], 1);
        increment(pool, field.counters[(i + w) % 2]);
        lists.shift(i, i / 4 + w);
    });
    expect_exact(pool, 2 * done.steps + done.handled);
    EXPECT_EQ(lists.twice, 0u);
    EXPECT_EQ(lists.drain(), 16u);
}
