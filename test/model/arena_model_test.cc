// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "model/arena_model.h"
#include "os/sanitize.h"
#include "support.h"

namespace {

void run_program(uint64_t seed, unsigned steps, const quire_arena_opts &opts)
{
    Random random(seed);
    ArenaModel<Random> model(opts);
    for (unsigned i = 0; i < steps; i++) {
        model.step(random);
        if (i % 512 == 0)
            model.verify();
    }
    model.end();
}

} // namespace

TEST(ArenaModel, random_programs_agree_with_a_plain_model_at_every_step)
{
    unsigned seeds = test_long() ? 2000 : getenv("QUIRE_TEST_PAGE_BYTES") ? 8 : 40;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        quire_arena_opts opts = {};
        opts.size_hint_bytes = seed % 3 ? 0 : (seed * 7919) % 300000;
        opts.limit_bytes = seed % 4 ? 0 : size_t(1) << (16 + seed % 8);
        ASSERT_NO_THROW(run_program(seed, 2500, opts)) << "seed " << seed;
    }
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}

TEST(ArenaModel, ten_million_blocks_of_every_alignment_never_overlap)
{
    quire_arena *arena = quire_arena_create(nullptr);
    Random random(99);
    size_t blocks = sanitize_watched() ? 1000000 : 10000000;
    char *end = nullptr;
    for (size_t i = 0; i < blocks; i++) {
        size_t align = size_t(1) << random.below(12), bytes = random.below(64);
        char *p = static_cast<char *>(quire_arena_alloc_aligned(arena, bytes, align));
        ASSERT_TRUE(p && uintptr_t(p) % align == 0);
        /* Within a span blocks rise; a block below the last one begins another span, which the model test looks at. */
        ASSERT_TRUE(p >= end || p < end - bytes);
        end = p + bytes;
        if (i % 100000 == 99999)
            quire_arena_reset(arena);
    }
    quire_arena_destroy(arena);
}
