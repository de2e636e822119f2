// SPDX-License-Identifier: MIT
/*
 * heap_look.c - looking at a heap: pictures of pages, statistics, check, owns.
 *
 *     heaps' lock held: no heap and no chunk of headers goes      each page: its local is visited, then asked again whose it is
 *
 * Blocks on their way to their owner are brought there first.
 *
 * Locks: heaps, then one local after the other, the heap's for its large blocks.  Not here: walks (heap_walk.c), and anything that the fast ways call.
 */
#include <string.h>

#include "base/abi.h"
#include "base/fail.h"
#include "base/layout.h"
#include "heap/heap_cache.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"
#include "os/os.h"

static bool is_small(const struct heap_page *page)
{
    unsigned state = heap_state(page);
    return state != HEAP_UNUSED && state < HEAP_LARGE;
}

bool heap_page_visit(const struct heap_page *page, struct heap_local **in)
{
    for (;;) {
        bool small = is_small(page);
        uintptr_t word = addr_load_acquire(&page->owner); /* acquire [heap-owner] */
        struct heap_local *owner = (struct heap_local *)(word & ~(uintptr_t)OWNER_BITS);
        if (!small || !owner || (word & LARGE_OWNER)) /* it may become a large block's this moment */
            return false;
        if (*in != owner) {
            if (*in)
                heap_release(*in);
            *in = owner;
            heap_visit(owner);
        }
        if (heap_owner(page) == owner)
            return is_small(page) && likely(!owner->is_torn);
    }
}

struct look {
    struct heap_headers headers;
    struct heap_local *in; /* visited at the moment */
};

/* The next page of small blocks, inside its local; NULL at the end, and outside. */
static struct heap_page *small_next(struct quire_heap *heap, struct look *look)
{
    struct heap_page *page = heap_header_next(heap, &look->headers);
    while (page && !heap_page_visit(page, &look->in))
        page = heap_header_next(heap, &look->headers);
    if (!page && look->in)
        heap_release(look->in);
    return page;
}

void heap_all_home(struct quire_heap *heap)
{
    HEAP_EACH_VISITED(heap, local) {
        heap_caches_flush(local, false);
        heap_depots_flush(local);
        heap_out_flush(local);
    }
    HEAP_EACH_VISITED(heap, local)
        heap_inbox_drain(local);
}

/* ---- pages, for a picture ---- */

void heap_page_look(const struct heap_page *page, struct page_look *seen)
{
    *seen = (struct page_look){.start = page->span.start, .bytes = page->span.bytes, .slot_bytes = page->slot_bytes, .slots = page->slots};
    for (unsigned w = 0; w < page->words; w++)
        seen->live[w] = ~(page->free[w] | (heap_page_is_secure(page) ? page->free[page->words + w] : 0));
    if (page->slots % WORD_BITS)
        seen->live[page->words - 1] &= bits_low(page->slots % WORD_BITS);
}

struct page_look heap_large_look(const struct heap_page *page)
{
    size_t bytes = heap_large_bytes(page);
    return (struct page_look){.start = heap_large_start(page), .bytes = bytes, .slot_bytes = bytes, .slots = 1, .live = {1}};
}

/* False at the list's end; and where it is broken, or whoever looks might go round for ever. */
static bool is_listed(const struct quire_heap *heap, const struct heap_page *page)
{
    return page && heap_pages_is_linked(heap->large, page);
}

void heap_pages_look_locked(struct quire_heap *heap, page_look_fn *fn, void *arg)
{
    struct look look = {0};
    struct page_look seen;
    heap_all_home(heap);
    for (const struct heap_page *page; (page = small_next(heap, &look)) != NULL;) {
        heap_page_look(page, &seen);
        fn(&seen, arg);
    }
    lock_take(&heap->lock);
    for (const struct heap_page *page = heap->large; is_listed(heap, page); page = page->next) {
        if (page->state != HEAP_LARGE)
            continue;
        seen = heap_large_look(page);
        fn(&seen, arg);
    }
    lock_drop(&heap->lock);
}

/* With the owner at rest its page does not go, and its memory can be looked at.  p: where the slot begins.  *is_marked: it may be in a magazine. */
static bool is_free_on_page(struct heap_local *owner, const struct heap_page *page, size_t slot, const void *p, bool *is_marked)
{
    heap_visit(owner);
    bool is_its = heap_page_find(p) == page && heap_owner(page) == owner;
    bool is_free = !is_its || !heap_is_handed_out(page, slot);
    *is_marked = is_its && page->quick_of && heap_is_marked(p);
    heap_release(owner);
    return is_free;
}

