// SPDX-License-Identifier: MIT
/*
 * Random operation programs against a plain model: what lives, where, with which bytes.  The operations come from a stream of bytes, so that a
 * fuzzer can feed the same decoder (run_program).
 */
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include <quire/arena.h>

#include "os/sanitize.h"
#include "support.h"

namespace {

struct Block {
    size_t bytes;
    uint8_t value;
};
struct Mark {
    struct quire_arena_mark mark;
    size_t blocks, defers;
};

class Model {
public:
    explicit Model(const quire_arena_opts &opts) : arena(quire_arena_create(&opts)), limit(opts.limit_bytes) {}
    ~Model()
    {
        verify();
        ran_until(0);
        quire_arena_destroy(arena);
        EXPECT_EQ(ran, 0u) << "destroy runs every defer";
    }

    void step(Random &random)
    {
        unsigned op = unsigned(random.below(100));
        if (op < 60)
            alloc(random, op);
        else if (op < 75)
            resize(random);
        else if (op < 82)
            marks.push_back({quire_arena_mark(arena), blocks.size(), defers});
        else if (op < 88 && !marks.empty())
            rewind(random.below(marks.size()));
        else if (op < 90)
            reset();
        else if (op < 91)
            quire_arena_trim(arena);
        else if (op < 96)
            defer();
        else
            ask(random);
        const char *error = quire_arena_check(arena);
        ASSERT_EQ(error, nullptr) << error;
    }

    void verify()
    {
        for (auto &[p, block] : blocks)
            verify_block(p, block);
    }

private:
    static size_t some_size(Random &random)
    {
        switch (random.below(8)) {
        case 0: return random.below(3);
        case 1: return random.below(100000);
        case 2: return random.below(20) == 0 ? random.below(6 << 20) : random.below(5000);
        default: return random.below(300);
        }
    }

    void alloc(Random &random, unsigned op)
    {
        size_t bytes = some_size(random), align = 16;
        void *p;
        if (op < 40) {
            p = quire_arena_alloc(arena, bytes);
        } else if (op < 50) {
            p = quire_arena_alloc_zero(arena, 1, bytes);
            for (size_t i = 0; p && i < bytes; i++)
                ASSERT_EQ(static_cast<char *>(p)[i], 0);
        } else {
            align = size_t(1) << random.below(14);
            p = quire_arena_alloc_aligned(arena, bytes, align);
        }
        if (!p) {
            ASSERT_NE(limit, 0u) << "only a limit may refuse here";
            return;
        }
        ASSERT_EQ(uintptr_t(p) % align, 0u);
        add(p, bytes);
    }

    void add(void *p, size_t bytes)
    {
        char *start = static_cast<char *>(p), *end = start + (bytes ? bytes : 1);
        auto after = live.lower_bound(start);
        ASSERT_TRUE(after == live.end() || after->first >= end) << "overlaps the block after it";
        ASSERT_TRUE(after == live.begin() || std::prev(after)->second <= start) << "overlaps the block before it";
        live[start] = end;
        blocks.push_back({start, {bytes, ++value}});
        memset(start, value, bytes);
    }

    static void verify_block(const char *p, const Block &block)
    {
        for (size_t i = 0; i < block.bytes; i += block.bytes > 4096 ? 509 : 1)
            ASSERT_EQ(uint8_t(p[i]), block.value);
    }

    void resize(Random &random)
    {
        if (blocks.empty())
            return;
        /* Blocks older than the newest mark may not move into it: they stay what the mark remembers. */
        size_t from = marks.empty() ? 0 : marks.back().blocks;
        if (from == blocks.size())
            return;
        size_t k = random.below(2) ? blocks.size() - 1 : from + random.below(blocks.size() - from);
        auto [p, block] = blocks[k];
        size_t bytes = random.below(2) ? some_size(random) : block.bytes + random.below(64);
        char *moved = static_cast<char *>(quire_arena_resize(arena, p, block.bytes, bytes));
        if (!moved) {
            ASSERT_NE(limit, 0u);
            verify_block(p, block);
            return;
        }
        Block kept = {std::min(bytes, block.bytes), block.value};
        verify_block(moved, kept);
        live.erase(p);
        if (moved != p) { /* the old place is not used again before a rewind: the model forgets it, the new one is checked */
            blocks.erase(blocks.begin() + long(k));
            add(moved, bytes);
        } else {
            live[p] = p + (bytes ? bytes : 1);
            blocks[k].second.bytes = bytes;
            memset(p, block.value, bytes);
        }
    }

    void drop_to(size_t count)
    {
        while (blocks.size() > count) {
            live.erase(blocks.back().first);
            blocks.pop_back();
        }
    }

    void ran_until(size_t count)
    {
        expected_next = defers;
        defers = count;
    }

    void rewind(size_t k)
    {
        Mark mark = marks[k];
        ran_until(mark.defers);
        quire_arena_rewind(arena, mark.mark);
        ASSERT_EQ(ran, mark.defers);
        drop_to(mark.blocks);
        marks.resize(k + 1); /* the mark itself stays good */
        verify();
    }

    void reset()
    {
        ran_until(0);
        quire_arena_reset(arena);
        ASSERT_EQ(ran, 0u);
        drop_to(0);
        marks.clear();
    }

    static void on_defer(void *arg)
    {
        Model *model = static_cast<Model *>(arg);
        ASSERT_EQ(model->ran, model->expected_next) << "last first, each once";
        model->ran--, model->expected_next--;
    }

    void defer()
    {
        if (quire_arena_defer(arena, on_defer, this) == 0)
            ran = ++defers;
    }

    void ask(Random &random)
    {
        struct quire_arena_stats stats;
        quire_arena_stats(arena, &stats);
        ASSERT_EQ(stats.mapped_bytes, stats.used_bytes + stats.free_bytes + stats.lost_bytes + stats.meta_bytes);
        ASSERT_TRUE(limit == 0 || stats.mapped_bytes <= limit);
        if (!blocks.empty()) {
            auto &[p, block] = blocks[random.below(blocks.size())];
            ASSERT_TRUE(quire_arena_owns(arena, p));
            verify_block(p, block);
        }
        ASSERT_FALSE(quire_arena_owns(arena, this));
    }

    quire_arena *arena;
    size_t limit;
    std::vector<std::pair<char *, Block>> blocks; /* in order of allocation */
    std::map<char *, char *> live;                /* start -> end */
    std::vector<Mark> marks;
    size_t defers = 0, ran = 0, expected_next = 0;
    uint8_t value = 0;
};

void run_program(uint64_t seed, unsigned steps, const quire_arena_opts &opts)
{
    Random random(seed);
    Model model(opts);
    for (unsigned i = 0; i < steps; i++) {
        model.step(random);
        if (testing::Test::HasFatalFailure())
            FAIL() << "seed " << seed << " step " << i;
        if (i % 512 == 0)
            model.verify();
    }
}

} // namespace

TEST(ArenaModel, random_programs_agree_with_a_plain_model_at_every_step)
{
    unsigned seeds = test_long() ? 2000 : 40;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        quire_arena_opts opts = {};
        opts.size_hint_bytes = seed % 3 ? 0 : (seed * 7919) % 300000;
        opts.limit_bytes = seed % 4 ? 0 : size_t(1) << (16 + seed % 8);
        ASSERT_NO_FATAL_FAILURE(run_program(seed, 2500, opts));
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
