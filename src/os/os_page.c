// SPDX-License-Identifier: MIT
/*
 * os_page.c - reserving, committing, mapping and giving back whole pages.
 *
 *     reserve           commit              discard              unmap
 *     ---- PROT_NONE ----> read + write ----> same, no memory ----> gone
 *
 * Reserving without PROT_NONE would be refused under vm.overcommit_memory=2, and committed pages would be charged twice.
 *
 * A test's program may pretend larger pages than the kernel's, in check builds: whatever is mapped is then a multiple of them and aligned to them,
 * and a call for less traps, which a kernel with such pages would refuse or carry out on more.
 *
 * Locks: none.  Not here: files (os_file.c), which pages are in use (src/pages).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "os/os.h"
#include "os/os_call.h"

#ifndef MADV_DONTNEED_LOCKED /* Linux 5.18 */
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

/* A check build. */
#if defined(QUIRE_CHECK) && QUIRE_CHECK
enum { CHECKED = 1 };
#else
enum { CHECKED = 0 };
#endif

/* The pages of another machine, or 0: only test/pretended_pages.cc has it, and only check builds ask. */
extern size_t os_page_bytes_pretended(void) __attribute__((weak, visibility("hidden")));

static size_t page_bytes_cached;
static size_t huge_bytes_cached; /* + 1, so that 0 says not read yet */

size_t os_page_bytes(void)
{
    size_t bytes = __atomic_load_n(&page_bytes_cached, __ATOMIC_RELAXED);
    if (__builtin_expect(bytes == 0, 0)) {
        bytes = CHECKED && os_page_bytes_pretended ? os_page_bytes_pretended() : 0;
        bytes = bytes ? bytes : (size_t)sysconf(_SC_PAGESIZE);
        __atomic_store_n(&page_bytes_cached, bytes, __ATOMIC_RELAXED);
    }
    return bytes;
}

unsigned os_page_shift(void)
{
    return (unsigned)__builtin_ctzll(os_page_bytes());
}

static size_t kernel_page_bytes(void)
{
    return CHECKED ? (size_t)sysconf(_SC_PAGESIZE) : os_page_bytes();
}

static void expect_pages(const void *start, size_t bytes)
{
    if (CHECKED && (((uintptr_t)start | bytes) & (os_page_bytes() - 1)) != 0)
        __builtin_trap();
}

/* The first number or the whole text of a small file under /sys; -errno. */
static long sys_read(const char *path, char *text, size_t bytes)
{
    int fd = call_open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t got = call_read(fd, text, bytes - 1);
    call_close(fd);
    if (got < 0)
        return -EIO;
    text[got] = 0;
    return strtol(text, NULL, 10);
}

