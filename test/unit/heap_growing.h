// SPDX-License-Identifier: MIT
/*
 * heap_growing.h - large blocks that become larger: what they hold of the source, and neighbours that are in their way.
 */
#pragma once

#include "pages/region_internal.h"
#include "unit/heap_scope.h"

inline char *grow(quire_heap *heap, char *p, size_t bytes)
{
    return static_cast<char *>(quire_heap_realloc(heap, p, bytes));
}

inline struct quire_source_stats source_stats()
{
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(quire_source_default(), &stats);
    return stats;
}

/* What blocks hold of the source; one that is mapped alone holds nothing of it. */
inline size_t taken() { return source_stats().taken_bytes; }
inline size_t idle() { return source_stats().idle_bytes; }

/* The heap's only block is mapped alone. */
inline bool is_alone(size_t before) { return taken() < before + 250000; }

/* While it lives somebody has the page behind a large block of so many bytes. */
class Neighbour {
public:
    Neighbour(const char *block, size_t bytes)
    {
        const size_t page = os_page_bytes();
        const char *end = block + (bytes + page - 1) / page * page;
        std::vector<quire_span> others;
        while (!has(end)) {
            others.push_back(span);
            EXPECT_EQ(source->verbs->take(source, page, page, &span), 0);
        }
        for (const quire_span &other : others)
            if (other.bytes)
                source->verbs->give(source, &other);
    }
    Neighbour(const Neighbour &) = delete;
    ~Neighbour()
    {
        if (span.bytes)
            source->verbs->give(source, &span);
    }

private:
    static bool has(const char *end)
    {
        for (uint32_t i = 0; i < regions.count; i++) {
            const struct region *region = region_by_id[i];
            size_t idx = size_t(end - region->start) >> os_page_shift();
            if (end >= region->start && idx < region->pages)
                return bitmap_taken(&region->map, idx);
        }
        return true;
    }
    quire_source *source = quire_source_default();
    quire_span span = {};
};

/* One that grew into a mapping of its own is freed: its size comes and goes from now on. */
inline void come_and_go(Heap &heap, size_t bytes)
{
    size_t before = taken();
    char *p = grow(heap, nullptr, 300000);
    Neighbour neighbour(p, 300000);
    EXPECT_FALSE(is_alone(before));
    p = grow(heap, p, bytes);
    EXPECT_TRUE(is_alone(before));
    quire_heap_free(heap, p);
}
