// SPDX-License-Identifier: MIT
/* stats_scope.h - objects of each kind with some live things in them, that end with their scope; and how to find them in what was written. */
#pragma once

#include <gtest/gtest.h>

#include <quire/heap.h>
#include <quire/percpu.h>
#include <quire/slab.h>

#include "unit/stats_kit.h"

namespace stats_kit {

inline const uint32_t stats_formats[] = {QUIRE_STATS_TEXT, QUIRE_STATS_JSON, QUIRE_STATS_PROMETHEUS};

struct Nodes {
    quire_slab *slab;
    explicit Nodes(const char *name, size_t elements = 100, size_t bytes = 72)
    {
        quire_slab_opts opts = {};
        opts.name = name;
        slab = quire_slab_create(bytes, &opts);
        for (size_t i = 0; i < elements; i++)
            EXPECT_NE(quire_slab_alloc(slab), nullptr);
    }
    explicit Nodes(const quire_slab_opts &opts) : slab(quire_slab_create(64, &opts)) {}
    Nodes(const Nodes &) = delete;
    ~Nodes() { quire_slab_destroy(slab); }
};

struct Counters {
    quire_percpu *pool;
    explicit Counters(const char *name, size_t objects = 10)
    {
        quire_percpu_opts opts = {};
        opts.name = name;
        opts.chunk_bytes = 16384;
        opts.cpus = 2;
        pool = quire_percpu_create(&opts);
        for (size_t i = 0; i < objects; i++)
            quire_percpu_add(pool, quire_percpu_alloc(pool, 8, 0), 1);
    }
    Counters(const Counters &) = delete;
    ~Counters() { quire_percpu_destroy(pool); }
};

struct Heap {
    quire_heap *heap;
    explicit Heap(const char *name)
    {
        quire_heap_opts opts = {};
        opts.name = name;
        heap = quire_heap_create(&opts);
    }
    Heap(const Heap &) = delete;
    ~Heap() { quire_heap_destroy(heap); }
    void *alloc(size_t bytes) { return quire_heap_alloc(heap, bytes); }
};

/* The objects of a kind with this name. */
inline std::vector<const Json *> named(const Json &all, const std::string &kind, const std::string &name)
{
    std::vector<const Json *> found;
    for (const Json &object : all[kind].items)
        if (object["name"].string == name)
            found.push_back(&object);
    return found;
}

} // namespace stats_kit
