// SPDX-License-Identifier: MIT
/* Random programs of allocations at steered sites, beside them, and behind wrappers, against a plain map: sizes, contents, whose block it is. */
#include "steer_kit.h"

#include <map>
#include <memory>

#include "model/slab_worker.h"

namespace {

struct Block {
    size_t bytes;
    unsigned char paint;
};

class Model {
public:
    explicit Model(uint64_t seed) : random(seed)
    {
        for (auto &worker : workers)
            worker = std::make_unique<Worker>();
    }

    void step()
    {
        Worker &worker = *workers[random.below(workers.size())];
        worker.run([&] {
            switch (random.below(8)) {
            case 0:
            case 1:
            case 2:
                alloc();
                break;
            case 3:
                burst();
                break;
            case 4:
                resize();
                break;
            default:
                release();
            }
        });
        if (random.below(200) == 0)
            workers[random.below(workers.size())] = std::make_unique<Worker>(); /* one ends, another comes */
    }

    void verify()
    {
        for (auto &[p, block] : blocks)
            check(p, block);
        for (auto &worker : workers)
            worker->run([&] { ASSERT_EQ(steer_check(), nullptr); });
    }

    void end()
    {
        while (!blocks.empty())
            release();
        verify();
    }

private:
    size_t some_bytes()
    {
        switch (random.below(10)) {
        case 0:
            return 0;
        case 1:
            return random.below(6000);
        case 2:
            return STEER_BLOCK_MAX - 20 + random.below(40);
        default:
            return random.below(200);
        }
    }

    void alloc()
    {
        uintptr_t stack[8] = {};
        stack[STEP_TO_CALLER] = reinterpret_cast<uintptr_t>(&test_place[20 + random.below(5)]);
        stack[STEP_TO_CALLER + 2] = reinterpret_cast<uintptr_t>(&test_place[24]);
        unsigned places[] = {1, 1, 1, 2, 3, 4, 4, PLACE_HEAP, PLACE_WRAPPER, PLACE_WRAPPER};
        struct steer_call call = {reinterpret_cast<uintptr_t>(&test_place[places[random.below(10)]]), stack};
        size_t bytes = some_bytes();
        bool zero = random.below(3) == 0;
        auto *p = static_cast<unsigned char *>(zero ? steer_alloc_zero(bytes, call) : steer_alloc(bytes, call));
        ASSERT_NE(p, nullptr);
        for (size_t i = 0; zero && i < bytes; i++)
            ASSERT_EQ(p[i], 0);
        enter(p, bytes);
    }

    /* A generation: many, most of which die at once. */
    void burst()
    {
        std::vector<void *> mine;
        for (uint64_t n = random.below(2000); n-- > 0;)
            mine.push_back(alloc_at(1 + n % 3, 48));
        for (void *p : mine) {
            if (random.below(500) == 0)
                enter(static_cast<unsigned char *>(p), 48);
            else
                steer_free(p);
        }
    }

    void enter(unsigned char *p, size_t bytes)
    {
        ASSERT_GE(steer_usable_bytes(p), bytes);
        auto above = blocks.upper_bound(p);
        ASSERT_TRUE(above == blocks.end() || p + bytes <= above->first);
        if (above != blocks.begin()) {
            --above;
            ASSERT_LE(above->first + above->second.bytes, p) << "blocks overlap";
        }
        Block block = {bytes, static_cast<unsigned char>(random.next())};
        memset(p, block.paint, bytes);
        ASSERT_TRUE(blocks.emplace(p, block).second);
    }

    void check(const unsigned char *p, const Block &block)
    {
        for (size_t i = 0; i < block.bytes; i += 1 + block.bytes / 16)
            ASSERT_EQ(p[i], block.paint);
        if (block.bytes) {
            ASSERT_EQ(p[block.bytes - 1], block.paint);
        }
    }

    std::map<unsigned char *, Block>::iterator any()
    {
        auto at = blocks.lower_bound(reinterpret_cast<unsigned char *>(blocks.begin()->first + random.below(1 << 22)));
        return at == blocks.end() ? blocks.begin() : at;
    }

    void resize()
    {
        if (blocks.empty())
            return;
        auto at = any();
        auto [p, block] = *at;
        check(p, block);
        size_t bytes = some_bytes() + 1;
        blocks.erase(at);
        auto *moved = static_cast<unsigned char *>(steer_realloc(p, bytes));
        ASSERT_NE(moved, nullptr);
        check(moved, {block.bytes < bytes ? block.bytes : bytes, block.paint});
        enter(moved, bytes);
    }

    void release()
    {
        if (blocks.empty())
            return;
        auto at = any();
        check(at->first, at->second);
        unsigned char *p = at->first;
        blocks.erase(at);
        steer_free(p);
    }

    Random random;
    std::vector<std::unique_ptr<Worker>> workers{3};
    std::map<unsigned char *, Block> blocks;
};

} // namespace

TEST(SteerModel, random_programs_whose_threads_take_turns_and_end_agree_with_a_plain_map)
{
    steer_up_with_room();
    unsigned seeds = test_long() ? 500 : BUILT_WITH_TSAN ? 3 : under_asan() ? 6 : 12;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        SCOPED_TRACE(seed);
        Model model(seed);
        for (unsigned i = 0; i < 1500; i++) {
            model.step();
            if (i % 128 == 0)
                model.verify();
            if (testing::Test::HasFatalFailure())
                return;
        }
        model.end();
    }
    struct steer_stats stats;
    steer_stats(&stats);
    EXPECT_EQ(stats.live_blocks, 0u);
    EXPECT_GT(stats.blocks, 10000u);
    EXPECT_EQ(quire_heap_check(quire_heap_default()), nullptr);
    EXPECT_EQ(quire_source_check(quire_source_default()), nullptr);
}
