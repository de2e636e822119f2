// SPDX-License-Identifier: MIT
/*
 * source_wrap.c - the common part of sources that stand before another source.
 *
 *     allocator --take--> limit --take--> count --take--> default
 *
 * Invariant: S1 (source_account.h).
 *
 * Locks: none; the account is kept in relaxed atomics, which are exact as sums and not ordered between each other.
 */
#include "pages/source_wrap.h"

#include <errno.h>

#include "pages/source_verify.h"

struct quire_source *source_wrap_new(struct quire_source *inner, const struct quire_source_verbs *verbs, uint64_t parameter)
{
    int error = inner ? source_verify(inner) : -EINVAL;
    if (error) {
        errno = -error;
        return NULL;
    }
    struct source_wrap *wrap = source_struct_new(sizeof *wrap);
    if (!wrap)
        return NULL;
    wrap->source = (struct quire_source){verbs, inner->name};
    wrap->inner = inner;
    wrap->parameter = parameter;
    return &wrap->source;
}

int source_wrap_take(struct source_wrap *wrap, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    int error = wrap->inner->verbs->take(wrap->inner, bytes, align_bytes, out);
    if (error) {
        account_failed(&wrap->account);
        return error;
    }
    account_took(&wrap->account, bytes);
    return 0;
}

void source_wrap_give(struct quire_source *source, const struct quire_span *span)
{
    struct source_wrap *wrap = source_wrap_of(source);
    size_t bytes = span->bytes;
    wrap->inner->verbs->give(wrap->inner, span);
    /* After the inner give: a budget must not be free before the memory is. */
    account_gave(&wrap->account, bytes);
}

void source_wrap_idle(struct quire_source *source, void *start, size_t bytes)
{
    struct quire_source *inner = source_wrap_of(source)->inner;
    inner->verbs->idle(inner, start, bytes);
}

int source_wrap_busy(struct quire_source *source, void *start, size_t bytes)
{
    struct quire_source *inner = source_wrap_of(source)->inner;
    return inner->verbs->busy(inner, start, bytes);
}

size_t source_wrap_trim(struct quire_source *source)
{
    return quire_source_trim(source_wrap_of(source)->inner);
}

void source_wrap_fini(struct quire_source *source)
{
    struct source_wrap *wrap = source_wrap_of(source);
    source_account_end(&wrap->account, source);
    source_struct_delete(wrap, sizeof *wrap);
}

void source_wrap_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    account_stats(&((const struct source_wrap *)source)->account, out);
}

const char *source_wrap_check(struct quire_source *source)
{
    return quire_source_check(source_wrap_of(source)->inner);
}
