// SPDX-License-Identifier: MIT
/*
 * percpu_alloc.c - an object for every CPU.
 *
 * The life of an allocation: (1) round up to words of 4 bytes; (2) this thread's local, entered by two plain stores; (3) the lowest free slot of the size's
 * page, or the first chunk of the smallest class that is sure to have room, (4) and a run of its bitmap: the offset, the same in every unit.  No unit is
 * written.  The long way, with the lock: what others have freed, chunks that may have room, a chunk that an ended thread has left, a new one.
 *
 * A chunk's class may promise more than the chunk has, never less: when it fails it takes the class it deserves, and the next is asked.
 *
 * Locks: the local's; home's while a chunk of home's is looked for.  Not here: the bits (base/bitmap.h), chunks (percpu_chunk.c).
 */
#include <errno.h>

#include "os/os.h"
#include "os/sanitize.h"
#include "percpu/percpu_page.h"

/* In bits of a chunk of this grain: the run, and how many of them are sure to hold an aligned one. */
static inline size_t run_of(const struct percpu_want *want, unsigned grain)
{
    return want->words >> (2 * grain);
}

static inline unsigned align_of(const struct percpu_want *want, unsigned grain)
{
    unsigned bit_log2 = WORD_LOG2 + 2 * grain;
    return want->align_log2 > bit_log2 ? want->align_log2 - bit_log2 : 0;
}

static inline unsigned class_of(const struct percpu_want *want, unsigned grain)
{
    return percpu_class_ceil(run_of(want, grain) + ((size_t)1 << align_of(want, grain)) - 1);
}

static inline void count_allocated(struct percpu_local *local)
{
    local->allocs++;
    if (percpu_objects(local) > local->objects_peak)
        local->objects_peak = percpu_objects(local);
}

static uintptr_t page_alloc(struct percpu_local *local, struct percpu_page *page)
{
    size_t offset = percpu_page_alloc(local, page);
    count_allocated(local);
    if (unlikely(local->pool->watched))
        percpu_tell(sanitize_defined, page->chunk, offset, (size_t)page->words << WORD_LOG2);
    return (uintptr_t)page->chunk->base + offset;
}

static inline uintptr_t chunk_alloc(struct percpu_local *local, struct percpu_chunk *chunk, const struct percpu_want *want)
{
    size_t idx = bitmap_alloc(&chunk->map, run_of(want, chunk->grain), want->align_log2 <= chunk->edge_log2 ? 0 : align_of(want, chunk->grain));
    if (unlikely(idx == BITMAP_NONE))
        return 0;
    if (unlikely(want->edge_log2 < chunk->edge_log2))
        chunk->edge_log2 = want->edge_log2;
    percpu_room_add(local, chunk, -want->words);
    percpu_mapped_add(local, want->words, 1);
    count_allocated(local);
    if (unlikely(local->pool->watched))
        percpu_tell(sanitize_defined, chunk, idx << chunk->bit_log2, want->words << WORD_LOG2);
    return (uintptr_t)chunk->base + (idx << chunk->bit_log2);
}

/* From the maps of the object's own grain, then from finer ones. */
static uintptr_t maps_alloc(struct percpu_local *local, const struct percpu_want *want)
{
    for (unsigned grain = want->grain;;) {
        struct percpu_chunk *chunk = percpu_chunk_first(local, grain, class_of(want, grain));
        if (unlikely(!chunk)) {
            if (grain-- == 0)
                return 0;
            continue;
        }
        uintptr_t bits = chunk_alloc(local, chunk, want);
        if (likely(bits != 0))
            return bits;
        percpu_chunk_reclass(local, chunk, bitmap_longest_hint(&chunk->map));
    }
}

static inline bool popular(const struct percpu_local *local, const struct percpu_want *want)
{
    return want->slot_words <= PERCPU_PAGED_WORDS && percpu_popular(local->mapped[want->words], want->words);
}

/* Where it belongs: in a page, if there are many of its size, or in a map. */
static uintptr_t place_alloc(struct percpu_local *local, const struct percpu_want *want)
{
    struct percpu_page *page = want->slot_words <= PERCPU_PAGED_WORDS ? local->partial[want->slot_words] : NULL;
    if (!page && !popular(local, want))
        return maps_alloc(local, want);
    if (!page)
        page = percpu_page_new(local, (uint32_t)want->slot_words);
    return page ? page_alloc(local, page) : 0;
}

/* A few of the chunks that may have room, and need not. */
static uintptr_t tight_alloc(struct percpu_local *local, const struct percpu_want *want)
{
    int looks = PERCPU_LOOKS;
    for (unsigned grain = want->grain + 1; grain-- > 0;)
        for (unsigned class = percpu_class_floor(run_of(want, grain)), to = class_of(want, grain); class < to && looks > 0; class++)
            for (struct percpu_chunk *chunk = local->list[grain][class], *next; chunk && looks > 0; chunk = next) {
                next = chunk->next;
                looks--;
                uintptr_t bits = chunk_alloc(local, chunk, want);
                if (bits)
                    return bits;
                percpu_chunk_reclass(local, chunk, bitmap_longest_hint(&chunk->map));
                if (chunk->class == class)
                    percpu_chunk_last(local, chunk);
            }
    return 0;
}

