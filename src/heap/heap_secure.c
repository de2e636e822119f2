// SPDX-License-Identifier: MIT
/*
 * heap_secure.c - what a heap with QUIRE_HEAP_SECURE does more.
 *
 *     | the user's bytes             | canary |      of every small block: the key and the block's address
 *
 *     allocating   a random free slot of a random word of the page
 *     freeing      the canary is checked (E7), the block zeroed, and kept back until so many others were freed: a second row of bits says so
 *
 * Every operation takes the local's lock.
 *
 * Locks: inside the local.  Not here: guards round large blocks (heap_large.c).
 */
#include <string.h>

#include "heap/heap_internal.h"
#include "os/os.h"
#include "os/sanitize.h"

struct heap_late {
    struct quire_span span;
    uint32_t next;
    uint64_t random;
    struct {
        struct heap_page *page;
        size_t slot;
    } block[HEAP_LATE];
};

static uint64_t canary_of(const void *p)
{
    return ((uint64_t)(uintptr_t)p * UINT64_C(0x9e3779b97f4a7c15)) ^ heap_key();
}

static char *canary_at(const void *p, size_t slot_bytes)
{
    return (char *)(uintptr_t)p + slot_bytes - HEAP_CANARY_BYTES;
}

void heap_secure_handed_out(void *p, size_t slot_bytes)
{
    uint64_t canary = canary_of(p);
    memcpy(canary_at(p, slot_bytes), &canary, sizeof canary);
}

void heap_secure_verify(const struct quire_heap *heap, const void *p, size_t slot_bytes)
{
    uint64_t canary;
    memcpy(&canary, canary_at(p, slot_bytes), sizeof canary);
    if (unlikely(canary != canary_of(p)))
        heap_refuse(heap, HEAP_E7, p);
}

static uint64_t random_next(void)
{
    uint64_t x = heap_tls.random ? heap_tls.random : (os_time_ns() ^ heap_key());
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return heap_tls.random = x;
}

/* There is a free slot in the page. */
uint64_t *heap_secure_pick(struct heap_bin *bin, unsigned *bit)
{
    uint64_t random = random_next();
    struct heap_page *page = bin->page;
    unsigned word = (unsigned)(random >> 32) % page->words, turn = (unsigned)random % WORD_BITS;
    while (page->free[word] == 0)
        word = word + 1 < page->words ? word + 1 : 0;
    uint64_t bits = page->free[word], turned = turn ? bits >> turn | bits << (WORD_BITS - turn) : bits;
    *bit = (bits_lowest(turned) + turn) % WORD_BITS;
    return &page->free[word];
}

/* ---- late reuse ---- */

static uint64_t *late_word(struct heap_page *page, size_t slot)
{
    return &page->free[page->words + slot / WORD_BITS];
}

static struct heap_late *late_of(struct heap_local *local)
{
    struct quire_span span;
    if (!local->late && heap_meta_take(local->heap, align_up(sizeof(struct heap_late), os_page_bytes()), &span)) {
        memset(span.start, 0, sizeof(struct heap_late));
        local->late = span.start;
        local->late->span = span;
    }
    return local->late;
}

/* It was zeroed when it was freed. */
static void verify_zero(const struct quire_heap *heap, const char *p, size_t bytes)
{
    uint64_t all = 0, word;
    for (size_t at = 0; at < bytes; at += sizeof word) {
        memcpy(&word, p + at, sizeof word);
        all |= word;
    }
    if (unlikely(all != 0))
        heap_refuse(heap, HEAP_E6, p);
}

static void release_one(struct heap_local *local, struct heap_page *page, size_t slot)
{
    if (!sanitize_watched())
        verify_zero(local->heap, heap_slot_at(page, slot), page->slot_bytes);
    heap_bits_set(late_word(page, slot), *late_word(page, slot) & ~(UINT64_C(1) << slot % WORD_BITS));
    heap_slot_free(local, page, slot);
}

void heap_secure_free(struct heap_local *local, struct heap_page *page, size_t slot)
{
    uint64_t bit = UINT64_C(1) << slot % WORD_BITS;
    char *p = heap_slot_at(page, slot);
    if (unlikely((page->free[slot / WORD_BITS] | *late_word(page, slot)) & bit))
        heap_refuse(local->heap, HEAP_E1, p);
    sanitize_undefined(p, page->slot_bytes);
    heap_secure_verify(local->heap, p, page->slot_bytes);
    memset(p, 0, page->slot_bytes);
    sanitize_no_access(p, page->slot_bytes);
    /* An idle local's pages may become another's: nothing of them may wait here. */
    struct heap_late *late = heap_is_idle(local) ? NULL : late_of(local);
    if (!late) {
        heap_slot_free(local, page, slot);
        return;
    }
    uint32_t at = late->next++ % HEAP_LATE;
    struct heap_page *due_page = late->block[at].page;
    size_t due_slot = late->block[at].slot;
    late->block[at].page = page;
    late->block[at].slot = slot;
    heap_bits_set(late_word(page, slot), *late_word(page, slot) | bit);
    if (due_page)
        release_one(local, due_page, due_slot);
}

void heap_secure_flush(struct heap_local *local)
{
    for (uint32_t i = 0; local->late && i < HEAP_LATE; i++) {
        struct heap_page *page = local->late->block[i].page;
        local->late->block[i].page = NULL;
        if (page)
            release_one(local, page, local->late->block[i].slot);
    }
}

size_t heap_late_bytes(const struct heap_local *local)
{
    return local->late ? local->late->span.bytes : 0;
}

/* In the child of a fork: what another thread kept back is free; its ring may be torn. */
void heap_late_drop(struct heap_local *local)
{
    if (local->late)
        memset(local->late->block, 0, sizeof local->late->block);
}

void heap_late_to_bits(struct heap_page *page)
{
    for (unsigned w = 0; w < page->words; w++) {
        page->free[w] |= page->free[page->words + w];
        page->free[page->words + w] = 0;
    }
}

void heap_late_destroy(struct heap_local *local)
{
    if (!local->late)
        return;
    struct quire_span span = local->late->span;
    heap_meta_give(local->heap, &span);
}
