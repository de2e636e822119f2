// SPDX-License-Identifier: MIT
/*
 * malloc.c - libc's names.
 *
 *     malloc(n) ---- the heap serves? ----> heap_malloc(n)      one compare and a jump
 *                          | no
 *                          v
 *                    by a plan? ----------> steer_alloc(n, caller)
 *                          | no
 *                          v
 *                    careful_alloc(n)       the first call, checks, passthrough
 *
 * What POSIX, C11 and C23 leave open is decided as glibc does it: malloc(0) is a block of its own; realloc(p, 0) frees p and returns NULL, errno
 * kept; memalign() rounds an alignment up to a power of two; aligned_alloc() refuses what is none with EINVAL; posix_memalign() returns its
 * error and leaves errno and the pointer alone; nothing is larger than PTRDIFF_MAX.
 *
 * Locks: none.  Not here: C++'s names (new.c), what looks (malloc_look.c).
 */
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

#include <quire/heap.h>

#include "base/align.h"
#include "heap/heap_internal.h"
#include "os/os.h"
#include "preload/preload.h"

#define EXPORT __attribute__((visibility("default")))

/* Apart, so that malloc itself reads the mode once. */
static NOINLINE void *alloc_otherwise(size_t bytes, struct steer_call call)
{
    return preload_steers() ? steer_alloc(bytes, call) : careful_alloc(bytes);
}

EXPORT void *malloc(size_t bytes)
{
    return preload_serves() ? heap_malloc(bytes) : alloc_otherwise(bytes, STEER_CALLER);
}

EXPORT void free(void *p)
{
    preload_free(p);
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    size_t product;
    if (unlikely(__builtin_mul_overflow(count, bytes, &product)) || !preload_serves())
        return preload_steers() && !__builtin_mul_overflow(count, bytes, &product) ? steer_alloc_zero(product, STEER_CALLER)
                                                                                   : careful_alloc_zero(count, bytes);
    return heap_malloc_zero(product);
}

EXPORT void *realloc(void *p, size_t bytes)
{
    if (unlikely(!p))
        return preload_steers() ? steer_alloc(bytes, STEER_CALLER) : malloc(bytes);
    if (unlikely(bytes == 0)) {
        free(p);
        return NULL;
    }
    return preload_serves() ? quire_heap_realloc(&heap_of_process, p, bytes) : careful_realloc(p, bytes);
}

EXPORT void *reallocarray(void *p, size_t count, size_t bytes)
{
    size_t product;
    if (unlikely(__builtin_mul_overflow(count, bytes, &product))) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(p, product);
}

static void *alloc_aligned(size_t bytes, size_t align_bytes)
{
    return preload_serves() ? heap_malloc_aligned(bytes, align_bytes) : careful_alloc_aligned(bytes, align_bytes);
}

EXPORT void *aligned_alloc(size_t align_bytes, size_t bytes)
{
    if (unlikely(!is_pow2(align_bytes))) {
        errno = EINVAL;
        return NULL;
    }
    return alloc_aligned(bytes, align_bytes);
}

EXPORT int posix_memalign(void **out, size_t align_bytes, size_t bytes)
{
    if (unlikely(!is_pow2(align_bytes) || align_bytes % sizeof(void *) != 0))
        return EINVAL;
    int kept = errno;
    void *p = alloc_aligned(bytes, align_bytes);
    errno = kept;
    if (unlikely(!p))
        return ENOMEM;
    *out = p;
    return 0;
}

EXPORT void *memalign(size_t align_bytes, size_t bytes)
{
    size_t power = 1;
    while (power < align_bytes && power != 0)
        power <<= 1;
    return aligned_alloc(power, bytes); /* 0: larger than any power of two, EINVAL */
}

EXPORT void *valloc(size_t bytes)
{
    return alloc_aligned(bytes, os_page_bytes());
}

EXPORT void *pvalloc(size_t bytes)
{
    size_t up;
    if (unlikely(__builtin_add_overflow(bytes, os_page_bytes() - 1, &up))) {
        errno = ENOMEM;
        return NULL;
    }
    return alloc_aligned(bytes ? up & ~(os_page_bytes() - 1) : os_page_bytes(), os_page_bytes());
}

EXPORT size_t malloc_usable_size(void *p)
{
    return careful_usable_bytes(p);
}

/* C23: the size must be what was asked for. */
EXPORT void free_sized(void *p, size_t bytes);
EXPORT void free_sized(void *p, size_t bytes)
{
    if (unlikely(!preload_serves()) || unlikely(!heap_free_sized(p, bytes)))
        careful_free_sized(p, bytes, CAREFUL_C);
}

EXPORT void free_aligned_sized(void *p, size_t align_bytes, size_t bytes);
EXPORT void free_aligned_sized(void *p, size_t align_bytes, size_t bytes)
{
    (void)align_bytes;
    free_sized(p, bytes);
}