/* Anywhere at all in these chunks. */
static uintptr_t alloc_anywhere(struct percpu_local *local, const struct percpu_want *want)
{
    uintptr_t bits = place_alloc(local, want);
    if (!bits && popular(local, want))
        bits = maps_alloc(local, want);
    return bits ? bits : tight_alloc(local, want);
}

/* No chunk can be had: anywhere, and in a page of its own though there are few of its size. */
static COLD uintptr_t alloc_at_last(struct percpu_local *local, const struct percpu_want *want)
{
    uintptr_t bits = alloc_anywhere(local, want);
    if (bits || want->slot_words > PERCPU_PAGED_WORDS)
        return bits;
    struct percpu_page *page = percpu_page_new(local, (uint32_t)want->slot_words);
    return page ? page_alloc(local, page) : 0;
}

/* From a chunk that an ended thread has left, which is this thread's from then on. */
static uintptr_t alloc_from_home(struct quire_percpu *pool, struct percpu_local *local, const struct percpu_want *want)
{
    struct percpu_local *home = &pool->home;
    if (local == home)
        return 0;
    percpu_visit(home);
    uintptr_t bits = alloc_anywhere(home, want);
    if (bits) {
        struct percpu_chunk *chunk = percpu_chunk_find(pool, bits);
        percpu_chunk_unlink(home, chunk);
        percpu_chunk_link(local, chunk);
    }
    percpu_release(home);
    return bits;
}

/* The local lacks a chunk: a paged one for a size of which there are many; the first of all is for anything. */
static unsigned chunk_kind(const struct percpu_local *local, const struct percpu_want *want)
{
    if (popular(local, want))
        return percpu_paged_kind(want->slot_words, local->pages_of[want->slot_words]);
    return local->chunks ? want->grain : 0;
}

static COLD uintptr_t alloc_held(struct quire_percpu *pool, struct percpu_local *local, const struct percpu_want *want)
{
    percpu_inbox_drain(local);
    uintptr_t bits = place_alloc(local, want);
    if (!bits)
        bits = tight_alloc(local, want);
    if (!bits)
        bits = alloc_from_home(pool, local, want);
    if (bits)
        return bits;
    struct percpu_chunk *chunk = percpu_chunk_new(pool, chunk_kind(local, want));
    if (!chunk)
        return alloc_at_last(local, want);
    percpu_chunk_link(local, chunk);
    return percpu_is_paged(chunk->grain) ? place_alloc(local, want) : chunk_alloc(local, chunk, want);
}

/* No chunk can be had: from what other threads have.  The object is theirs then, as far as chunks go. */
static COLD uintptr_t alloc_from_others(struct quire_percpu *pool, const struct percpu_want *want)
{
    FOR_EACH_VISITED(pool, other) {
        uintptr_t bits = other != &pool->reserve ? alloc_at_last(other, want) : 0;
        if (bits) {
            percpu_release(other);
            return bits;
        }
    }
    return 0;
}

/* Chunks without an object, each for one kind of objects, go, so that there is room for one of another kind.  False: there was none. */
static COLD bool give_empties(struct quire_percpu *pool)
{
    bool any = false;
    FOR_EACH_VISITED(pool, other)
        any |= other != &pool->reserve && percpu_empties_give(other, NULL);
    return any;
}

static uintptr_t alloc_holding(struct quire_percpu *pool, const struct percpu_want *want)
{
    struct percpu_local *local = percpu_hold(pool);
    uintptr_t bits = alloc_held(pool, local, want);
    percpu_release(local);
    return bits;
}

static COLD struct quire_percpu_ref alloc_slow(struct quire_percpu *pool, const struct percpu_want *want)
{
    int kept = errno;
    uintptr_t bits = alloc_holding(pool, want);
    if (unlikely(!bits))
        bits = alloc_from_others(pool, want);
    if (unlikely(!bits) && give_empties(pool))
        bits = alloc_holding(pool, want);
    percpu_reserve_fill(pool);
    errno = bits ? kept : ENOMEM;
    return (struct quire_percpu_ref){bits};
}

/* No frees of others are due here, and the reserve is not to be filled. */
static ALWAYS_INLINE bool owes_nothing(const struct percpu_local *local, const struct quire_percpu *pool)
{
    return likely(u32_load_relaxed(&local->inbox_count) < PERCPU_INBOX_DRAIN) && likely(u32_load_relaxed(&pool->reserve_low) != 1);
}

