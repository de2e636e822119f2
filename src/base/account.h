// SPDX-License-Identifier: MIT
/*
 * account.h - what an object holds of memory, the most that it has held, and the most that it may.
 *
 *     account_charge()  --> the memory is asked for --had-->      account_charged(): the peak
 *                                                   --refused-->  account_discharge(): as if nothing had been
 *
 * Invariants:
 *   A1  mapped_bytes is never above limit_bytes, and counts what is about to be had: two threads cannot both have the last of it
 *   A2  peak_bytes is never raised by what was refused
 *
 * Locks: none: each sum is exact, sums are not ordered between each other.
 */
#ifndef QUIRE_BASE_ACCOUNT_H
#define QUIRE_BASE_ACCOUNT_H

#include <stdbool.h>

#include "base/atomic.h"

C_DECLARATIONS_BEGIN

struct account {
    size_t limit_bytes; /* 0: none */
    atomic_size mapped_bytes, peak_bytes;
    atomic_size meta_bytes; /* of mapped_bytes: bookkeeping */
};

/* False: with `room` bytes more it would be above the limit, which is told to those who trace `whose` limits are reached. */
bool account_charge_leaving(struct account *account, size_t bytes, size_t room, const void *whose);

static inline bool account_charge(struct account *account, size_t bytes, const void *whose)
{
    return account_charge_leaving(account, bytes, 0, whose);
}

/* What was charged for has been had. */
static inline void account_charged(struct account *account)
{
    size_max_relaxed(&account->peak_bytes, size_load_relaxed(&account->mapped_bytes));
}

static inline void account_discharge(struct account *account, size_t bytes)
{
    size_sub_relaxed(&account->mapped_bytes, bytes);
}

/* The one or the other; whether it has been had. */
static inline bool account_settle(struct account *account, size_t bytes, bool had)
{
    if (had)
        account_charged(account);
    else
        account_discharge(account, bytes);
    return had;
}

/* Of no bytes: is it within its limit? */
static inline bool account_has_room(const struct account *account, size_t bytes)
{
    size_t limit = account->limit_bytes ? account->limit_bytes : SIZE_MAX;
    return bytes <= limit && size_load_relaxed(&account->mapped_bytes) <= limit - bytes;
}

/* What holds so much bookkeeping, and nothing else: at its birth, and before it is counted anew in the child of a fork. */
static inline void account_set(struct account *account, size_t meta_bytes)
{
    size_store_relaxed(&account->mapped_bytes, meta_bytes);
    size_store_relaxed(&account->meta_bytes, meta_bytes);
    account_charged(account);
}

C_DECLARATIONS_END
#endif