static size_t huge_bytes_read(void)
{
    char text[64];
    if (sys_read("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text) < 0 || strstr(text, "[never]"))
        return 0;
    long bytes = sys_read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", text, sizeof text);
    return bytes > 0 && (bytes & (bytes - 1)) == 0 ? (size_t)bytes : 0;
}

size_t os_huge_bytes(void)
{
    size_t seen = __atomic_load_n(&huge_bytes_cached, __ATOMIC_RELAXED);
    if (__builtin_expect(seen == 0, 0)) {
        int kept = errno;
        seen = huge_bytes_read() + 1;
        __atomic_store_n(&huge_bytes_cached, seen, __ATOMIC_RELAXED);
        errno = kept;
    }
    return seen - 1;
}

size_t os_address_space_bytes(void)
{
    int kept = errno;
    struct rlimit limit;
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    errno = kept;
    return limited ? (size_t)limit.rlim_cur : SIZE_MAX;
}

#define ASKED_BYTES ((size_t)64 << 20)
#define RANGE_BYTES_MIN ((size_t)64 << 20)

/* What is large and aligned to more than a page may have a place just below this library, which lies at random: one call then.  NULL: it is not that. */
static void *aligned_hint(size_t bytes, size_t align_bytes)
{
    uintptr_t here = (uintptr_t)&huge_bytes_cached;
    bool fits = bytes >= RANGE_BYTES_MIN && align_bytes > kernel_page_bytes() && here / 2 > bytes;
    return fits ? (void *)((here - bytes) & ~(uintptr_t)(align_bytes - 1)) : NULL;
}

/* Map `bytes` at a multiple of `align_bytes`: there; or ask for more, then cut the ends off. */
static int map_aligned(size_t bytes, size_t align_bytes, int protection, void **out)
{
    int kept = errno, flags = MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0);
    size_t slack = align_bytes > kernel_page_bytes() ? align_bytes - kernel_page_bytes() : 0, whole;
    expect_pages(NULL, bytes | align_bytes);
    if (__builtin_add_overflow(bytes, slack, &whole) || os_fault(OS_MAP))
        return -ENOMEM;
    void *hint = aligned_hint(bytes, align_bytes), *there = hint ? mmap(hint, bytes, protection, flags, -1, 0) : MAP_FAILED;
    if (there != MAP_FAILED && (uintptr_t)there % align_bytes == 0) {
        *out = there;
        return 0;
    }
    if (there != MAP_FAILED)
        (void)munmap(there, bytes);
    char *p = mmap(NULL, whole, protection, flags, -1, 0);
    int error = errno;
    errno = kept;
    if (p == MAP_FAILED)
        return -error;
    char *start = p + ((align_bytes - ((uintptr_t)p & (align_bytes - 1))) & (align_bytes - 1));
    size_t before = (size_t)(start - p), after = slack - before;
    /* Ends that cannot be cut off (no VMA left for the split) are only address space: the block is good. */
    if (before)
        (void)munmap(p, before);
    if (after)
        (void)munmap(start + bytes, after);
    errno = kept;
    *out = start;
    return 0;
}

int os_reserve(size_t bytes, size_t align_bytes, void **out)
{
    return map_aligned(bytes, align_bytes, PROT_NONE, out);
}

int os_map(size_t bytes, size_t align_bytes, void **out)
{
    return map_aligned(bytes, align_bytes, PROT_READ | PROT_WRITE, out);
}

bool os_would_grant(size_t bytes)
{
    void *p = NULL;
    if (bytes < ASKED_BYTES)
        return true;
    if (os_map(bytes, os_page_bytes(), &p) != 0)
        return false;
    (void)os_unmap(p, bytes);
    return true;
}

/* 0 or -errno of a call that returned `result`, with the caller's errno put back. */
static int outcome(int result, int kept)
{
    int error = result == 0 ? 0 : -errno;
    errno = kept;
    return error;
}

int os_commit(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_PROTECT))
        return -ENOMEM;
    return outcome(mprotect(start, bytes, PROT_READ | PROT_WRITE), kept);
}

int os_show(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_PROTECT))
        return -ENOMEM;
    return outcome(mprotect(start, bytes, PROT_READ), kept);
}

int os_unmap(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_UNMAP))
        return -ENOMEM;
    return outcome(munmap(start, bytes), kept);
}

int os_remap(void *start, size_t bytes, size_t new_bytes, void *to)
{
    expect_pages(start, bytes | new_bytes | (uintptr_t)to);
    if (os_fault(OS_REMAP))
        return -ENOMEM;
    int kept = errno;
    void *moved = to ? mremap(start, bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) : mremap(start, bytes, new_bytes, 0);
    errno = kept;
    return moved == MAP_FAILED ? -ENOMEM : 0;
}

int os_guard(void *start, size_t bytes, bool on)
{
    expect_pages(start, bytes);
    if (os_fault(OS_PROTECT))
        return -ENOMEM;
    int kept = errno, error = mprotect(start, bytes, on ? PROT_NONE : PROT_READ | PROT_WRITE) == 0 ? 0 : -ENOMEM;
    errno = kept;
    return error;
}

int os_seal(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_SEAL))
        return -ENOMEM;
    return outcome(mmap(start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == start ? 0 : -1, kept);
}

enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 }; /* of <linux/mman.h>, which may be older */

/* Whether a mark does what it is said to.  Asked once, by four system calls and a page fault or two: qemu-user (7.2) answers 0 to advice that it does not know, and does nothing. */
static bool marks_hold(void)
{
    enum { UNKNOWN, HOLD, DO_NOT };
    static int known; /* any thread may find out; all find the same */
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now == UNKNOWN) {
        size_t bytes = os_page_bytes();
        char *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return false;
        __atomic_store_n(page, 1, __ATOMIC_RELAXED);
        bool are_marks = madvise(page, bytes, GUARD_INSTALL) == 0 && madvise(page, bytes, GUARD_REMOVE) == 0;
        now = are_marks && __atomic_load_n(page, __ATOMIC_RELAXED) == 0 ? HOLD : DO_NOT;
        (void)munmap(page, bytes);
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return now == HOLD;
}

