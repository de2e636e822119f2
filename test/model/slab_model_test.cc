// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "model/slab_model.h"
#include "model/slab_no_barrier.h"
#include "support.h"

namespace {

void run_program(uint64_t seed, unsigned steps, bool threads, bool sets_decay)
{
    Random random(seed);
    SlabSetup setup = slab_setup(random, threads);
    setup.sets_decay = sets_decay;
    SlabModel<Random> model(setup);
    for (unsigned i = 0; i < steps; i++) {
        model.step(random);
        if (i % 256 == 0)
            model.verify();
    }
    model.end();
}

void run_programs(unsigned seeds, unsigned steps, bool threads)
{
    /* One thread has no races, and threads that take turns have few: under ThreadSanitizer, at six times the time, a part will do. */
    seeds = test_long() ? seeds * 50 : getenv("QUIRE_TEST_PAGE_BYTES") ? seeds / 8 : under_asan() ? seeds / 3 : !BUILT_WITH_TSAN ? seeds : threads ? seeds / 2 : seeds / 6;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        ASSERT_NO_THROW(run_program(seed, steps, threads, seed > seeds / 3 * 2)) << "seed " << seed;
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

} // namespace

TEST(SlabModel, random_programs_of_one_thread_agree_with_a_plain_set_at_every_step)
{
    run_programs(120, 600, false);
}

TEST(SlabModel, random_programs_whose_threads_take_turns_and_end_agree_with_a_plain_set_at_every_step)
{
    run_programs(80, 500, true);
}
