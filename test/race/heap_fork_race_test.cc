// SPDX-License-Identifier: MIT
/* Children of a process whose threads are all at work in a heap: the child frees what it found, allocates, looks, and ends the heap; the parent sees nothing. */
#include <sys/mman.h>

#include "race/heap_race.h"
#include "race/own_forks.h"

namespace {
enum { ALL_GOOD = 0, CHECK_FAILED = 10, SUM_WRONG, NO_MEMORY, OTHERS_PAINT, WALK_WRONG, STILL_THERE, THREAD_FAILED };

struct World {
    quire_heap *heap;
    Table table;
    std::vector<void *> lasting;
    size_t bytes_max;
};

bool is_sound(quire_heap *heap, const char *when) { return is_nothing(quire_heap_check(heap), when); }

/* Allocates, verifies and frees `count` of all sizes. */
int child_allocates(quire_heap *heap, size_t count)
{
    std::vector<void *> mine;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = i % 100 == 99 ? 50000 + i * 100 : 16 + i * 37 % 3000;
        void *p = quire_heap_alloc(heap, bytes);
        if (!p)
            return NO_MEMORY;
        heap_paint(p, bytes, i);
        mine.push_back(p);
    }
    for (size_t i = 0; i < count; i++) {
        if (stamp_of(mine[i]) != i || !heap_is_painted(mine[i]))
            return OTHERS_PAINT;
        quire_heap_free(heap, mine[i]);
    }
    return ALL_GOOD;
}

/* The blocks that a walk shows can be read to their end. */
int touch(void *p, size_t bytes, void *sum)
{
    *static_cast<size_t *>(sum) += *static_cast<unsigned char *>(p) + size_t(static_cast<unsigned char *>(p)[bytes - 1]);
    return 0;
}

int child_lives(World &world)
{
    quire_heap *heap = world.heap;
    if (!is_sound(heap, "at once"))
        return CHECK_FAILED;
    HeapStats s = stats_of(heap);
    if (!adds_up(s) || s.live_blocks < world.lasting.size() + world.table.count())
        return SUM_WRONG;
    size_t sum = 0;
    if (quire_heap_walk(heap, touch, &sum) != 0 || heap_visited(heap) != s.live_blocks)
        return WALK_WRONG;
    for (size_t i = 0; i < Table::PLACES; i++)
        if (void *p = world.table.swap(i, nullptr)) { /* of threads that are gone */
            if (!heap_is_painted(p))
                return OTHERS_PAINT;
            quire_heap_free(heap, p);
        }
    if (int found = child_allocates(heap, 500))
        return found;
    int found = ALL_GOOD;
    std::thread([&] { found = child_allocates(heap, 300); }).join();
    if (found)
        return found;
    for (void *p : world.lasting) {
        if (!heap_is_painted(p) || stamp_of(p) != 1)
            return OTHERS_PAINT;
        quire_heap_free(heap, p);
    }
    quire_heap_trim(heap);
    if (!is_sound(heap, "used"))
        return CHECK_FAILED;
    if (!adds_up(stats_of(heap)))
        return SUM_WRONG;
    quire_heap_destroy(heap);
    quire_heap *next = quire_heap_create(nullptr);
    found = next ? child_allocates(next, 300) : NO_MEMORY;
    quire_heap_destroy(next);
    return found;
}

/* `forks` children, each tenth of which has one that does the same, while four threads work; the process's own heap is used by all as well. */
void fork_under_load(quire_heap_opts opts, size_t bytes_max, unsigned forks, bool from_main)
{
    Heap heap(opts);
    World world = {heap, {}, {}, bytes_max};
    for (size_t i = 0; i < 500; i++) {
        world.lasting.push_back(quire_heap_alloc(heap, 16 + i));
        heap_paint(world.lasting.back(), 16 + i, 1);
    }
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < 4; t++)
        workers.emplace_back([&, t] {
            while (!stop) {
                HeapWorker worker({heap, &world.table, bytes_max}, t + 1);
                for (int i = 0; i < 2000 && !stop; i++)
                    worker.step();
            }
        });
    auto fork_all = [&] {
        HeapWorker worker({heap, &world.table, bytes_max}, 99); /* the forking thread has blocks of its own */
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
    EXPECT_EQ(heap.live(), world.table.count() + world.lasting.size()) << "the parent went on unharmed";
    heap_table_drain(world.table, heap);
    for (void *p : world.lasting)
        quire_heap_free(heap, p);
    EXPECT_EQ(heap.live(), 0u);
}