int os_mark(void *start, size_t bytes, bool on)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(on ? OS_MARK : OS_PROTECT))
        return -ENOMEM;
    bool are_marks = marks_hold();
    errno = EINVAL;
    return outcome(are_marks ? madvise(start, bytes, on ? GUARD_INSTALL : GUARD_REMOVE) : -1, kept);
}

int os_reserve_at(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (os_fault(OS_SEAL))
        return -ENOMEM;
    void *got = mmap(start, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != MAP_FAILED && got != start) { /* before Linux 4.17 it is a hint */
        (void)munmap(got, bytes);
        errno = EEXIST;
    }
    return outcome(got == start ? 0 : -1, kept);
}

int os_discard(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno, result;
    if (os_fault(OS_DISCARD))
        return -ENOMEM;
    result = madvise(start, bytes, MADV_DONTNEED);
    if (result != 0 && errno == EINVAL)
        result = madvise(start, bytes, MADV_DONTNEED_LOCKED);
    if (result != 0 && (errno == EPERM || errno == ENOSYS || errno == EINVAL)) /* a seccomp filter; locked memory */
        result = mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start ? 0 : -1;
    return outcome(result, kept);
}

int os_advise_huge(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_ADVISE))
        return -ENOMEM;
    return outcome(madvise(start, bytes, MADV_HUGEPAGE), kept);
}

int os_advise_nohuge(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_ADVISE))
        return -ENOMEM;
    return outcome(madvise(start, bytes, MADV_NOHUGEPAGE), kept);
}

int os_populate(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    enum { POPULATE_WRITE = 23 }; /* MADV_POPULATE_WRITE, Linux 5.14 */
    int kept = errno;
    if (os_fault(OS_ADVISE))
        return -ENOMEM;
    return outcome(madvise(start, bytes, POPULATE_WRITE), kept);
}

size_t os_resident_bytes(void *start, size_t bytes)
{
    enum { PAGES_AT_ONCE = 1024 };
    unsigned char in[PAGES_AT_ONCE];
    int kept = errno;
    size_t resident = 0, step = kernel_page_bytes(), most = PAGES_AT_ONCE * step;
    for (size_t at = 0; at < bytes; at += most) {
        size_t now = bytes - at < most ? bytes - at : most;
        if (mincore((char *)start + at, now, in) != 0)
            break;
        for (size_t page = 0; page * step < now; page++)
            if (in[page] & 1) {
                resident += os_page_bytes();
                page |= os_page_bytes() / step - 1; /* any part of it counts for all */
            }
    }
    errno = kept;
    return resident;
}

int os_advise_dontdump(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_ADVISE))
        return -ENOMEM;
    return outcome(madvise(start, bytes, MADV_DONTDUMP), kept);
}

int os_advise_dump(void *start, size_t bytes)
{
    expect_pages(start, bytes);
    int kept = errno;
    if (os_fault(OS_ADVISE))
        return -ENOMEM;
    return outcome(madvise(start, bytes, MADV_DODUMP), kept);
}

void os_name(void *start, size_t bytes, const char *name)
{
    int kept = errno;
    (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, start, bytes, name);
    errno = kept;
}

/* Where the process's malloc is our own, its library defines these two: libc's allocator by its other names. */
extern int os_libc_own_alloc(size_t bytes, size_t align_bytes, void **out) __attribute__((weak, visibility("hidden")));
extern void os_libc_own_free(void *start) __attribute__((weak, visibility("hidden")));

int os_libc_alloc(size_t bytes, size_t align_bytes, void **out)
{
    if (os_fault(OS_LIBC))
        return -ENOMEM;
    int kept = errno;
    int error = os_libc_own_alloc ? -os_libc_own_alloc(bytes, align_bytes, out) : posix_memalign(out, align_bytes, bytes);
    errno = kept;
    return -error;
}

void os_libc_free(void *start)
{
    int kept = errno;
    if (os_libc_own_free)
        os_libc_own_free(start);
    else
        free(start);
    errno = kept;
}
