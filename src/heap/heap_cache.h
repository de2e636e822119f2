// SPDX-License-Identifier: MIT
/*
 * heap_cache.h - free slots that threads have in magazines: heap_cache.c and heap_spill.c, for the other files of the heap.
 *
 * Inside the local, where nothing else is said.
 */
#ifndef QUIRE_HEAP_HEAP_CACHE_H
#define QUIRE_HEAP_HEAP_CACHE_H

#include "heap/heap_internal.h"

C_DECLARATIONS_BEGIN

static inline struct magazine *heap_magazine(struct heap_page *header)
{
    return (struct magazine *)(void *)header->free;
}
void heap_cache_none(struct slot_cache *cache); /* no magazine: the first time that one is wanted it is made */
bool heap_cache_refill(struct heap_local *local, unsigned class); /* `cur` is empty; false: so it stays */
bool heap_cache_make_room(struct heap_local *local, unsigned class, void *p); /* in `cur`, for a slot of this size; false: it is in its page */
void heap_cache_missed(struct heap_local *local, unsigned class); /* another word of a page is used */
void heap_caches_make_way(struct heap_local *local); /* before each new page: each 16th time full magazines go to their pages, if they hold more than a little and did not serve */
void heap_caches_flush(struct heap_local *local, bool ends); /* all slots to the pages, or on their way there; but full magazines to the depots if its thread ends */
void heap_depots_flush(struct heap_local *local); /* the heap's, by this local */
void heap_depots_unlearn(struct quire_heap *heap); /* that magazines are to be large */
void heap_local_shrink(struct heap_local *local); /* an ended thread's that has nothing: of its memory an OS page stays */
bool heap_cache_is_sound(struct heap_local *local, unsigned class);
/* Written over what a block's first 16 bytes were; a free slot has them so.  The first word says that it is one: last. */
static ALWAYS_INLINE void heap_mark(void *slot, uint64_t mark)
{
    u64_store_relaxed((atomic_u64 *)slot + 1, mark);
    atomic_fence_signal(); /* the child of a fork finds the old mark, or all of this one */
    u64_store_relaxed((atomic_u64 *)slot, mark);
}
static ALWAYS_INLINE bool heap_has_mark(const void *slot, uint64_t mark)
{
    return likely(u64_load_relaxed((const atomic_u64 *)slot) == mark) && likely(u64_load_relaxed((const atomic_u64 *)slot + 1) == mark);
}
/* The slot, at p, is free from now on.  The last look at the page: it may be gone.  True: it was not due, and is there. */
bool heap_slot_free(struct heap_local *local, struct heap_page *page, void *p, size_t slot);
/* All of a magazine to its pages: the last look at its slots. */
void heap_spill(struct heap_local *local, struct magazine *mag);
/* Slots of a magazine that are another's, to chains of blocks on their way.  Returns where it ended: there, or before one that is not as it was left. */
uint32_t heap_out_run(struct heap_local *local, struct heap_local *to, const struct magazine *mag, uint32_t from, uint32_t end);
/* Whether it lies in pages of the local's own, as far as some of its slots tell. */
bool heap_spills_home(const struct heap_local *local, const struct magazine *mag);
/* Not inside: how often the slot is in magazines of any thread. */
size_t heap_cached(struct quire_heap *heap, unsigned class, const void *slot);
__attribute__((noreturn, cold)) void heap_refuse_slot(struct quire_heap *heap, const void *slot); /* it was not in its magazine as it was left there */
void heap_caches_to_bits(struct heap_local *local); /* in the child of a fork */
void heap_magazine_to_bits(struct heap_page *header);

C_DECLARATIONS_END
#endif
