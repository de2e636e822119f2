// SPDX-License-Identifier: MIT
/*
 * Every pair of operations, the second done whole at every atomic step of the first; and a fork at every step of every operation.
 *
 *     A:  -- step 0 -- step 1 -- ... -- step k  .........................  go on --
 *     B:                                        -- the other operation --
 *
 * Where B has to wait for A (A is inside its chunks) A goes on after PATIENCE_NS.  Only the `check` builds have the steps.
 */
#include <quire/heap.h>
#include <quire/slab.h>

#include "race/percpu_operations.h"

namespace {
class PercpuSeam {
public:
    static constexpr uint64_t PATIENCE_NS = 400000;

    static void reset() { state = RUNNING; }
    /* On A: stop at step k of what follows. */
    static void arm(int k) { countdown = k; }
    /* On A, when the operation is over. */
    static void disarm()
    {
        countdown = -1;
        int running = RUNNING;
        state.compare_exchange_strong(running, PASSED);
    }
    /* On B: until A has stopped at its step, or is past the operation without having come to it. */
    static void wait_for_stop()
    {
        while (state == RUNNING)
            wait_a_moment();
    }
    static void go_on()
    {
        int stopped = STOPPED;
        state.compare_exchange_strong(stopped, GOING);
    }
    static bool is_passed() { return state == PASSED; }
    /* The hook of atomic steps. */
    static void step()
    {
        if (countdown < 0 || countdown-- > 0)
            return;
        state = STOPPED;
        for (uint64_t until_ns = os_time_ns() + patience_ns; state == STOPPED && os_time_ns() < until_ns;)
            wait_a_moment();
    }
    static inline uint64_t patience_ns = PATIENCE_NS;

private:
    enum { RUNNING, STOPPED, GOING, PASSED };
    static inline std::atomic<int> state{RUNNING};
    static inline thread_local int countdown = -1;
};

/* The end of a thread is the last of its destructors: this one runs in every round there is, and disarms in the last. */
class End {
public:
    static void watch()
    {
        static const int made = pthread_key_create(&key, run);
        EXPECT_EQ(made, 0);
        pthread_setspecific(key, reinterpret_cast<void *>(uintptr_t(PTHREAD_DESTRUCTOR_ITERATIONS)));
    }

private:
    static inline pthread_key_t key;
    static void run(void *rounds_left)
    {
        if (uintptr_t left = reinterpret_cast<uintptr_t>(rounds_left) - 1)
            pthread_setspecific(key, reinterpret_cast<void *>(left));
        else
            PercpuSeam::disarm();
    }
};

/* A, stopped at step k of `x`. */
void run_armed(const PercpuOperation &x, int k, quire_percpu *pool, PercpuOwner &me, PercpuOwner &other)
{
    if (x.ends)
        End::watch();
    PercpuSeam::arm(k);
    x.run(pool, me, other);
    if (!x.ends)
        PercpuSeam::disarm();
}

void set_up_for(const PercpuOperation &x, quire_percpu *pool, PercpuOwner &me)
{
    if (x.newcomer)
        std::thread([&] { me.set_up(pool); }).join();
    else
        me.set_up(pool);
}

class PercpuExperiment {
public:
    PercpuExperiment(const PercpuOperation &x_, const PercpuOperation &y_) : x(x_), y(y_), pool(eight_a_chunk()) {}

    /* True when x came to its step k. */
    bool run(int k)
    {
        PercpuSeam::reset();
        std::thread second([this] {
            set_up_for(y, pool, b);
            meet();
            PercpuSeam::wait_for_stop();
            if (y.ends)
                std::thread([&] { b.take(pool, 40, 3); }).join(); /* a thread that begins and ends here */
            y.run(pool, b, a);
            PercpuSeam::go_on();
        });
        std::thread first([this, k] {
            set_up_for(x, pool, a);
            meet();
            run_armed(x, k, pool, a, b);
        });
        first.join(), second.join();
        bool came = !PercpuSeam::is_passed();
        verify();
        return came;
    }

private:
    void meet()
    {
        for (met++; met < 2;)
            wait_a_moment();
    }
    void verify()
    {
        size_t live = 0;
        EXPECT_STREQ(quire_percpu_check(pool), nullptr);
        for (PercpuOwner *owner : {&a, &b})
            owner->each([&](PercpuObject &object) { live += !is_none(object.ref); });
        EXPECT_EQ(pool.live(), live);
        for (PercpuOwner *owner : {&a, &b})
            owner->each([&](PercpuObject &object) { PercpuOwner::let_go(pool, object); });
        quire_percpu_trim(pool);
        EXPECT_EQ(pool.live(), 0u);
        EXPECT_EQ(stats_of(pool).chunks, 1u) << "the reserve's";
    }

