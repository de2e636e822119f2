// SPDX-License-Identifier: MIT
/*
 * own_source.h - a page source of the test's own, for every allocator that takes one.
 */
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <quire/source.h>

/* A source as a user would write one: five verbs, dirty memory, an errno of its own. */
struct OwnSource {
    struct quire_source base;
    size_t taken_bytes, limit_bytes;
};

inline int own_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    OwnSource *own = reinterpret_cast<OwnSource *>(source);
    if (own->taken_bytes + bytes > own->limit_bytes)
        return -EDQUOT;
    void *p = aligned_alloc(align_bytes, bytes);
    memset(p, 0xa5, bytes);
    own->taken_bytes += bytes;
    *out = {p, bytes, 0, 123456};
    return 0;
}

inline void own_give(struct quire_source *source, const struct quire_span *span)
{
    EXPECT_EQ(span->cookie, 123456u) << "every field comes back unchanged";
    reinterpret_cast<OwnSource *>(source)->taken_bytes -= span->bytes;
    free(span->start);
}
