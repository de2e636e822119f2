// SPDX-License-Identifier: MIT
/*
 * heap_scope.h - a heap for the length of a test, checked at its end, with the few moves that the heap's tests make.
 */
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <vector>

#include <quire/heap.h>

#include "support.h"
#include "unit/slab_scope.h"

using Blocks = std::vector<void *>;
using HeapStats = struct quire_heap_stats; /* the function has the same name */
using HeapClassStats = struct quire_heap_class_stats;

/* The largest block that comes from a page of its size class; above it each has a span of its own. */
const size_t SMALL_BYTES_MAX = 32768;

/* A size or an alignment that the compiler does not know, so that it does not warn of what the test means to do. */
inline size_t unknown(size_t n)
{
    volatile size_t hidden = n;
    return hidden;
}

/* The same for an address. */
inline char *unknown(void *p)
{
    void *volatile hidden = p;
    return static_cast<char *>(hidden);
}

/* A snapshot whose sum adds up. */
inline HeapStats heap_stats(const quire_heap *heap)
{
    HeapStats out = {.struct_bytes = sizeof out};
    quire_heap_stats(heap, &out);
    EXPECT_EQ(out.mapped_bytes, out.live_bytes + out.free_bytes + out.meta_bytes);
    EXPECT_LE(out.rounding_bytes, out.live_bytes);
    EXPECT_LE(out.large_bytes, out.live_bytes);
    EXPECT_LE(out.large_blocks, out.live_blocks);
    EXPECT_GE(out.peak_bytes, out.mapped_bytes);
    EXPECT_TRUE(out.limit_bytes == 0 || out.peak_bytes <= out.limit_bytes);
    return out;
}

/* Every class there is, in its order. */
inline std::vector<HeapClassStats> heap_classes(const quire_heap *heap)
{
    std::vector<HeapClassStats> all;
    HeapClassStats one = {.struct_bytes = sizeof one};
    for (unsigned i = 0; i < 10000 && quire_heap_class_stats(heap, i, &one) == 0; i++)
        all.push_back(one);
    return all;
}

inline int heap_walk_into(void *p, size_t bytes, void *arg)
{
    auto *seen = static_cast<std::map<void *, size_t> *>(arg);
    EXPECT_TRUE(seen->emplace(p, bytes).second) << "each once";
    return 0;
}

/* A heap that is checked and destroyed with its scope. */
class Heap {
public:
    explicit Heap(quire_heap_opts opts = {}) : heap(quire_heap_create(&opts)) { EXPECT_NE(heap, nullptr) << "errno " << errno; }
    Heap(const Heap &) = delete;
    Heap &operator=(const Heap &) = delete;
    ~Heap()
    {
        EXPECT_EQ(quire_heap_check(heap), nullptr);
        quire_heap_destroy(heap);
    }
    operator quire_heap *() const { return heap; }
    HeapStats stats() const { return heap_stats(heap); }

    char *alloc(size_t bytes) const
    {
        void *p = quire_heap_alloc(heap, bytes);
        EXPECT_NE(p, nullptr) << bytes << " bytes, errno " << errno;
        return static_cast<char *>(p);
    }
    /* `count` blocks of one size, each written from end to end. */
    Blocks alloc_many(size_t count, size_t bytes) const
    {
        Blocks blocks;
        for (size_t i = 0; i < count; i++) {
            blocks.push_back(alloc(bytes));
            memset(blocks.back(), int(i), bytes);
        }
        return blocks;
    }
    /* What such a block takes of a full heap: on larger pages than it was counted on, what it may use. */
    size_t room_of(size_t bytes) const
    {
        if (os_page_bytes() == 4096)
            return bytes;
        void *p = alloc(bytes);
        size_t usable = quire_heap_usable_bytes(p);
        quire_heap_free(heap, p);
        return usable;
    }
    /* Everything there is room for, each with a byte written; then errno is ENOMEM. */
    Blocks alloc_until_refused(size_t bytes) const
    {
        Blocks blocks;
        errno = 0;
        for (void *p; blocks.size() < 10000000 && (p = quire_heap_alloc(heap, bytes));) {
            *static_cast<char *>(p) = 1;
            blocks.push_back(p);
        }
        EXPECT_EQ(errno, ENOMEM);
        return blocks;
    }
    void free(const Blocks &blocks) const
    {
        for (void *p : blocks)
            quire_heap_free(heap, p);
    }
    /* Address and usable bytes of what lives. */
    std::map<void *, size_t> walk() const
    {
        std::map<void *, size_t> seen;
        EXPECT_EQ(quire_heap_walk(heap, heap_walk_into, &seen), 0);
        return seen;
    }

private:
    quire_heap *heap;
};

/* Bytes that differ from block to block and repeat after a prime number of them, so that a page in the wrong place is seen. */
enum { PATTERN_BYTES = 251 };

inline void fill(void *p, size_t bytes, size_t seed)
{
    unsigned char *at = static_cast<unsigned char *>(p);
    for (size_t i = 0; i < bytes && i < PATTERN_BYTES; i++)
        at[i] = static_cast<unsigned char>(seed * 167 + i * 31);
    for (size_t done = PATTERN_BYTES; done < bytes; done *= 2)
        memcpy(at + done, at, std::min(done, bytes - done));
}

inline bool holds(const void *p, size_t bytes, size_t seed)
{
    const unsigned char *at = static_cast<const unsigned char *>(p);
    for (size_t i = 0; i < bytes && i < PATTERN_BYTES; i++)
        if (at[i] != static_cast<unsigned char>(seed * 167 + i * 31))
            return false;
    return bytes <= PATTERN_BYTES || memcmp(at, at + PATTERN_BYTES, bytes - PATTERN_BYTES) == 0;
}
