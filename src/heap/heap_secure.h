// SPDX-License-Identifier: MIT
/*
 * heap_secure.h - the seam between a heap and what a secure one does more.
 *
 *     heap_alloc.c     a slot: heap_secure_take()        handed out: heap_secure_hand_out()
 *     heap_free.c      heap_secure_free() by whoever is inside the owner; heap_secure_wipe(), then on its way, by others
 *     heap_realloc.c   heap_secure_asked(), heap_secure_resize()
 *     heap_large.c     heap_sealed_put() in place of giving memory back
 *
 * What it asks of the engine below: an owner (a local) that one thread is inside of, pages with a row of free bits and one more of as many, and a call
 * when a slot is free (heap_page_due()).
 */
#ifndef QUIRE_HEAP_HEAP_SECURE_H
#define QUIRE_HEAP_HEAP_SECURE_H

#include "base/random.h"
#include "heap/heap_internal.h"

C_DECLARATIONS_BEGIN

/* ---- heap_secure.c: small blocks ---- */
enum { HEAP_CANARY_BYTES = 8 };

/* By the short way, or inside the local: a random free slot of the bin's page; NULL: it has none. */
void *heap_secure_take_quick(struct heap_local *local, unsigned class);
void *heap_secure_take(struct heap_bin *bin);
bool heap_secure_has_room(const struct heap_bin *bin);
/* A slot becomes a block: nobody has written to it since it was freed (else E6), and all of it is zero but the canary. */
void heap_secure_hand_out(const struct quire_heap *heap, void *p, unsigned class, size_t bytes);
/* By the thread that frees.  False: not this way, nothing has changed. */
bool heap_secure_free_quick(struct quire_heap *heap, struct heap_local *local, struct heap_page *page, void *p);
/* Inside the page's local: a live block is kept back. */
void heap_secure_free(struct heap_local *local, struct heap_page *page, size_t slot);
/* The block is verified and zeroed, by whatever thread.  The address by which it may be touched. */
void *heap_secure_wipe(struct heap_page *page, size_t slot);
/* Inside: a block that was wiped elsewhere. */
void heap_secure_arrive(struct heap_local *local, struct heap_page *page, size_t slot);
/* What was asked for; stops the process when the canary is broken. */
size_t heap_secure_asked(const struct heap_page *page, const void *p);
/* The same, never stopping: for those who look while others work. */
size_t heap_secure_asked_roughly(const struct heap_page *page, const void *p);
/* The block has `bytes` from now on, where it is; false: it does not fit, or leaves half of the slot empty. */
bool heap_secure_resize(const struct heap_page *page, void *p, size_t bytes);
/* Nobody has written to its free slots, which are all of an empty one's (else E6). */
void heap_secure_page_goes(const struct quire_heap *heap, const struct heap_page *page, bool is_empty);
/* Of a page whose local is visited: NULL, or what is broken.  `alone`: no other thread is between a slot's bit and its block, so these are judged, too. */
const char *heap_secure_check(const struct heap_page *page, bool alone);
/* Its memory has no tags any more, as the source's. */
void heap_secure_untag(const struct heap_page *page);
/* Of the thread's own sequence. */
static ALWAYS_INLINE uint32_t heap_secure_random(void)
{
    return random_next(&heap_tls.random);
}

/* ---- heap_late.c: small blocks that are kept back ---- */
enum { HEAP_LATE_FEW = 8, HEAP_LATE_MANY = 64, HEAP_LATE_SMALL_MAX = 1024 };
bool heap_late_is_there(struct heap_local *local); /* made if need be; false: there is no memory, or it is an idle local's */
/* Keep a block back; another may come out of it, whose page is not NULL then. */
struct heap_late_block {
    struct heap_page *page;
    size_t slot;
};
struct heap_late_row {
    uint64_t taken; /* bit i: block[i] has a page */
    struct heap_late_block block[HEAP_LATE_MANY]; /* the first `places` of them */
};
struct heap_late_ring {
    uint32_t next, places, looks;
    struct heap_late_row mixed, queue;
};
struct heap_late {
    struct quire_span span;
    struct heap_late_ring ring[2]; /* of small blocks; of large ones */
};
static ALWAYS_INLINE struct heap_late_block heap_late_swap(struct heap_late_row *row, uint32_t place, struct heap_late_block block)
{
    struct heap_late_block had = row->block[place];
    row->block[place] = block;
    if (unlikely(!had.page))
        row->taken |= UINT64_C(1) << place;
    return had;
}
static ALWAYS_INLINE struct heap_late_block heap_late_put(struct heap_local *local, struct heap_late_block block)
{
    struct heap_late_ring *ring = &local->late->ring[unlikely(block.page->slot_bytes > HEAP_LATE_SMALL_MAX)];
    struct heap_late_block moved = heap_late_swap(&ring->mixed, heap_secure_random() & (ring->places - 1), block);
    return unlikely(!moved.page) ? moved : heap_late_swap(&ring->queue, ring->next++ & (ring->places - 1), moved);
}
struct heap_late_block heap_late_get(struct heap_local *local); /* any; page NULL: none is left */
void heap_late_drop(struct heap_local *local);
void heap_late_to_bits(struct heap_page *page);
void heap_late_destroy(struct heap_local *local);
void heap_secure_flush(struct heap_local *local); /* all that is kept back becomes free */
/* Nobody has written to what is kept back (else E6). */
void heap_late_verify(const struct heap_local *local);
void heap_late_verify_all(struct quire_heap *heap); /* the same of all its locals, from outside */
void heap_late_look(struct heap_local *local); /* the same of all at first, of a part each time later on */
bool heap_secure_is_clean(const struct heap_page *page, size_t slot);

