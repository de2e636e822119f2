// SPDX-License-Identifier: MIT
/* Children of busy processes: whatever the threads that are gone were doing, the child can use the slab, and end it. */
#include <algorithm>
#include <sys/stat.h>

#include <quire/arena.h>

#include "model/slab_no_barrier.h"
#include "race/slab_operations.h"
#include "race/slab_race.h"
#include "race/slab_seam.h"

namespace {
constexpr size_t BYTES = 64;

/* What a child found wrong, as its exit status. */
enum Found { ALL_GOOD = 0, CHECK_FAILED = 10, NO_MEMORY, OTHERS_PAINT, SUM_WRONG, FEWER_LIVE, TRIM_GAVE_NOTHING, STILL_OWNED, CHILDS_CHILD };

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
    if (BUILT_WITH_TSAN || under_asan()) /* a child of their busy processes waits for locks of theirs */
        GTEST_SKIP() << NOT_UNDER_TSAN;
    fork_under_load(test_long() ? 1000 : 15, true);
}

TEST(SlabFork, a_thread_that_is_not_the_first_may_fork_too)
{
    if (BUILT_WITH_TSAN || under_asan()) /* a child of their busy processes waits for locks of theirs */
        GTEST_SKIP() << NOT_UNDER_TSAN;
    fork_under_load(test_long() ? 1000 : 8, false);
}

TEST(SlabFork, at_every_step_of_every_operation)
{
    if (BUILT_WITH_TSAN || under_asan() || !QUIRE_CHECK)
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

namespace {
/* A thread has slots of every page cached, and waits, until the end of the block. */
class Idle {
public:
    Idle(quire_slab *slab, size_t count)
        : thread([this, slab, count] {
              std::vector<void *> elements(count);
              for (void *&p : elements)
                  p = quire_slab_alloc(slab);
              for (void *p : elements)
                  quire_slab_free(slab, p);
              stage = 1;
              while (stage == 1)
                  sleep_ms(1);
          })
    {
        while (stage == 0)
            sleep_ms(1);
    }
    ~Idle() { stage = 2, thread.join(); }

private:
    std::atomic<int> stage{0};
    std::thread thread;
};

int count_all(void *, void *n) { return ++*static_cast<size_t *>(n), 0; }
} // namespace

/* What vanished threads had cached empties pages.  They stay: the child may call nothing at all, and the source may be locked until its own handler has run. */
TEST(SlabFork, a_child_that_calls_nothing_has_given_nothing_back_and_started_no_thread)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << NOT_UNDER_TSAN;
    for (uint32_t flags : {0u, uint32_t(QUIRE_SLAB_KEEP_NOTHING)}) {
        quire_source *count = quire_source_count(quire_source_default());
        {
            quire_slab_opts opts = {};
            opts.source = count, opts.page_bytes_max = os_page_bytes(), opts.flags = flags;
            Slab slab(os_page_bytes() / 4, opts);
            Idle idle(slab, 64);
            struct quire_source_stats before = {.struct_bytes = sizeof before};
            quire_source_stats(count, &before);
            EXPECT_EQ(status_of_child([&]() -> int {
                          struct quire_source_stats now = {.struct_bytes = sizeof now};
                          quire_source_stats(count, &now);
                          struct stat tasks;
                          return now.gives != before.gives ? 1 : stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink != 3 ? 2 : 0;
                      }),
                      0)
                << "flags " << flags;
        }
        quire_source_destroy(count);
    }
}

