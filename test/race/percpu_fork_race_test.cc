// SPDX-License-Identifier: MIT
/* Children of a process whose threads are all at work: the child counts on from what it found, uses the pool and ends it; the parent sees nothing. */
#include "race/own_forks.h"
#include "race/percpu_race.h"

#include <array>

#define class class_ /* a parameter's name there */
#include "percpu/percpu_internal.h"
#undef class

namespace {
enum { ALL_GOOD = 0, CHECK_FAILED = 10, NO_MEMORY, OTHERS_PAINT, SUM_WRONG, COUNTER_WRONG, STATS_WRONG, STILL_OWNED, NOT_EMPTY, NODE_LOST, RESERVE_GONE };

struct World {
    quire_percpu *busy, *quiet;
    PercpuTable table;
    std::vector<PercpuObject> lasting;
    quire_percpu_ref counter, settled, scratch, list;
    std::atomic<intptr_t> begun{0}, ended{0}; /* adds of 1 to the counter */
    std::atomic<bool> pause{false}, stop{false};
    void *nodes[16][2]; /* eight on the list of `busy`, or with whoever moves one */
};
constexpr intptr_t SETTLED = 123456789;

/* The child's own words; the parent only sees that CHECK_FAILED. */
bool is_sound(quire_percpu *pool, const char *when) { return is_nothing(quire_percpu_check(pool), when); }

/* Allocate, verify and free; half of it by another thread. */
int child_allocates(quire_percpu *pool)
{
    std::vector<quire_percpu_ref> mine(500), theirs(500);
    auto fill = [pool](std::vector<quire_percpu_ref> &refs) {
        for (quire_percpu_ref &ref : refs) {
            ref = quire_percpu_alloc(pool, 48, 0);
            if (ref.bits && quire_percpu_sum(pool, ref) == 0)
                quire_percpu_add(pool, ref, intptr_t(ref.bits));
        }
    };
    auto let_go = [pool](std::vector<quire_percpu_ref> &refs) {
        bool good = true;
        for (quire_percpu_ref ref : refs) {
            good = good && ref.bits && quire_percpu_sum(pool, ref) == intptr_t(ref.bits);
            quire_percpu_free(pool, ref);
        }
        return good;
    };
    fill(mine);
    bool good = true;
    std::thread other([&] { fill(theirs), good = let_go(mine); });
    other.join();
    return good && let_go(theirs) ? ALL_GOOD : OTHERS_PAINT;
}

int child_counts(World &world, intptr_t low, intptr_t high)
{
    intptr_t found = quire_percpu_sum(world.busy, world.counter);
    if (found < low || found > high)
        return COUNTER_WRONG;
    for (int i = 0; i < 100; i++)
        quire_percpu_add(world.busy, world.counter, 1);
    if (quire_percpu_sum(world.busy, world.counter) != found + 100 || quire_percpu_sum(world.busy, world.settled) != SETTLED)
        return SUM_WRONG;
    quire_percpu_push(world.busy, world.list, world.nodes[15]);
    for (size_t found_nodes = 0; void *popped = quire_percpu_pop(world.busy, world.list);)
        if (popped < world.nodes || popped >= world.nodes + 16 || ++found_nodes > 16)
            return NODE_LOST;
    intptr_t seen = 0;
    while (!quire_percpu_cmpxchg(world.busy, world.counter, &seen, seen - 100)) {
    }
    return quire_percpu_sum(world.busy, world.counter) == found ? ALL_GOOD : SUM_WRONG;
}

int child_frees_what_was_others(World &world)
{
    for (size_t i = 0; i < PercpuTable::PLACES; i++) /* allocated by threads that are gone */
        if (PercpuObject *object = world.table.swap(i, nullptr)) {
            if (!is_as_left(world.busy, *object))
                return OTHERS_PAINT;
            quire_percpu_free(world.busy, object->ref);
            if (quire_percpu_owns(world.busy, object->ref))
                return STILL_OWNED;
        }
    for (const PercpuObject &object : world.lasting) {
        if (!is_as_left(world.busy, object))
            return OTHERS_PAINT;
        quire_percpu_free(world.busy, object.ref);
    }
    return ALL_GOOD;
}

/* All that a child does with the pools of its parent.  `low`: the counter before the fork. */
int child_lives(World &world, intptr_t low)
{
    if (!is_sound(world.busy, "busy, at once") || !is_sound(world.quiet, "quiet, at once"))
        return CHECK_FAILED;
    PercpuStats s = stats_of(world.busy);
    if (s.mapped_bytes != s.live_bytes + s.free_bytes + s.meta_bytes || s.live_objects < world.table.count() + world.lasting.size())
        return STATS_WRONG;
    if (int found = child_counts(world, low, world.begun))
        return found;
    quire_percpu_ref quick = quire_percpu_alloc_nowait(world.quiet, 64, 0);
    if (is_none(quick))
        return RESERVE_GONE;
    quire_percpu_free(world.quiet, quick);
    for (quire_percpu *pool : {world.busy, world.quiet})
        if (int found = child_allocates(pool))
            return found;
    if (int found = child_frees_what_was_others(world))
        return found;
    quire_percpu_trim(world.busy);
    if (!is_sound(world.busy, "busy, used") || !is_sound(world.quiet, "quiet, used"))
        return CHECK_FAILED;
    s = stats_of(world.busy);
    if (s.mapped_bytes != s.live_bytes + s.free_bytes + s.meta_bytes)
        return STATS_WRONG;
    quire_percpu_destroy(world.quiet);
    quire_percpu_destroy(world.busy);
    quire_percpu *next = quire_percpu_create(nullptr);
    int found = next ? child_allocates(next) : NO_MEMORY;
    quire_percpu_destroy(next);
    return found;
}

quire_percpu_opts with_reserve()
{
    quire_percpu_opts opts = small_units(4);
    opts.reserve_bytes = os_page_bytes();
    return opts;
}

void work_until_stopped(World &world, uint64_t seed)
{
    while (!world.stop) {
        PercpuWorker worker({world.busy, &world.table, world.scratch}, seed);
        for (int i = 0; i < 3000 && !world.stop; i++) {
            while (world.pause)
                usleep(100);
            world.begun++;
            quire_percpu_add(world.busy, world.counter, 1);
            world.ended++;
            if (void *node = quire_percpu_pop(world.busy, world.list))
                quire_percpu_push(world.busy, world.list, node);
            worker.step();
        }
    }
}

/* What no worker touches, painted. */
void set_up(World &world)
{
    world.counter = quire_percpu_alloc(world.busy, sizeof(intptr_t), 0);
    world.settled = quire_percpu_alloc(world.busy, sizeof(intptr_t), 0);
    world.scratch = quire_percpu_alloc(world.busy, sizeof(intptr_t), 0);
    world.list = quire_percpu_alloc(world.busy, sizeof(void *), 0);
    for (int i = 0; i < 8; i++)
        quire_percpu_push(world.busy, world.list, world.nodes[i]);
    quire_percpu_add(world.busy, world.settled, SETTLED);
    for (uint64_t i = 0; i < 200; i++) {
        PercpuObject object = {};
        object.bytes = 8 + i % 30 * 8;
        object.ref = quire_percpu_alloc(world.busy, object.bytes, 0);
        paint(world.busy, object, unsigned(i) % quire_percpu_cpus(world.busy), i);
        add_to(world.busy, object, intptr_t(i) * 1000);
        world.lasting.push_back(object);
    }
}

void tear_down(World &world)
{
    world.table.drain(world.busy);
    for (const PercpuObject &object : world.lasting) {
        EXPECT_TRUE(is_as_left(world.busy, object));
        quire_percpu_free(world.busy, object.ref);
    }
    EXPECT_EQ(quire_percpu_sum(world.busy, world.settled), SETTLED);
    for (quire_percpu_ref ref : {world.counter, world.settled, world.scratch, world.list})
        quire_percpu_free(world.busy, ref);
}

/* As status_of_child(); the parent's workers rest while the child lives, and are at full speed again when this returns. */
int status_of_child_of(World &world, const std::function<int()> &body)
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(100);
        exit_now(body());
    }
    world.pause = true;
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    world.pause = false;
    usleep(300);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* `forks` children, each tenth of which has one that does the same, while eight threads work. */
