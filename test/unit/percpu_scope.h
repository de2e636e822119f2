// SPDX-License-Identifier: MIT
/*
 * percpu_scope.h - a pool for the length of a test, checked at its end; the way it finds its CPU, and which CPU that is, for a scope.
 *
 *     AUTO   restartable sequences where the system has them        the thread's real CPU
 *     FAKE   the same instructions over an area of the test's own   the CPU that the test says
 *     OFF    atomic instructions                                    the CPU that the test says, looked at now and then
 */
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include <quire/percpu.h>

#include "os/os_rseq.h"
#include "support.h"

using Ref = struct quire_percpu_ref;
using Refs = std::vector<Ref>;

/* How pools find their CPU that are created from now on until the end of the scope. */
class Mode {
public:
    explicit Mode(os_rseq_mode mode) { os_rseq_force(mode); }
    Mode(const Mode &) = delete;
    Mode &operator=(const Mode &) = delete;
    ~Mode()
    {
        os_cpu_fake_set(-1);
        os_rseq_force(OS_RSEQ_AUTO);
    }
};

/* A snapshot whose sum adds up. */
inline struct quire_percpu_stats percpu_stats(const quire_percpu *pool)
{
    struct quire_percpu_stats out = {.struct_bytes = sizeof out};
    quire_percpu_stats(pool, &out);
    EXPECT_EQ(out.mapped_bytes, out.live_bytes + out.free_bytes + out.meta_bytes);
    EXPECT_EQ(out.live_objects, out.allocs - out.frees);
    EXPECT_GE(out.live_objects_peak, out.live_objects);
    EXPECT_GE(out.peak_bytes, out.mapped_bytes);
    EXPECT_LE(out.empty_chunks, out.chunks);
    EXPECT_GE(out.chunks_peak, out.chunks);
    EXPECT_LE(out.fragment_bytes_max, out.fragments_bytes);
    EXPECT_LE(out.fragments_bytes, out.unit_free_bytes);
    EXPECT_LE(out.longest_free_bytes, out.unit_free_bytes);
    EXPECT_LE(out.object_bytes_min, out.object_bytes_median);
    EXPECT_LE(out.object_bytes_median, out.object_bytes_max);
    return out;
}

/* A pool that is checked and destroyed with its scope. */
class Pool {
public:
    explicit Pool(quire_percpu_opts opts = {}) : pool(quire_percpu_create(&opts))
    {
        EXPECT_NE(pool, nullptr) << "errno " << errno;
    }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;
    ~Pool()
    {
        EXPECT_EQ(quire_percpu_check(pool), nullptr);
        quire_percpu_destroy(pool);
    }
    operator quire_percpu *() const { return pool; }
    struct quire_percpu_stats stats() const { return percpu_stats(pool); }
    unsigned cpus() const { return quire_percpu_cpus(pool); }
    char *at(Ref ref, unsigned cpu) const { return static_cast<char *>(quire_percpu_at(pool, ref, cpu)); }
    intptr_t word(Ref ref, unsigned cpu) const { return __atomic_load_n(reinterpret_cast<intptr_t *>(at(ref, cpu)), __ATOMIC_RELAXED); }

    Ref alloc(size_t bytes = sizeof(intptr_t), size_t align_bytes = 0) const
    {
        Ref ref = quire_percpu_alloc(pool, bytes, align_bytes);
        EXPECT_NE(ref.bits, 0u) << bytes << " bytes aligned to " << align_bytes << ", errno " << errno;
        return ref;
    }
    Refs alloc_many(size_t count, size_t bytes, size_t align_bytes = 0) const
    {
        Refs refs;
        for (size_t i = 0; i < count; i++)
            refs.push_back(alloc(bytes, align_bytes));
        return refs;
    }
    /* Everything there is room for; then errno is ENOMEM. */
    Refs alloc_until_refused(size_t bytes) const
    {
        Refs refs;
        errno = 0;
        for (Ref ref; refs.size() < 1000000 && (ref = quire_percpu_alloc(pool, bytes, 0)).bits;)
            refs.push_back(ref);
        EXPECT_EQ(errno, ENOMEM);
        return refs;
    }
    void free(Ref ref) const { quire_percpu_free(pool, ref); }
    void free(const Refs &refs) const
    {
        for (Ref ref : refs)
            quire_percpu_free(pool, ref);
    }
    /* Every copy set to `value`. */
    void fill(Ref ref, size_t bytes, int value) const
    {
        for (unsigned cpu = 0; cpu < cpus(); cpu++)
            memset(at(ref, cpu), value, bytes);
    }
    bool holds(Ref ref, size_t bytes, int value) const
    {
        bool same = true;
        for (unsigned cpu = 0; cpu < cpus(); cpu++) {
            const char *copy = at(ref, cpu);
            same &= copy[0] == char(value) && memcmp(copy, copy + 1, bytes - 1) == 0;
        }
        return same;
    }
    /* In FAKE and OFF: this thread runs on that CPU now.  OFF looks at the CPU again after 16 operations. */
    void move_to(unsigned cpu) const
    {
        os_cpu_fake_set(int(cpu));
        Ref scratch = alloc();
        for (int i = 0; i < 32; i++)
            quire_percpu_add(pool, scratch, 0);
        free(scratch);
    }

private:
    quire_percpu *pool;
};

/* The chunk_bytes with which a unit is `bytes`, a power of two, itself: its first page is not only for objects. */
inline size_t unit_of(size_t bytes) { return bytes > os_page_bytes() ? bytes - os_page_bytes() : os_page_bytes(); }

inline bool operator==(Ref a, Ref b) { return a.bits == b.bits; }
