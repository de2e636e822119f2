// SPDX-License-Identifier: MIT
/*
 * percpu_race.h - what the race tests of the per-CPU allocator share: pools in each mode, CPUs to flip between, objects that show a second owner,
 * a table through which threads swap them, and a worker that does everything a thread may do with a pool, in random order.
 *
 *     worker 1 --- allocates, paints copies, verifies, frees --- worker 2 ...
 *          \                                                    /
 *           +----------> PercpuTable: swap mine for another's <+
 *
 * An object is zero on every CPU when it is had, then painted on one CPU and added to on whichever runs the thread, and verified when it is let go,
 * whoever lets it go.  Two owners of one object see each other's paint; what a free does not clear is seen by the next owner.
 */
#pragma once

#include "race/slab_race.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <signal.h>

#include <quire/percpu.h>

#include "os/os_rseq.h"

using PercpuStats = struct quire_percpu_stats; /* the function has the same name */

/* Sequences where they work, and atomics: every test runs in both. */
constexpr os_rseq_mode MODES[] = {OS_RSEQ_AUTO, OS_RSEQ_OFF};
inline const char *name_of(os_rseq_mode mode) { return mode == OS_RSEQ_AUTO ? "auto" : "off"; }

/* The mode of the pools that are made while this lives. */
class Mode {
public:
    explicit Mode(os_rseq_mode mode) { os_rseq_force(mode); }
    ~Mode() { os_rseq_force(OS_RSEQ_AUTO); }
};

inline PercpuStats stats_of(const quire_percpu *pool)
{
    PercpuStats out = {.struct_bytes = sizeof out};
    quire_percpu_stats(pool, &out);
    return out;
}
inline bool adds_up(const PercpuStats &s)
{
    return s.mapped_bytes == s.live_bytes + s.free_bytes + s.meta_bytes && s.allocs - s.frees == s.live_objects && s.empty_chunks <= s.chunks && s.chunks <= s.chunks_peak &&
           s.live_objects <= s.live_objects_peak;
}
inline bool is_none(quire_percpu_ref ref) { return ref.bits == 0; }

/* A pool that is checked, and destroyed, at the end of its scope. */
class Pool {
public:
    explicit Pool(quire_percpu_opts opts = {})
    {
        opts.name = "race";
        pool = quire_percpu_create(&opts);
        EXPECT_NE(pool, nullptr);
    }
    Pool(const Pool &) = delete;
    ~Pool()
    {
        EXPECT_STREQ(quire_percpu_check(pool), nullptr);
        EXPECT_TRUE(adds_up(stats_of(pool)));
        quire_percpu_destroy(pool);
    }
    operator quire_percpu *() const { return pool; }
    size_t live() const { return stats_of(pool).live_objects; }
    quire_percpu_ref take(size_t bytes = sizeof(intptr_t)) const
    {
        quire_percpu_ref ref = quire_percpu_alloc(pool, bytes, 0);
        EXPECT_FALSE(is_none(ref));
        return ref;
    }

private:
    quire_percpu *pool;
};

/* Units of one OS page, so that chunks come and go. */
inline quire_percpu_opts small_units(unsigned pages = 1)
{
    quire_percpu_opts opts = {};
    opts.chunk_bytes = pages * os_page_bytes();
    return opts;
}

/* ---- CPUs ---- */

/* Those that this process may run on. */
class Cpus {
public:
    Cpus()
    {
        CPU_ZERO(&all);
        EXPECT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
        for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &all))
                list.push_back(cpu);
    }
    ~Cpus() { sched_setaffinity(0, sizeof all, &all); }
    size_t count() const { return list.size(); }
    unsigned operator[](size_t i) const { return list[i % list.size()]; }
    /* A thread (0: this one) onto the i-th, counted around. */
    bool bind(pid_t tid, size_t i) const
    {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((*this)[i], &one);
        return sched_setaffinity(tid, sizeof one, &one) == 0;
    }

private:
    cpu_set_t all;
    std::vector<unsigned> list;
};

inline pid_t thread_id() { return static_cast<pid_t>(syscall(SYS_gettid)); }

/* ---- objects ---- */

struct PercpuObject {
    quire_percpu_ref ref;
    size_t bytes;
    unsigned painted_cpu;
    uint64_t stamp; /* of the paint */
    intptr_t added; /* to the first word, over all CPUs */
};

