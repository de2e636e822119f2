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

#include "os/os.h"

/* glibc >= 2.35 says where its rseq area lies; its cpu_id is the second word, negative (as signed) while unregistered. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

static uint32_t cpu_count_cached;

unsigned os_cpu_count(void)
{
    uint32_t count = __atomic_load_n(&cpu_count_cached, __ATOMIC_RELAXED);
    if (__builtin_expect(count == 0, 0)) {
        int kept = errno;
        long n = sysconf(_SC_NPROCESSORS_CONF);
        count = n > 0 ? (uint32_t)n : 1;
        __atomic_store_n(&cpu_count_cached, count, __ATOMIC_RELAXED);
        errno = kept;
    }
    return count;
}

void os_cpu_count_fake(unsigned count)
{
    __atomic_store_n(&cpu_count_cached, count, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) unsigned cpu_id_slow(void)
{
    int kept = errno, id = sched_getcpu();
    errno = kept;
    return id < 0 ? 0 : (unsigned)id;
}

/* For tests: what this thread's os_cpu_id() says, plus 1; 0: the truth. */
static __thread int fake_plus_1 __attribute__((tls_model("initial-exec")));

void os_cpu_fake(int id)
{
    fake_plus_1 = (int)((unsigned)id + 1);
}

unsigned os_cpu_id(void)
{
    if (__builtin_expect(fake_plus_1 != 0, 0))
        return (unsigned)(fake_plus_1 - 1);
    if (__builtin_expect(&__rseq_size != NULL && __rseq_size != 0, 1)) {
        const volatile int32_t *area = (const volatile int32_t *)(const void *)(os_thread_pointer() + __rseq_offset);
        int32_t id = area[1];
        if (__builtin_expect(id >= 0, 1))
            return (unsigned)id;
    }
    return cpu_id_slow();
}

unsigned os_cpu_id_roughly(void)
{
    enum { CALLS = 16 };
    static __thread unsigned id __attribute__((tls_model("initial-exec")));
    static __thread unsigned left __attribute__((tls_model("initial-exec")));
    unsigned calls = left; /* read once: a signal's handler may come here in between */
    if (__builtin_expect(calls == 0 || fake_plus_1 != 0, 0)) {
        id = os_cpu_id();
        calls = CALLS;
    }
    left = calls - 1;
    return id;
}
