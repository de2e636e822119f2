// SPDX-License-Identifier: MIT
/*
 * os_tags.c - the instructions and system calls of memory tagging.
 *
 * Locks: none.
 */
#include "os/os_tags.h"

#include <errno.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "os/os.h"

uintptr_t os_tag_bits;

#if OS_HAS_TAGS

/* By numbers: headers older than the kernel's 5.10 do not name them. */
enum { HWCAP2_TAGS = 1 << 18, PROT_TAGS = 0x20, SET_CONTROL = 55, CONTROL_ADDRESSES = 1, CONTROL_AT_ONCE = 1 << 1, CONTROL_TAGS_SHIFT = 3, ALL_BUT_0 = 0xfffe };

int os_tags_start(void)
{
    int kept = errno;
    bool has = (getauxval(AT_HWCAP2) & HWCAP2_TAGS) != 0;
    unsigned long control = CONTROL_ADDRESSES | CONTROL_AT_ONCE | (unsigned long)ALL_BUT_0 << CONTROL_TAGS_SHIFT;
    if (has && !os_fault(OS_PROTECT) && prctl(SET_CONTROL, control, 0, 0, 0) == 0)
        os_tag_bits = (uintptr_t)0xf << OS_TAG_SHIFT;
    errno = kept;
    return os_tag_bits ? 0 : -ENOTSUP;
}

int os_tags_ready(void *start, size_t bytes)
{
    int kept = errno;
    if (os_fault(OS_PROTECT))
        return -ENOMEM;
    int error = mprotect(start, bytes, PROT_READ | PROT_WRITE | PROT_TAGS) == 0 ? 0 : -errno;
    errno = kept;
    return error;
}

/* By this address' tag; zero: and the memory, too.  Instructions by number: os_tags.h. */
static inline void tags_set(char *start, size_t bytes, bool zero)
{
    for (; bytes > OS_TAG_BYTES; start += 2 * OS_TAG_BYTES, bytes -= 2 * OS_TAG_BYTES) {
        register uintptr_t x0 __asm__("x0") = (uintptr_t)start;
        if (zero)
            __asm__ volatile(".inst 0xd9e00800" /* stz2g x0, [x0] */ : : "r"(x0) : "memory");
        else
            __asm__ volatile(".inst 0xd9a00800" /* st2g x0, [x0] */ : : "r"(x0) : "memory");
    }
    register uintptr_t x0 __asm__("x0") = (uintptr_t)start;
    if (bytes && zero)
        __asm__ volatile(".inst 0xd9600800" /* stzg x0, [x0] */ : : "r"(x0) : "memory");
    else if (bytes)
        __asm__ volatile(".inst 0xd9200800" /* stg x0, [x0] */ : : "r"(x0) : "memory");
}

static inline char *tag_random(char *at, uint32_t others)
{
    register uintptr_t x0 __asm__("x0") = (uintptr_t)at, x1 __asm__("x1") = others;
    __asm__ volatile(".inst 0x9ac11000" /* irg x0, x0, x1 */ : "+r"(x0) : "r"(x1));
    return (char *)x0;
}

void os_tags_clear(void *start, size_t bytes)
{
    tags_set(start, bytes, false);
}

void *os_tag_anew(void *start, size_t bytes, uint32_t others, bool zero)
{
    char *fresh = tag_random(start, others);
    tags_set(fresh, bytes, zero);
    return os_tagged(fresh); /* memory without tags has kept 0 */
}

#else

int os_tags_start(void)
{
    return -ENOTSUP;
}

int os_tags_ready(void *start, size_t bytes)
{
    (void)start;
    (void)bytes;
    return -EINVAL;
}

void os_tags_clear(void *start, size_t bytes)
{
    (void)start;
    (void)bytes;
}

void *os_tag_anew(void *start, size_t bytes, uint32_t others, bool zero)
{
    (void)bytes;
    (void)others;
    (void)zero;
    return start;
}

#endif