/* Objects of a word at least, so that all can be added to; multiples of 8.  Now and then one that fills a unit, or much of it. */
inline size_t percpu_object_bytes(Random &random, size_t unit_bytes)
{
    size_t words_max = unit_bytes / 8 - 2;
    uint64_t kind = random.below(256);
    if (kind < 240)
        return (1 + random.below(16)) * 8;
    return (1 + random.below(kind < 255 ? std::min<size_t>(words_max, 1000) : words_max)) * 8;
}

inline uint64_t paint_word(uint64_t stamp, size_t i) { return (stamp + i) * 0x9e3779b97f4a7c15u; }
/* A copy to read from: unlike quire_percpu_at() it does not count as written afterwards. */
inline const uint64_t *peek(quire_percpu *pool, const PercpuObject &object, unsigned cpu)
{
    unsigned unit_shift = reinterpret_cast<const quire_percpu_window *>(pool)->unit_shift;
    return reinterpret_cast<const uint64_t *>(object.ref.bits + (uintptr_t(cpu) << unit_shift));
}

/* Zero on every CPU, as far as plain reading can tell. */
inline bool is_zero(quire_percpu *pool, const PercpuObject &object)
{
    for (unsigned cpu = 0; cpu < quire_percpu_cpus(pool); cpu++)
        for (size_t i = 0; i < object.bytes / 8; i++)
            if (peek(pool, object, cpu)[i] != 0)
                return false;
    return quire_percpu_sum(pool, object.ref) == 0;
}

/* Words of one CPU's copy, all but the first, which is added to. */
inline void paint(quire_percpu *pool, PercpuObject &object, unsigned cpu, uint64_t stamp)
{
    object.painted_cpu = cpu;
    object.stamp = stamp;
    uint64_t *words = static_cast<uint64_t *>(quire_percpu_at(pool, object.ref, cpu));
    for (size_t i = 1; i < object.bytes / 8; i++)
        words[i] = paint_word(stamp, i);
}

inline void add_to(quire_percpu *pool, PercpuObject &object, intptr_t value)
{
    quire_percpu_add(pool, object.ref, value);
    object.added += value;
}

/* The paint on its CPU, zeros on all others, and the sum. */
inline bool is_as_left(quire_percpu *pool, const PercpuObject &object)
{
    for (unsigned cpu = 0; cpu < quire_percpu_cpus(pool); cpu++)
        for (size_t i = 1; i < object.bytes / 8; i++)
            if (peek(pool, object, cpu)[i] != (cpu == object.painted_cpu ? paint_word(object.stamp, i) : 0))
                return false;
    return quire_percpu_sum(pool, object.ref) == object.added && quire_percpu_owns(pool, object.ref);
}

/* Threads swap an object of theirs, or nothing, for what lies in a place. */
class PercpuTable {
public:
    static constexpr size_t PLACES = 256;
    ~PercpuTable()
    {
        for (auto &place : places)
            delete place.load();
    }
    PercpuObject *swap(size_t place, PercpuObject *object) { return places[place % PLACES].exchange(object, std::memory_order_acq_rel); }
    size_t count() const
    {
        size_t n = 0;
        for (auto &place : places)
            n += place.load(std::memory_order_acquire) != nullptr;
        return n;
    }
    /* Verify and free everything. */
    void drain(quire_percpu *pool)
    {
        for (size_t i = 0; i < PLACES; i++)
            if (PercpuObject *object = swap(i, nullptr)) {
                EXPECT_TRUE(is_as_left(pool, *object));
                quire_percpu_free(pool, object->ref);
                delete object;
            }
    }

private:
    std::atomic<PercpuObject *> places[PLACES] = {};
};