/* ---- a handler forks in the middle of this thread's own operation; in the child it returns, or goes on itself and ends the process ---- */

quire_heap *handler_heap;

/* What is had, if anything is, is whole; more than that nobody is promised in a handler. */
int use_heap()
{
    for (size_t i = 0; i < 200; i++) {
        size_t bytes = i % 10 ? 16 + i * 37 % 3000 : 50000 + i * 100;
        void *p = quire_heap_alloc(handler_heap, bytes);
        if (p)
            heap_paint(p, bytes, i);
        if (p && !heap_is_painted(p))
            return OTHERS_PAINT;
        void *moved = i % 3 == 0 ? quire_heap_realloc(handler_heap, p, bytes + 30000) : nullptr;
        p = moved ? moved : p;
        quire_heap_free(handler_heap, p);
    }
    return ALL_GOOD;
}

void go_on() { exit_now(use_heap()); }

/* Allocates, resizes and frees until `ends`; false: a block is not as it was left. */
bool churn(quire_heap *heap, uint64_t seed, bool large, const std::function<bool()> &ends)
{
    Random random(seed);
    std::vector<void *> blocks(large ? 40 : 400);
    bool good = true;
    auto size = [&] { return large && random.below(2) ? 16 + random.below(200000) : 16 + random.below(600); };
    auto paint = [&](void *p, size_t bytes) { heap_paint(p, bytes, random.next()); };
    while (good && !ends()) {
        void *&p = blocks[random.below(blocks.size())];
        size_t bytes = size();
        if (large && random.below(50) == 0)
            quire_heap_trim(heap);
        good = !p || heap_is_painted(p);
        if (!p && (p = quire_heap_alloc(heap, bytes)) != nullptr) {
            paint(p, bytes);
        } else if (p && random.below(3) == 0) {
            void *moved = quire_heap_realloc(heap, p, bytes);
            p = moved ? moved : p;
            if (moved)
                paint(p, bytes);
        } else if (p) {
            quire_heap_free(heap, p);
            p = nullptr;
        }
    }
    for (void *p : blocks)
        quire_heap_free(heap, p);
    return good;
}

/* In the child, when what was interrupted has been done. */
int child_behind_a_handler(quire_heap *heap, bool good)
{
    if (!good)
        return OTHERS_PAINT;
    if (!is_sound(heap, "behind a handler"))
        return CHECK_FAILED;
    HeapStats s = stats_of(heap);
    size_t sum = 0;
    if (!adds_up(s))
        return SUM_WRONG;
    if (quire_heap_walk(heap, touch, &sum) != 0 || heap_visited(heap) != s.live_blocks)
        return WALK_WRONG;
    int found = child_allocates(heap, 300);
    if (!found)
        std::thread([&] { found = child_allocates(heap, 300); }).join();
    quire_heap_trim(heap);
    if (!found && !is_sound(heap, "behind a handler, used"))
        found = CHECK_FAILED;
    const char *wrong = quire_source_check(quire_source_default());
    if (wrong)
        fprintf(stderr, "child: %s\n", wrong);
    return wrong ? int(CHECK_FAILED) : found;
}

void fork_in_handlers(bool large, void (*in_handler)())
{
    for (int others : {0, 2}) {
        Heap heap;
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        handler_heap = heap;
        for (int i = 0; i < others; i++)
            threads.emplace_back([&, i] { EXPECT_TRUE(churn(heap, uint64_t(i), large, [&] { return stop.load(); })); });
        auto work = [&](const ForksBySignal::Ends &ends) { return churn(heap, 77, large, ends); };
        auto child = [&](bool good) { return child_behind_a_handler(heap, good); };
        EXPECT_EQ(ForksBySignal::bad_children(test_long() ? 3000 : 100, large ? 600 : 3000, work, child, in_handler), 0) << "beside " << others << " threads";
        stop = true;
        for (std::thread &thread : threads)
            thread.join();
        EXPECT_EQ(heap.live(), 0u);
    }
}

