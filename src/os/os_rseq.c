// SPDX-License-Identifier: MIT
/*
 * os_rseq.c - where a thread's rseq area is, and what stands in for it.
 *
 * Only the area that glibc (2.35 or later) registered is used.  Where there is none, sequences run on one of ours whose CPU is always "none": they
 * leave it alone and say so, which costs the usual case no question.
 */
#include <stddef.h>

#include "os/os.h"
#include "os/os_rseq.h"
#include "os/sanitize.h"

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

/* The kernel's struct rseq, as far as we use it. */
struct area {
    uint32_t cpu_id_start, cpu_id;
    uint64_t rseq_cs;
    uint32_t flags, unused[3];
} __attribute__((aligned(32)));

/* Initial-exec: as far from each thread's pointer as from any other's. */
static __thread struct area nowhere __attribute__((tls_model("initial-exec"))) = {.cpu_id = UINT32_MAX};
static __thread struct area fake __attribute__((tls_model("initial-exec"))) = {.cpu_id = UINT32_MAX};
static uint32_t forced;

void os_rseq_force(enum os_rseq_mode mode)
{
    __atomic_store_n(&forced, mode, __ATOMIC_RELAXED);
}

void os_cpu_fake_set(int id)
{
    fake.cpu_id_start = fake.cpu_id = (uint32_t)id;
    os_cpu_fake(id);
}

static ptrdiff_t offset_of(const struct area *area)
{
    return (const char *)area - os_thread_pointer();
}

bool os_rseq_works(void)
{
    if (__atomic_load_n(&forced, __ATOMIC_RELAXED) != OS_RSEQ_AUTO)
        return __atomic_load_n(&forced, __ATOMIC_RELAXED) == OS_RSEQ_FAKE;
    if (sanitize_watched() || sanitize_race_watched() || &__rseq_size == NULL || __rseq_size == 0)
        return false; /* no sanitizer sees into a sequence */
    const struct area *area = (const void *)(os_thread_pointer() + __rseq_offset);
    return (int32_t)__atomic_load_n(&area->cpu_id, __ATOMIC_RELAXED) >= 0;
}

ptrdiff_t os_rseq_offset(void)
{
    if (!os_rseq_works())
        return offset_of(&nowhere);
    return __atomic_load_n(&forced, __ATOMIC_RELAXED) == OS_RSEQ_FAKE ? offset_of(&fake) : __rseq_offset;
}
