// SPDX-License-Identifier: MIT
/*
 * heap_race.h - what the heap's race tests share: blocks that show a second owner, a table through which threads swap them, and a worker that does
 * everything a thread may do with a heap, in random order.
 *
 *     worker 1 --- allocates, paints, resizes, verifies, frees --- worker 2 ...
 *          \                                                      /
 *           +------------> Table: swap mine for another's <------+
 *
 * A block says in its first words who painted it and how large it was asked for; the rest, or in a large one a word here and there, follows from that.
 */
#pragma once

#include "race/slab_race.h"

#include <algorithm>

#include <quire/heap.h>

using HeapStats = struct quire_heap_stats; /* the function has the same name */

constexpr size_t HEAP_SMALL_BYTES = 32768;

inline HeapStats stats_of(const quire_heap *heap)
{
    HeapStats out = {.struct_bytes = sizeof out};
    quire_heap_stats(heap, &out);
    return out;
}

inline bool adds_up(const HeapStats &s)
{
    return s.mapped_bytes == s.live_bytes + s.free_bytes + s.meta_bytes && s.rounding_bytes <= s.live_bytes && s.large_bytes <= s.live_bytes && s.large_blocks <= s.live_blocks;
}

/* A heap that is checked, and destroyed, at the end of its scope. */
class Heap {
public:
    explicit Heap(quire_heap_opts opts = {})
    {
        opts.name = "race";
        heap = quire_heap_create(&opts);
        EXPECT_NE(heap, nullptr);
    }
    Heap(const Heap &) = delete;
    ~Heap()
    {
        EXPECT_STREQ(quire_heap_check(heap), nullptr);
        EXPECT_TRUE(adds_up(stats_of(heap)));
        quire_heap_destroy(heap);
    }
    operator quire_heap *() const { return heap; }
    size_t live() const { return stats_of(heap).live_blocks; }

private:
    quire_heap *heap;
};

inline quire_heap_opts heap_flags(uint32_t flags)
{
    quire_heap_opts opts = {};
    opts.flags = flags;
    return opts;
}

/* ---- blocks ---- */

inline uint64_t heap_word(uint64_t stamp, size_t i) { return (stamp + i) * 0x9e3779b97f4a7c15u; }
inline size_t heap_stride(size_t bytes) { return bytes > 4096 ? 61 : 1; }

/* `bytes` is at least 16. */
inline void heap_paint(void *p, size_t bytes, uint64_t stamp)
{
    uint64_t *words = static_cast<uint64_t *>(p);
    words[0] = stamp, words[1] = bytes;
    for (size_t i = 2; i < bytes / 8; i += heap_stride(bytes))
        words[i] = heap_word(stamp, i);
}
inline size_t heap_bytes_of(const void *p) { return static_cast<const uint64_t *>(p)[1]; }
/* The first `bytes` of it are as they were painted. */
inline bool heap_is_painted(const void *p, size_t bytes)
{
    const uint64_t *words = static_cast<const uint64_t *>(p);
    for (size_t i = 2; i < bytes / 8; i += heap_stride(heap_bytes_of(p)))
        if (words[i] != heap_word(words[0], i))
            return false;
    return true;
}
inline bool heap_is_painted(const void *p)
{
    size_t bytes = heap_bytes_of(p);
    return bytes >= 16 && bytes <= size_t(64) << 20 && heap_is_painted(p, bytes);
}

inline size_t heap_table_drain(Table &table, quire_heap *heap)
{
    size_t n = 0;
    for (size_t i = 0; i < Table::PLACES; i++)
        if (void *p = table.swap(i, nullptr)) {
            EXPECT_TRUE(heap_is_painted(p));
            quire_heap_free(heap, p), n++;
        }
    return n;
}

