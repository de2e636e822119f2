// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "model/heap_model.h"
#include "model/slab_no_barrier.h"
#include "support.h"

namespace {

void run_program(uint64_t seed, unsigned steps, bool threads)
{
    Random random(seed);
    HeapModel<Random> model(heap_setup(random, threads));
    for (unsigned i = 0; i < steps; i++) {
        model.step(random);
        if (i % 256 == 0)
            model.verify();
    }
    model.end();
}

void run_programs(unsigned seeds, unsigned steps, bool threads)
{
    /* One thread has no races, and threads that take turns have few: under ThreadSanitizer a part will do. */
    seeds = test_long() ? seeds * 50 : getenv("QUIRE_TEST_PAGE_BYTES") ? seeds / 8 : BUILT_WITH_TSAN ? seeds / 10 : under_asan() ? seeds / 4 : seeds;
    for (uint64_t seed = 1; seed <= seeds; seed++)
        ASSERT_NO_THROW(run_program(seed, steps, threads)) << "seed " << seed;
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
    EXPECT_EQ(quire_heap_check(quire_heap_default()), nullptr);
}

} // namespace

TEST(HeapModel, random_programs_of_one_thread_agree_with_a_plain_map_at_every_step)
{
    run_programs(100, 500, false);
}

TEST(HeapModel, random_programs_whose_threads_take_turns_and_end_agree_with_a_plain_map_at_every_step)
{
    run_programs(50, 500, true);
}
