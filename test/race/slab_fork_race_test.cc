// SPDX-License-Identifier: MIT
/* Children of busy processes: whatever the threads that are gone were doing, the child can use the slab, and end it. */
#include "race/slab_operations.h"
#include "race/slab_race.h"
#include "race/slab_seam.h"

namespace {
constexpr size_t BYTES = 64;

/* What a child found wrong, as its exit status. */
enum Found { ALL_GOOD = 0, CHECK_FAILED = 10, NO_MEMORY, OTHERS_PAINT, SUM_WRONG, FEWER_LIVE, TRIM_GAVE_NOTHING, STILL_OWNED, CHILDS_CHILD };

/* The child's own words; the parent only sees that CHECK_FAILED. */
bool is_sound(quire_slab *slab, const char *when)
{
    const char *wrong = quire_slab_check(slab);
    if (wrong)
        fprintf(stderr, "in the child, %s: %s\n", when, wrong);
    return !wrong;
}

int count_live(void *, void *n) { return ++*static_cast<size_t *>(n), 0; }

/* Allocate, verify and free `count`; half of them by another thread, which sleeps while this one looks and trims. */
int child_allocates(quire_slab *slab, size_t count)
{
    std::vector<void *> mine(count), theirs(count);
    std::atomic<int> stage{0};
    if (quire_slab_alloc_batch(slab, mine.data(), count) != count)
        return NO_MEMORY;
    for (void *p : mine)
        paint(p, BYTES, reinterpret_cast<uintptr_t>(p));
    std::thread other([&] {
        for (void *&p : theirs)
            if ((p = quire_slab_alloc(slab)))
                paint(p, BYTES, reinterpret_cast<uintptr_t>(p));
        for (size_t i = 0; i < count; i++)
            quire_slab_free(slab, mine[i]);
        stage = 1;
        while (stage == 1)
            sched_yield();
    });
    while (stage == 0)
        sched_yield();
    bool painted = true;
    size_t mapped = stats_of(slab).mapped_bytes;
    for (void *p : theirs) {
        painted = painted && p && is_painted(p, BYTES) && stamp_of(p) == reinterpret_cast<uintptr_t>(p);
        quire_slab_free(slab, p);
    }
    quire_slab_trim(slab);
    SlabStats trimmed = stats_of(slab); /* some of it went before the trim, and where others live in every page nothing does */
    bool gave = trimmed.empty_pages <= 1 && (trimmed.mapped_bytes < mapped || trimmed.live_elements != 0);
    stage = 2;
    other.join();
    return !painted ? OTHERS_PAINT : !gave ? TRIM_GAVE_NOTHING : ALL_GOOD;
}

struct World {
    quire_slab *busy, *quiet;
    Table table;
    std::vector<void *> lasting;
};

/* All that a child does with the slabs of its parent. */
int child_lives(World &world)
{
    if (!is_sound(world.busy, "busy, at once") || !is_sound(world.quiet, "quiet, at once"))
        return CHECK_FAILED;
    SlabStats s = stats_of(world.busy);
    if (!adds_up(s))
        return SUM_WRONG;
    if (s.live_elements < world.table.count() + world.lasting.size())
        return FEWER_LIVE;
    for (size_t i = 0; i < Table::PLACES; i++) /* allocated by threads that are gone */
        if (void *p = world.table.swap(i, nullptr)) {
            if (!is_painted(p, BYTES) || !quire_slab_owns(world.busy, p))
                return OTHERS_PAINT;
            quire_slab_free(world.busy, p);
            if (quire_slab_owns(world.busy, p))
                return STILL_OWNED;
        }
    for (quire_slab *slab : {world.busy, world.quiet})
        if (int found = child_allocates(slab, 2000))
            return found;
    for (void *p : world.lasting)
        if (!is_painted(p, BYTES) || stamp_of(p) != 1)
            return OTHERS_PAINT;
    quire_slab_free_batch(world.busy, world.lasting.data(), world.lasting.size());
    size_t live = 0;
    quire_slab_walk(world.busy, count_live, &live);
    if (live != stats_of(world.busy).live_elements)
        return SUM_WRONG;
    if (!is_sound(world.busy, "busy, used") || !is_sound(world.quiet, "quiet, used"))
        return CHECK_FAILED;
    quire_slab_destroy(world.quiet);
    quire_slab_destroy(world.busy);
    quire_slab *next = quire_slab_create(BYTES, nullptr);
    int found = next ? child_allocates(next, 2000) : NO_MEMORY;
    quire_slab_destroy(next);
    return found;
}

/* `forks` children while eight threads work; `fork_one` runs on the thread that forks. */
void fork_under_load(unsigned forks, bool from_main)
{
    Slab busy(BYTES), quiet(BYTES);
    World world = {busy, quiet, {}, {}};
    for (int i = 0; i < 500; i++)
        world.lasting.push_back(quire_slab_alloc(busy)), paint(world.lasting.back(), BYTES, 1);
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < 8; t++)
        workers.emplace_back([&, t] {
            while (!stop) {
                Worker worker({busy, BYTES, &world.table}, t + 1);
                for (int i = 0; i < 3000 && !stop; i++)
                    worker.step();
            }
        });
    auto fork_all = [&] {
        Worker worker({busy, BYTES, &world.table}, 99); /* the forking thread has elements of its own */
        for (unsigned i = 0; i < forks && !::testing::Test::HasFailure(); i++) {
            for (int k = 0; k < 20; k++)
                worker.step();
            int status = status_of_child([&] { return i % 10 ? child_lives(world) : status_of_child([&] { return child_lives(world); }); });
            EXPECT_EQ(status, ALL_GOOD) << "fork " << i;
        }
    };
    if (from_main)
        fork_all();
    else
        std::thread(fork_all).join();
    stop = true;
    for (auto &thread : workers)
        thread.join();
    EXPECT_EQ(busy.live(), world.table.count() + world.lasting.size()) << "the parent went on unharmed";
    world.table.drain(busy, BYTES);
    quire_slab_free_batch(busy, world.lasting.data(), world.lasting.size());
    EXPECT_EQ(busy.live(), 0u);
}