/* 0, or what is wrong with it. */
static inline int want_make(const struct quire_percpu *pool, size_t bytes, size_t align_bytes, struct percpu_want *out)
{
    if (align_bytes == 0)
        align_bytes = bytes < 8 ? 4 : 8;
    else if (unlikely(!is_pow2(align_bytes) || align_bytes > pool->align_bytes_max))
        return EINVAL;
    if (unlikely(bytes - 1 >= pool->object_bytes_max)) {
        if (bytes != 0)
            return ENOMEM;
        bytes = 1;
    }
    out->words = (bytes + 3) >> WORD_LOG2;
    out->grain = percpu_grain(out->words);
    out->slot_words = align_up(out->words, align_bytes < 8 ? 1 : align_bytes >> WORD_LOG2);
    out->align_log2 = bits_lowest(align_bytes);
    out->edge_log2 = bits_lowest(out->words) + WORD_LOG2;
    return 0;
}

static NOINLINE struct quire_percpu_ref alloc_long(struct quire_percpu *pool, size_t bytes, size_t align_bytes)
{
    struct percpu_want want;
    int error = want_make(pool, bytes, align_bytes, &want);
    if (unlikely(error != 0)) {
        errno = error;
        return (struct quire_percpu_ref){0};
    }
    struct percpu_local *local = percpu_mine(pool);
    if (likely(local && bias_enter(&local->bias))) {
        uintptr_t bits = owes_nothing(local, pool) ? place_alloc(local, &want) : 0;
        bias_leave(&local->bias);
        if (likely(bits != 0))
            return (struct quire_percpu_ref){bits};
    }
    return alloc_slow(pool, &want);
}

/* A slot that is not the last of its word.  0: not this way, nothing has changed. */
static ALWAYS_INLINE uintptr_t page_alloc_inside(struct percpu_local *local, struct percpu_page *page)
{
    unsigned w = bits_lowest(page->filled);
    uint64_t bits = page->free[w];
    if (unlikely((bits & (bits - 1)) == 0))
        return 0;
    size_t offset = percpu_page_take(page, w, bits);
    count_allocated(local);
    return (uintptr_t)page->chunk->base + offset;
}

/* From a page that has room, where an alignment asked for is no more than 8.  0: the same. */
static ALWAYS_INLINE uintptr_t page_alloc_quick(const struct quire_percpu *pool, size_t bytes, size_t align_bytes)
{
    struct percpu_local *local = percpu_mine(pool);
    bool is_even = align_bytes == 8 || (align_bytes == 0 && bytes >= 8);
    size_t words = ((bytes + 3) >> WORD_LOG2) + is_even;
    words -= words & is_even;
    if (unlikely(align_bytes > 8) || unlikely(align_bytes & (align_bytes - 1)) || unlikely(bytes - 1 >= pool->object_bytes_max) ||
        unlikely(words > PERCPU_PAGED_WORDS) || unlikely(pool->watched) || unlikely(!local) || unlikely(!bias_enter(&local->bias)))
        return 0;
    struct percpu_page *page = local->partial[words];
    uintptr_t bits = likely(page != NULL) && likely(owes_nothing(local, pool)) ? page_alloc_inside(local, page) : 0;
    bias_leave(&local->bias);
    return bits;
}

struct quire_percpu_ref quire_percpu_alloc(struct quire_percpu *pool, size_t bytes, size_t align_bytes)
{
    uintptr_t bits = page_alloc_quick(pool, bytes, align_bytes);
    return likely(bits != 0) ? (struct quire_percpu_ref){bits} : alloc_long(pool, bytes, align_bytes);
}

/* ---- without waiting ---- */

static uintptr_t alloc_from_reserve(struct quire_percpu *pool, const struct percpu_want *want)
{
    struct percpu_local *reserve = &pool->reserve;
    uintptr_t bits = 0;
    if (pool->reserve_words == 0 || !percpu_visit_try(reserve))
        return 0;
    bits = alloc_anywhere(reserve, want);
    if ((!bits && want->words <= pool->reserve_words) || percpu_reserve_is_low(reserve))
        u32_store_relaxed(&pool->reserve_low, 1);
    percpu_release(reserve);
    return bits;
}

struct quire_percpu_ref quire_percpu_alloc_nowait(struct quire_percpu *pool, size_t bytes, size_t align_bytes)
{
    struct percpu_want want;
    uintptr_t bits = 0;
    int error = want_make(pool, bytes, align_bytes, &want);
    struct percpu_local *local = percpu_mine(pool);
    if (!local)
        local = &pool->home;
    if (likely(error == 0)) {
        if (bias_enter(&local->bias)) {
            bits = alloc_anywhere(local, &want);
            bias_leave(&local->bias);
        } else if (percpu_visit_try(local)) { /* a plain lock: home's, or where there are no barriers */
            bits = alloc_anywhere(local, &want);
            percpu_release(local);
        }
        bits = bits ? bits : alloc_from_reserve(pool, &want);
        error = ENOMEM;
    }
    if (!bits)
        errno = error;
    return (struct quire_percpu_ref){bits};
}