/* What one thread does: everything, in random order. */
class HeapWorker {
public:
    struct Job {
        quire_heap *heap;
        Table *table;
        size_t bytes_max = HEAP_SMALL_BYTES;
        size_t held_max = 60;
        bool may_run_out = false;
    };
    HeapWorker(const Job &job_, uint64_t seed) : job(job_), random(seed), next_stamp(seed << 40) {}
    ~HeapWorker() { drop_many(held.size()); }
    void step()
    {
        if (held.size() > job.held_max)
            return drop_many(held.size() / 2 + random.below(held.size() / 2));
        switch (random.below(10)) {
        case 0:
        case 1:
        case 2: return take();
        case 3: return take_many(1 + random.below(30));
        case 4: return resize();
        case 5:
        case 6: return drop_one();
        case 7: return drop_many(random.below(12));
        case 8: return swap(true);
        default: return swap(false);
        }
    }
    size_t count() const { return held.size(); }
    void take()
    {
        size_t bytes = size(), align = random.below(8) == 0 ? size_t(16) << random.below(10) : 16;
        bool zero = align == 16 && random.below(4) == 0;
        void *p = zero ? quire_heap_alloc_zero(job.heap, bytes / 8 + 1, 8) : align > 16 ? quire_heap_alloc_aligned(job.heap, bytes, align) : quire_heap_alloc(job.heap, bytes);
        if (!p) {
            EXPECT_TRUE(job.may_run_out && errno == ENOMEM);
            return drop_many(held.size());
        }
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
        for (size_t i = 0; zero && i < bytes / 8; i++)
            EXPECT_EQ(static_cast<uint64_t *>(p)[i], 0u);
        held.push_back({p, ++next_stamp});
        heap_paint(p, bytes, next_stamp);
    }

private:
    struct Held {
        void *p;
        uint64_t stamp;
    };
    /* Mostly small, of few sizes, so that threads meet in the same pages. */
    size_t size()
    {
        size_t top = random.below(10) == 0 ? job.bytes_max : std::min<size_t>(job.bytes_max, 600);
        return 16 + random.below(top - 15);
    }
    void verify(const Held &h)
    {
        EXPECT_TRUE(stamp_of(h.p) == h.stamp && heap_is_painted(h.p)) << "block " << h.p << " has another owner";
        scribble(h.p, 16);
    }
    void take_many(size_t count)
    {
        while (count-- > 0)
            take();
    }
    Held pick()
    {
        size_t k = random.below(held.size());
        Held h = held[k];
        held[k] = held.back();
        held.pop_back();
        return h;
    }
    void resize()
    {
        if (held.empty())
            return;
        Held h = pick();
        size_t had = heap_bytes_of(h.p), bytes = size();
        EXPECT_TRUE(stamp_of(h.p) == h.stamp && heap_is_painted(h.p)) << "block " << h.p << " has another owner";
        void *p = quire_heap_realloc(job.heap, h.p, bytes);
        if (!p) {
            EXPECT_TRUE(job.may_run_out && errno == ENOMEM);
            held.push_back(h);
            return;
        }
        EXPECT_TRUE(stamp_of(p) == h.stamp && heap_is_painted(p, std::min(had, bytes))) << "a resize lost what was there";
        held.push_back({p, h.stamp});
        heap_paint(p, bytes, h.stamp);
    }
    void drop_one()
    {
        if (held.empty())
            return;
        Held h = pick();
        verify(h);
        quire_heap_free(job.heap, h.p);
    }
    void drop_many(size_t count)
    {
        while (count-- > 0 && !held.empty())
            drop_one();
    }
    /* Mine for another's; keep that, or free it at once: then the free is a stranger's. */
    void swap(bool keep)
    {
        void *mine = held.empty() ? nullptr : pick().p;
        EXPECT_TRUE(!mine || heap_is_painted(mine));
        void *theirs = job.table->swap(random.next(), mine);
        if (!theirs)
            return;
        Held h = {theirs, stamp_of(theirs)};
        if (keep && heap_is_painted(theirs)) {
            held.push_back(h);
        } else {
            verify(h);
            quire_heap_free(job.heap, theirs);
        }
    }

    Job job;
    Random random;
    uint64_t next_stamp;
    std::vector<Held> held;
};

/* `body` of 0 to count - 1 on a thread each, with every one of `others` over and over on a thread of its own. */
inline void heap_in_threads(unsigned count, const std::function<void(unsigned)> &body, const std::vector<std::function<void()>> &others = {})
{
    std::atomic<bool> stop{false};
    std::vector<std::thread> workers, beside;
    for (unsigned t = 0; t < count; t++)
        workers.emplace_back(body, t);
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

/* Run `threads` workers of `steps` steps each, with `others` beside them. */
inline void heap_work(const HeapWorker::Job &job, unsigned threads, unsigned steps, const std::vector<std::function<void()>> &others = {})
{
    heap_in_threads(
        threads,
        [&](unsigned t) {
            HeapWorker worker(job, t + 1);
            for (unsigned i = 0; i < steps; i++)
                worker.step();
        },
        others);
}

inline int heap_count_one(void *, size_t, void *n) { return ++*static_cast<size_t *>(n), 0; }
inline size_t heap_visited(quire_heap *heap)
{
    size_t visited = 0;
    quire_heap_walk(heap, heap_count_one, &visited);
    return visited;
}

/* After the work: what is live is what lies in the table, and nothing once that is freed. */
inline void heap_settle(quire_heap *heap, Table &table)
{
    EXPECT_EQ(stats_of(heap).live_blocks, table.count());
    EXPECT_EQ(heap_visited(heap), table.count());
    EXPECT_STREQ(quire_heap_check(heap), nullptr);
    heap_table_drain(table, heap);
    EXPECT_EQ(stats_of(heap).live_blocks, 0u);
}