/* ---- a thread forks in the middle of a large block's operation, and ends in the child without another; its storage is gone, and others live ---- */

struct Forker {
    quire_source source; /* first: what a signal's handler would do, it does while it is asked for memory */
    quire_heap *heap;
    bool forks, uses_heap_before;
    pid_t child;
    pthread_t thread;
    void *stack; /* with the thread's storage at its end */
    void *block; /* that others free: the thread does nothing more with the heap */
};
constexpr size_t STACK_BYTES = 1 << 20;

int take_and_fork(quire_source *source, size_t bytes, size_t align_bytes, quire_span *out)
{
    Forker *f = reinterpret_cast<Forker *>(source);
    if (f->forks && (f->child = fork()) == 0)
        alarm(20);
    f->forks = false;
    return quire_source_anon()->verbs->take(quire_source_anon(), bytes, align_bytes, out);
}

void *outlive(void *arg)
{
    Forker *f = static_cast<Forker *>(arg);
    pthread_join(f->thread, nullptr);
    munmap(f->stack, STACK_BYTES);
    quire_heap_free(f->heap, f->block);
    exit_now(is_sound(f->heap, "behind a thread that forked") ? child_allocates(f->heap, 300) : int(CHECK_FAILED));
}

void *fork_in_a_large_block(void *arg)
{
    Forker *f = static_cast<Forker *>(arg);
    pthread_t other;
    if (f->uses_heap_before)
        quire_heap_free(f->heap, quire_heap_alloc(f->heap, 100));
    f->forks = true;
    f->block = quire_heap_alloc(f->heap, 1 << 20);
    if (f->child == 0 && pthread_create(&other, nullptr, outlive, f) != 0)
        exit_now(THREAD_FAILED);
    return nullptr;
}

int child_of_a_thread_that_ends(bool uses_heap_before)
{
    quire_source_verbs verbs = *quire_source_anon()->verbs;
    verbs.take = take_and_fork;
    Forker f = {{&verbs, "forks"}, nullptr, false, uses_heap_before, -1, {}, mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), nullptr};
    quire_heap_opts opts = {};
    opts.source = &f.source;
    Heap heap(opts);
    f.heap = heap;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    EXPECT_EQ(pthread_attr_setstack(&attr, f.stack, STACK_BYTES), 0);
    EXPECT_EQ(pthread_create(&f.thread, &attr, fork_in_a_large_block, &f), 0);
    pthread_join(f.thread, nullptr);
    pthread_attr_destroy(&attr);
    munmap(f.stack, STACK_BYTES);
    quire_heap_free(heap, f.block);
    int status = 0;
    EXPECT_EQ(waitpid(f.child, &status, 0), f.child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool forks_are_beyond_the_sanitizer() { return BUILT_WITH_TSAN || under_asan(); } /* a child of their busy processes waits for locks of theirs */
const char *const NOT_HERE = "a child of a busy process waits for locks of the sanitizer's own";
} // namespace

TEST(HeapFork, children_of_four_busy_threads_allocate_and_free)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load({}, 2000, test_long() ? 10000 : 25, true);
}

TEST(HeapFork, and_so_they_do_where_most_blocks_are_large)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load({}, 1000000, test_long() ? 2000 : 12, true);
}

TEST(HeapFork, and_in_a_secure_heap)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load(heap_flags(QUIRE_HEAP_SECURE), 2000, test_long() ? 2000 : 12, true);
}

TEST(HeapFork, a_thread_that_is_not_the_first_may_fork_too)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    fork_under_load({}, 2000, test_long() ? 2000 : 8, false);
}

