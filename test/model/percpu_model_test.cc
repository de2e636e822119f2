// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "model/percpu_model.h"
#include "model/slab_no_barrier.h"
#include "support.h"

namespace {

void run_program(uint64_t seed, unsigned steps, os_rseq_mode mode, bool threads)
{
    Random random(seed);
    PercpuModel<Random> model(percpu_setup(random, mode, threads), random);
    for (unsigned i = 0; i < steps && model.alive(); i++) {
        model.step(random);
        if (i % 256 == 0)
            model.verify();
    }
    model.end();
}

void run_programs(unsigned seeds, unsigned steps, os_rseq_mode mode, bool threads)
{
    seeds = test_long() ? seeds * 50 : getenv("QUIRE_TEST_PAGE_BYTES") ? seeds / 8 : BUILT_WITH_TSAN ? seeds / 4 : under_asan() ? seeds / 5 : seeds;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        ASSERT_NO_THROW(run_program(seed, steps, mode, threads)) << "seed " << seed;
}

} // namespace

TEST(PercpuModel, random_programs_agree_with_a_plain_array_for_each_cpu_at_every_step)
{
    run_programs(60, 2000, OS_RSEQ_AUTO, false);
}

TEST(PercpuModel, random_programs_agree_without_restartable_sequences)
{
    run_programs(60, 2000, OS_RSEQ_OFF, false);
}

TEST(PercpuModel, random_programs_agree_when_sequences_run_on_any_cpu_number)
{
    run_programs(60, 2000, OS_RSEQ_FAKE, false);
}

TEST(PercpuModel, random_programs_whose_threads_take_turns_and_end_agree)
{
    for (os_rseq_mode mode : {OS_RSEQ_AUTO, OS_RSEQ_OFF, OS_RSEQ_FAKE})
        run_programs(20, 600, mode, true);
}
