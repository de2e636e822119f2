// SPDX-License-Identifier: MIT
/*
 * slab_race.h - what the slab's race tests share: elements that show a second owner, a table through which threads swap them, and a worker that
 * does everything a thread may do with a slab, in random order.
 *
 *     worker 1 --- allocates, paints, verifies, frees --- worker 2 ...
 *          \                                             /
 *           +-------> Table: swap mine for another's <--+
 *
 * An element is painted when it is had and verified when it is let go, whoever lets it go; before the free it is scribbled over.  Two owners of
 * one element see each other's paint.
 */
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <functional>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

#include <quire/quire.h>
#include <quire/slab.h>

#include "support.h"

using SlabStats = struct quire_slab_stats; /* the function has the same name */

/*
 * How much a test does: all of it in the long run, and there fifty times; else a tenth, a 24th where every access is watched, a fortieth where every
 * step is, and a fortieth once more in the process that is given no barrier (slab_barrier_race_test.cc), which does everything through locks.
 */
inline bool once_more() { return getenv("QUIRE_TEST_NO_BARRIER") != nullptr && !test_long(); }
inline unsigned scaled(unsigned count)
{
    unsigned divisor = BUILT_WITH_TSAN ? 10 : under_asan() ? 3 : 1;
    if (!test_long())
        divisor = BUILT_WITH_TSAN || once_more() ? 40 : under_asan() ? 24 : 10;
    return (test_long() ? count * 50 : count) / divisor + (count % divisor != 0);
}

/*
 * Who waits for another thread of ours: that one runs now.  Where other programs want the CPU each yield waits for their turns, too; whoever sleeps
 * instead is let in before them when it wakes.
 */
inline void wait_a_moment()
{
    static thread_local bool is_crowded = false;
    if (is_crowded) {
        usleep(50);
        return;
    }
    uint64_t start_ns = os_time_ns();
    sched_yield();
    is_crowded = os_time_ns() - start_ns > 1000000;
}

/* At one of twenty atomic steps the thread lets another run: on few cores nothing else makes races meet. */
inline void noise()
{
    static thread_local uint64_t state = 0;
    if (state == 0)
        state = reinterpret_cast<uintptr_t>(&state) | 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((state >> 40) % 20 == 0)
        yield_sparingly();
}

/* In a child of a fork, whose parent sees its exit status only: what a check found goes to the log.  True: nothing. */
inline bool is_nothing(const char *wrong, const char *when)
{
    if (wrong)
        fprintf(stderr, "in the child, %s: %s\n", when, wrong);
    return !wrong;
}
inline bool is_sound(quire_slab *slab, const char *when) { return is_nothing(quire_slab_check(slab), when); }

/* As a program has them compiled in, every other time: the tests themselves are not optimised, and make calls. */
inline bool by_turns()
{
    static thread_local unsigned turn = 0;
    return turn++ % 2 == 0;
}
inline void *alloc_either_way(quire_slab *slab)
{
    void *p = by_turns() ? quire_slab_alloc_try(reinterpret_cast<const quire_slab_window *>(slab)) : nullptr;
    return p ? p : quire_slab_alloc(slab);
}
inline void free_either_way(quire_slab *slab, void *p)
{
    if (!by_turns() || !quire_slab_free_try(reinterpret_cast<const quire_slab_window *>(slab), p))
        quire_slab_free(slab, p);
}

class Noise {
public:
    explicit Noise(void (*hook)() = noise) { set_noise(hook); }
    ~Noise() { set_noise(nullptr); }
};

/* The default source's decay for the length of a test. */
class Decay {
public:
    explicit Decay(uint64_t ns) { EXPECT_EQ(quire_source_set_decay(quire_source_default(), ns), 0); }
    ~Decay() { quire_source_set_decay(quire_source_default(), DECAY_STILL_NS); }
};

inline SlabStats stats_of(const quire_slab *slab)
{
    SlabStats out = {.struct_bytes = sizeof out};
    quire_slab_stats(slab, &out);
    return out;
}

