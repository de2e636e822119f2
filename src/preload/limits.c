// SPDX-License-Identifier: MIT
/*
 * limits.c - libc's setrlimit, prlimit and mlockall, before which addresses that we have reserved and do not use go back to the system.
 *
 *     setrlimit(RLIMIT_AS)    counts what is reserved: a program that gives itself 1 GiB would have none of it left
 *     mlockall                locks it, on paper, against RLIMIT_MEMLOCK
 *
 * What a process finds limited when it starts needs no more: then less is reserved (pages/region.c).
 * The child of a vfork limits itself, and has its parent's memory: that stays as it is.
 *
 * Locks: none.
 */
#include <errno.h>
#include <linux/kcmp.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <quire/source.h>

#include "os/os.h"
#include "pages/region.h"
#include "preload/preload.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int preload_setrlimit(int resource, const struct rlimit *limit) __asm__("setrlimit");
EXPORT int preload_setrlimit64(int resource, const struct rlimit *limit) __asm__("setrlimit64");
EXPORT int preload_prlimit(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *old) __asm__("prlimit");
EXPORT int preload_prlimit64(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *old) __asm__("prlimit64");
EXPORT int preload_mlockall(int flags) __asm__("mlockall");

static pid_t mine; /* whose memory it is, as far as it was said here */

static void know_mine(void)
{
    mine = getpid();
}

static __attribute__((constructor)) void at_load(void)
{
    know_mine();
    (void)os_after_fork_in_child(know_mine);
}

static bool is_borrowed(void)
{
    return getpid() != mine && syscall(SYS_kcmp, mine, getpid(), KCMP_VM, 0, 0) == 0;
}

static void let_go(void)
{
    int kept = errno;
    bool is_another = is_borrowed();
    errno = kept;
    if (is_another)
        return;
    (void)quire_source_trim(quire_source_default());
    heap_few_addresses();
}

EXPORT int preload_prlimit(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *old)
{
    bool is_mine = pid == 0 || pid == getpid();
    if (resource == RLIMIT_AS && is_mine && limit && limit->rlim_cur != RLIM_INFINITY)
        let_go();
    return (int)syscall(SYS_prlimit64, pid, resource, limit, old);
}

EXPORT int preload_prlimit64(pid_t pid, int resource, const struct rlimit *limit, struct rlimit *old)
{
    return preload_prlimit(pid, resource, limit, old);
}

EXPORT int preload_setrlimit(int resource, const struct rlimit *limit)
{
    return preload_prlimit(0, resource, limit, NULL);
}

EXPORT int preload_setrlimit64(int resource, const struct rlimit *limit)
{
    return preload_prlimit(0, resource, limit, NULL);
}

EXPORT int preload_mlockall(int flags)
{
    let_go();
    return (int)syscall(SYS_mlockall, flags);
}