/* Elements of the operations' owners that no operation touches. */
bool is_touched(int i, bool others)
{
    return others ? i == OTHER_ONE || i == OTHER_LONE || i == OTHER_OF_TWO || (i >= OTHER_BATCH && i < OTHER_BATCH_END) : i == OWN_ONE || i == OWN_LONE || i == OWN_OF_TWO;
}

int child_of_a_seam(quire_slab *slab, Owner &a, Owner &b)
{
    if (!is_sound(slab, "at once"))
        return CHECK_FAILED;
    if (!adds_up(stats_of(slab)))
        return SUM_WRONG;
    for (Owner *owner : {&a, &b})
        for (int i = 0; i < COUNT; i++) {
            void *p = owner->elements[i];
            if (!p || is_touched(i, owner == &b))
                continue;
            if (!is_painted(p, OPERATION_BYTES))
                return OTHERS_PAINT;
            quire_slab_free(slab, p);
        }
    std::vector<void *> got(100);
    if (quire_slab_alloc_batch(slab, got.data(), got.size()) != got.size())
        return NO_MEMORY;
    for (void *p : got)
        paint(p, OPERATION_BYTES, 5);
    for (Owner *owner : {&a, &b})
        for (int i = 0; i < COUNT; i++)
            if (void *p = owner->elements[i]; p && !is_touched(i, owner == &b) && is_painted(p, OPERATION_BYTES) && stamp_of(p) != 5 && quire_slab_owns(slab, p))
                return STILL_OWNED;
    quire_slab_free_batch(slab, got.data(), got.size());
    quire_slab_trim(slab);
    if (!is_sound(slab, "used"))
        return CHECK_FAILED;
    if (!adds_up(stats_of(slab)))
        return SUM_WRONG;
    quire_slab_destroy(slab);
    return ALL_GOOD;
}

/* Fork while A is at step k of an operation; false when it has no such step. */
bool fork_at(const Operation &x, int k)
{
    Slab slab(OPERATION_BYTES, eight_a_page(0));
    Owner a, b;
    b.set_up(slab);
    Seam::reset();
    std::thread first([&] {
        if (x.newcomer)
            std::thread([&] { a.set_up(slab); }).join();
        else
            a.set_up(slab);
        Seam::arm(k);
        x.run(slab, a, b);
        Seam::disarm();
    });
    Seam::wait_for_stop();
    bool came = !Seam::is_passed();
    int status = came ? status_of_child([&] { return set_noise(nullptr), child_of_a_seam(slab, a, b); }) : ALL_GOOD;
    EXPECT_EQ(status, ALL_GOOD) << "fork at step " << k << " of: " << x.name;
    Seam::go_on();
    first.join();
    EXPECT_STREQ(quire_slab_check(slab), nullptr);
    return came;
}

const char *const NOT_UNDER_TSAN = "ThreadSanitizer does not follow a fork of many threads";
} // namespace

TEST(SlabFork, children_of_eight_busy_threads_use_and_end_the_slab)
{
    if (BUILT_WITH_TSAN || BUILT_WITH_ASAN) /* a child of their busy processes waits for locks of theirs */
        GTEST_SKIP() << NOT_UNDER_TSAN;
    fork_under_load(test_long() ? 1000 : 15, true);
}

TEST(SlabFork, a_thread_that_is_not_the_first_may_fork_too)
{
    if (BUILT_WITH_TSAN || BUILT_WITH_ASAN) /* a child of their busy processes waits for locks of theirs */
        GTEST_SKIP() << NOT_UNDER_TSAN;
    fork_under_load(test_long() ? 1000 : 8, false);
}

TEST(SlabFork, at_every_step_of_every_operation)
{
    if (BUILT_WITH_TSAN || BUILT_WITH_ASAN || !QUIRE_CHECK)
        GTEST_SKIP() << NOT_UNDER_TSAN << "; the check build has the steps";
    Noise steps(Seam::step);
    int forks = 0;
    for (const Operation &x : operations)
        for (int k = 0; k < 3000 && !x.ends && fork_at(x, k); k += 1 + k / (test_long() ? 1000 : 20)) {
            forks++;
            if (HasFailure())
                return;
        }
    RecordProperty("forks", forks);
}
