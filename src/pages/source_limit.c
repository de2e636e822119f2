// SPDX-License-Identifier: MIT
/*
 * source_limit.c - a hard budget over another source.
 *
 * Invariants:
 *   S7  taken_bytes, raised before the inner take and lowered after the inner give, never passes the limit
 *
 * Locks: none: the budget is raised by compare-and-swap, so two threads cannot both have the last of it.
 */
#include <errno.h>

#include "pages/source_wrap.h"

static int limit_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_wrap *wrap = source_wrap_of(source);
    struct account *budget = &wrap->account.bytes;
    int error = account_charge(budget, bytes, wrap) ? 0 : -ENOMEM;
    if (!error && (error = wrap->inner->verbs->take(wrap->inner, bytes, align_bytes, out)) != 0)
        account_discharge(budget, bytes);
    else if (!error)
        account_charged(budget);
    u64_add_relaxed(error ? &wrap->account.failures : &wrap->account.takes, 1);
    return error;
}

static const struct quire_source_verbs limit_verbs = SOURCE_WRAP_VERBS(limit_take);

struct quire_source *quire_source_limit(struct quire_source *inner, size_t bytes)
{
    if (bytes == 0) {
        errno = EINVAL;
        return NULL;
    }
    struct quire_source *source = source_wrap_new(inner, &limit_verbs, 0);
    if (source)
        source_wrap_of(source)->account.bytes.limit_bytes = bytes;
    return source;
}
