// SPDX-License-Identifier: MIT
/*
 * malloc.c - libc's names.
 *
 *     malloc(n) ---- n at most quick_bytes? ---> the heap's short way         in line, and no call; quick_bytes -= n
 *                          | no
 *                          v
 *                    the heap serves? ----> heap_malloc_slow(n)      quick_bytes: no end
 *                    a profile? ----------> prof_alloc(n, caller)    quick_bytes: what is left to the next point
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

#define EXPORT __attribute__((visibility("default"))) CACHE_ALIGNED /* in the middle of a line of code they take up to an eighth longer */

/* The calling thread's next blocks go the short ways, which nobody counts. */
static void *opened(void *p)
{
    heap_tls.quick_bytes = INT64_MAX;
    preload_frees_open(PRELOAD_SERVES);
    return p;
}

CACHE_ALIGNED NOINLINE void *preload_alloc_next(size_t bytes, struct steer_call call)
{
    if (likely(heap_tls.quick_bytes >= 0) && likely(bytes <= PTRDIFF_MAX)) /* it has passed */
        return heap_malloc_slow(bytes);
    preload_uncount(bytes);
    uint32_t mode = u32_load_relaxed(&preload_mode);
    if (mode == PRELOAD_SECURED)
        return heap_malloc_secure(bytes);
    if (mode == PRELOAD_SERVES)
        return opened(heap_malloc_slow(bytes));
    if (preload_samples())
        return prof_alloc(bytes, prof_call_of(call));
    return mode >= PRELOAD_STEERS ? steer_alloc(bytes, call) : careful_alloc(bytes);
}

NOINLINE void preload_free_long(void *p)
{
    if (!p) /* many programs free what they never had */
        return;
    uint32_t mode = u32_load_relaxed(&preload_mode);
    preload_frees_open(mode);
    if (mode == PRELOAD_SECURED)
        heap_free_secure(pagemap_find(p), p);
    else if (mode == PRELOAD_STEERS)
        steer_free(p);
    else if (likely(mode >= PRELOAD_SERVES) && mode < PRELOAD_STEERS)
        heap_free_long(p); /* of a guarded block: by heap_strangers */
    else
        careful_free(p);
}

static NOINLINE void *zero_otherwise(size_t count, size_t bytes, struct steer_call call)
{
    size_t product;
    bool fits = !__builtin_mul_overflow(count, bytes, &product);
    if (fits && preload_serves())
        return opened(heap_malloc_zero(product));
    if (fits && likely(preload_samples()))
        return prof_alloc_zero(product, prof_call_of(call));
    if (fits && preload_steers())
        return steer_alloc_zero(product, call);
    return careful_alloc_zero(count, bytes);
}

static NOINLINE void *aligned_otherwise(size_t bytes, size_t align_bytes, struct steer_call call)
{
    return preload_samples() ? prof_alloc_aligned(bytes, align_bytes, prof_call_of(call)) : careful_alloc_aligned(bytes, align_bytes);
}

/* Some programs (lua) allocate by nothing else. */
static NOINLINE void *realloc_nothing(size_t bytes, struct steer_call call)
{
    void *p = preload_quick_alloc(bytes);
    return likely(p != NULL) ? p : preload_alloc_next(bytes, call);
}

static NOINLINE void *realloc_otherwise(void *p, size_t bytes, struct steer_call call)
{
    if (bytes == 0) {
        preload_free(p);
        return NULL;
    }
    if (preload_serves())
        return opened(quire_heap_realloc(&heap_of_process, p, bytes));
    return preload_samples() ? prof_realloc(p, bytes, prof_call_of(call)) : careful_realloc(p, bytes);
}

