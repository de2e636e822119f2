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

#include "os/os_probe.h"
#include "pages/source_wrap.h"

/* Raise the account by `bytes` unless that would pass the limit. */
static bool budget_raise(struct source_wrap *wrap, size_t bytes)
{
    size_t taken = size_load_relaxed(&wrap->account.taken_bytes);
    do {
        if (bytes > wrap->parameter || taken > wrap->parameter - bytes) {
            PROBE3(limit_reached, (uintptr_t)wrap, bytes, wrap->parameter);
            return false;
        }
    } while (!size_cas_relaxed(&wrap->account.taken_bytes, &taken, taken + bytes));
    size_max_relaxed(&wrap->account.peak_bytes, taken + bytes);
    return true;
}

static int limit_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_wrap *wrap = source_wrap_of(source);
    int error = -ENOMEM;
    if (budget_raise(wrap, bytes)) {
        error = wrap->inner->verbs->take(wrap->inner, bytes, align_bytes, out);
        if (error)
            size_sub_relaxed(&wrap->account.taken_bytes, bytes);
    }
    u64_add_relaxed(error ? &wrap->account.failures : &wrap->account.takes, 1);
    return error;
}

static void limit_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    source_wrap_stats(source, out);
    out->limit_bytes = ((const struct source_wrap *)source)->parameter;
}

static const struct quire_source_verbs limit_verbs = {.take = limit_take,
                                                      .give = source_wrap_give,
                                                      .idle = source_wrap_idle,
                                                      .busy = source_wrap_busy,
                                                      .fini = source_wrap_fini,
                                                      .trim = source_wrap_trim,
                                                      .stats = limit_stats,
                                                      .check = source_wrap_check};

struct quire_source *quire_source_limit(struct quire_source *inner, size_t bytes)
{
    if (bytes == 0) {
        errno = EINVAL;
        return NULL;
    }
    return source_wrap_new(inner, &limit_verbs, bytes);
}