/* What one thread does: everything, in random order. */
class PercpuWorker {
public:
    struct Job {
        quire_percpu *pool;
        PercpuTable *table;
        quire_percpu_ref counter; /* everybody adds to it */
        bool nowait = false;      /* some of the allocations */
        size_t held_max = 40;
    };
    PercpuWorker(const Job &job_, uint64_t seed) : job(job_), random(seed), next_stamp(seed << 40), unit_bytes(stats_of(job.pool).unit_bytes) {}
    ~PercpuWorker()
    {
        while (!held.empty())
            drop();
    }
    void step()
    {
        if (held.size() > job.held_max)
            for (size_t n = held.size() / 2; n > 0; n--)
                drop();
        switch (random.below(8)) {
        case 0:
        case 1: return take();
        case 2: return drop();
        case 3: return swap(true);
        case 4: return swap(false);
        default: return add();
        }
    }
    intptr_t counted() const { return counter_adds; }

private:
    void take()
    {
        PercpuObject object = {};
        object.bytes = percpu_object_bytes(random, unit_bytes);
        size_t align_bytes = random.below(8) || object.bytes > 128 ? 0 : size_t(8) << random.below(7);
        bool nowait = job.nowait && random.below(2) == 0;
        object.ref = nowait ? quire_percpu_alloc_nowait(job.pool, object.bytes, align_bytes) : quire_percpu_alloc(job.pool, object.bytes, align_bytes);
        if (is_none(object.ref)) {
            EXPECT_TRUE(nowait && errno == ENOMEM) << "errno " << errno;
            return;
        }
        EXPECT_EQ(object.ref.bits % (align_bytes ? align_bytes : 8), 0u);
        EXPECT_TRUE(is_zero(job.pool, object)) << object.bytes << " bytes at " << object.ref.bits << " have another owner, or were not cleared";
        paint(job.pool, object, unsigned(random.below(quire_percpu_cpus(job.pool))), ++next_stamp);
        add_to(job.pool, object, intptr_t(random.next() >> 8));
        held.push_back(std::make_unique<PercpuObject>(object));
    }
    std::unique_ptr<PercpuObject> pick()
    {
        if (held.empty())
            return nullptr;
        std::swap(held[random.below(held.size())], held.back());
        std::unique_ptr<PercpuObject> object = std::move(held.back());
        held.pop_back();
        return object;
    }
    void let_go(const PercpuObject &object)
    {
        EXPECT_TRUE(is_as_left(job.pool, object)) << object.bytes << " bytes at " << object.ref.bits << " have another owner";
        quire_percpu_free(job.pool, object.ref);
    }
    void drop()
    {
        if (std::unique_ptr<PercpuObject> object = pick())
            let_go(*object);
    }
    void add()
    {
        quire_percpu_add(job.pool, job.counter, 1);
        counter_adds++;
        if (!held.empty())
            add_to(job.pool, *held[random.below(held.size())], -3);
    }
    /* Mine for another's; keep that, or free it at once: then the free is a stranger's. */
    void swap(bool keep)
    {
        std::unique_ptr<PercpuObject> theirs(job.table->swap(random.next(), pick().release()));
        if (!theirs)
            return;
        if (keep && is_as_left(job.pool, *theirs))
            held.push_back(std::move(theirs));
        else
            let_go(*theirs);
    }

    Job job;
    Random random;
    uint64_t next_stamp;
    size_t unit_bytes;
    intptr_t counter_adds = 0;
    std::vector<std::unique_ptr<PercpuObject>> held;
};

/* Threads that do `body` over and over while this lives. */
class Beside {
public:
    explicit Beside(const std::vector<std::function<void()>> &bodies)
    {
        for (auto &body : bodies)
            threads.emplace_back([this, body] {
                while (!stop)
                    body();
            });
    }
    ~Beside()
    {
        stop = true;
        for (auto &thread : threads)
            thread.join();
    }

private:
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
};

/* Run `threads` workers of `steps` steps each, with `others` over and over beside them; then what is live is what lies in the table. */
inline void percpu_work(PercpuWorker::Job job, unsigned threads, unsigned steps, const std::vector<std::function<void()>> &others = {})
{
    job.counter = quire_percpu_alloc(job.pool, sizeof(intptr_t), 0);
    std::atomic<intptr_t> counted{0};
    {
        Noise on;
        Beside beside(others);
        std::vector<std::thread> workers;
        for (unsigned t = 0; t < threads; t++)
            workers.emplace_back([&, t] {
                PercpuWorker worker(job, t + 1);
                for (unsigned i = 0; i < steps; i++)
                    worker.step();
                counted += worker.counted();
            });
        for (auto &thread : workers)
            thread.join();
    }
    EXPECT_EQ(quire_percpu_sum(job.pool, job.counter), counted.load());
    quire_percpu_free(job.pool, job.counter);
    EXPECT_EQ(stats_of(job.pool).live_objects, job.table->count());
    EXPECT_STREQ(quire_percpu_check(job.pool), nullptr);
    job.table->drain(job.pool);
    EXPECT_EQ(stats_of(job.pool).live_objects, 0u);
}
