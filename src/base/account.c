// SPDX-License-Identifier: MIT
/*
 * account.c - the one place where a limit is compared with what is wanted.
 *
 * Locks: none.
 */
#include "base/account.h"

#include "os/os_probe.h"

bool account_charge_leaving(struct account *account, size_t bytes, size_t room, const void *whose)
{
    size_t mapped = size_load_relaxed(&account->mapped_bytes), limit = account->limit_bytes ? account->limit_bytes : SIZE_MAX;
    do
        if (bytes > limit || room > limit - bytes || mapped > limit - bytes - room) {
            PROBE3(limit_reached, (uintptr_t)whose, bytes, limit);
            return false;
        }
    while (!size_cas_relaxed(&account->mapped_bytes, &mapped, mapped + bytes));
    return true;
}
