// SPDX-License-Identifier: MIT
/*
 * bitmap_model_test.cc - the bitmap beside a model that is too plain to be wrong: a byte for a bit.
 *
 *     operation program --> bitmap  --> same index, same length, same order
 *                       --> bytes   --> and bitmap_check() after each step
 *
 * QUIRE_TEST_LONG=1: a hundred seeds instead of ten.
 */
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/compiler.h"

namespace {

const bool kSlow = under_asan() || BUILT_WITH_TSAN;

struct Map {
    explicit Map(size_t bits) : memory(bitmap_memory_bytes(bits) / 8, 0) {
        bitmap_init(&map, memory.data(), bits);
    }
    std::vector<uint64_t> memory;
    struct bitmap map;
};

// 0 free, 1 taken, 2 taken and the first of its run.
struct Model {
    explicit Model(size_t bits) : byte(bits, 0) {}

    size_t free_from(size_t at) const {
        const void *p = at < byte.size() ? memchr(&byte[at], 0, byte.size() - at) : nullptr;
        return p ? size_t(static_cast<const uint8_t *>(p) - byte.data()) : byte.size();
    }
    size_t taken_from(size_t at) const {
        uint64_t eight;
        for (; at + 8 <= byte.size(); at += 8)
            if (memcpy(&eight, &byte[at], 8), eight)
                return at + size_t(__builtin_ctzll(eight)) / 8;
        while (at < byte.size() && byte[at] == 0)
            at++;
        return at;
    }
    size_t alloc(size_t run, unsigned align_log2) {
        size_t align = size_t(1) << align_log2;
        if (run == 0)
            return BITMAP_NONE;
        for (size_t from = 0; (from = free_from(from)) < byte.size();) {
            size_t to = taken_from(from), at = (from + align - 1) & ~(align - 1);
            if (at + run <= to) {
                memset(&byte[at], 1, run);
                byte[at] = 2;
                return at;
            }
            from = to;
        }
        return BITMAP_NONE;
    }
    size_t run(size_t idx) const {
        size_t end = idx + 1;
        if (idx >= byte.size() || byte[idx] != 2)
            return 0;
        while (end < byte.size() && byte[end] == 1)
            end++;
        return end - idx;
    }
    bool extend(size_t idx, size_t more) {
        size_t end = idx + run(idx);
        if (end == idx || more == 0 || more > byte.size() - end || taken_from(end) < end + more)
            return false;
        memset(&byte[end], 1, more);
        return true;
    }
    size_t free(size_t idx) {
        size_t length = run(idx);
        if (length)
            memset(&byte[idx], 0, length);
        return length;
    }
    // The free run that holds the free bit idx: how long.
    size_t free_around(size_t idx) const {
        size_t from = idx;
        while (from > 0 && byte[from - 1] == 0)
            from--;
        return taken_from(idx) - from;
    }
    size_t longest() const {
        size_t most = 0;
        for (size_t from = 0; (from = free_from(from)) < byte.size();) {
            size_t to = taken_from(from);
            most = std::max(most, to - from);
            from = to;
        }
        return most;
    }
    std::vector<uint8_t> byte;
};

using Random = std::mt19937_64;

// Runs as a program has them: mostly short, some long, now and then too long.
size_t some_run(Random &random, size_t bits) {
    uint64_t r = random();
    switch (r % 16) {
    case 0:
        return 1 + (r >> 8) % 256;
    case 1:
        return 1 + (r >> 8) % bits;
    case 2:
        return (r >> 8) % (2 * bits + 2);
    default:
        return 1 + (r >> 8) % 9;
    }
}

struct Program {
    Program(size_t bits, uint64_t seed) : bits(bits), random(seed), map(bits), model(bits) {}