/* A small block that stays is nobody's business; one that moves counts as an allocation. */
static ALWAYS_INLINE void *realloc_at(void *p, size_t bytes, struct steer_call call)
{
    if (!p)
        return realloc_nothing(bytes, call);
    size_t had = preload_is_open() ? heap_quick_usable(&heap_of_process, p) : 0;
    if (likely(had != 0) && likely(bytes != 0)) {
        if (heap_stays(had, bytes))
            return p;
        if (preload_passes(bytes) && likely(bytes <= PTRDIFF_MAX))
            return heap_move(&heap_of_process, p, had, bytes);
        preload_uncount(bytes);
    }
    return realloc_otherwise(p, bytes, call);
}

EXPORT void *malloc(size_t bytes)
{
    void *p = preload_quick_alloc(bytes);
    return likely(p != NULL) ? p : preload_alloc_next(bytes, STEER_CALLER);
}

EXPORT void free(void *p)
{
    preload_free(p);
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    size_t product;
    if (likely(!__builtin_mul_overflow(count, bytes, &product))) {
        if (preload_passes(product) && likely(product <= PTRDIFF_MAX))
            return heap_malloc_zero(product);
        preload_uncount(product);
    }
    return zero_otherwise(count, bytes, STEER_CALLER);
}

EXPORT void *realloc(void *p, size_t bytes)
{
    return realloc_at(p, bytes, STEER_CALLER);
}

EXPORT void *reallocarray(void *p, size_t count, size_t bytes)
{
    size_t product;
    if (unlikely(__builtin_mul_overflow(count, bytes, &product))) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc_at(p, product, STEER_CALLER);
}

static ALWAYS_INLINE void *alloc_aligned(size_t bytes, size_t align_bytes, struct steer_call call)
{
    return preload_serves() ? heap_malloc_aligned(bytes, align_bytes) : aligned_otherwise(bytes, align_bytes, call);
}

static ALWAYS_INLINE void *aligned_checked(size_t align_bytes, size_t bytes, struct steer_call call)
{
    if (unlikely(!is_pow2(align_bytes))) {
        errno = EINVAL;
        return NULL;
    }
    return alloc_aligned(bytes, align_bytes, call);
}

EXPORT void *aligned_alloc(size_t align_bytes, size_t bytes)
{
    return aligned_checked(align_bytes, bytes, STEER_CALLER);
}

EXPORT int posix_memalign(void **out, size_t align_bytes, size_t bytes)
{
    if (unlikely(!is_pow2(align_bytes) || align_bytes % sizeof(void *) != 0))
        return EINVAL;
    int kept = errno;
    void *p = alloc_aligned(bytes, align_bytes, STEER_CALLER);
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
    return aligned_checked(power, bytes, STEER_CALLER); /* 0: larger than any power of two, EINVAL */
}

EXPORT void *valloc(size_t bytes)
{
    return alloc_aligned(bytes, os_page_bytes(), STEER_CALLER);
}

EXPORT void *pvalloc(size_t bytes);
EXPORT void *pvalloc(size_t bytes)
{
    size_t up;
    if (unlikely(__builtin_add_overflow(bytes, os_page_bytes() - 1, &up))) {
        errno = ENOMEM;
        return NULL;
    }
    return alloc_aligned(up & ~(os_page_bytes() - 1), os_page_bytes(), STEER_CALLER);
}

EXPORT size_t malloc_usable_size(void *p)
{
    size_t bytes = heap_quick_usable(&heap_of_process, p);
    return likely(bytes != 0) ? bytes : careful_usable_bytes(p);
}

/* C23: the size must be what was asked for. */
EXPORT void free_sized(void *p, size_t bytes);
EXPORT void free_sized(void *p, size_t bytes)
{
    if (unlikely(!preload_quick_free_sized(p, bytes)))
        careful_free_sized(p, bytes, CAREFUL_C);
}

EXPORT void free_aligned_sized(void *p, size_t align_bytes, size_t bytes);
EXPORT void free_aligned_sized(void *p, size_t align_bytes, size_t bytes)
{
    preload_verify_alignment(p, align_bytes);
    if (unlikely(!preload_quick_free_sized(p, bytes)))
        careful_free_sized(p, bytes, align_bytes);
}
