// SPDX-License-Identifier: MIT
/*
 * arena_model.h - random operation programs on an arena, against a plain model: what lives, where, with which bytes.
 *
 * Choices gives the program: below(n) is a number under n.  The tests draw them from a seed, the fuzzer from its bytes.  A difference throws.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <quire/arena.h>

#include "model/must.h"

struct Block {
    size_t bytes;
    uint8_t value;
};
struct Mark {
    struct quire_arena_mark mark;
    size_t blocks, defers;
};

template <typename Choices> class ArenaModel {
public:
    explicit ArenaModel(const quire_arena_opts &opts) : arena(quire_arena_create(&opts)), limit(opts.limit_bytes) {}
    /* The end of a program: every block is as it was, and destroy runs every defer. */
    void end()
    {
        verify();
        ran_until(0);
        quire_arena_destroy(arena);
        MUST(ran == 0);
    }

    void step(Choices &random)
    {
        unsigned op = unsigned(random.below(100));
        if (op < 10)
            text(random);
        else if (op < 60)
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
        MUST(error == nullptr);
    }

    void verify()
    {
        for (auto &[p, block] : blocks)
            verify_block(p, block);
    }

private:
    static size_t some_size(Choices &random)
    {
        switch (random.below(8)) {
        case 0: return random.below(3);
        case 1: return random.below(100000);
        case 2: return random.below(20) == 0 ? random.below(6 << 20) : random.below(5000);
        default: return random.below(300);
        }
    }

    void alloc(Choices &random, unsigned op)
    {
        size_t bytes = some_size(random), align = 16;
        void *p;
        if (op < 40) {
            p = quire_arena_alloc(arena, bytes);
        } else if (op < 50) {
            p = quire_arena_alloc_zero(arena, 1, bytes);
            MUST(!p || filled_with(p, 0, bytes));
        } else {
            align = size_t(1) << random.below(14);
            p = quire_arena_alloc_aligned(arena, bytes, align);
        }
        if (!p) {
            MUST(limit != 0); /* only a limit may refuse here */
            return;
        }
        MUST(uintptr_t(p) % align == 0);
        add(p, bytes);
    }

    void text(Choices &random)
    {
        std::string wanted(random.below(10) ? random.below(40) : some_size(random), char('a' + value % 26));
        const char *made = random.below(3) ? quire_arena_strdup(arena, wanted.c_str()) : quire_arena_printf(arena, "%s", wanted.c_str());
        if (!made) {
            MUST(limit != 0);
            return;
        }
        MUST(made == wanted);
        add(const_cast<char *>(made), wanted.size() + 1);
    }

    void add(void *p, size_t bytes)
    {
        char *start = static_cast<char *>(p), *end = start + (bytes ? bytes : 1);
        auto after = live.lower_bound(start);
        MUST(after == live.end() || after->first >= end); /* overlaps the block after it */
        MUST(after == live.begin() || std::prev(after)->second <= start); /* overlaps the block before it */
        live[start] = end;
        blocks.push_back({start, {bytes, ++value}});
        memset(start, value, bytes);
    }

    static void verify_block(const char *p, const Block &block)
    {
        if (block.bytes <= 4096) {
            MUST(filled_with(p, block.value, block.bytes));
            return;
        }
        for (size_t i = 0; i < block.bytes; i += 509)
            MUST(uint8_t(p[i]) == block.value);
    }

    void resize(Choices &random)
    {
        if (blocks.empty())
            return;
        size_t k = random.below(2) ? blocks.size() - 1 : random.below(blocks.size());
        bool older = !marks.empty() && k < marks.back().blocks; /* than the newest mark: it must be found as it was */
        auto [p, block] = blocks[k];
        size_t bytes = random.below(2) ? some_size(random) : block.bytes + random.below(64);
        char *moved = static_cast<char *>(quire_arena_resize(arena, p, block.bytes, bytes));
        if (!moved) {
            MUST(limit != 0);
            verify_block(p, block);
            return;
        }
        Block kept = {std::min(bytes, block.bytes), block.value};
        verify_block(moved, kept);
        if (moved != p && older) {
            verify_block(p, block);
            add(moved, bytes);
            return;
        }
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
        MUST(ran == mark.defers);
        drop_to(mark.blocks);
        marks.resize(k + 1); /* the mark itself stays good */
        verify();
    }

    void reset()
    {
        ran_until(0);
        quire_arena_reset(arena);
        MUST(ran == 0);
        drop_to(0);
        marks.clear();
    }

    static void on_defer(void *arg)
    {
        ArenaModel *model = static_cast<ArenaModel *>(arg);
        MUST(model->ran == model->expected_next); /* last first, each once */
        model->ran--, model->expected_next--;
    }

    void defer()
    {
        if (quire_arena_defer(arena, on_defer, this) == 0)
            ran = ++defers;
    }

    void ask(Choices &random)
    {
        struct quire_arena_stats stats = {.struct_bytes = sizeof stats};
        quire_arena_stats(arena, &stats);
        MUST(stats.mapped_bytes == stats.live_bytes + stats.free_bytes + stats.lost_bytes + stats.meta_bytes);
        MUST(limit == 0 || stats.mapped_bytes <= limit);
        if (!blocks.empty()) {
            auto &[p, block] = blocks[random.below(blocks.size())];
            MUST(quire_arena_owns(arena, p));
            verify_block(p, block);
        }
        MUST(!quire_arena_owns(arena, this));
    }

    quire_arena *arena;
    size_t limit;
    std::vector<std::pair<char *, Block>> blocks; /* in order of allocation */
    std::map<char *, char *> live;                /* start -> end */
    std::vector<Mark> marks;
    size_t defers = 0, ran = 0, expected_next = 0;
    uint8_t value = 0;
};
