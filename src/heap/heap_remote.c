// SPDX-License-Identifier: MIT
/*
 * heap_remote.c - blocks freed by another thread than the one that has their page.
 *
 *     thread that frees:  out[owner]:  first --> block --> block --> last         up to 32 blocks, then
 *                                                                                one atomic operation:
 *     owner:              inbox -----> block --> ... --> block                    drained when it needs a page, and by visitors
 *
 * The first word of a block on its way says so, as in a magazine, and is cleared when it arrives; the second is the next block's address, hidden by a
 * key of the process.  A page cannot go while one of its blocks is on its way: its bit is not set.  A page that changed its owner meanwhile: passed on.
 *
 * Seen here: a second free of a block on its way (by the first word it is suspected; then all is brought home and the bit decides: E1), one that
 * the owner had freed itself or that arrives twice (E1, by its bit), a block that was written to on its way (E6).
 *
 * Locks: none: the inbox is a list that many push on and one takes whole.  Not here: the owner's own frees (heap_free.c).
 */
#include "heap/heap_cache.h"
#include "heap/heap_secure.h"
#include "os/sanitize.h"

struct on_its_way {
    uint64_t mark; /* as of slots in magazines: slots/slots.h */
    uintptr_t next;
};

static inline uint64_t mark_of(const void *p)
{
    return slots_mark(p, slots_key);
}

/* Reads a whole slot's first words, also those behind a small block that ASan has poisoned. */
NO_SANITIZE bool heap_is_marked(const void *p)
{
    const struct on_its_way *block = p;
    return (block->mark ^ mark_of(p)) << 16 == 0;
}

static void link_set(void *p, const void *next)
{
    struct on_its_way *block = p;
    block->mark = mark_of(p);
    atomic_fence_signal(); /* the child of a fork finds what was wiped as zeros, or with the mark (S2) */
    block->next = (uintptr_t)next ^ heap_key();
}

static void *link_of(const struct on_its_way *block)
{
    return (void *)(block->next ^ heap_key());
}

/* A list of blocks, first to last, to their owner. */
static void push(struct heap_local *to, void *first, void *last)
{
    uintptr_t head = addr_load_relaxed(&to->inbox);
    do
        link_set(last, (void *)head);
    while (!addr_cas_release(&to->inbox, &head, (uintptr_t)first)); /* release [heap-inbox] */
}

/* The page of a block that can be on its way: its first words may be read.  NULL: `p`, which may be any address, is none. */
static struct heap_page *page_of(const void *p, size_t *slot)
{
    struct heap_page *page = heap_page_find(p);
    if (unlikely(!page) || unlikely(heap_is_large(page)) || unlikely(page->class == HEAP_ZERO))
        return NULL;
    *slot = heap_slot_of(page, p);
    return likely(*slot != SIZE_MAX) && likely(heap_tag_is_right(page, p)) ? page : NULL;
}

static bool is_on_its_way(const void *p)
{
    size_t slot;
    return page_of(p, &slot) && ((const struct on_its_way *)p)->mark == mark_of(p);
}

/* Two threads that free one block at the same moment both see it live, and the link written last stays: the other finds its own gone. */
static ALWAYS_INLINE void verify_first(const struct heap_local *local, const struct heap_out *out)
{
    const struct on_its_way *block = out->first;
    const void *next = link_of(block);
    if (unlikely(next != out->second))
        heap_refuse(local->heap, !next || is_on_its_way(next) || block->next == mark_of(block) /* in its page */ ? HEAP_E1 : HEAP_E6, out->first);
}

/* In the child of a fork, of a thread that is no more: what it was adding is there or not. */
void heap_out_after_fork(struct heap_local *local)
{
    for (int i = 0; i < HEAP_OUT; i++)
        if (local->out[i].first)
            local->out[i].second = link_of(local->out[i].first);
}

