// SPDX-License-Identifier: MIT
/*
 * source_fail.c - the nth take fails: for tests of what stands behind a source.
 */
#include <errno.h>

#include "pages/source_wrap.h"

static int fail_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_wrap *wrap = source_wrap_of(source);
    if (u64_add_relaxed(&wrap->calls, 1) + 1 == wrap->parameter) {
        account_failed(&wrap->account);
        return -ENOMEM;
    }
    return source_wrap_take(wrap, bytes, align_bytes, out);
}

static const struct quire_source_verbs fail_verbs = SOURCE_WRAP_VERBS(fail_take);

struct quire_source *quire_source_fail(struct quire_source *inner, uint64_t nth)
{
    return source_wrap_new(inner, &fail_verbs, nth);
}
