// SPDX-License-Identifier: MIT
/* Every pair of operations on a heap, the second done whole at every atomic step of the first; and a fork at every step of each. */
#include "race/heap_operations.h"

namespace {
class Experiment {
public:
    Experiment(const HeapOperation &x_, const HeapOperation &y_) : x(x_), y(y_) {}

    /* True when x came to its step k. */
    bool run(int k)
    {
        Seam::reset();
        std::thread second([this] {
            HeapArmed::set_up_for(y, heap, b);
            meet();
            Seam::wait_for_stop();
            if (y.ends)
                std::thread([&] { b.take(heap, 3); }).join(); /* a thread that begins and ends here */
            y.run(heap, b, a);
            Seam::go_on();
        });
        std::thread first([this, k] {
            HeapArmed::set_up_for(x, heap, a);
            meet();
            HeapArmed::run(x, k, heap, a, b);
        });
        first.join(), second.join();
        bool came = !Seam::is_passed();
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
        std::vector<void *> left;
        for (HeapOwner *owner : {&a, &b}) {
            for (void *p : owner->blocks)
                if (p)
                    left.push_back(p);
            left.insert(left.end(), owner->fresh.begin(), owner->fresh.end());
        }
        EXPECT_EQ(heap.live(), left.size());
        EXPECT_STREQ(quire_heap_check(heap), nullptr);
        for (void *p : left)
            EXPECT_TRUE(stamp_of(p) == reinterpret_cast<uintptr_t>(p) && heap_is_painted(p));
        EXPECT_EQ(heap_visited(heap), left.size());
        for (void *p : left)
            quire_heap_free(heap, p);
        quire_heap_trim(heap);
        EXPECT_EQ(heap.live(), 0u);
        EXPECT_EQ(stats_of(heap).pages, 0u);
    }

    const HeapOperation &x, &y;
    Heap heap;
    HeapOwner a, b;
    std::atomic<int> met{0};
};

void say_what_was_at_work(const char *, const void *)
{
    fprintf(stderr, "%s\n", heap_at_work);
}

int next_step(int k)
{
    return test_long() ? k + 1 + k / 1000 : memory_is_watched() ? 4 * k + 3 : 1 + k + k / 2;
}

/* ---- fork ---- */

enum { ALL_GOOD = 0, CHECK_FAILED = 10, SUM_WRONG, OTHERS_PAINT, NO_MEMORY, WALK_WRONG };

int child_of_a_seam(quire_heap *heap, HeapOwner &a, HeapOwner &b)
{
    if (const char *wrong = quire_heap_check(heap))
        return fprintf(stderr, "child: %s\n", wrong), CHECK_FAILED;
    if (!adds_up(stats_of(heap)))
        return SUM_WRONG;
    size_t sum = 0;
    auto touch = [](void *p, size_t bytes, void *sum_) { return *static_cast<size_t *>(sum_) += static_cast<unsigned char *>(p)[bytes - 1], 0; };
    if (quire_heap_walk(heap, touch, &sum) != 0)
        return WALK_WRONG;
    for (HeapOwner *owner : {&a, &b})
        for (int i = HEAP_KEPT; i < HEAP_COUNT; i++) {
            if (!heap_is_painted(owner->blocks[i]) || stamp_of(owner->blocks[i]) != reinterpret_cast<uintptr_t>(owner->blocks[i]))
                return OTHERS_PAINT;
            quire_heap_free(heap, owner->blocks[i]);
        }
    std::vector<void *> got;
    for (size_t i = 0; i < 40; i++) {
        size_t bytes = i % 10 ? HEAP_OPERATION_BYTES : HEAP_OPERATION_LARGE;
        got.push_back(quire_heap_alloc(heap, bytes));
        if (!got.back())
            return NO_MEMORY;
        heap_paint(got.back(), bytes, i);
    }
    for (size_t i = 0; i < got.size(); i++) {
        if (stamp_of(got[i]) != i || !heap_is_painted(got[i]))
            return OTHERS_PAINT;
        quire_heap_free(heap, got[i]);
    }
    quire_heap_trim(heap);
    if (const char *wrong = quire_heap_check(heap))
        return fprintf(stderr, "child, used: %s\n", wrong), CHECK_FAILED;
    bool good = adds_up(stats_of(heap));
    quire_heap_destroy(heap);
    return good ? ALL_GOOD : SUM_WRONG;
}

/* Fork while A is at step k of an operation; false when it has no such step. */
bool fork_at(const HeapOperation &x, int k, uint32_t flags)
{
    Heap heap(heap_flags(flags));
    HeapOwner a, b;
    std::atomic<bool> is_set_up{false}, over{false};
    std::thread second([&] { /* lives on, so that its blocks are another's */
        b.set_up(heap);
        for (is_set_up = true; !over;)
            sleep_ms(1);
    });
    while (!is_set_up)
        sched_yield();
    Seam::reset();
    std::thread first([&] {
        HeapArmed::set_up_for(x, heap, a);
        HeapArmed::run(x, k, heap, a, b);
    });
    Seam::wait_for_stop();
    bool came = !Seam::is_passed();
    int status = came ? status_of_child([&] { return set_noise(nullptr), child_of_a_seam(heap, a, b); }) : ALL_GOOD;
    EXPECT_EQ(status, ALL_GOOD) << "fork at step " << k << " of: " << x.name;
    Seam::go_on();
    over = true;
    first.join(), second.join();
    EXPECT_STREQ(quire_heap_check(heap), nullptr);
    return came;
}

/* ---- fork by the very thread, as a signal's handler does it; in the child the operation goes on ---- */

thread_local int handler_countdown = -1;
thread_local pid_t handler_child; /* 0: in the child */

void step_or_fork()
{
    if (handler_countdown < 0 || handler_countdown-- > 0)
        return Seam::step();
    handler_child = fork();
    if (handler_child == 0) {
        set_noise(nullptr);
        alarm(20);
    }
}

/* A forks at step k of x, while B is at step j of y, if neither waits for the other.  False when x has no such step. */
bool handler_forks_at(const HeapOperation &x, int k, const HeapOperation &y, int j, uint32_t flags)
{
    Heap heap(heap_flags(flags));
    HeapOwner a, b;
    std::atomic<int> met{0};
    Seam::reset();
    std::thread second([&] {
        HeapArmed::set_up_for(y, heap, b);
        for (met++; met < 2;)
            wait_a_moment();
        HeapArmed::run(y, j, heap, b, a);
    });
    int status = ALL_GOOD;
    bool came = false;
    std::thread([&] {
        HeapArmed::set_up_for(x, heap, a);
        for (met++; met < 2;)
            wait_a_moment();
        Seam::wait_for_stop();
        handler_child = -1;
        handler_countdown = k;
        x.run(heap, a, b);
        if (handler_child == 0)
            exit_now(::testing::Test::HasFailure() ? int(SUM_WRONG) : child_of_a_seam(heap, a, b));
        Seam::go_on();
        handler_countdown = -1;
        came = handler_child > 0;
        if (came)
            waitpid(handler_child, &status, 0);
    }).join();
    second.join();
    EXPECT_EQ(status, ALL_GOOD);
    EXPECT_STREQ(quire_heap_check(heap), nullptr);
    return came;
}
} // namespace