    const PercpuOperation &x, &y;
    Pool pool;
    PercpuOwner a, b;
    std::atomic<int> met{0};
};

/* ---- fork at a step ---- */

/* Fork while A is at step k of an operation; false when it has no such step. */
bool fork_at(const PercpuOperation &x, int k)
{
    Pool pool(eight_a_chunk());
    PercpuOwner a, b;
    b.set_up(pool);
    PercpuSeam::reset();
    std::thread first([&] {
        set_up_for(x, pool, a);
        run_armed(x, k, pool, a, b);
    });
    PercpuSeam::wait_for_stop();
    bool came = !PercpuSeam::is_passed();
    int status = came ? status_of_child([&] { return set_noise(nullptr), child_of_an_operation(pool, a, b); }) : CHILD_IS_GOOD;
    EXPECT_EQ(status, CHILD_IS_GOOD) << "fork at step " << k << " of: " << x.name;
    PercpuSeam::go_on();
    first.join();
    EXPECT_STREQ(quire_percpu_check(pool), nullptr);
    return came;
}

/* ---- a handler forks at a step of its own thread's operation, which goes on in the child ---- */

thread_local int handler_countdown = -1;
pid_t handler_child;

void fork_at_step()
{
    if (handler_countdown >= 0 && handler_countdown-- == 0 && (handler_child = fork()) == 0)
        alarm(100);
}

int child_behind_a_handler(quire_percpu *pool, PercpuOwner &a, PercpuOwner &b)
{
    PercpuOwner later;
    set_noise(nullptr);
    std::thread([&] { later.take(pool, 40, 3); }).join();
    a.take(pool, 40, 3);
    for (PercpuOwner *owner : {&later, &a})
        for (PercpuObject &object : owner->fresh)
            PercpuOwner::let_go(pool, object);
    return ::testing::Test::HasFailure() ? int(CHILD_SAW_OTHERS_PAINT) : child_of_an_operation(pool, a, b);
}

/* False when the operation has no step k. */
bool handler_forks_at(const PercpuOperation &x, int k)
{
    Pool pool(eight_a_chunk());
    PercpuOwner a, b;
    int status = CHILD_IS_GOOD;
    b.set_up(pool);
    handler_child = -1;
    std::thread([&] {
        set_up_for(x, pool, a);
        handler_countdown = k;
        x.run(pool, a, b);
        handler_countdown = -1;
        if (handler_child == 0)
            exit_now(child_behind_a_handler(pool, a, b));
        if (handler_child > 0)
            waitpid(handler_child, &status, 0);
    }).join();
    EXPECT_EQ(status, CHILD_IS_GOOD) << "a handler's fork at step " << k << " of: " << x.name;
    return handler_child > 0;
}

/* What a panic, which nothing comes back from, has to say beside its own line. */
char at_work[200];
void say_what_was_at_work(const char *, const void *)
{
    fprintf(stderr, "%s\n", at_work);
}

int next_step(int k, int dense)
{
    return k + 1 + k / (test_long() ? 1000 : dense);
}

/* Forks at each step of each operation, as long as it has so many; how many there were. */
void forks_at_every_step(const char *whose, bool (*fork_at)(const PercpuOperation &, int))
{
    quire_on_panic(say_what_was_at_work);
    int forks = 0;
    for (const PercpuOperation &x : percpu_operations)
        for (int k = 0; k < 3000 && !x.ends; k = next_step(k, 10)) {
            snprintf(at_work, sizeof at_work, "%s at step %d of: %s", whose, k, x.name);
            if (!fork_at(x, k))
                break;
            forks++;
            if (testing::Test::HasFailure())
                return;
        }
    quire_on_panic(nullptr);
    testing::Test::RecordProperty("forks", forks);
}
} // namespace

TEST(PercpuSeam, every_operation_at_every_step_of_every_other)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build has the steps";
    quire_on_panic(say_what_was_at_work);
    Noise steps(PercpuSeam::step);
    unsigned experiments = 0, pairs = 0;
    for (const PercpuOperation &x : percpu_operations)
        for (const PercpuOperation &y : percpu_operations)
            for (int k = is_of_this_run(pairs++, BUILT_WITH_TSAN ? 6 : 3) ? 0 : 3000; k < 3000; k = memory_is_watched() && !test_long() ? 3 * k + 2 : next_step(k, 2)) {
                snprintf(at_work, sizeof at_work, "%s, at step %d of: %s (QUIRE_TEST_TURN=%u)", y.name, k, x.name, turn_of_this_run());
                SCOPED_TRACE(at_work);
                experiments++;
                if (!PercpuExperiment(x, y).run(k))
                    break;
                if (HasFailure())
                    return;
            }
    quire_on_panic(nullptr);
    RecordProperty("experiments", int(experiments));
}

TEST(PercpuSeam, a_fork_at_every_step_of_every_operation)
{
    if (BUILT_WITH_TSAN || under_asan() || !QUIRE_CHECK)
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own; and the check build has the steps";
    Noise steps(PercpuSeam::step);
    PercpuSeam::patience_ns = 10000000000u; /* until the child has ended */
    forks_at_every_step("fork", fork_at);
    PercpuSeam::patience_ns = PercpuSeam::PATIENCE_NS;
}

TEST(PercpuSeam, a_handler_that_forks_at_every_step_of_every_operation)
{
    if (memory_is_watched() || !QUIRE_CHECK)
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own; and the check build has the steps";
    Noise steps(fork_at_step);
    forks_at_every_step("a handler's fork", handler_forks_at);
}

/* The others have this thread to bury in the child, and take their locks for that. */
TEST(PercpuSeam, a_handler_that_forks_does_not_disturb_other_allocators_of_the_process)
{
    if (memory_is_watched() || !QUIRE_CHECK)
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own; and the check build has the steps";
    quire_slab *slab = quire_slab_create(64, nullptr);
    quire_heap *heap = quire_heap_create(nullptr);
    void *element = quire_slab_alloc(slab), *block = quire_heap_alloc(heap, 40);
    Noise steps(fork_at_step);
    forks_at_every_step("a handler's fork beside others", handler_forks_at);
    quire_heap_free(heap, block);
    quire_slab_free(slab, element);
    quire_heap_destroy(heap);
    quire_slab_destroy(slab);
}
