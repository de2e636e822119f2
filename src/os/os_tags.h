// SPDX-License-Identifier: MIT
/*
 * os_tags.h - memory tagging (arm64's MTE): sixteen bytes of memory have a tag of four bits, and so has an address, in bits 56 to 59.  A load or store by an
 * address whose tag is another than the memory's ends in SIGSEGV.
 *
 *     address   | 0 | tag |        56 bits         |          memory   tag tag tag ...   one for each 16 bytes
 *
 * Off until os_tags_start(), and then for the whole process; on other processors all of this is nothing, at no cost.  Memory that was not made ready by
 * os_tags_ready() has tag 0 for good and is not looked at: os_tagged() of it is the address itself.
 *
 * Not here: which memory has which tag (heap/heap_secure.c).
 */
#ifndef QUIRE_OS_OS_TAGS_H
#define QUIRE_OS_OS_TAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OS_TAG_BYTES = 16, OS_TAG_SHIFT = 56 };
#if defined(__aarch64__)
#define OS_HAS_TAGS 1
#else
#define OS_HAS_TAGS 0
#endif

/* Where an address has its tag; 0: there are none.  Written once, before there is a second thread. */
extern uintptr_t os_tag_bits __attribute__((visibility("hidden")));

/*
 * From now on the calling thread, and those that it starts, may use addresses that bear tags, in system calls, too; what does not agree faults at once.
 * Before there is a second thread.  -ENOTSUP: the processor or the kernel has no tags.
 */
int os_tags_start(void);
/* These pages' memory can have tags; it has 0.  For good: os_guard() and the like leave it so.  -ENOMEM, -EINVAL: it has none. */
int os_tags_ready(void *start, size_t bytes);
/* The memory has tag 0 again; multiples of OS_TAG_BYTES. */
void os_tags_clear(void *start, size_t bytes);

static inline bool os_tags_on(void)
{
    return OS_HAS_TAGS && __builtin_expect(os_tag_bits != 0, 0);
}

/* The address without its tag: for whoever looks it up. */
static inline uintptr_t os_untagged(const void *address)
{
    return OS_HAS_TAGS ? (uintptr_t)address & ~os_tag_bits : (uintptr_t)address;
}

/* The address by which this memory may be touched now, whatever tag `address` has. */
static inline void *os_tagged(const void *address)
{
#if OS_HAS_TAGS
    if (os_tags_on()) {
        register uintptr_t x0 __asm__("x0") = (uintptr_t)address;
        __asm__ volatile(".inst 0xd9600000" /* ldg x0, [x0]: by number, for assemblers that do not know it, or only of a later processor */ : "+r"(x0) : : "memory");
        return (void *)x0;
    }
#endif
    return (void *)(uintptr_t)address;
}

/* The memory gets a random tag that is none of `others`, a bit for each of the sixteen, and is zero if `zero`.  Its address from now on. */
void *os_tag_anew(void *start, size_t bytes, uint32_t others, bool zero);

#ifdef __cplusplus
}
#endif
#endif
