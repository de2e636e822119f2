// SPDX-License-Identifier: MIT
/*
 * careful.c - the long way of each call: the first one, and every one where something stands between the caller and the heap.
 *
 *     UNASKED --> set up, then as below        PASSES  --> libc
 *     SERVES  --> the heap                     BESIDE  --> the heap; what is not the heap's is the process's malloc's, or libc's
 *     SAMPLES --> the first call, which no profile sees, and deletes that say a size: the heap
 *     STEERS  --> what needs no site: the heap; blocks given back or resized: whoever's they are
 *     CAREFUL --> every Nth call checks the heap, then the heap      SECURED --> the heap, which is a secure one
 *     DOUBTS  --> the same check, then as SAMPLES; frees and resizing come here, too
 *
 * Invariants, checked here:
 *   M1  a block is deleted with the size that it was asked for with
 *   M2  an alignment that a block is freed with is a power of two, and the block lies at a multiple of it
 *
 * Locks: none.  Not here: the short ways (malloc.c).
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>

#include <quire/heap.h>

#include "base/panic.h"
#include "heap/heap_internal.h"
#include "preload/preload.h"
#include "prof/guard.h"

/* A block that the heap does not know: handed out by libc before us or beside us. */
static bool is_libcs(const void *p, enum preload_mode mode)
{
    if (heap_page_find(p) || !libc_is_there())
        return false;
    return mode == PRELOAD_PASSES || (mode == PRELOAD_BESIDE && !libc_is_asked(p)) || libc_has(p);
}

static void check_now_and_then(enum preload_mode mode)
{
    static atomic_u64 calls;
    if ((mode != PRELOAD_CAREFUL && mode != PRELOAD_DOUBTS) || preload_conf.check_every == 0 || u64_add_relaxed(&calls, 1) % preload_conf.check_every != 0)
        return;
    const char *broken = quire_heap_check(quire_heap_default());
    if (broken)
        panic("malloc", NULL, broken, quire_heap_default());
}

bool careful_looks(void)
{
    check_now_and_then(PRELOAD_DOUBTS);
    return true;
}

void *careful_alloc(size_t bytes)
{
    if (likely(u32_load_relaxed(&preload_mode) == PRELOAD_SECURED))
        return heap_malloc_secure(bytes);
    enum preload_mode mode = preload_ready();
    if (mode == PRELOAD_PASSES)
        return libc_alloc(bytes);
    check_now_and_then(mode);
    return heap_malloc(bytes);
}

void *careful_alloc_zero(size_t count, size_t bytes)
{
    size_t all;
    if (likely(u32_load_relaxed(&preload_mode) == PRELOAD_SECURED) && likely(!__builtin_mul_overflow(count, bytes, &all)))
        return heap_malloc_secure(all);
    enum preload_mode mode = preload_ready();
    if (mode == PRELOAD_PASSES)
        return libc_alloc_zero(count, bytes);
    check_now_and_then(mode);
    return quire_heap_alloc_zero(quire_heap_default(), count, bytes);
}

void *careful_alloc_aligned(size_t bytes, size_t align_bytes)
{
    enum preload_mode mode = preload_ready();
    if (mode == PRELOAD_PASSES)
        return libc_alloc_aligned(bytes, align_bytes);
    check_now_and_then(mode);
    return heap_malloc_aligned(bytes, align_bytes);
}

void *careful_realloc(void *p, size_t bytes)
{
    enum preload_mode mode = preload_ready();
    if (p ? is_libcs(p, mode) : mode == PRELOAD_PASSES)
        return libc_realloc(p, bytes);
    check_now_and_then(mode);
    return mode >= PRELOAD_STEERS && p ? steer_realloc(p, bytes) : quire_heap_realloc(quire_heap_default(), p, bytes);
}

void careful_free(void *p)
{
    if (likely(u32_load_relaxed(&preload_mode) == PRELOAD_SECURED)) {
        heap_free_secure(pagemap_find(p), p);
        return;
    }
    if (!p)
        return;
    enum preload_mode mode = preload_ready();
    if (!guard_has(p) && is_libcs(p, mode)) {
        libc_free(p);
        return;
    }
    check_now_and_then(mode);
    if (mode == PRELOAD_TIMES)
        steer_free_timed(p);
    else if (mode == PRELOAD_STEERS)
        steer_free(p);
    else
        heap_free_any(p);
}

/* A block in an arena or a slab of the plan is as large as its tag says; any other is the heap's. */
static bool size_fits(const void *p, size_t bytes, size_t align_bytes)
{
    if (preload_ready() >= PRELOAD_STEERS && steer_has(p))
        return steer_size_may_fit(p, bytes);
    return align_bytes == CAREFUL_C ? heap_size_may_fit(p, bytes) : heap_size_fits(p, bytes, align_bytes);
}

void careful_free_sized(void *p, size_t bytes, size_t align_bytes)
{
    uint32_t mode = u32_load_relaxed(&preload_mode);
    preload_frees_open(mode);
    if (likely(mode == PRELOAD_SECURED) && likely(align_bytes <= HEAP_SLOT_ALIGN) && likely(heap_free_secure_sized(p, bytes)))
        return;
    bool is_guarded = guard_has(p);
    bool is_wrong = is_guarded ? guard_bytes(p) != bytes : p && preload_ready() != PRELOAD_PASSES && (bytes > PTRDIFF_MAX || !size_fits(p, bytes, align_bytes));
    if (is_wrong)
        panic("malloc", NULL, "M1 deleted with another size than it was made with", p);
    careful_free(p);
}

/* aligned_alloc() makes no such block; another malloc's may. */
void careful_refuse_alignment(const void *p)
{
    if (p && quire_malloc_serving())
        panic("malloc", NULL, "M2 freed with an alignment that it was not made with", p);
}

size_t careful_usable_bytes(void *p)
{
    enum preload_mode mode = preload_ready();
    if (guard_has(p))
        return guard_bytes(p);
    if (p && is_libcs(p, mode))
        return libc_usable_bytes(p);
    return p && mode >= PRELOAD_STEERS ? steer_usable_bytes(p) : quire_heap_usable_bytes(p);
}
