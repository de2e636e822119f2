// SPDX-License-Identifier: MIT
/*
 * source_wrap.h - what the decorators limit, count and fail have in common: an inner source, and an account of what passed through.
 */
#ifndef QUIRE_PAGES_SOURCE_WRAP_H
#define QUIRE_PAGES_SOURCE_WRAP_H

#include "pages/source_account.h"
#include "pages/source_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

struct source_wrap {
    struct quire_source source; /* first: a wrap is a source */
    struct quire_source *inner;
    uint64_t parameter; /* fail: which take */
    /* any thread */
    struct source_account account;
    atomic_u64 calls; /* fail */
};

static inline struct source_wrap *source_wrap_of(struct quire_source *source)
{
    return (struct source_wrap *)source;
}

/* NULL with errno EINVAL (inner NULL) or ENOMEM. */
struct quire_source *source_wrap_new(struct quire_source *inner, const struct quire_source_verbs *verbs, uint64_t parameter);

/* Take from the inner source and write it on the account. */
int source_wrap_take(struct source_wrap *wrap, size_t bytes, size_t align_bytes, struct quire_span *out);

/* Verbs that all decorators share. */
void source_wrap_give(struct quire_source *source, const struct quire_span *span);
void source_wrap_idle(struct quire_source *source, void *start, size_t bytes);
int source_wrap_busy(struct quire_source *source, void *start, size_t bytes);
size_t source_wrap_trim(struct quire_source *source);
void source_wrap_fini(struct quire_source *source);
void source_wrap_stats(const struct quire_source *source, struct quire_source_stats *out);
const char *source_wrap_check(struct quire_source *source);

#define SOURCE_WRAP_VERBS(take_)                                                                                                    \
    {.take = (take_),                                                                                                               \
     .give = source_wrap_give,                                                                                                      \
     .idle = source_wrap_idle,                                                                                                      \
     .busy = source_wrap_busy,                                                                                                      \
     .fini = source_wrap_fini,                                                                                                      \
     .trim = source_wrap_trim,                                                                                                      \
     .stats = source_wrap_stats,                                                                                                    \
     .check = source_wrap_check}

#ifdef __cplusplus
}
#endif
#endif
