// SPDX-License-Identifier: MIT
/*
 * heap_setup.h - which heaps a random program runs on, and the sizes it asks for: drawn from Choices as the operations are.
 */
#pragma once

#include <vector>

#include <quire/heap.h>

#include "model/slab_setup.h"

struct HeapSetup {
    std::vector<quire_heap_opts> heaps; /* without their source */
    SlabSource::Kind source;            /* of all of them */
    size_t source_number;
    size_t workers; /* threads besides the caller's */
};

template <typename Choices> HeapSetup heap_setup(Choices &random, bool threads)
{
    HeapSetup setup = {};
    size_t count = 1 + random.below(3);
    for (size_t i = 0; i < count; i++) {
        quire_heap_opts opts = {};
        opts.name = random.below(2) ? "model" : nullptr;
        opts.limit_bytes = random.below(4) ? 0 : (size_t(64) << 10) + os_page_bytes() * random.below(500);
        opts.flags = random.below(4) ? 0 : QUIRE_HEAP_SECURE;
        setup.heaps.push_back(opts);
    }
    setup.source = random.below(2) ? SlabSource::NONE : SlabSource::Kind(random.below(SlabSource::KINDS));
    setup.source_number = random.below(500);
    setup.workers = threads ? 1 + random.below(3) : 0;
    return setup;
}

/* Mostly small, all borders, now and then large. */
template <typename Choices> size_t heap_bytes(Choices &random)
{
    switch (random.below(12)) {
    case 0: return random.below(3);
    case 1: return (size_t(16) << random.below(13)) + random.below(3) - 1;
    case 2: return random.below(5000);
    case 3: return random.below(4) ? random.below(40000) : random.below(size_t(400) << 10);
    case 4: return 16 * random.below(40);
    case 5: return 64 * random.below(20);
    default: return random.below(300);
    }
}