TEST(HeapFork, children_of_threads_that_free_each_others_blocks_find_every_list_whole)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    /* Nothing but frees of others' blocks: whoever is stopped by the fork is in the middle of one.  What was on its way to a thread that was
     * taking it home is lost to the child, and how much that is nobody bounds but the frees themselves: so after ROUNDS everybody waits for
     * everybody and brings all home, however the machine schedules them. */
    constexpr unsigned THREADS = 4, ROUNDS = 128, FREES = 2, IN_HAND = 3;
    Heap heap;
    std::atomic<void *> places[THREADS][64] = {};
    std::atomic<bool> stop{false};
    std::atomic<size_t> arrived{0};
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < THREADS; t++)
        workers.emplace_back([&, t] {
            for (size_t i = 0; !stop; i++) {
                if (i % ROUNDS == 0) {
                    arrived++;
                    while (!stop && arrived < THREADS * (i / ROUNDS + 1))
                        std::this_thread::yield();
                    stats_of(heap);
                }
                void *p = quire_heap_alloc(heap, 16 + i % 4 * 16);
                p = places[t][i % 64].exchange(p);
                quire_heap_free(heap, p);
                quire_heap_free(heap, places[(t + 1 + i / 64 % 3) % THREADS][i % 64].exchange(nullptr));
            }
        });
    for (unsigned i = 0; i < (test_long() ? 10000 : 60) && !HasFailure(); i++) {
        int status = status_of_child([&] {
            if (!is_sound(heap, "at once"))
                return int(CHECK_FAILED);
            for (auto &list : places)
                for (auto &place : list)
                    quire_heap_free(heap, place.load());
            HeapStats s = stats_of(heap);
            if (!adds_up(s) || s.live_blocks > THREADS * (IN_HAND + FREES * ROUNDS))
                return int(SUM_WRONG);
            return child_allocates(heap, 100);
        });
        EXPECT_EQ(status, ALL_GOOD) << "fork " << i;
    }
    stop = true;
    for (auto &thread : workers)
        thread.join();
    for (auto &list : places)
        for (auto &place : list)
            quire_heap_free(heap, place.load());
    EXPECT_EQ(heap.live(), 0u);
}

/* A sort has slots in two magazines, and others in none, for some microseconds. */
TEST(HeapFork, a_child_of_a_thread_that_sorts_has_every_slot)
{
    if (forks_are_beyond_the_sanitizer())
        GTEST_SKIP() << NOT_HERE;
    const size_t count = 12000, bytes = 256;
    Heap heap;
    std::atomic<bool> stop{false};
    std::atomic<size_t> held{0};
    std::thread worker([&] {
        std::vector<void *> blocks(count);
        while (!stop) {
            for (void *&p : blocks)
                p = quire_heap_alloc(heap, bytes), held++;
            for (size_t i = 0; i < count; i++)
                held--, quire_heap_free(heap, blocks[i * 7919 % count]);
        }
    });
    for (unsigned i = 0; i < (test_long() ? 2000 : 250) && !HasFailure(); i++) {
        int status = status_of_child([&] {
            if (!is_sound(heap, "at once"))
                return int(CHECK_FAILED);
            HeapStats s = stats_of(heap);
            if (!adds_up(s) || s.live_blocks > held + 2)
                return int(SUM_WRONG);
            return child_allocates(heap, 100);
        });
        EXPECT_EQ(status, ALL_GOOD) << "fork " << i;
    }
    stop = true;
    worker.join();
    EXPECT_EQ(heap.live(), 0u);
}

TEST(HeapFork, a_thread_that_forks_in_a_handler_goes_on_in_the_child_with_what_it_was_at)
{
    if (forks_are_beyond_the_sanitizer() || memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    fork_in_handlers(false, nullptr);
}

TEST(HeapFork, and_so_it_does_with_large_blocks_and_trims_in_a_handler)
{
    if (forks_are_beyond_the_sanitizer() || memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    fork_in_handlers(true, nullptr);
}

TEST(HeapFork, a_handler_that_goes_on_in_the_child_gets_memory_or_none_and_neither_hangs_nor_harms)
{
    if (forks_are_beyond_the_sanitizer() || memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    fork_in_handlers(false, go_on);
    fork_in_handlers(true, go_on);
}

TEST(HeapFork, a_thread_that_forks_in_the_middle_of_a_large_block_may_end_in_the_child_before_all_others)
{
    if (forks_are_beyond_the_sanitizer() || memory_is_watched())
        GTEST_SKIP() << NOT_HERE;
    EXPECT_EQ(child_of_a_thread_that_ends(false), ALL_GOOD);
    EXPECT_EQ(child_of_a_thread_that_ends(true), ALL_GOOD);
}
