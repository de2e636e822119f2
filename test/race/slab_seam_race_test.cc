// SPDX-License-Identifier: MIT
/* Every pair of operations, the second done whole at every atomic step of the first. */
#include "race/slab_operations.h"
#include "race/slab_seam.h"

namespace {
class Experiment {
public:
    Experiment(const Operation &x_, const Operation &y_, int k_, uint32_t flags) : x(x_), y(y_), k(k_), slab(OPERATION_BYTES, eight_a_page(flags)) {}

    /* True when x came to its step k. */
    bool run()
    {
        Seam::reset();
        std::thread second([this] { side(y, b, a, false); });
        std::thread first([this] { side(x, a, b, true); });
        first.join(), second.join();
        bool came = !Seam::is_passed();
        verify();
        return came;
    }

private:
    void meet(int count)
    {
        met++;
        while (met < count)
            wait_a_moment();
    }

    void side(const Operation &op, Owner &me, Owner &other, bool is_first)
    {
        if (op.newcomer)
            std::thread([&] { me.set_up(slab); }).join();
        else
            me.set_up(slab);
        meet(2);
        if (is_first) {
            if (op.ends)
                watch_end();
            Seam::arm(k);
            op.run(slab, me, other);
            if (!op.ends)
                Seam::disarm();
        } else {
            Seam::wait_for_stop();
            if (op.ends)
                std::thread([&] { me.take(slab, 3); }).join(); /* a thread that begins and ends here */
            op.run(slab, me, other);
            Seam::go_on();
        }
    }
    /* Destructors of this key run in every round there is: the last one disarms. */
    static inline pthread_key_t end_key;
    static void at_end(void *rounds_left)
    {
        if (uintptr_t left = reinterpret_cast<uintptr_t>(rounds_left) - 1)
            pthread_setspecific(end_key, reinterpret_cast<void *>(left));
        else
            Seam::disarm();
    }
    static void watch_end()
    {
        static const int made = pthread_key_create(&end_key, at_end);
        EXPECT_EQ(made, 0);
        pthread_setspecific(end_key, reinterpret_cast<void *>(uintptr_t(PTHREAD_DESTRUCTOR_ITERATIONS)));
    }

    void verify()
    {
        std::vector<void *> left;
        for (Owner *owner : {&a, &b}) {
            for (void *p : owner->elements)
                if (p)
                    left.push_back(p);
            left.insert(left.end(), owner->fresh.begin(), owner->fresh.end());
        }
        EXPECT_EQ(slab.live(), left.size());
        EXPECT_STREQ(quire_slab_check(slab), nullptr);
        for (void *p : left)
            EXPECT_TRUE(stamp_of(p) == reinterpret_cast<uintptr_t>(p) && is_painted(p, OPERATION_BYTES));
        size_t visited = 0;
        quire_slab_walk(slab, count_one, &visited);
        EXPECT_EQ(visited, left.size());
        quire_slab_free_batch(slab, left.data(), left.size());
        quire_slab_trim(slab);
        EXPECT_EQ(slab.live(), 0u);
    }

    const Operation &x, &y;
    int k;
    Slab slab;
    Owner a, b;
    std::atomic<int> met{0};
};

/* What a panic, which nothing comes back from, has to say beside its own line. */
char at_work[200];
void say_what_was_at_work(const char *, const void *)
{
    fprintf(stderr, "%s\n", at_work);
}

void every_pair(uint32_t flags)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build has the steps";
    quire_on_panic(say_what_was_at_work);
    Noise steps(Seam::step);
    unsigned experiments = 0, pairs = 0;
    for (const Operation &x : operations)
        for (const Operation &y : operations) {
            if (!is_of_this_run(pairs++, BUILT_WITH_TSAN ? 8 : 4))
                continue;
            /* The order of steps is the same whoever watches: the check build goes through it more densely. */
            int k = 0, dense = test_long() ? 1000 : BUILT_WITH_TSAN || under_asan() ? 2 : 4;
            for (; k < 3000; k += 1 + k / dense) {
                snprintf(at_work, sizeof at_work, "%s, at step %d of: %s (QUIRE_TEST_TURN=%u)", y.name, k, x.name, turn_of_this_run());
                SCOPED_TRACE(at_work);
                experiments++;
                if (!Experiment(x, y, k, flags).run())
                    break;
                if (::testing::Test::HasFailure())
                    return;
            }
        }
    quire_on_panic(nullptr);
    ::testing::Test::RecordProperty("experiments", int(experiments));
}
} // namespace

TEST(SlabSeam, every_operation_at_every_step_of_every_other)
{
    every_pair(0);
}

TEST(SlabSeam, every_operation_at_every_step_of_every_other_when_empty_pages_go_at_once)
{
    if (memory_is_watched() && !test_long())
        GTEST_SKIP() << "part of the long run there (QUIRE_TEST_LONG=1)";
    every_pair(QUIRE_SLAB_KEEP_NOTHING);
}

namespace {
/* A check that stops at step k, while one thread gives two of its three pages back and another takes as many; true when it came to that step. */
bool check_while_pages_go_round(int k, bool taker_is_first)
{
    enum { THREE_PAGES = 24, BEGUN = 2, GIVEN, TAKEN, OVER };
    Slab slab(OPERATION_BYTES, eight_a_page(QUIRE_SLAB_KEEP_NOTHING));
    std::atomic<int> stage{0};
    auto wait_for = [&](int wanted) {
        while (stage < wanted)
            wait_a_moment();
    };
    auto fill = [&](std::vector<void *> &list) {
        while (list.size() < THREE_PAGES)
            list.push_back(quire_slab_alloc(slab));
    };
    std::vector<void *> given, taken;
    Seam::reset();
    auto give = [&] {
        fill(given);
        stage++;
        Seam::wait_for_stop();
        for (void *p : given)
            quire_slab_free(slab, p);
        stage = GIVEN;
        wait_for(TAKEN);
        Seam::go_on();
        wait_for(OVER);
    };
    auto take = [&] {
        taken.push_back(quire_slab_alloc(slab));
        stage++;
        wait_for(GIVEN);
        fill(taken);
        stage = TAKEN;
        wait_for(OVER);
    };
    std::thread first(taker_is_first ? std::function<void()>(take) : give);
    while (stage < 1)
        wait_a_moment();
    std::thread second(taker_is_first ? std::function<void()>(give) : take);
    wait_for(BEGUN);
    Seam::arm(k);
    EXPECT_STREQ(quire_slab_check(slab), nullptr) << "at step " << k;
    Seam::disarm();
    bool came = !Seam::is_passed();
    wait_for(TAKEN);
    stage = OVER;
    first.join(), second.join();
    for (void *p : taken)
        quire_slab_free(slab, p);
    return came;
}
} // namespace

TEST(SlabSeam, a_check_takes_no_page_that_went_from_thread_to_thread_for_a_wrong_sum)
{
    if (!QUIRE_CHECK)
        GTEST_SKIP() << "the check build has the steps";
    Noise steps(Seam::step);
    for (bool taker_is_first : {true, false})
        for (int k = 0; check_while_pages_go_round(k, taker_is_first) && !HasFailure(); k++)
            ;
}
