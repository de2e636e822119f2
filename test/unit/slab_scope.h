// SPDX-License-Identifier: MIT
/*
 * slab_scope.h - a slab for the length of a test, checked at its end, with the few moves that the slab's tests make.
 */
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include <quire/slab.h>

#include "support.h"

using Elements = std::vector<void *>;

/* A snapshot whose sum adds up. */
inline struct quire_slab_stats slab_stats(const quire_slab *slab)
{
    struct quire_slab_stats out = {.struct_bytes = sizeof out};
    quire_slab_stats(slab, &out);
    EXPECT_EQ(out.mapped_bytes, out.live_bytes + out.free_bytes + out.meta_bytes);
    EXPECT_EQ(out.live_bytes, out.live_elements * out.slot_bytes);
    EXPECT_GE(out.peak_bytes, out.mapped_bytes);
    EXPECT_LE(out.empty_pages, out.pages);
    return out;
}

/* A slab that is checked and destroyed with its scope. */
class Slab {
public:
    explicit Slab(size_t element_bytes, quire_slab_opts opts = {}) : slab(quire_slab_create(element_bytes, &opts))
    {
        EXPECT_NE(slab, nullptr) << "errno " << errno;
    }
    Slab(const Slab &) = delete;
    Slab &operator=(const Slab &) = delete;
    ~Slab()
    {
        EXPECT_EQ(quire_slab_check(slab), nullptr);
        quire_slab_destroy(slab);
    }
    operator quire_slab *() const { return slab; }
    struct quire_slab_stats stats() const { return slab_stats(slab); }

    Elements alloc(size_t count) const
    {
        Elements elements;
        for (size_t i = 0; i < count; i++) {
            elements.push_back(quire_slab_alloc(slab));
            EXPECT_NE(elements.back(), nullptr);
        }
        return elements;
    }
    /* Everything there is room for, each with a byte written; then errno is ENOMEM. */
    Elements alloc_until_refused() const
    {
        Elements elements;
        errno = 0;
        for (void *p; elements.size() < 10000000 && (p = quire_slab_alloc(slab));) {
            *static_cast<char *>(p) = 1;
            elements.push_back(p);
        }
        EXPECT_EQ(errno, ENOMEM);
        return elements;
    }
    void free(const Elements &elements) const
    {
        for (void *p : elements)
            quire_slab_free(slab, p);
    }
    Elements walk() const
    {
        Elements seen;
        EXPECT_EQ(quire_slab_walk(slab, [](void *p, void *arg) { static_cast<Elements *>(arg)->push_back(p); return 0; }, &seen), 0);
        std::sort(seen.begin(), seen.end());
        return seen;
    }

private:
    quire_slab *slab;
};

inline Elements sorted(Elements elements)
{
    std::sort(elements.begin(), elements.end());
    return elements;
}

inline bool holds_only(const void *p, size_t bytes, char value)
{
    const char *at = static_cast<const char *>(p);
    return bytes == 0 || (at[0] == value && memcmp(at, at + 1, bytes - 1) == 0);
}

/* The default source's decay for one scope. */
class Decay {
public:
    explicit Decay(uint64_t decay_ns) { quire_source_set_decay(quire_source_default(), decay_ns); }
    ~Decay() { quire_source_set_decay(quire_source_default(), DECAY_STILL_NS); }
};

/* A machine of so many CPUs while this lives: what caches may hold is so much a CPU. */
class CpuCount {
public:
    explicit CpuCount(unsigned count) : was(os_cpu_count()) { os_cpu_count_fake(count); }
    ~CpuCount() { os_cpu_count_fake(was); }

private:
    unsigned was;
};

/* True as soon as `done` is; where a thread has to do it, that may be late: half a minute is the machine's, not the library's. */
template <typename Done> bool at_last(const Done &done)
{
    for (int looks = 0; looks < 3000; looks++) {
        if (done())
            return true;
        sleep_ms(10);
    }
    return done();
}

/* How many follow one that is at most an OS page below. */
inline size_t rising(const Elements &elements)
{
    size_t count = 0;
    for (size_t i = 1; i < elements.size(); i++)
        count += elements[i] > elements[i - 1] && static_cast<char *>(elements[i]) - static_cast<char *>(elements[i - 1]) <= 4096;
    return count;
}

inline Elements shuffled(Elements elements)
{
    uint64_t seed = 1;
    for (size_t i = elements.size() - 1; i > 0; i--) {
        seed = seed * UINT64_C(6364136223846793005) + 1;
        std::swap(elements[i], elements[(seed >> 33) % (i + 1)]);
    }
    return elements;
}
