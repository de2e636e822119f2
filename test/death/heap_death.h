// SPDX-License-Identifier: MIT
/*
 * heap_death.h - what the misuse tests of the heap share: the lines that a process stops with, and the heaps it is done to.
 */
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <quire/heap.h>

#include "model/slab_no_barrier.h"
#include "model/slab_worker.h"
#include "support.h"

/* Which heap is misused. */
struct HeapWay {
    const char *name;
    uint32_t flags;
    bool of_process; /* the default heap: its lines have no name */
};

/* One heap and two threads beside the caller's; made inside the process that is to stop, so that the threads are there. */
class HeapScene {
public:
    explicit HeapScene(const HeapWay &way) : heap(way.of_process ? quire_heap_default() : create(way.flags)) { keep = alloc(100); }

    char *alloc(size_t bytes) { return static_cast<char *>(quire_heap_alloc(heap, bytes)); }
    std::vector<char *> alloc_many(size_t count, size_t bytes)
    {
        std::vector<char *> blocks;
        while (blocks.size() < count)
            blocks.push_back(alloc(bytes));
        return blocks;
    }
    void free(void *p) { quire_heap_free(heap, p); }
    /* By another thread than the caller's. */
    void free_there(void *p)
    {
        there.run([&] { quire_heap_free(heap, p); });
    }
    /* Whatever is on its way to its owner is there after this. */
    void settle()
    {
        struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
        there.run([&] { quire_heap_stats(heap, &stats); });
        quire_heap_stats(heap, &stats);
    }

    quire_heap *heap;
    char *keep; /* a block that lives: no page of the first size is empty */
    Worker there, elsewhere;

private:
    static quire_heap *create(uint32_t flags)
    {
        quire_heap_opts opts = {};
        opts.name = "conn", opts.flags = flags;
        return quire_heap_create(&opts);
    }
};

/* The whole line: "quire: heap "conn": E1 ...: address 0x..."; `name` is left out where the heap has none. */
inline std::string heap_line(const std::string &words, bool named = true)
{
    return std::string("^quire: heap") + (named ? " \"conn\"" : "") + ": " + words + ": address 0x[0-9a-f]+\n";
}

/* Writes that nobody who watches memory is told of: a stray pointer's.  The second one changes what is there, whatever it is. */
__attribute__((noinline, no_sanitize("address"), no_sanitize("thread"))) inline void stray_write(void *p, ptrdiff_t at, char value)
{
    static_cast<volatile char *>(p)[at] = value;
}
__attribute__((noinline, no_sanitize("address"), no_sanitize("thread"))) inline void stray_read(const void *p, ptrdiff_t at)
{
    (void)static_cast<const volatile char *>(p)[at];
}
__attribute__((noinline, no_sanitize("address"), no_sanitize("thread"))) inline void stray_change(void *p, ptrdiff_t at)
{
    volatile char *byte = static_cast<volatile char *>(p) + at;
    *byte = char(*byte ^ 0x55);
}
