// SPDX-License-Identifier: MIT
/*
 * limbo.c - spans that were given back wait here for a while, in the `check` build, before anybody can have their addresses again.
 *
 *     give -> [ newest | ... | oldest ] -> shards and regions          at most LIMBO_SPANS small spans, of an OS page at least; larger ones pass at once
 *
 * Without it the next arena begins where the last one ended, and a second destroy of the last one ends the next.
 *
 * Locks: limbo.lock; never held while a span is given on.
 */
#include "pages/limbo.h"

#include "base/lock.h"
#include "os/os.h"
#include "pages/source_internal.h"

enum { LIMBO_SPANS = 32, LIMBO_SPAN_BYTES = LIMBO_BYTES_MAX / LIMBO_SPANS };

static struct {
    struct lock lock;
    uint32_t first, count;
    struct quire_span span[LIMBO_SPANS];
} limbo = {.lock = LOCK_INIT(LOCK_LIMBO)};

/* The oldest; false: there is none. */
static bool limbo_pop_locked(struct quire_span *out)
{
    if (limbo.count == 0)
        return false;
    *out = limbo.span[limbo.first];
    limbo.first = (limbo.first + 1) % LIMBO_SPANS;
    limbo.count--;
    return true;
}

bool limbo_pass(struct quire_span *span)
{
    size_t most = os_page_bytes() > LIMBO_SPAN_BYTES ? os_page_bytes() : LIMBO_SPAN_BYTES;
    if (span->bytes > most)
        return true;
    struct quire_span given = *span;
    lock_take(&limbo.lock);
    bool full = limbo.count == LIMBO_BYTES_MAX / most && limbo_pop_locked(span);
    limbo.span[(limbo.first + limbo.count) % LIMBO_SPANS] = given;
    limbo.count++;
    lock_drop(&limbo.lock);
    return full;
}

void limbo_drain(void)
{
    struct quire_span span;
    for (bool any = true; any;) {
        lock_take(&limbo.lock);
        any = limbo_pop_locked(&span);
        lock_drop(&limbo.lock);
        if (any)
            source_default_give_now(&span);
    }
}

void limbo_sum(size_t *bytes, uint64_t *spans)
{
    lock_take(&limbo.lock);
    for (uint32_t i = 0; i < limbo.count; i++)
        *bytes += limbo.span[(limbo.first + i) % LIMBO_SPANS].bytes;
    *spans += limbo.count;
    lock_drop(&limbo.lock);
}

/* A queue cut in two by the fork is forgotten: its spans stay taken in the child. */
void limbo_after_fork(void)
{
    if (lock_reset_others(&limbo.lock))
        limbo.count = 0;
}
