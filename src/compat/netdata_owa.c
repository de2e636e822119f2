// SPDX-License-Identifier: MIT
/*
 * netdata_owa.c - the One Way Allocator's names over an arena.
 *
 *     onewayalloc_*  -->  quire_arena_*  -->  one counting source for all of them  -->  the default source
 *
 * Failure is fatal here and only here: fatal() reports like every panic, naming the call, and by errno the cause.
 *
 * Locks: none; the counting source is made once, by whoever comes first.
 * Not here: the Array Allocator's names.
 */
#include <errno.h>
#include <stdint.h>

#include <quire/arena.h>
#include <quire/compat/netdata.h>

#include "base/align.h"
#include "base/atomic.h"
#include "base/panic.h"

static atomic_addr source_counted; /* struct quire_source *: what all arenas of this file hold */

static __attribute__((noreturn)) void fatal(const char *call, const void *address)
{
    panic("onewayalloc", call, errno == EINVAL ? "N7 a copy of NULL" : "N1 out of memory", address);
}

static struct quire_source *counted_source(void)
{
    struct quire_source *source = (struct quire_source *)addr_load_acquire(&source_counted); /* acquire [owa-source] */
    if (likely(source != NULL))
        return source;
    struct quire_source *fresh = quire_source_count(quire_source_default());
    if (!fresh)
        fatal("create", NULL);
    uintptr_t expected = 0;
    if (addr_cas_release(&source_counted, &expected, (uintptr_t)fresh)) /* release [owa-source] */
        return fresh;
    quire_source_destroy(fresh);
    return (struct quire_source *)addr_load_acquire(&source_counted); /* acquire [owa-source] */
}

ONEWAYALLOC *onewayalloc_create(size_t size_hint)
{
    struct quire_arena *arena = quire_arena_create(&(struct quire_arena_opts){.source = counted_source(), .size_hint_bytes = size_hint});
    if (unlikely(!arena))
        fatal("create", NULL);
    return arena;
}

void onewayalloc_destroy(ONEWAYALLOC *owa)
{
    quire_arena_destroy(owa);
}

void onewayalloc_reset(ONEWAYALLOC *owa)
{
    if (owa)
        quire_arena_reset(owa);
}

void *onewayalloc_mallocz(ONEWAYALLOC *owa, size_t size)
{
    void *p = quire_arena_alloc(owa, size);
    if (unlikely(!p))
        fatal("mallocz", owa);
    return p;
}

void *onewayalloc_callocz(ONEWAYALLOC *owa, size_t nmemb, size_t size)
{
    void *p = quire_arena_alloc_zero(owa, nmemb, size);
    if (unlikely(!p))
        fatal("callocz", owa);
    return p;
}

char *onewayalloc_strdupz(ONEWAYALLOC *owa, const char *s)
{
    char *p = quire_arena_strdup(owa, s);
    if (unlikely(!p))
        fatal("strdupz", owa);
    return p;
}

void *onewayalloc_memdupz(ONEWAYALLOC *owa, const void *src, size_t size)
{
    void *p = quire_arena_memdup(owa, src, size);
    if (unlikely(!p))
        fatal("memdupz", owa);
    return p;
}

void *onewayalloc_doublesize(ONEWAYALLOC *owa, const void *src, size_t oldsize)
{
    size_t newsize = onewayalloc_mul_or_fatal(oldsize, 2, "doublesize");
    void *p = quire_arena_resize(owa, (void *)(uintptr_t)src, oldsize, newsize);
    if (unlikely(!p))
        fatal("doublesize", owa);
    return p;
}

void onewayalloc_freez(ONEWAYALLOC *owa, const void *ptr)
{
    if (QUIRE_CHECK && ptr && !quire_arena_owns(owa, ptr))
        panic("onewayalloc", "freez", "N2 a pointer that is not this arena's", ptr);
}

size_t onewayalloc_allocated_memory(void)
{
    struct quire_source *source = (struct quire_source *)addr_load_acquire(&source_counted); /* acquire [owa-source] */
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    return stats.taken_bytes;
}

size_t onewayalloc_mul_or_fatal(size_t a, size_t b, const char *context)
{
    size_t product;
    if (unlikely(!mul_checked(a, b, &product)))
        panic("onewayalloc", context, "N3 the size overflows", NULL);
    return product;
}

size_t onewayalloc_mul3_or_fatal(size_t a, size_t b, size_t c, const char *context)
{
    return onewayalloc_mul_or_fatal(onewayalloc_mul_or_fatal(a, b, context), c, context);
}