void fork_under_load(os_rseq_mode mode, unsigned forks, bool from_main)
{
    SCOPED_TRACE(name_of(mode));
    Mode set(mode);
    Pool busy(small_units()), quiet(with_reserve());
    World world = {};
    world.busy = busy, world.quiet = quiet;
    set_up(world);
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < 8; t++)
        workers.emplace_back([&, t] { work_until_stopped(world, t + 1); });
    auto fork_all = [&] {
        PercpuWorker worker({busy, &world.table, world.scratch}, 99); /* the forking thread has objects of its own */
        for (unsigned i = 0; i < forks && !::testing::Test::HasFailure(); i++) {
            for (int k = 0; k < 20; k++)
                worker.step();
            intptr_t low = world.ended;
            EXPECT_EQ(status_of_child_of(world, [&] { return i % 10 ? child_lives(world, low) : status_of_child([&] { return child_lives(world, low); }); }), ALL_GOOD)
                << "fork " << i;
        }
    };
    if (from_main)
        fork_all();
    else
        std::thread(fork_all).join();
    world.stop = true;
    for (auto &thread : workers)
        thread.join();
    EXPECT_EQ(quire_percpu_sum(busy, world.counter), world.ended) << "the parent went on unharmed";
    EXPECT_EQ(busy.live(), world.table.count() + world.lasting.size() + 4);
    tear_down(world);
    EXPECT_EQ(busy.live(), 0u);
}

