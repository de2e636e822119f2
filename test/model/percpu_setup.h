// SPDX-License-Identifier: MIT
/*
 * percpu_setup.h - which pool a random program runs on: how it finds its CPU, its options, source and threads, drawn from Choices as the
 * operations are; and which CPU a thread of the program runs on.
 */
#pragma once

#include <sched.h>
#include <vector>

#include <quire/percpu.h>

#include "model/slab_setup.h"
#include "os/os.h"
#include "os/os_rseq.h"

struct PercpuSetup {
    os_rseq_mode mode;
    quire_percpu_opts opts; /* without its source */
    SlabSource::Kind source;
    size_t source_number;
    size_t workers; /* threads besides the caller's */
};

template <typename Choices> PercpuSetup percpu_setup(Choices &random, os_rseq_mode mode, bool threads)
{
    PercpuSetup setup = {};
    const size_t page = os_page_bytes();
    setup.mode = mode;
    setup.opts.name = random.below(2) ? "model" : nullptr;
    setup.opts.chunk_bytes = random.below(8) == 7 ? random.below(300) * 1024 : page * (size_t(1) << random.below(5)) - random.below(2) * page / 2;
    setup.opts.cpus = 1 + unsigned(random.below(8) == 7 ? random.below(150) : random.below(6));
    setup.opts.limit_bytes = random.below(4) ? 0 : page * random.below(4000);
    setup.opts.reserve_bytes = random.below(3) ? 0 : random.below(page);
    setup.source = random.below(2) ? SlabSource::NONE : SlabSource::Kind(random.below(SlabSource::KINDS));
    setup.source_number = random.below(1000);
    setup.workers = threads ? 1 + random.below(3) : 0;
    return setup;
}

/*
 * Which CPU a thread runs on, from where the program says so to the end of the scope: in AUTO one of those that the process may use, else any
 * number at all.
 */
class PercpuPlaces {
public:
    explicit PercpuPlaces(os_rseq_mode mode_) : mode(mode_)
    {
        sched_getaffinity(0, sizeof was, &was);
        for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &was))
                real.push_back(cpu);
        os_rseq_force(mode);
    }
    PercpuPlaces(const PercpuPlaces &) = delete;
    PercpuPlaces &operator=(const PercpuPlaces &) = delete;
    ~PercpuPlaces()
    {
        sched_setaffinity(0, sizeof was, &was);
        os_cpu_fake_set(-1);
        os_rseq_force(OS_RSEQ_AUTO);
    }

    template <typename Choices> unsigned choose(Choices &random, unsigned cpus) const
    {
        if (mode == OS_RSEQ_AUTO)
            return real[random.below(real.size())];
        return unsigned(random.below(8) ? random.below(cpus + 2) : random.below(2) ? 4096 : 0x7ffffffe);
    }
    /* The calling thread runs there from now on, and what it knew of its CPU is forgotten. */
    void go(unsigned cpu) const
    {
        if (mode != OS_RSEQ_AUTO)
            return os_cpu_fake_set(int(cpu));
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
        for (int i = 0; i < 32; i++)
            (void)os_cpu_id_roughly();
    }

private:
    os_rseq_mode mode;
    cpu_set_t was;
    std::vector<unsigned> real;
};