inline bool adds_up(const SlabStats &s) { return s.mapped_bytes == s.live_bytes + s.free_bytes + s.meta_bytes && s.live_bytes == s.live_elements * s.slot_bytes; }

/* A slab that is checked, and destroyed, at the end of its scope. */
class Slab {
public:
    explicit Slab(size_t element_bytes, quire_slab_opts opts = {})
    {
        opts.name = "race";
        slab = quire_slab_create(element_bytes, &opts);
        EXPECT_NE(slab, nullptr);
    }
    Slab(size_t element_bytes, uint32_t flags) : Slab(element_bytes, flagged(flags)) {}
    Slab(const Slab &) = delete;
    ~Slab()
    {
        EXPECT_STREQ(quire_slab_check(slab), nullptr);
        EXPECT_TRUE(adds_up(stats_of(slab)));
        quire_slab_destroy(slab);
    }
    operator quire_slab *() const { return slab; }
    size_t live() const { return stats_of(slab).live_elements; }

private:
    static quire_slab_opts flagged(uint32_t flags)
    {
        quire_slab_opts opts = {};
        opts.flags = flags;
        return opts;
    }
    quire_slab *slab;
};

/* ---- elements ---- */

/* Every word of the element, from one stamp; element sizes are multiples of 8. */
inline void paint(void *p, size_t bytes, uint64_t stamp)
{
    uint64_t *words = static_cast<uint64_t *>(p);
    words[0] = stamp;
    for (size_t i = 1; i < bytes / 8; i++)
        words[i] = (stamp + i) * 0x9e3779b97f4a7c15u;
}
inline bool is_painted(const void *p, size_t bytes)
{
    const uint64_t *words = static_cast<const uint64_t *>(p);
    for (size_t i = 1; i < bytes / 8; i++)
        if (words[i] != (words[0] + i) * 0x9e3779b97f4a7c15u)
            return false;
    return true;
}
inline uint64_t stamp_of(const void *p) { return *static_cast<const uint64_t *>(p); }
inline void scribble(void *p, size_t bytes) { memset(p, 0xdb, bytes); }

/* Threads swap an element of theirs, or nothing, for what lies in a place. */
class Table {
public:
    static constexpr size_t PLACES = 256;
    void *swap(size_t place, void *p) { return places[place % PLACES].exchange(p, std::memory_order_acq_rel); }
    size_t count() const
    {
        size_t n = 0;
        for (auto &place : places)
            n += place.load(std::memory_order_acquire) != nullptr;
        return n;
    }
    /* Verify and free everything. */
    void drain(quire_slab *slab, size_t bytes)
    {
        for (size_t i = 0; i < PLACES; i++)
            if (void *p = swap(i, nullptr)) {
                EXPECT_TRUE(is_painted(p, bytes));
                quire_slab_free(slab, p);
            }
    }

private:
    std::atomic<void *> places[PLACES] = {};
};