static ALWAYS_INLINE uint64_t *heap_late_word(struct heap_page *page, size_t slot)
{
    return &page->free[page->words + slot / WORD_BITS];
}

/* Neither free nor kept back, as far as its page knows. */
static inline bool heap_is_handed_out(const struct heap_page *page, size_t slot)
{
    bool is_late = heap_page_is_secure(page) && heap_bit_is_set(page, (size_t)page->words * WORD_BITS + slot);
    return !is_late && !heap_bit_is_set(page, slot);
}

/* ---- tags, where the processor has them ---- */
/* The address of a slot by which it may be touched. */
static ALWAYS_INLINE char *heap_slot_tagged(const struct heap_page *page, size_t slot)
{
    char *p = heap_slot_at(page, slot);
    return os_tags_on() && page->class != HEAP_ZERO ? (char *)os_tagged(p) : p;
}

/* The address has the tag that its block has.  One that was kept from before the block was freed has another. */
static ALWAYS_INLINE bool heap_tag_is_right(const struct heap_page *page, const void *p)
{
    return !os_tags_on() || page->class >= HEAP_ZERO ? os_untagged(p) == (uintptr_t)p : os_tagged(p) == p;
}

/* ---- heap_sample.c ---- */
enum { HEAP_SAMPLE_MAX = 1024 };
/* A block made as a secure heap's is, of a heap that samples; NULL: it is not one that is to be, or there is no memory. */
void *heap_sample_alloc(struct quire_heap *heap, size_t bytes);
/* The same of one that is to be, of HEAP_SAMPLE_MAX bytes at most.  It is zero.  NULL: that heap makes none, or another thread is at them. */
void *heap_sample_always(struct quire_heap *heap, size_t bytes);
static ALWAYS_INLINE bool heap_page_is_sample(const struct heap_page *page)
{
    return heap_page_is_secure(page) && heap_owner(page)->is_sample;
}

/* ---- heap_sealed.c: addresses of large blocks that are kept back ---- */
/* The mapping, guards and all, cannot be touched from now on and has no memory; it goes after some others. */
void heap_sealed_put(struct quire_heap *heap, struct quire_span span);
/* The same of a block, whose memory is `bytes` from `start` on and uncounted when it goes: it may wait a while for a block that wants some. */
void heap_sealed_free(struct quire_heap *heap, const struct quire_span *span, void *start, size_t bytes);
/* These addresses of `span` can be used, and are zero.  -ENOMEM; -EEXIST: they may be another's now. */
int heap_sealed_open(struct quire_heap *heap, const struct quire_span *span, void *start, size_t bytes);
/* These too, which follow; or these no longer, and their memory goes.  False, or -ENOMEM: it is as it was. */
int heap_sealed_extend(const struct quire_span *span, void *start, size_t bytes);
bool heap_sealed_close(const struct quire_span *span, void *start, size_t bytes);
/*
 * Pages behind a block that has moved, for it to grow into: they cannot be touched, and stay of its mapping if they can.  They are open where the system
 * has no more mappings to give.
 */
void heap_sealed_room(void *start, size_t bytes);
void heap_sealed_cool(struct quire_heap *heap); /* none waits any more */
size_t heap_sealed_after_fork(struct quire_heap *heap); /* its own bytes; left_bytes is what waits */
/* Addresses that cannot be touched, `bytes` of them and `more`, or what has been kept back long enough and fits; start NULL: reserve so many. */
struct quire_span heap_sealed_take(struct quire_heap *heap, size_t bytes, size_t more);
void heap_sealed_flush(struct quire_heap *heap);
void heap_sealed_destroy(struct quire_heap *heap);

C_DECLARATIONS_END
#endif
