// SPDX-License-Identifier: MIT
/*
 * source_wrap.c - sources that stand before another one: limit, count and fail.
 *
 *     allocator --take--> limit --take--> count --take--> default
 *
 * All three count what passes through.  A limit is a wrap whose account has one; of a wrap that fails one take does, by its number.
 *
 * Invariants, beside S1 (source_account.h):
 *   S7  taken_bytes, raised before the inner take and lowered after the inner give, never passes the limit
 *
 * Locks: none; the account is kept in relaxed atomics, which are exact as sums and not ordered between each other.
 */
#include "base/fail.h"
#include "pages/source_account.h"
#include "pages/source_internal.h"

struct source_wrap {
    struct source_counted counted; /* first: a wrap is a source */
    struct quire_source *inner;
    uint64_t fails;   /* the take of this number, from 1; 0: none */
    atomic_u64 calls; /* where one fails */
};

static struct source_wrap *wrap_of(struct quire_source *source)
{
    return (struct source_wrap *)source;
}

static int wrap_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_wrap *wrap = wrap_of(source);
    struct source_account *account = &wrap->counted.account;
    bool fails = wrap->fails != 0 && u64_add_relaxed(&wrap->calls, 1) + 1 == wrap->fails;
    int error = !fails && account_charge(&account->bytes, bytes, wrap) ? 0 : -ENOMEM;
    if (!error) {
        error = wrap->inner->verbs->take(wrap->inner, bytes, align_bytes, out);
        account_settle(&account->bytes, bytes, error == 0);
    }
    u64_add_relaxed(error ? &account->failures : &account->takes, 1);
    return error;
}

static void wrap_give(struct quire_source *source, const struct quire_span *span)
{
    struct source_wrap *wrap = wrap_of(source);
    size_t bytes = span->bytes;
    wrap->inner->verbs->give(wrap->inner, span);
    /* After the inner give: a budget must not be free before the memory is. */
    account_gave(&wrap->counted.account, bytes);
}

static void wrap_idle(struct quire_source *source, void *start, size_t bytes)
{
    struct quire_source *inner = wrap_of(source)->inner;
    inner->verbs->idle(inner, start, bytes);
}

static int wrap_busy(struct quire_source *source, void *start, size_t bytes)
{
    struct quire_source *inner = wrap_of(source)->inner;
    return inner->verbs->busy(inner, start, bytes);
}

static size_t wrap_trim(struct quire_source *source)
{
    return quire_source_trim(wrap_of(source)->inner);
}

static const char *wrap_check(struct quire_source *source)
{
    return quire_source_check(wrap_of(source)->inner);
}

static const struct quire_source_verbs wrap_verbs = {.take = wrap_take,
                                                     .give = wrap_give,
                                                     .idle = wrap_idle,
                                                     .busy = wrap_busy,
                                                     .fini = counted_fini,
                                                     .trim = wrap_trim,
                                                     .stats = counted_stats,
                                                     .check = wrap_check};

static struct quire_source *wrap_new(struct quire_source *inner, size_t limit_bytes, uint64_t fails)
{
    int error = inner ? source_verify(inner) : -EINVAL;
    if (error)
        return fail_null(-error);
    struct source_wrap *wrap = source_counted_new(sizeof *wrap, &wrap_verbs, inner->name);
    if (!wrap)
        return NULL;
    wrap->inner = inner;
    wrap->fails = fails;
    wrap->counted.account.bytes.limit_bytes = limit_bytes;
    return &wrap->counted.source;
}

struct quire_source *quire_source_limit(struct quire_source *inner, size_t bytes)
{
    return wrap_new(bytes ? inner : NULL, bytes, 0);
}

struct quire_source *quire_source_count(struct quire_source *inner)
{
    return wrap_new(inner, 0, 0);
}

struct quire_source *quire_source_fail(struct quire_source *inner, uint64_t nth)
{
    return wrap_new(inner, 0, nth);
}