/* What one thread does: everything, in random order. */
class Worker {
public:
    struct Job {
        quire_slab *slab;
        size_t bytes;
        Table *table;
        size_t held_max = 60;
        bool may_run_out = false;
    };
    Worker(const Job &job_, uint64_t seed) : job(job_), random(seed), next_stamp(seed << 40) {}
    ~Worker() { drop_many(held.size()); }
    void step()
    {
        if (held.size() > job.held_max)
            return drop_many(held.size() / 2 + random.below(held.size() / 2));
        switch (random.below(8)) {
        case 0:
        case 1: return take();
        case 2: return take_many(1 + random.below(40));
        case 3:
        case 4: return drop_one();
        case 5: return drop_many(random.below(12));
        case 6: return swap(true);
        default: return swap(false);
        }
    }
    size_t count() const { return held.size(); }

private:
    struct Held {
        void *p;
        uint64_t stamp;
    };
    void own(void *p)
    {
        held.push_back({p, ++next_stamp});
        paint(p, job.bytes, next_stamp);
    }
    void verify(const Held &h)
    {
        EXPECT_TRUE(stamp_of(h.p) == h.stamp && is_painted(h.p, job.bytes)) << "element " << h.p << " has another owner";
        scribble(h.p, job.bytes);
    }
    void take()
    {
        bool zero = random.below(4) == 0;
        void *p = zero ? quire_slab_alloc_zero(job.slab) : alloc_either_way(job.slab);
        if (!p) {
            EXPECT_TRUE(job.may_run_out && errno == ENOMEM);
            return drop_many(held.size());
        }
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (job.bytes % 16 ? 8 : 16), 0u);
        for (size_t i = 0; zero && i < job.bytes / 8; i++)
            EXPECT_EQ(static_cast<uint64_t *>(p)[i], 0u);
        own(p);
    }
    void take_many(size_t count)
    {
        void *got[40];
        size_t n = quire_slab_alloc_batch(job.slab, got, count);
        EXPECT_TRUE(n == count || (job.may_run_out && errno == ENOMEM));
        for (size_t i = 0; i < n; i++)
            own(got[i]);
    }
    Held pick()
    {
        size_t k = random.below(held.size());
        Held h = held[k];
        held[k] = held.back();
        held.pop_back();
        return h;
    }
    void drop_one()
    {
        if (held.empty())
            return;
        Held h = pick();
        verify(h);
        free_either_way(job.slab, h.p);
    }
    void drop_many(size_t count)
    {
        std::vector<void *> gone;
        while (count-- > 0 && !held.empty()) {
            Held h = pick();
            verify(h);
            gone.push_back(h.p);
            if (random.below(10) == 0)
                gone.push_back(nullptr);
        }
        quire_slab_free_batch(job.slab, gone.data(), gone.size());
    }
    /* Mine for another's; keep that, or free it at once: then the free is a stranger's. */
    void swap(bool keep)
    {
        void *mine = held.empty() ? nullptr : pick().p;
        EXPECT_TRUE(!mine || is_painted(mine, job.bytes));
        void *theirs = job.table->swap(random.next(), mine);
        if (!theirs)
            return;
        Held h = {theirs, stamp_of(theirs)};
        if (keep && is_painted(theirs, job.bytes)) {
            held.push_back(h);
        } else {
            verify(h);
            free_either_way(job.slab, theirs);
        }
    }

    Job job;
    Random random;
    uint64_t next_stamp;
    std::vector<Held> held;
};

/* Run `threads` workers of `steps` steps each; meanwhile every one of `others` over and over on a thread of its own. */
inline void work(const Worker::Job &job, unsigned threads, unsigned steps, const std::vector<std::function<void()>> &others = {})
{
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers, beside;
    for (unsigned t = 0; t < threads; t++)
        workers.emplace_back([=] {
            Worker worker(job, t + 1);
            for (unsigned i = 0; i < steps; i++)
                worker.step();
        });
    for (auto &other : others)
        beside.emplace_back([&stop, &other] {
            while (!stop)
                other();
        });
    for (auto &thread : workers)
        thread.join();
    stop = true;
    for (auto &thread : beside)
        thread.join();
}

/* After the work: what is live is what lies in the table, and nothing once that is freed. */
inline void settle(const Worker::Job &job)
{
    EXPECT_EQ(stats_of(job.slab).live_elements, job.table->count());
    size_t visited = 0;
    quire_slab_walk(job.slab, [](void *, void *n) { return ++*static_cast<size_t *>(n), 0; }, &visited);
    EXPECT_EQ(visited, job.table->count());
    EXPECT_STREQ(quire_slab_check(job.slab), nullptr);
    job.table->drain(job.slab, job.bytes);
    EXPECT_EQ(stats_of(job.slab).live_elements, 0u);
}

/* ---- processes ---- */

/* Without what sanitizers do at the end of a process: ThreadSanitizer sleeps for a second. */
[[noreturn]] inline void exit_now(int status)
{
    for (;;)
        syscall(SYS_exit_group, status);
}

/* A forked child's exit status, or 128 + the signal that ended it; a child that hangs is ended by SIGALRM. */
inline int status_of_child(const std::function<int()> &body, unsigned seconds_max = 150)
{
    pid_t pid = fork();
    if (pid == 0) {
        alarm(seconds_max);
        exit_now(body());
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
