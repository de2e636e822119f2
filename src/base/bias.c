// SPDX-License-Identifier: MIT
/*
 * bias.c - the visitor's side of a lock that favours one thread.
 *
 * Locks: the caller's.  Not here: the favoured thread's side (bias.h).
 */
#include "base/bias.h"
#include "os/os.h"
#include "os/sanitize.h"

enum { PATIENCE_SPINS = 100, NAP_NS = 50000 };

static atomic_u32 answer; /* 0 not asked, 1 barriers work, 2 they do not */

static COLD uint32_t ask(void)
{
    bool works = os_barrier_init() == 0 && !sanitize_watched() && !sanitize_race_watched();
    u32_store_relaxed(&answer, works ? 1 : 2);
    return works ? 1 : 2;
}

bool bias_works(void)
{
    uint32_t seen = u32_load_relaxed(&answer);
    return (likely(seen != 0) ? seen : ask()) == 1;
}

void bias_after_fork(void)
{
    if (u32_load_relaxed(&answer) == 1)
        ask();
}

/* Y1: after the barrier the favoured thread has seen that the short way is closed, or we see it inside. */
void bias_evict(struct bias *bias)
{
    u32_store_relaxed(&bias->open, 0);
    os_barrier();
    for (int i = 0; u32_load_acquire(&bias->active) != 0; i++) { /* acquire [bias-active] */
        if (i < PATIENCE_SPINS)
            cpu_pause();
        else if (unlikely(os_is_unrepaired()))
            os_repair();
        else
            os_sleep_ns(NAP_NS);
    }
}

void bias_visit(struct bias *bias)
{
    bias_take(bias);
    if (u32_load_relaxed(&bias->open) != 0)
        bias_evict(bias);
}

bool bias_reset(struct bias *bias)
{
    bool inside = lock_reset(&bias->lock) || u32_load_relaxed(&bias->active) != 0;
    u32_store_relaxed(&bias->active, 0);
    u32_store_relaxed(&bias->open, 0);
    return inside;
}
