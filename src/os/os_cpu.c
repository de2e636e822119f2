// SPDX-License-Identifier: MIT
/*
 * os_cpu.c - how many CPUs there may be and which one runs this.
 *
 * The id comes from the rseq area that libc registered for the thread, where there is one (one load), else from the vDSO.
 */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <unistd.h>

#include "base/atomic.h"
#include "os/os.h"

/* glibc >= 2.35 says where its rseq area lies; its cpu_id is the second word, negative (as signed) while unregistered. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

static atomic_u32 cpu_count_cached;

unsigned os_cpu_count(void)
{
    uint32_t count = u32_load_relaxed(&cpu_count_cached);
    if (unlikely(count == 0)) {
        int kept = errno;
        long n = sysconf(_SC_NPROCESSORS_CONF);
        count = n > 0 ? (uint32_t)n : 1;
        u32_store_relaxed(&cpu_count_cached, count);
        errno = kept;
    }
    return count;
}

static NOINLINE unsigned cpu_id_slow(void)
{
    int kept = errno, id = sched_getcpu();
    errno = kept;
    return id < 0 ? 0 : (unsigned)id;
}

unsigned os_cpu_id(void)
{
    if (likely(&__rseq_size != NULL && __rseq_size != 0)) {
        const volatile int32_t *area = (const volatile int32_t *)(const void *)((char *)__builtin_thread_pointer() + __rseq_offset);
        int32_t id = area[1];
        if (likely(id >= 0))
            return (unsigned)id;
    }
    return cpu_id_slow();
}
