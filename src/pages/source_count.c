// SPDX-License-Identifier: MIT
/*
 * source_count.c - one tenant's account: what passes through is counted, nothing else.
 */
#include "pages/source_wrap.h"

static int count_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    return source_wrap_take(source_wrap_of(source), bytes, align_bytes, out);
}

static const struct quire_source_verbs count_verbs = SOURCE_WRAP_VERBS(count_take);

struct quire_source *quire_source_count(struct quire_source *inner)
{
    return source_wrap_new(inner, &count_verbs, 0);
}
