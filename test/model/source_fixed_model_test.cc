// SPDX-License-Identifier: MIT
/* The fixed source against a map of live spans: none overlap, contents stay, a refusal means that there is no room. */
#include "unit/source_kit.h"

#include <cstring>
#include <map>
#include <random>

#include "base/compiler.h"

namespace {

/* Spans by address, in the part of the buffer that the source hands out. */
struct Model {
    std::map<uintptr_t, quire_span> live;
    uintptr_t low = 0, high = 0;

    /* The lowest aligned gap, found the slow way; 0 when there is none. */
    uintptr_t gap(size_t bytes, size_t align_bytes) const
    {
        uintptr_t from = low;
        for (auto it = live.begin();; ++it) {
            uintptr_t at = (from + align_bytes - 1) & ~(align_bytes - 1);
            if (at + bytes <= (it == live.end() ? high : it->first))
                return at;
            if (it == live.end())
                return 0;
            from = it->first + it->second.bytes;
        }
    }
};

int pattern(uintptr_t start)
{
    return int(start / os_page_bytes() % 127);
}

void take_some(quire_source *source, Model &model, std::mt19937_64 &random)
{
    size_t page = os_page_bytes(), bytes = (1 + random() % 12) * page, align_bytes = page << random() % 6;
    quire_span span;
    int error = take(source, bytes, &span, align_bytes);
    uintptr_t want = model.gap(bytes, align_bytes);
    ASSERT_EQ(error, want ? 0 : -ENOMEM);
    if (error)
        return;
    ASSERT_EQ((uintptr_t)span.start, want);
    memset(span.start, pattern(want), bytes);
    model.live[want] = span;
}

void give_one(quire_source *source, Model &model, std::mt19937_64 &random)
{
    auto it = std::next(model.live.begin(), ptrdiff_t(random() % model.live.size()));
    const char *bytes = static_cast<const char *>(it->second.start);
    ASSERT_EQ(std::count(bytes, bytes + it->second.bytes, char(pattern(it->first))), (ptrdiff_t)it->second.bytes);
    give(source, it->second);
    model.live.erase(it);
}

void give_all(quire_source *source, Model &model)
{
    for (auto &each : model.live)
        give(source, each.second);
    model.live.clear();
}

} // namespace

TEST(SourceFixedModel, random_spans_never_overlap_and_are_refused_only_when_there_is_no_room)
{
    std::vector<char> memory(300 * os_page_bytes());
    for (uint64_t seed = 1; seed <= 5; seed++) {
        std::mt19937_64 random(seed);
        quire_source *source = quire_source_fixed(memory.data() + seed * 100, memory.size() - 1000);
        ASSERT_NE(source, nullptr);
        Model model;
        quire_span span;
        while (take(source, os_page_bytes(), &span) == 0) { /* every page, to know where they lie */
            model.low = model.low ? model.low : (uintptr_t)span.start;
            model.high = (uintptr_t)span.start + span.bytes;
            model.live[(uintptr_t)span.start] = span;
        }
        give_all(source, model);
        for (int step = 0; step < (BUILT_WITH_TSAN ? 2000 : under_asan() ? 5000 : 20000) && !HasFatalFailure(); step++) {
            if (random() % 2)
                take_some(source, model, random);
            else if (!model.live.empty())
                give_one(source, model, random);
            ASSERT_EQ(quire_source_check(source), nullptr) << "step " << step;
        }
        give_all(source, model);
        quire_source_destroy(source);
    }
}