/* From a magazine a tick may send it to its page: it is looked for there first, then in magazines, then there again. */
static bool slot_is_free_visiting(struct heap_local *owner, const struct heap_page *page, size_t slot, const void *p)
{
    bool is_marked;
    if (heap_is_in_local()) /* a signal handler's call */
        return heap_bit_is_set(page, slot);
    if (is_free_on_page(owner, page, slot, p, &is_marked))
        return true;
    if (!is_marked)
        return false;
    return heap_cached(owner->heap, page->class, p) != 0 || is_free_on_page(owner, page, slot, p, &is_marked);
}

/*
 * The heap that has a small block here, or a large one whose first page this is.  The header may be a going page's: a guess then, as the address is.  With
 * the heaps' lock, so that it is a header still.
 */
static NO_SANITIZE struct quire_heap *heap_at(const void *p)
{
    const struct heap_page *page = heap_page_find(p);
    uintptr_t owner = page ? addr_load_acquire(&page->owner) : 0; /* acquire [heap-owner] */
    struct quire_heap *heap = (struct quire_heap *)(owner & ~(uintptr_t)LARGE_OWNER);
    if (owner & LARGE_OWNER)
        return heap_large_has(heap, page, p) ? heap : NULL;
    struct heap_local *local = (struct heap_local *)(owner & ~(uintptr_t)OWNER_BITS);
    size_t slot_bytes = local ? page->slot_bytes : 0;
    if (slot_bytes == 0)
        return NULL;
    const char *start = page->span.start;
    size_t slot = (size_t)(os_untagged(p) - (uintptr_t)start) / slot_bytes;
    return slot < page->slots && !slot_is_free_visiting(local, page, slot, start + slot * slot_bytes) ? local->heap : NULL;
}

struct quire_heap *quire_heap_of(const void *p)
{
    heap_list_lock();
    struct quire_heap *heap = heap_at(p);
    heap_list_unlock();
    return heap;
}

bool quire_heap_owns(const struct quire_heap *heap, const void *p)
{
    heap_list_lock();
    bool owns = heap_at(p) == heap || heap_large_owns(heap_mutable(heap), p);
    heap_list_unlock();
    return owns;
}

/* ---- statistics ---- */

struct sums {
    size_t live_bytes, free_bytes, live_blocks, pages, rounding16;
    struct quire_heap_class_stats *class; /* of each; NULL: not asked for */
};

static void sum_page(const struct heap_page *page, struct sums *sums)
{
    struct page_look seen;
    size_t live = 0;
    heap_page_look(page, &seen);
    for (unsigned w = 0; w < page->words; w++)
        live += bits_count(seen.live[w]);
    size_t rounding16 = live * heap_owner(page)->bin[page->class].rounding16;
    if (sums->class) {
        struct quire_heap_class_stats *class = &sums->class[heap_stat_class(page->class)];
        class->live_blocks += live;
        class->page_bytes += page->span.bytes;
        class->rounding_bytes += rounding16 / 16;
    }
    sums->live_blocks += live;
    sums->live_bytes += live * page->slot_bytes;
    sums->free_bytes += page->span.bytes - live * page->slot_bytes;
    sums->rounding16 += rounding16;
    sums->pages++;
}

static void sum_smalls(struct quire_heap *heap, struct sums *sums)
{
    struct look look = {0};
    heap_all_home(heap);
    for (const struct heap_page *page; (page = small_next(heap, &look)) != NULL;)
        sum_page(page, sums);
}

static void sum_larges(struct quire_heap *heap, struct quire_heap_stats *out)
{
    size_t asked = 0, guards = 0;
    lock_take(&heap->lock);
    size_t left = heap->left_bytes;
    for (const struct heap_page *page = heap->large; is_listed(heap, page); page = page->next) {
        if (page->state == HEAP_CACHED) { /* since all was sent home, by another thread */
            out->free_bytes += page->span.bytes;
            continue;
        }
        out->large_blocks++;
        out->large_bytes += heap_large_bytes(page);
        guards += heap_large_held(page) - heap_large_bytes(page);
        asked += __atomic_load_n(&page->asked_bytes, __ATOMIC_RELAXED);
    }
    lock_drop(&heap->lock);
    out->free_bytes += guards + left;
    out->rounding_bytes += out->large_bytes - asked;
}

