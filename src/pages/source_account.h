// SPDX-License-Identifier: MIT
/*
 * source_account.h - what every source but the default one counts: bytes taken, their peak, and calls.
 *
 * Relaxed atomics: each sum is exact, sums are not ordered between each other.
 *
 * Invariant, of every source that can be ended:
 *   S1  when it ends, every span has been given back; but in a child of a fork those that may be in the hands of a thread that is gone
 */
#ifndef QUIRE_PAGES_SOURCE_ACCOUNT_H
#define QUIRE_PAGES_SOURCE_ACCOUNT_H

#include <quire/source.h>

#include "base/account.h"
#include "base/panic.h"
#include "pages/source_fork.h"

struct source_account {
    struct account bytes; /* taken */
    atomic_u64 takes, gives, failures;
    uint32_t born; /* at which of source_fork_lost */
};

static inline void account_born(struct source_account *account)
{
    account->born = u32_load_relaxed(&source_fork_lost);
}

/* What a source begins with that has nothing else to say of itself. */
struct source_counted {
    struct quire_source source; /* first: it is a source */
    size_t struct_bytes; /* of its own pages */
    /* any thread */
    struct source_account account;
};

static inline struct source_counted *source_counted(const struct quire_source *source)
{
    return (struct source_counted *)(uintptr_t)source;
}

/* A take has ended so: 0, or an error; which is returned. */
static inline int account_take(struct source_account *account, size_t bytes, int error)
{
    if (!error) {
        size_add_relaxed(&account->bytes.mapped_bytes, bytes);
        account_charged(&account->bytes);
    }
    u64_add_relaxed(error ? &account->failures : &account->takes, 1);
    return error;
}

static inline void account_gave(struct source_account *account, size_t bytes)
{
    account_discharge(&account->bytes, bytes);
    u64_add_relaxed(&account->gives, 1);
}

static inline void source_account_end(const struct source_account *account, const struct quire_source *source)
{
    if (size_load_relaxed(&account->bytes.mapped_bytes) != 0 && account->born == u32_load_relaxed(&source_fork_lost))
        panic("source", source->name, "S1 destroyed with spans still taken", source);
}

/* A source's own struct in zeroed pages of its own (so no allocator is needed below the allocators); NULL with errno ENOMEM. */
void *source_counted_new(size_t bytes, const struct quire_source_verbs *verbs, const char *name);
/* Verbs. */
void counted_fini(struct quire_source *source);
void counted_stats(const struct quire_source *source, struct quire_source_stats *out);

static inline void account_stats(const struct source_account *account, struct quire_source_stats *out)
{
    out->taken_bytes = size_load_relaxed(&account->bytes.mapped_bytes);
    out->peak_bytes = size_load_relaxed(&account->bytes.peak_bytes);
    out->limit_bytes = account->bytes.limit_bytes;
    out->takes = u64_load_relaxed(&account->takes);
    out->gives = u64_load_relaxed(&account->gives);
    out->failures = u64_load_relaxed(&account->failures);
}

#endif