/* The chain is gone before it is sent: the child of a fork must not send it once more. */
static void out_send(struct heap_local *local, struct heap_out *out)
{
    struct heap_local *to = out->to;
    void *first = out->first;
    if (!first)
        return;
    verify_first(local, out);
    out->first = NULL;
    out->count = 0;
    atomic_fence_signal();
    push(to, first, out->last);
    if (unlikely(heap_is_idle(to)) && to != local && heap_idle_try(to)) {
        heap_inbox_drain(to);
        heap_idle_drop(to);
    }
}

static struct heap_out *out_to(struct heap_local *local, struct heap_local *to)
{
    struct heap_out *out = &local->out[(uintptr_t)to / sizeof(struct heap_local) % HEAP_OUT];
    if (unlikely(out->to != to)) {
        out_send(local, out);
        out->to = to;
    }
    return out;
}

/* `first` is what makes a block part of the chain, so that a fork finds it whole. */
static ALWAYS_INLINE void out_put(struct heap_local *local, struct heap_out *out, void *p)
{
    void *first = out->first;
    if (likely(first != NULL)) {
        verify_first(local, out);
    } else {
        out->last = p;
        heap_work_is_due();
    }
    link_set(p, first);
    atomic_fence_signal();
    out->second = first;
    out->first = p;
    if (unlikely(++out->count >= HEAP_OUT_BLOCKS))
        out_send(local, out);
}

void heap_out_add(struct heap_local *local, struct heap_local *to, void *p)
{
    out_put(local, out_to(local, to), p);
}

uint32_t heap_out_run(struct heap_local *local, struct heap_local *to, const struct magazine *mag, uint32_t from, uint32_t end)
{
    struct heap_out *out = out_to(local, to);
    uint64_t key = mag->key;
    for (; from < end; from++) {
        void *slot = (void *)addr_load_relaxed(&magazine_slots(mag)[from]);
        if (unlikely(!heap_has_mark(slot, slots_mark(slot, key))))
            break;
        out_put(local, out, slot);
    }
    return from;
}

void heap_out_flush(struct heap_local *local)
{
    for (int i = 0; i < HEAP_OUT; i++)
        out_send(local, &local->out[i]);
}

/* A block of `page` that was on its way has arrived at `local`, whose page it may be no more.  False: it was the page's last, or that was not seen. */
static ALWAYS_INLINE bool arrive(struct heap_local *local, struct heap_page *page, size_t slot, struct on_its_way *block)
{
    struct heap_local *owner = heap_owner(page);
    bool is_secure = heap_page_is_secure(page);
    uint64_t bits = owner != local ? 0 : page->free[slot / WORD_BITS] | (is_secure ? *heap_late_word(page, slot) : 0);
    bool is_free = bits >> slot % WORD_BITS & 1;
    if (unlikely(block->mark != mark_of(block) || is_free))
        heap_refuse(local->heap, is_free ? HEAP_E1 : HEAP_E6, block);
    if (unlikely(owner != local)) {
        push(owner, block, block);
    } else if (unlikely(is_secure)) {
        block->next = 0;
        atomic_fence_signal(); /* as in link_set() */
        block->mark = 0;
        heap_secure_arrive(local, page, slot);
    } else {
        return heap_slot_free(local, page, block, slot);
    }
    return false;
}

void heap_inbox_drain(struct heap_local *local)
{
    if (addr_load_relaxed(&local->inbox) == 0)
        return;
    void *p = (void *)addr_exchange_acquire(&local->inbox, 0); /* acquire [heap-inbox] */
    struct heap_page *page = NULL; /* of the block before, if it is there still */
    for (const void *before = p; p;) {
        size_t slot = SIZE_MAX;
        if (!page || (size_t)((char *)p - (char *)page->span.start) >= page->span.bytes || (slot = heap_slot_of(page, p)) == SIZE_MAX)
            page = page_of(p, &slot);
        if (unlikely(!page))
            heap_refuse(local->heap, HEAP_E6, before);
        before = p;
        p = link_of(before);
        if (!arrive(local, page, slot, (struct on_its_way *)(uintptr_t)before))
            page = NULL;
    }
}