void heap_stats_locked(struct quire_heap *heap, struct quire_heap_stats *out)
{
    struct sums sums = {0};
    memset(out, 0, sizeof *out);
    sum_smalls(heap, &sums);
    out->free_bytes = sums.free_bytes;
    out->rounding_bytes = sums.rounding16 / 16;
    sum_larges(heap, out);
    for (const struct heap_local *local = heap_locals(heap); local; local = local->next)
        out->caches += local->span_bytes != 0 && !local->is_sample;
    out->pages = sums.pages;
    out->live_bytes = sums.live_bytes + out->large_bytes;
    out->live_blocks = sums.live_blocks + out->large_blocks;
    out->meta_bytes = size_load_relaxed(&heap->account.meta_bytes);
    out->mapped_bytes = out->live_bytes + out->free_bytes + out->meta_bytes;
    out->peak_bytes = size_load_relaxed(&heap->account.peak_bytes);
    out->limit_bytes = heap->account.limit_bytes;
}

void quire_heap_stats(const struct quire_heap *heap, struct quire_heap_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_heap_stats, caches);
    struct quire_heap_stats own = {.struct_bytes = sizeof own};
    heap_list_lock();
    heap_stats_locked(heap_mutable(heap), &own);
    heap_list_unlock();
    heap_thread_outside();
    abi_write(&layout, &own, out);
}

void heap_classes_stats_locked(struct quire_heap *heap, struct quire_heap_class_stats out[HEAP_CLASSES])
{
    struct sums sums = {.class = out};
    for (unsigned c = 0; c < HEAP_CLASSES; c++) {
        size_t peak = size_load_relaxed(&heap->of_class[c].peak);
        out[c] = (struct quire_heap_class_stats){.slot_bytes = heap_class_bytes(c)};
        out[c].peak_bytes = peak * heap_page_bytes(out[c].slot_bytes, os_page_bytes());
    }
    sum_smalls(heap, &sums);
}

int quire_heap_class_stats(const struct quire_heap *heap, unsigned index, struct quire_heap_class_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_heap_class_stats, rounding_bytes);
    struct quire_heap_class_stats all[HEAP_CLASSES];
    if (index >= HEAP_CLASSES)
        return fail_int(EINVAL);
    heap_list_lock();
    heap_classes_stats_locked(heap_mutable(heap), all);
    heap_list_unlock();
    heap_thread_outside();
    abi_write(&layout, &all[index], out);
    return 0;
}

/* ---- check ---- */

static const char *check_page(const struct heap_page *page, bool alone)
{
    uint64_t behind = page->slots % WORD_BITS ? ~bits_low(page->slots % WORD_BITS) : 0;
    if (page->words != (page->slots + WORD_BITS - 1) / WORD_BITS || (page->free[page->words - 1] & behind) || heap_page_written(page))
        return "heap P1";
    if (page->state == HEAP_PARTIAL && (page->until == 0 || page->until != (heap_page_live(page) ? heap_page_live(page) : 1)))
        return "heap P2";
    if (owner_object(pagemap_find(page->span.start)) != page)
        return "heap P4";
    return heap_page_is_secure(page) ? heap_secure_check(page, alone) : NULL;
}

static bool bin_is_sound(const struct heap_local *local, unsigned class)
{
    const struct heap_bin *bin = &local->bin[class];
    const struct heap_page *page = bin->page;
    if (page && (page->state != HEAP_CURRENT || heap_owner(page) != local || page->class != class))
        return false;
    for (page = bin->partial; page; page = page->next)
        if (page->state != HEAP_PARTIAL || heap_owner(page) != local || page->class != class || !heap_pages_is_linked(bin->partial, page))
            return false;
    return true;
}

static bool locals_are_sound(struct quire_heap *heap)
{
    bool sound = true;
    HEAP_EACH_VISITED(heap, local)
        for (unsigned c = 0; c < heap_bins_ready(local) && sound; c++)
            sound = bin_is_sound(local, c) && heap_cache_is_sound(local, c);
    return sound;
}

