// SPDX-License-Identifier: MIT
/*
 * slab_death.h - the lines that a misuse of a slab stops the process with, and a slab to misuse.
 */
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <quire/arena.h>
#include <quire/quire.h>
#include <quire/slab.h>

#include "base/compiler.h"
#include "model/slab_worker.h"
#include "model/slab_no_barrier.h"
#include "support.h"

namespace { /* other programs have a scene of their own */

const size_t ELEMENT_BYTES = 96;
std::string line(const std::string &words) { return "^quire: slab \"conn\": " + words + ": address 0x[0-9a-f]+\n"; }
const std::string e1 = line("E1 the element is free already"), e2 = line("E2 not an address of a slab");
const std::string e3 = line("E3 not where an element begins"), e4 = line("E4 an element of another slab");
const char e5[] = "^quire: slab: E5 not a live slab: address 0x[0-9a-f]+\n";
const char e6[] = "^quire: slab( \"[^\"]*\")?: E6 released more often than acquired: address 0x[0-9a-f]+\n";

/* How a misuse is done. */
struct Way {
    const char *name;
    uint32_t flags;
    bool batch;  /* by free_batch, behind a good element and a NULL */
    bool theirs; /* another thread, which lives, has allocated the elements */
    bool inlined = false; /* as a program has it compiled in; the tests themselves are not optimised, and make calls */
};

/* A slab and who uses it; made inside the process that is to stop, so that the other thread is there. */
class Scene {
public:
    explicit Scene(const Way &way_, size_t element_bytes = ELEMENT_BYTES, size_t limit_bytes = 0) : way(way_)
    {
        quire_slab_opts opts = {};
        opts.name = "conn", opts.flags = way.flags, opts.limit_bytes = limit_bytes;
        slab = quire_slab_create(element_bytes, &opts);
        good = alloc();
        alloc(); /* no page of the tests is empty */
    }
    char *alloc()
    {
        void *p = nullptr;
        if (way.theirs)
            owner.run([&] { p = quire_slab_alloc(slab); });
        else
            p = way.inlined ? quire_slab_alloc_try(reinterpret_cast<const quire_slab_window *>(slab)) : nullptr;
        if (!p)
            p = quire_slab_alloc(slab);
        return static_cast<char *>(p);
    }
    void free(void *p)
    {
        if (way.inlined && quire_slab_free_try(reinterpret_cast<const quire_slab_window *>(slab), p))
            return;
        if (!way.batch)
            return quire_slab_free(slab, p);
        void *batch[] = {nullptr, p};
        quire_slab_free_batch(slab, batch, 2);
    }
    /* All at once: the misused one is found among its neighbours. */
    void free_all(std::vector<void *> elements)
    {
        if (way.batch)
            quire_slab_free_batch(slab, elements.data(), elements.size());
        else
            for (void *p : elements)
                free(p);
    }
    quire_slab *slab;
    char *good;
    Worker owner;

private:
    Way way;
};

} // namespace