TEST(HeapSeam, every_operation_at_every_step_of_every_other)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build has the steps";
    quire_on_panic(say_what_was_at_work);
    Noise steps(Seam::step);
    unsigned experiments = 0, pairs = 0;
    for (const HeapOperation &x : heap_operations)
        for (const HeapOperation &y : heap_operations)
            for (int k = is_of_this_run(pairs++, memory_is_watched() ? 11 : 6) ? 0 : 3000; k < 3000; k = next_step(k)) {
                snprintf(heap_at_work, sizeof heap_at_work, "%s, at step %d of: %s (QUIRE_TEST_TURN=%u)", y.name, k, x.name, turn_of_this_run());
                SCOPED_TRACE(heap_at_work);
                experiments++;
                if (!Experiment(x, y).run(k))
                    break;
                if (HasFailure())
                    return;
            }
    quire_on_panic(nullptr);
    RecordProperty("experiments", int(experiments));
}

TEST(HeapSeam, a_fork_at_every_step_of_every_operation)
{
    if (BUILT_WITH_TSAN || under_asan() || !QUIRE_CHECK)
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own; and the check build has the steps";
    quire_on_panic(say_what_was_at_work);
    Noise steps(Seam::step);
    int forks = 0;
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE})
        for (const HeapOperation &x : heap_operations)
            for (int k = 0; k < 3000 && !x.ends; k = next_step(k)) {
                snprintf(heap_at_work, sizeof heap_at_work, "fork at step %d of: %s", k, x.name);
                if (!fork_at(x, k, flags))
                    break;
                forks++;
                if (HasFailure())
                    return;
            }
    quire_on_panic(nullptr);
    RecordProperty("forks", forks);
}

TEST(HeapSeam, a_handler_that_forks_at_every_step_of_every_operation_beside_every_other)
{
    if (memory_is_watched() || !QUIRE_CHECK)
        GTEST_SKIP() << "a child of a busy process waits for locks of the sanitizer's own; and the check build has the steps";
    quire_on_panic(say_what_was_at_work);
    Noise steps(step_or_fork);
    Random random(1);
    int forks = 0;
    for (uint32_t flags : {0u, QUIRE_HEAP_SECURE})
        for (const HeapOperation &x : heap_operations)
            for (int k = 0; k < 3000 && !x.ends; k = next_step(k))
                for (const HeapOperation &y : heap_operations) {
                    int j = int(random.below(random.below(10) ? 60 : 600));
                    if (!test_long() && random.below(15) != 0)
                        continue;
                    snprintf(heap_at_work, sizeof heap_at_work, "a handler's fork at step %d of: %s, beside step %d of: %s", k, x.name, j, y.name);
                    SCOPED_TRACE(heap_at_work);
                    if (!handler_forks_at(x, k, y, j, flags)) {
                        k = 3000;
                        break;
                    }
                    forks++;
                    if (HasFailure())
                        return;
                }
    quire_on_panic(nullptr);
    RecordProperty("forks", forks);
}
