// SPDX-License-Identifier: MIT
/*
 * pressure.c - is memory short?  The kernel counts for how long tasks wait for it (pressure stall information); two readings make a share of the time.
 *
 *     look ...... look ...... look          who ticks reads the count, at each tick and once a second
 *       total=7000   total=7000   total=250000     243 of 1000 ms stalled: above 10 %: trim
 *
 * The count is of the process's cgroup, else of the machine (os_memory.c).  It is read, not waited for: ADR 34.  Whether a cgroup was at its limit is a
 * count, too, and says that an OOM kill may come; nothing is trimmed for it, because page cache alone fills a cgroup up to there.
 *
 * Locks: none; one asks at a time of what he has seen, and a reading lost between two costs a look.  Not here: what a trim does (source_default.c).
 */
#include "pages/pressure.h"
#include "base/atomic.h"
#include "os/os.h"

static struct {
    atomic_u32 percent;
    struct pressure_seen seen;
} pressure;

void pressure_watch(uint32_t percent)
{
    u32_store_relaxed(&pressure.percent, percent);
    u64_store_relaxed(&pressure.seen.stalled_us_plus_1, 0);
}

bool pressure_is_watched(void)
{
    return u32_load_relaxed(&pressure.percent) != 0;
}

bool pressure_exceeds(uint64_t stalled_us, uint64_t passed_ns, uint32_t percent)
{
    return stalled_us > passed_ns / 100000 * percent; /* a percent of a nanosecond, as microseconds */
}

bool pressure_stalls(struct pressure_seen *seen, uint64_t now_ns, uint32_t percent)
{
    uint64_t stalled_us, before = u64_load_relaxed(&seen->stalled_us_plus_1), looked_ns = u64_load_relaxed(&seen->looked_ns);
    if (os_memory_stalled_us(&stalled_us) != 0)
        return false;
    u64_store_relaxed(&seen->stalled_us_plus_1, stalled_us + 1);
    u64_store_relaxed(&seen->looked_ns, now_ns);
    return before != 0 && stalled_us + 1 > before && pressure_exceeds(stalled_us + 1 - before, now_ns - looked_ns, percent);
}

bool pressure_hits_limit(struct pressure_seen *seen)
{
    uint64_t hits, before = u64_load_relaxed(&seen->hits_plus_1);
    if (os_memory_limit_hits(&hits) != 0)
        return false;
    u64_store_relaxed(&seen->hits_plus_1, hits + 1);
    return before != 0 && hits + 1 > before;
}

bool pressure_is_high(uint64_t now_ns)
{
    uint32_t percent = u32_load_relaxed(&pressure.percent);
    return percent != 0 && pressure_stalls(&pressure.seen, now_ns, percent);
}
