// SPDX-License-Identifier: MIT
/*
 * netdata_aral_kit.h - for the tests of the Array Allocator's names: an array with few words, its sums, and a check of all that must hold.
 */
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include <quire/compat/netdata.h>
#include <quire/slab.h>

#include "support.h"

using AralStats = struct aral_statistics;

struct AralOpts {
    const char *name = "test";
    size_t initial = 0, page_bytes = 0;
    AralStats *stats = nullptr;
    bool lockless = false, dont_dump = false;
};

inline ARAL *array_of(size_t element_bytes, const AralOpts &o = {})
{
    return aral_create(o.name, element_bytes, o.initial, o.page_bytes, o.stats, nullptr, nullptr, false, o.lockless, o.dont_dump);
}

inline size_t live_elements_of(ARAL *ar)
{
    struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
    quire_slab_stats(aral_slab(ar), &stats);
    return stats.live_elements;
}

inline size_t total_bytes_of(ARAL *ar)
{
    return aral_structures_bytes(ar) + aral_used_bytes(ar) + aral_free_bytes(ar) + aral_padding_bytes(ar);
}

/* What the slab holds and the array's struct: the same, by another way. */
inline void expect_sound(ARAL *ar)
{
    struct quire_slab_stats slab = {.struct_bytes = sizeof slab};
    quire_slab_stats(aral_slab(ar), &slab);
    size_t struct_bytes = aral_structures_bytes(ar) - slab.meta_bytes;
    EXPECT_GE(struct_bytes, sizeof(AralStats));
    EXPECT_LE(struct_bytes, 1024u);
    EXPECT_EQ(total_bytes_of(ar), slab.mapped_bytes + struct_bytes);
    EXPECT_EQ(aral_used_bytes(ar), slab.live_elements * aral_requested_element_size(ar));
    const AralStats *stats = aral_get_statistics(ar);
    EXPECT_EQ(quire_slab_check(aral_slab(ar)), nullptr);
    EXPECT_EQ(stats->malloc.allocated_bytes + stats->mmap.allocated_bytes, aral_used_bytes_from_stats(stats) + aral_free_bytes_from_stats(stats));
}

/* Every field is 0. */
inline bool is_zero(const AralStats &stats)
{
    static const AralStats zero = {};
    return memcmp(&stats, &zero, sizeof zero) == 0;
}
