// SPDX-License-Identifier: MIT
/*
 * slab_setup.h - which slab a random program runs on: its size, options, source and threads, drawn from Choices as the operations are.
 */
#pragma once

#include <vector>

#include <quire/slab.h>

#include "os/os.h"

/* The source of one program, with what it stands on; at its end every span must be back. */
class SlabSource {
public:
    enum Kind { NONE, COUNTED, ANON, MALLOC, MEMFD, FIXED, BUDGET, FAILING, KINDS };

    SlabSource(Kind kind_, size_t number) : kind(kind_)
    {
        switch (kind) {
        case NONE: return;
        case ANON: inner = quire_source_anon(); break;
        case MALLOC: inner = quire_source_malloc(); break;
        case MEMFD: inner = quire_source_memfd("model"); break;
        case FIXED:
            buffer.resize((size_t(256) << 10) + number * 1024);
            inner = quire_source_fixed(buffer.data(), buffer.size());
            break;
        case BUDGET: inner = quire_source_limit(quire_source_default(), (1 + number) * os_page_bytes()); break;
        case FAILING: inner = quire_source_fail(quire_source_default(), 1 + number % 64); break;
        default: inner = quire_source_default();
        }
        outer = quire_source_count(inner);
    }
    SlabSource(const SlabSource &) = delete;
    SlabSource &operator=(const SlabSource &) = delete;
    ~SlabSource()
    {
        quire_source_destroy(outer);
        quire_source_destroy(inner);
    }
    bool may_refuse() const { return kind >= FIXED; }
    struct quire_source *source() const { return outer; }
    size_t taken_bytes() const
    {
        struct quire_source_stats stats = {};
        if (outer)
            quire_source_stats(outer, &stats);
        return stats.taken_bytes;
    }

private:
    Kind kind;
    std::vector<char> buffer;
    struct quire_source *inner = nullptr, *outer = nullptr;
};

struct SlabSetup {
    size_t element_bytes;
    quire_slab_opts opts; /* without its source */
    SlabSource::Kind source;
    size_t source_number;
    size_t workers; /* threads besides the caller's */
    bool markable;
    bool sets_decay;
};

template <typename Choices> size_t slab_element_bytes(Choices &random)
{
    switch (random.below(8)) {
    case 0: return random.below(9);
    case 1: return size_t(8) << random.below(10);
    case 2: return random.below(9000);
    case 3: return random.below(8) ? random.below(70000) : random.below(size_t(1) << 20);
    default: return random.below(300);
    }
}

template <typename Choices> SlabSetup slab_setup(Choices &random, bool threads)
{
    SlabSetup setup = {};
    setup.element_bytes = slab_element_bytes(random);
    setup.opts.name = random.below(2) ? "model" : nullptr;
    setup.opts.align_bytes = random.below(3) ? 0 : size_t(1) << random.below(17);
    setup.opts.page_bytes_max = random.below(3) ? 0 : random.below(300) * 1024;
    setup.opts.initial_elements = random.below(3) ? 0 : random.below(2000);
    setup.opts.limit_bytes = random.below(4) ? 0 : os_page_bytes() * random.below(400);
    setup.opts.flags = uint32_t(random.below(3) ? 0 : random.below(16));
    setup.source = random.below(2) ? SlabSource::NONE : SlabSource::Kind(random.below(SlabSource::KINDS));
    setup.source_number = random.below(500);
    setup.markable = random.below(4) == 1;
    setup.sets_decay = random.below(8) == 1;
    setup.workers = threads ? 1 + random.below(3) : 0;
    return setup;
}
