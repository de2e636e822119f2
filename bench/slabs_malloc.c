// SPDX-License-Identifier: MIT
/*
 * slabs_malloc.c - a malloc that is an array of slabs, one for each of the heap's sizes: what the heap would be on the slab's engine.
 *
 *     LD_PRELOAD=build/release/bench/libslabs-malloc.so program        compared by bench/slabs_table.py; decision 53
 *
 * To be measured, not to be used: no secure mode, no profile, no report; large blocks are the heap's.
 */
#define QUIRE_SLAB_INLINE 0
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "heap/heap_size.h"
#include "pages/source_internal.h"
#include "slab/slab_gate.h"

#include <quire/heap.h>

#define EXPORT __attribute__((visibility("default")))

static struct quire_slab *slabs[HEAP_CLASSES];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static NOINLINE struct quire_slab *slab_make(unsigned class)
{
    pthread_mutex_lock(&making);
    if (!slabs[class])
        __atomic_store_n(&slabs[class], quire_slab_create(heap_class_bytes(class), NULL), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&making);
    return slabs[class];
}

static NOINLINE void *alloc_slow(size_t bytes)
{
    if (bytes > HEAP_SMALL_MAX)
        return quire_heap_alloc(quire_heap_default(), bytes);
    unsigned class = heap_class_of(bytes);
    struct quire_slab *slab = slabs[class] ? slabs[class] : slab_make(class);
    return slab ? quire_slab_alloc(slab) : NULL;
}

/* The short way of quire_slab_alloc(). */
static ALWAYS_INLINE void *alloc_quick(const struct quire_slab *slab)
{
    uintptr_t gate = slab_enter(slab);
    struct slab_cache *cache = slab_gate_cache(gate);
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top) - 1;
    atomic_u64 *slot = (atomic_u64 *)addr_load_relaxed(top);
    bool done = likely(u64_load_relaxed(slot) == slots_mark(slot, cache->slots.key));
    if (done) {
        addr_store_relaxed(&cache->slots.top, (uintptr_t)top);
        u64_store_relaxed(slot, 0);
    }
    slab_leave(gate);
    return done ? slot : NULL;
}

EXPORT CACHE_ALIGNED void *malloc(size_t bytes)
{
    size_t below = bytes - 1;
    const struct quire_slab *slab = likely(below < HEAP_SMALL_MAX) ? slabs[heap_class_above(below)] : NULL;
    void *p = likely(slab != NULL) ? alloc_quick(slab) : NULL;
    return likely(p != NULL) ? p : alloc_slow(bytes);
}

/* The short way of quire_slab_free(), by the page map. */
static ALWAYS_INLINE bool free_quick(const struct slab_page *page, void *p)
{
    const struct quire_slab *slab = page->slab;
    uintptr_t gate = slab_enter(slab);
    struct slab_cache *cache = slab_gate_cache(gate);
    atomic_addr *top = (atomic_addr *)addr_load_relaxed(&cache->slots.top);
    uint64_t mark = slots_mark(p, cache->slots.key);
    size_t offset = (uintptr_t)p - addr_load_relaxed(&page->slots);
    bool done = likely(offset < size_load_relaxed(&page->carved)) && likely(slab_begins(slab, offset)) && likely((uint32_t)u64_load_relaxed(p) != (uint32_t)mark) &&
                likely(top < cache->slots.end);
    if (done) {
        u64_store_relaxed(p, mark);
        addr_store_relaxed(top, (uintptr_t)p);
        addr_store_relaxed(&cache->slots.top, (uintptr_t)(top + 1));
    }
    slab_leave(gate);
    return done;
}

static NOINLINE void free_slow(owner_t owner, void *p)
{
    if (owner_kind(owner) == OWNER_SLAB)
        quire_slab_free(((struct slab_page *)owner_object(owner))->slab, p);
    else if (p)
        quire_heap_free(quire_heap_default(), p);
}

EXPORT CACHE_ALIGNED void free(void *p)
{
    owner_t owner = pagemap_find(p);
    if (unlikely(owner_kind(owner) != OWNER_SLAB) || unlikely(!free_quick(owner_object(owner), p)))
        free_slow(owner, p);
}

EXPORT size_t malloc_usable_size(void *p);
EXPORT size_t malloc_usable_size(void *p)
{
    owner_t owner = pagemap_find(p);
    return owner_kind(owner) == OWNER_SLAB ? ((struct slab_page *)owner_object(owner))->slab->slot_bytes : p ? quire_heap_usable_bytes(p) : 0;
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    size_t all;
    if (!mul_checked(count, bytes, &all) || all > HEAP_SMALL_MAX)
        return quire_heap_alloc_zero(quire_heap_default(), count, bytes);
    void *p = malloc(all);
    return p ? memset(p, 0, all) : NULL;
}

EXPORT void *realloc(void *p, size_t bytes)
{
    if (!p)
        return malloc(bytes);
    bool is_large = owner_kind(pagemap_find(p)) != OWNER_SLAB;
    if (is_large && bytes > HEAP_SMALL_MAX)
        return quire_heap_realloc(quire_heap_default(), p, bytes);
    size_t have = malloc_usable_size(p);
    if (!is_large && bytes != 0 && bytes <= have && bytes > have / 2)
        return p;
    void *fresh = bytes ? malloc(bytes) : NULL;
    if (fresh)
        memcpy(fresh, p, bytes < have ? bytes : have);
    if (fresh || bytes == 0)
        free(p);
    return fresh;
}

EXPORT void *aligned_alloc(size_t align_bytes, size_t bytes)
{
    return align_bytes <= 16 ? malloc(bytes) : quire_heap_alloc_aligned(quire_heap_default(), bytes ? bytes : 1, align_bytes);
}

EXPORT void *memalign(size_t align_bytes, size_t bytes);
EXPORT void *memalign(size_t align_bytes, size_t bytes)
{
    return aligned_alloc(align_bytes, bytes);
}

EXPORT int posix_memalign(void **out, size_t align_bytes, size_t bytes)
{
    void *p = aligned_alloc(align_bytes, bytes);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}

static __attribute__((constructor)) void begin(void)
{
    source_default_serve_malloc();
}