    void check(size_t from, size_t to) {
        const char *bad = bitmap_check_range(&map.map, from > 64 ? from - 64 : 0, to + 64);
        ASSERT_STREQ(bad, nullptr);
    }
    void take() {
        size_t run = some_run(random, bits);
        unsigned align_log2 = random() % 3 ? 0 : unsigned(random() % 12);
        size_t want = model.alloc(run, align_log2), got = bitmap_alloc(&map.map, run, align_log2);
        ASSERT_EQ(got, want) << "run " << run << " at 2^" << align_log2;
        if (got == BITMAP_NONE)
            return;
        live.push_back(got);
        taken += run;
        ASSERT_NO_FATAL_FAILURE(check(got, got + run));
    }
    void give() {
        size_t idx = random() % (bits + 3);
        if (!live.empty() && random() % 16) {
            size_t i = random() % live.size();
            idx = live[i];
            live[i] = live.back();
            live.pop_back();
        } else if (model.run(idx)) {
            return; // a live run must not vanish behind the program's back
        }
        size_t want = model.free(idx), got, merged = 1;
        if (random() % 2) {
            got = bitmap_free(&map.map, idx);
        } else {
            got = bitmap_free_merged(&map.map, idx, &merged);
            ASSERT_EQ(merged, got ? model.free_around(idx) : 0) << "freeing " << idx;
        }
        ASSERT_EQ(got, want) << "freeing " << idx;
        taken -= got;
        ASSERT_NO_FATAL_FAILURE(check(idx, idx + got));
    }
    void extend() {
        size_t idx = !live.empty() && random() % 16 ? live[random() % live.size()] : random() % (bits + 3), more = some_run(random, bits) % 64;
        size_t end = idx + model.run(idx);
        bool want = model.extend(idx, more);
        ASSERT_EQ(bitmap_extend(&map.map, idx, more), want) << idx << " by " << more;
        taken += want ? more : 0;
        ASSERT_NO_FATAL_FAILURE(check(idx, end + more));
    }
    void look() {
        size_t idx = random() % bits, want;
        ASSERT_EQ(bitmap_longest_hint(&map.map), model.longest());
        ASSERT_EQ(bitmap_taken(&map.map, idx), model.byte[idx] != 0);
        ASSERT_EQ(bitmap_run(&map.map, idx), model.run(idx));
        size_t run = 0, at = bitmap_next_free(&map.map, idx, &run);
        ASSERT_EQ(at, model.free_from(idx) < bits ? model.free_from(idx) : BITMAP_NONE);
        if (at != BITMAP_NONE) {
            ASSERT_EQ(at + run, model.taken_from(at));
        }
        at = bitmap_next_taken(&map.map, idx, &run);
        for (want = idx; want < bits && model.byte[want] != 2;)
            want++;
        ASSERT_EQ(at, want < bits ? want : BITMAP_NONE);
        if (at != BITMAP_NONE) {
            ASSERT_EQ(run, model.run(at));
        }
        ASSERT_STREQ(bitmap_check(&map.map), nullptr);
    }
    // The share that shall be taken changes, so that the map fills, empties and stays.
    void steps(size_t count) {
        static const unsigned kPercent[] = {50, 95, 15, 100, 0, 80};
        for (size_t i = 0; i < count; i++) {
            size_t want = bits * kPercent[i / 5000 % 6] / 100;
            bool more = taken < want ? random() % 8 != 0 : random() % 8 == 0;
            if (more && random() % 8 == 0)
                extend();
            else if (more)
                take();
            else
                give();
            if (i % 1024 == 1023 && !testing::Test::HasFatalFailure())
                look();
            if (testing::Test::HasFatalFailure()) {
                ADD_FAILURE() << bits << " bits, step " << i;
                return;
            }
        }
    }
    size_t bits, taken = 0;
    Random random;
    Map map;
    Model model;
    std::vector<size_t> live;
};

TEST(BitmapModel, random_operations_go_as_in_the_model) {
    static const size_t kBits[] = {1100, 64, 1025, 1536, 700, 2048, 1, 3000, 1279, 1024};
    bool longer = getenv("QUIRE_TEST_LONG") != nullptr;
    for (uint64_t seed = 0; seed < (longer ? 100 : 10); seed++) {
        Program program(kBits[seed % 10] + seed / 10, seed + 1);
        program.steps(longer ? 1000000 : kSlow ? 50000 : 200000);
        ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    }
}

TEST(BitmapModel, large_maps_go_as_in_the_model) {
    for (size_t bits : {size_t(1) << 20, (size_t(1) << 20) - 1, size_t(300001), size_t(65536)}) {
        Program program(bits, bits);
        program.steps(getenv("QUIRE_TEST_LONG") ? (kSlow ? 300 : 3000) : kSlow ? 100 : 1500);
        ASSERT_FALSE(HasFatalFailure()) << bits << " bits";
    }
}

// Every way to have `width` bits free, taken, or taken with the next: then every operation on it.
// The window lies in a map that is otherwise taken, across a word's end when `before` says so.
void every_operation_in_every_state(size_t before, size_t width, size_t after) {
    const size_t bits = before + width + after, states = size_t(pow(3, double(width)) + 0.5);
    for (size_t state = 0; state < states; state++) {
        Map map(bits);
        Model model(bits);
        auto take = [&](size_t run) {
            ASSERT_EQ(bitmap_alloc(&map.map, run, 0), model.alloc(run, 0));
        };
        if (before)
            take(before);
        // Each bit: free, starts a run, goes on with what is before it.
        std::vector<size_t> gaps;
        size_t digits = state;
        for (size_t i = 0; i < width;) {
            size_t kind = digits % 3, run = 1;
            for (digits /= 3, i++; i < width && digits % 3 == 2; digits /= 3, i++)
                run++;
            if (kind == 0)
                gaps.push_back(before + i - run);
            take(run);
        }
        if (after)
            take(after);
        for (size_t gap : gaps)
            ASSERT_EQ(bitmap_free(&map.map, gap), model.free(gap));
        ASSERT_STREQ(bitmap_check(&map.map), nullptr);
        std::vector<uint64_t> kept = map.memory;
        struct bitmap kept_map = map.map;
        std::vector<uint8_t> kept_bytes = model.byte;
        for (size_t op = 0; op < width * 4 + width + width * width; op++) {
            if (op < width * 4) {
                size_t run = op / 4 + 1;
                unsigned align_log2 = unsigned(op % 4);
                ASSERT_EQ(bitmap_alloc(&map.map, run, align_log2), model.alloc(run, align_log2));
            } else if (op >= width * 4 + width) {
                size_t idx = before + op % width, more = op / width - 4;
                ASSERT_EQ(bitmap_extend(&map.map, idx, more), model.extend(idx, more));
            } else {
                size_t idx = before + op - width * 4, merged, length = model.free(idx);
                ASSERT_EQ(bitmap_free_merged(&map.map, idx, &merged), length);
                ASSERT_EQ(merged, length ? model.free_around(idx) : 0);
            }
            ASSERT_STREQ(bitmap_check(&map.map), nullptr) << "state " << state << " op " << op;
            map.memory = kept;
            map.map = kept_map;
            model.byte = kept_bytes;
        }
    }
}

TEST(BitmapModel, every_operation_in_every_state_of_a_small_map_goes_as_in_the_model) {
    for (size_t width = 1; width <= (kSlow ? 6 : 9); width++)
        every_operation_in_every_state(0, width, 0);
}

TEST(BitmapModel, every_operation_in_every_state_across_a_word_boundary_goes_as_in_the_model) {
    size_t width = kSlow ? 4 : 6;
    every_operation_in_every_state(61, width, 1100);   // the first boundary
    every_operation_in_every_state(1022, width, 64);   // in a later stripe
    every_operation_in_every_state(1087, width, 0);    // at the end
}

} // namespace
