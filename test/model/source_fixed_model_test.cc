// SPDX-License-Identifier: MIT
/* The fixed source against a map of live spans: none overlap, contents stay, a refusal means that there is no room. */
#include "unit/source_kit.h"

#include <cstring>
#include <map>
#include <random>

#include "base/compiler.h"

TEST(SourceFixedModel, random_spans_never_overlap_and_are_refused_only_when_there_is_no_room)
{
    size_t page = os_page_bytes();
    std::vector<char> memory(300 * page);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        std::mt19937_64 random(seed);
        quire_source *source = quire_source_fixed(memory.data() + seed * 100, memory.size() - 1000);
        ASSERT_NE(source, nullptr);
        std::map<uintptr_t, quire_span> live;
        uintptr_t low = 0, high = 0; /* of all pages: had by taking every one of them */
        quire_span span;
        while (take(source, page, &span) == 0) {
            low = low ? low : (uintptr_t)span.start;
            high = (uintptr_t)span.start + page;
            live[(uintptr_t)span.start] = span;
        }
        for (auto &each : live)
            give(source, each.second);
        live.clear();
        for (int step = 0; step < (BUILT_WITH_TSAN ? 2000 : 20000); step++) {
            if (random() % 2) {
                size_t bytes = (1 + random() % 12) * page, align_bytes = page << random() % 6;
                int error = take(source, bytes, &span, align_bytes);
                /* The lowest aligned gap, found the slow way. */
                uintptr_t want = 0, from = low;
                for (auto it = live.begin();; ++it) {
                    uintptr_t at = (from + align_bytes - 1) & ~(align_bytes - 1);
                    if (at + bytes <= (it == live.end() ? high : it->first)) {
                        want = at;
                        break;
                    }
                    if (it == live.end())
                        break;
                    from = it->first + it->second.bytes;
                }
                ASSERT_EQ(error, want ? 0 : -ENOMEM) << "step " << step;
                if (error)
                    continue;
                ASSERT_EQ((uintptr_t)span.start, want);
                memset(span.start, int(want / page % 251), bytes);
                live[want] = span;
            } else if (!live.empty()) {
                auto it = std::next(live.begin(), ptrdiff_t(random() % live.size()));
                const char *bytes = static_cast<const char *>(it->second.start);
                ASSERT_EQ(std::count(bytes, bytes + it->second.bytes, char(it->first / page % 251)), (ptrdiff_t)it->second.bytes);
                give(source, it->second);
                live.erase(it);
            }
            ASSERT_EQ(quire_source_check(source), nullptr);
        }
        for (auto &each : live)
            give(source, each.second);
        quire_source_destroy(source);
    }
}