/* In the child no thread can be alone with another's cache any more: what caches and depots held is free in its page, and no cache remembers the slab. */
TEST(SlabFork, a_child_to_which_membarrier_is_forbidden_has_every_slot_and_may_end_the_slab_and_fork)
{
    if (BUILT_WITH_TSAN || under_asan() || barrier_is_refused)
        GTEST_SKIP() << NOT_UNDER_TSAN << ", or without caches";
    Slab slab(BYTES);
    void *one = quire_slab_alloc(slab);
    for (int round = 0; round < 3; round++)
        std::thread([&] {
            std::vector<void *> elements(20000);
            for (void *&p : elements)
                p = quire_slab_alloc(slab);
            for (void *p : elements)
                quire_slab_free(slab, p);
        }).join();
    Fault barrier(OS_BARRIER, 1, true);
    EXPECT_EQ(status_of_child([&]() -> int {
                  size_t live = 0;
                  quire_slab_walk(slab, count_all, &live);
                  if (live != 1 || stats_of(slab).live_elements != 1)
                      return 1;
                  quire_slab_trim(slab);
                  if (stats_of(slab).pages != 1)
                      return 2;
                  quire_slab_destroy(slab);
                  std::vector<quire_arena *> others(8);
                  for (quire_arena *&arena : others)
                      memset(quire_arena_alloc(arena = quire_arena_create(nullptr), 3000), 0xff, 3000);
                  return status_of_child([] { return 0; }, 20);
              }),
              0);
    quire_slab_free(slab, one);
}

TEST(SlabFork, a_child_may_end_a_source_of_which_a_thread_that_is_gone_had_a_page_in_its_hands)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << NOT_UNDER_TSAN;
    quire_source *count = quire_source_count(quire_source_default());
    {
        quire_slab_opts opts = {};
        opts.source = count, opts.page_bytes_max = os_page_bytes(), opts.flags = QUIRE_SLAB_KEEP_NOTHING;
        Slab slab(os_page_bytes(), opts);
        std::atomic<bool> stop{false};
        std::thread busy([&] {
            while (!stop) {
                std::vector<void *> elements(64);
                for (void *&p : elements)
                    p = quire_slab_alloc(slab);
                for (void *p : elements)
                    quire_slab_free(slab, p);
            }
        });
        for (int i = 0; i < (test_long() ? 500 : 20) && !HasFailure(); i++)
            EXPECT_EQ(status_of_child([&] { return quire_slab_destroy(slab), quire_source_destroy(count), 0; }), 0) << "fork " << i;
        stop = true;
        busy.join();
    }
    quire_source_destroy(count);
}

/* The walk stands on a page of a list that is made anew, as another thread was inside of a slab: it goes on in the same order. */
TEST(SlabFork, a_walk_that_forks_visits_the_same_elements_in_the_child)
{
    if (BUILT_WITH_TSAN || under_asan())
        GTEST_SKIP() << NOT_UNDER_TSAN;
    struct Walk {
        std::vector<unsigned char> seen;
        size_t until_fork;
        pid_t child;
    } walk;
    Slab slab(BYTES);
    Slab other(BYTES, uint32_t(QUIRE_SLAB_EXACT));
    const size_t count = 40000;
    std::vector<void *> elements(count);
    for (size_t i = 0; i < count; i++)
        *static_cast<size_t *>(elements[i] = quire_slab_alloc(slab)) = i;
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop)
            quire_slab_free(other, quire_slab_alloc(other));
    });
    for (int i = 0; i < 10 && !HasFailure(); i++) {
        walk = {std::vector<unsigned char>(count), 100, -1};
        quire_slab_walk(
            slab,
            [](void *element, void *arg) {
                Walk *w = static_cast<Walk *>(arg);
                w->seen[*static_cast<size_t *>(element)]++;
                if (--w->until_fork == 0)
                    w->child = fork();
                return w->child > 0 ? 1 : 0;
            },
            &walk);
        if (walk.child == 0)
            _exit(std::count(walk.seen.begin(), walk.seen.end(), 1) != ptrdiff_t(count));
        int status = 0;
        ASSERT_EQ(waitpid(walk.child, &status, 0), walk.child);
        EXPECT_EQ(status, 0) << "fork " << i;
    }
    stop = true;
    busy.join();
    for (void *p : elements)
        quire_slab_free(slab, p);
}