/* ---- a handler forks in the middle of this thread's own operation, and returns in the child ---- */

/* Allocates and frees until `ends`; nothing from malloc, in which a handler must not fork. */
bool churn(quire_percpu *pool, uint64_t seed, const std::function<bool()> &ends)
{
    Random random(seed);
    std::array<quire_percpu_ref, 400> refs = {};
    while (!ends()) {
        quire_percpu_ref &ref = refs[random.below(refs.size())];
        bool is_live = ref.bits != 0;
        if (is_live)
            quire_percpu_free(pool, ref);
        ref = is_live ? quire_percpu_ref{0} : quire_percpu_alloc(pool, 8 + random.below(200), 0);
    }
    for (quire_percpu_ref ref : refs)
        quire_percpu_free(pool, ref);
    return true;
}

bool forks_are_beyond_the_sanitizer() { return BUILT_WITH_TSAN || under_asan(); } /* a child of their busy processes waits for locks of theirs */
const char *const NOT_HERE = "a child of a busy process waits for locks of the sanitizer's own";
} // namespace

TEST(PercpuFork, children_of_eight_busy_threads_use_and_end_the_pool)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load(OS_RSEQ_AUTO, test_long() ? 2000 : 60, true);
}

TEST(PercpuFork, and_so_they_do_without_sequences)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load(OS_RSEQ_OFF, test_long() ? 1000 : 30, true);
}

TEST(PercpuFork, a_thread_that_is_not_the_first_may_fork_too)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load(OS_RSEQ_AUTO, test_long() ? 1000 : 20, false);
}

TEST(PercpuFork, a_thread_that_forks_in_a_handler_goes_on_in_the_child_with_what_it_was_at)
{
    if (memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    for (int others : {0, 2}) {
        Pool busy(small_units());
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < others; i++)
            threads.emplace_back([&, i] { churn(busy, uint64_t(i), [&] { return stop.load(); }); });
        auto work = [&](const ForksBySignal::Ends &ends) { return churn(busy, 77, ends); };
        auto child = [&](bool) { return is_sound(busy, "behind a handler") ? int(ALL_GOOD) : int(CHECK_FAILED); };
        EXPECT_EQ(ForksBySignal::bad_children(test_long() ? 4000 : 300, 3000, work, child), 0) << "beside " << others << " threads";
        stop = true;
        for (std::thread &thread : threads)
            thread.join();
        EXPECT_EQ(busy.live(), 0u);
    }
}

/* In the middle of taking a chunk off the list, as a handler finds it: what is half done is left, for this thread goes on with it, though another was inside. */
TEST(PercpuFork, the_list_that_the_forking_thread_is_changing_is_left_to_it)
{
    if (memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    Pool pool(small_units());
    quire_percpu *its = pool;
    std::vector<quire_percpu_ref> refs;
    while (size_load_relaxed(&its->chunks) < 4)
        refs.push_back(quire_percpu_alloc(pool, 200, 0));
    std::atomic<bool> is_inside{false}, ends{false};
    std::thread inside([&] {
        struct percpu_local *home = &its->home;
        lock_take(&home->inbox_lock);
        is_inside = true;
        while (!ends)
            usleep(1000);
        lock_drop(&home->inbox_lock);
    });
    while (!is_inside)
        usleep(1000);
    lock_take(&its->lock);
    struct percpu_chunk *leaving = its->all->all_next, *follower = leaving->all_next;
    follower->all_prev = leaving->all_prev;
    pid_t child = fork();
    if (child == 0) {
        bool is_left = follower->all_prev == leaving->all_prev && lock_is_mine(&its->lock);
        follower->all_prev = leaving;
        lock_drop(&its->lock);
        exit_now(!is_left ? OTHERS_PAINT : is_sound(pool, "with its list") ? ALL_GOOD : CHECK_FAILED);
    }
    follower->all_prev = leaving;
    lock_drop(&its->lock);
    ends = true;
    inside.join();
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, ALL_GOOD);
    for (quire_percpu_ref ref : refs)
        quire_percpu_free(pool, ref);
}