static bool larges_are_sound(struct quire_heap *heap)
{
    bool sound = true;
    lock_take(&heap->lock);
    for (const struct heap_page *page = heap->large; page && sound; page = page->next)
        sound = heap_pages_is_linked(heap->large, page) && (page->state == HEAP_LARGE || page->state == HEAP_CACHED) && heap_page_find(heap_large_start(page)) == page;
    lock_drop(&heap->lock);
    return sound;
}

/* Sums can be judged only while nobody else is at work. */
static bool is_alone(struct quire_heap *heap)
{
    if (u32_load_seq_cst(&heap->changing) != 0 || u32_load_relaxed(&heap_fork_is_due) != 0)
        return false;
    for (struct heap_local *local = heap_locals(heap); local; local = local->next)
        if (!heap_is_idle(local) && !local->is_sample && addr_load_relaxed(&local->thread) != heap_thread_id())
            return false;
    return true;
}

const char *quire_heap_check(struct quire_heap *heap)
{
    const char *broken = NULL;
    struct look look = {0};
    struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
    bool is_between = heap_is_inside() || heap_is_in_local(); /* a handler, in the middle of an operation */
    heap_list_lock();
    bool alone = is_alone(heap);
    for (const struct heap_page *page; (page = small_next(heap, &look)) != NULL;)
        broken = broken ? broken : check_page(page, alone && !is_between);
    if (!broken && !locals_are_sound(heap))
        broken = "heap P3";
    heap_all_home(heap); /* or the sums would send it there, and the count of changes would rise */
    /* A large block that moves this moment is judged the next time. */
    uint32_t changes = u32_load_seq_cst(&heap->changes);
    bool larges = larges_are_sound(heap);
    if (!broken && !larges && u32_load_relaxed(&heap_fork_is_due) == 0 && u32_load_seq_cst(&heap->changing) == 0 && u32_load_seq_cst(&heap->changes) == changes)
        broken = "heap L1";
    heap_stats_locked(heap, &stats);
    size_t mapped = size_load_relaxed(&heap->account.mapped_bytes);
    alone = alone && is_alone(heap) && u32_load_seq_cst(&heap->changes) == changes;
    if (!broken && ((alone && stats.mapped_bytes != mapped) || !account_has_room(&heap->account, 0)))
        broken = "heap P5";
    heap_list_unlock();
    heap_thread_outside();
    return broken;
}

static const LAYOUT struct layout_row layout[] = {
    LAYOUT_STRUCT(quire_heap), LAYOUT_FIELD(quire_heap, serial), LAYOUT_FIELD(quire_heap, name), LAYOUT_FIELD(quire_heap, next),
    LAYOUT_FIELD(quire_heap, locals), LAYOUT_FIELD(quire_heap, headers.chunks),
    LAYOUT_STRUCT(header_chunk), LAYOUT_FIELD(header_chunk, next), LAYOUT_FIELD(header_chunk, stride_bytes), LAYOUT_FIELD(header_chunk, cut),
    LAYOUT_STRUCT(heap_page), LAYOUT_FIELD(heap_page, span.start), LAYOUT_FIELD(heap_page, span.bytes), LAYOUT_FIELD(heap_page, owner),
    LAYOUT_FIELD(heap_page, slot_bytes), LAYOUT_FIELD(heap_page, words), LAYOUT_FIELD(heap_page, state),
    LAYOUT_FIELD(heap_page, asked_bytes), LAYOUT_FIELD(heap_page, slots), LAYOUT_FIELD(heap_page, is_mapped),
    LAYOUT_FIELD(heap_page, guard_shift), LAYOUT_BEHIND(heap_page, free),
    LAYOUT_STRUCT(heap_local), LAYOUT_FIELD(heap_local, next), LAYOUT_FIELD(heap_local, out), LAYOUT_FIELD(heap_local, bin),
    LAYOUT_FIELD(heap_local, inbox),
    LAYOUT_STRUCT(heap_bin), LAYOUT_FIELD(heap_bin, slots.cur), LAYOUT_FIELD(heap_bin, slots.top),
    LAYOUT_STRUCT(heap_out), LAYOUT_FIELD(heap_out, first),
};
static const ANCHORS struct layout_anchor anchors[] = {{"heap_first", &heap_first}, {"heap_of_process", &heap_of_process}, {"heap_key_word", &heap_key_word}};
