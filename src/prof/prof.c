// SPDX-License-Identifier: MIT
/*
 * prof.c - which blocks are sampled, and what is counted for them.
 *
 *     alloc    bytes < what is left to the next point: the heap, as ever
 *              else: stack walked, counters found, the block made with pages of its own, its header says { site, points }
 *     free     the heap's long way for such blocks calls gone(): live -= points
 *     realloc  is a free and an alloc to the counters; where the block stays, in its slot or on its pages, nothing is counted, and a sampled one stays sampled
 *     fork     the child has its parent's numbers and goes on; the lock is free in it
 *
 * A block of b bytes with p points stands for p * every bytes, and p * every / b blocks.  A sample without memory for its stack is served and counted as
 * lost; a block that cannot have pages of its own is served from the heap, and is counted as allocated, not as live.
 *
 * Locks: LOCK_PROF for the counters.  Not here: where the points lie (points.c), stacks (walk.c, table.c), the file (write.c).
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "base/lock.h"
#include "base/random.h"
#include "heap/heap_internal.h"
#include "heap/heap_quick.h"
#include "look/live.h"
#include "os/os.h"
#include "os/os_probe.h"
#include "prof/guard.h"
#include "prof/prof_internal.h"

enum { SITE_BITS = 24 };
#define POINTS_MAX ((UINT64_C(1) << (64 - SITE_BITS)) - 1)

struct prof_opts prof_opts;
THREAD_LOCAL struct prof_points prof_points __attribute__((tls_model("initial-exec")));
static struct lock lock = LOCK_INIT(LOCK_PROF);
static struct {
    uint64_t samples, lost, live_points;
    uint64_t due_points; /* of live ones, when prof_due() is true next */
} sums; /* with the lock */
static atomic_u32 is_due;

void prof_lock_take(void)
{
    lock_take(&lock);
}

void prof_lock_drop(void)
{
    lock_drop(&lock);
}

/* ---- counting ---- */

uint64_t prof_blocks16(uint64_t point_count, uint64_t every_bytes, uint64_t bytes)
{
    return (uint64_t)(((unsigned __int128)point_count * every_bytes << 16) / (bytes ? bytes : 1));
}

/* { points, site }, as a block's header keeps it; 0: no sample. */
static uint64_t token_of(uint32_t site, uint64_t point_count)
{
    return site ? point_count << SITE_BITS | site : 0;
}

static void watch_threshold(void)
{
    uint64_t step = prof_opts.at_bytes / prof_opts.every_bytes;
    if (prof_opts.at_bytes == 0 || sums.live_points < sums.due_points)
        return;
    sums.due_points = sums.live_points + (step ? step : 1);
    u32_store_relaxed(&is_due, 1);
    live_want();
}

/* A block that will be made.  Its token, which is what gone() takes back. */
static NOINLINE uint64_t born(uint64_t point_count, size_t bytes, struct prof_call call)
{
    uintptr_t ips[PROF_FRAMES_MAX];
    unsigned count = prof_walk(os_frame_here(), call, PROF_FRAMES_MAX, ips);
    uint64_t blocks16 = prof_blocks16(point_count, prof_opts.every_bytes, bytes);
    prof_lock_take();
    uint32_t number = prof_site_locked(ips, count);
    sums.samples++;
    sums.lost += number == 0;
    if (number != 0) {
        struct prof_site *site = prof_site_at(number);
        site->all_points += point_count;
        site->all_blocks16 += blocks16;
        site->live_points += point_count;
        site->live_blocks16 += blocks16;
        sums.live_points += point_count;
        watch_threshold();
    }
    prof_lock_drop();
    live_start_due();
    return token_of(number, point_count);
}

/* `is_none`: it was never made. */
static void take_back(uint64_t token, size_t bytes, bool is_none)
{
    uint64_t point_count = token >> SITE_BITS;
    struct prof_site *site = prof_site_at((uint32_t)(token & ((UINT64_C(1) << SITE_BITS) - 1)));
    prof_lock_take();
    uint64_t blocks16 = prof_blocks16(point_count, prof_opts.every_bytes, bytes);
    site->live_points -= point_count;
    site->live_blocks16 -= blocks16 < site->live_blocks16 ? blocks16 : site->live_blocks16; /* who resizes past malloc's names makes it another number */
    sums.live_points -= point_count;
    if (is_none) {
        site->all_points -= point_count;
        site->all_blocks16 -= blocks16 < site->all_blocks16 ? blocks16 : site->all_blocks16;
    }
    prof_lock_drop();
}

/* ---- what lies behind a sampled block, on its last page: a zero, which ends a string, then a pattern ---- */

enum { TAIL_BYTES = 64, TAIL_PATTERN = 0xa7 };

static size_t tail_bytes(size_t bytes)
{
    size_t room = align_up(bytes, os_page_bytes()) - bytes;
    return room < TAIL_BYTES ? room : TAIL_BYTES;
}

static void tail_write(void *p, size_t bytes)
{
    unsigned char *tail = (unsigned char *)p + bytes;
    for (size_t i = 0; i < tail_bytes(bytes); i++)
        tail[i] = i ? TAIL_PATTERN : 0;
}

static void tail_verify(const void *p, size_t bytes)
{
    const unsigned char *tail = (const unsigned char *)p + bytes;
    for (size_t i = 0; i < tail_bytes(bytes); i++)
        if (unlikely(tail[i] != (i ? TAIL_PATTERN : 0)))
            heap_refuse(&heap_of_process, HEAP_E7, p);
}

static uint64_t weight_of(uint64_t token)
{
    return (token >> SITE_BITS) * prof_opts.every_bytes;
}

/* For who looks from outside: a sampled block is there. */
static void *told(void *p, size_t bytes, uint64_t token)
{
    if (p && token)
        PROBE3(sample_alloc, (uintptr_t)p, bytes, weight_of(token));
    return p;
}

/* Its pages are still there. */
static void gone(uint64_t token, const void *p, size_t bytes)
{
    PROBE3(sample_free, (uintptr_t)p, bytes, weight_of(token));
    if (!guard_has(p))
        tail_verify(p, bytes);
    take_back(token, bytes, false);
}

/* ---- points ---- */

static void begin(void)
{
    prof_points_begin(&prof_points, prof_opts.every_bytes, random_seed());
    if (prof_opts.guard_every)
        prof_points.left_blocks = (uint64_t)((unsigned __int128)prof_random(&prof_points.random) * prof_opts.guard_every >> 64);
}

static NOINLINE uint64_t points_in(size_t bytes)
{
    if (prof_opts.every_bytes == 0) { /* guarded blocks alone */
        prof_points.left_bytes = UINT64_MAX;
        return 0;
    }
    if (bytes > PTRDIFF_MAX) /* which the heap refuses */
        return 0;
    if (prof_points.random == 0) {
        int kept = errno;
        begin();
        errno = kept;
    }
    uint64_t found = prof_points_in(&prof_points, prof_opts.every_bytes, bytes);
    return found < POINTS_MAX ? found : POINTS_MAX;
}

/* ---- the sampled block ---- */

static uint64_t token_take(void *p)
{
    struct heap_page *page = heap_page_find(p);
    uint64_t token = page && heap_is_large(page) ? page->sample : 0;
    if (token)
        page->sample = 0;
    return token;
}

/* With pages of its own; else as any block, and no longer live to us. */
static void *sampled(size_t bytes, size_t align_bytes, uint64_t token, bool zero)
{
    int kept = errno;
    void *p = token ? heap_malloc_sampled(bytes, align_bytes, zero, token) : NULL;
    if (likely(p != NULL)) {
        tail_write(p, bytes);
        return told(p, bytes, token);
    }
    errno = kept;
    p = heap_malloc_aligned(bytes, align_bytes);
    if (token)
        take_back(token, bytes, p == NULL);
    return p && zero ? memset(p, 0, bytes) : p;
}

static NOINLINE void *alloc_slow(size_t bytes, size_t align_bytes, bool zero, struct prof_call call)
{
    uint64_t count = heap_is_inside() ? 0 : points_in(bytes);
    if (count == 0) {
        void *p = heap_malloc_aligned(bytes, align_bytes);
        return p && zero ? memset(p, 0, bytes) : p;
    }
    int kept = errno;
    uint64_t token = born(count, bytes, call);
    errno = kept;
    return sampled(bytes, align_bytes, token, zero);
}

/* ---- guarded blocks ---- */

/* None is left to pass.  One block in so many, a mean: at distances drawn anew, so that no loop is in step with them.  True: this one. */
static NOINLINE bool guard_turn(void)
{
    if (prof_points.random == 0) {
        int kept = errno;
        begin();
        errno = kept;
        if (guard_turn_passes())
            return false;
    }
    prof_points.left_blocks = (uint64_t)((unsigned __int128)prof_random(&prof_points.random) * (2 * prof_opts.guard_every - 1) >> 64);
    return true;
}

/* NULL: this one is not guarded. */
static NOINLINE void *guarded(size_t bytes, size_t align_bytes, struct prof_call call)
{
    if (!guard_turn() || heap_is_inside() || bytes == 0) /* of a secure heap's blocks of no bytes no byte can be touched: they stay the heap's */
        return NULL;
    int kept = errno;
    uint64_t count = prof_opts.every_bytes && !prof_passes(bytes) ? points_in(bytes) : 0, token = count ? born(count, bytes, call) : 0;
    void *p = guard_alloc(bytes, align_bytes, token, call);
    if (!p && token)
        take_back(token, bytes, true);
    errno = kept;
    return told(p, bytes, token);
}

void *prof_guarded_alloc(size_t bytes, struct prof_call call)
{
    void *p = guard_turn_passes() ? NULL : guarded(bytes, HEAP_SLOT_ALIGN, call);
    return p ? p : prof_alloc(bytes, call);
}

void *prof_guarded_alloc_zero(size_t bytes, struct prof_call call)
{
    void *p = guard_turn_passes() ? NULL : guarded(bytes, HEAP_SLOT_ALIGN, call);
    return p ? p : prof_alloc_zero(bytes, call);
}

void *prof_guarded_alloc_aligned(size_t bytes, size_t align_bytes, struct prof_call call)
{
    void *p = guard_turn_passes() ? NULL : guarded(bytes, align_bytes > HEAP_SLOT_ALIGN ? align_bytes : HEAP_SLOT_ALIGN, call);
    return p ? p : prof_alloc_aligned(bytes, align_bytes, call);
}

/* A guarded block always moves, so that whoever still has the old address is found out. */
void *prof_guarded_realloc(void *p, size_t bytes, struct prof_call call)
{
    if (likely(!guard_has(p)))
        return prof_realloc(p, bytes, call);
    size_t had = guard_bytes(p);
    void *fresh = prof_guarded_alloc(bytes, call);
    if (!fresh)
        return NULL;
    memcpy(fresh, p, had < bytes ? had : bytes);
    guard_free(p, call);
    return fresh;
}

void *prof_alloc(size_t bytes, struct prof_call call)
{
    return likely(prof_passes(bytes)) ? heap_malloc(bytes) : alloc_slow(bytes, HEAP_SLOT_ALIGN, false, call);
}

void *prof_alloc_zero(size_t bytes, struct prof_call call)
{
    return likely(prof_passes(bytes)) ? heap_malloc_zero(bytes) : alloc_slow(bytes, HEAP_SLOT_ALIGN, true, call);
}

void *prof_alloc_aligned(size_t bytes, size_t align_bytes, struct prof_call call)
{
    return likely(prof_passes(bytes)) ? heap_malloc_aligned(bytes, align_bytes) : alloc_slow(bytes, align_bytes, false, call);
}

/* A sample that is to be small needs pages of its own, so it moves there. */
static void *realloc_to_small(void *p, size_t bytes, uint64_t token)
{
    size_t had = quire_heap_usable_bytes(p);
    void *fresh = sampled(bytes, HEAP_SLOT_ALIGN, token, false);
    if (!fresh)
        return NULL;
    memcpy(fresh, p, had < bytes ? had : bytes);
    heap_free_any(p);
    return fresh;
}

/* The block stays one by its own pages: its header has the new token, and the old one is taken back. */
static void *realloc_to_large(void *p, size_t bytes, uint64_t fresh)
{
    struct heap_page *page = heap_page_find(p);
    size_t asked_bytes = page && heap_is_large(page) ? page->asked_bytes : 0;
    uint64_t old = token_take(p);
    if (old)
        tail_verify(p, asked_bytes);
    void *moved = quire_heap_realloc(&heap_of_process, p, bytes);
    page = heap_page_find(moved ? moved : p);
    if (!moved) {
        if (old)
            page->sample = old;
        if (fresh)
            take_back(fresh, bytes, true);
        return NULL;
    }
    if (old) {
        PROBE3(sample_free, (uintptr_t)p, asked_bytes, weight_of(old));
        take_back(old, asked_bytes, false);
    }
    if (page && heap_is_large(page)) {
        page->sample = fresh;
        if (fresh)
            tail_write(moved, bytes);
        return told(moved, bytes, fresh);
    }
    if (fresh)
        take_back(fresh, bytes, false);
    return moved;
}

/* No other memory is needed: a sampled block of a small size does as one in a slot would. */
static bool stays_there(const struct heap_page *page, const void *p, size_t bytes)
{
    size_t asked = page->asked_bytes, tail = heap_of_process.tail_bytes, small_most = HEAP_SMALL_MAX - tail;
    if (!heap_is_large(page))
        return heap_stays(page->slot_bytes - tail, bytes);
    if (p != heap_large_start(page) || (bytes <= small_most) != (asked <= small_most) || (page->sample == 0 && asked <= small_most))
        return false;
    return asked <= small_most ? heap_stays(heap_class_bytes(heap_class_of(asked + tail)) - tail, bytes) : align_up(bytes, os_page_bytes()) == align_up(asked, os_page_bytes());
}

/* A sampled block keeps its points, and stands for so many blocks of its new size. */
static bool sample_keeps(struct heap_page *page, void *p, size_t bytes)
{
    size_t had = page->asked_bytes;
    tail_verify(p, had);
    if (!heap_large_keep(page, bytes))
        return false;
    tail_write(p, bytes);
    struct prof_site *site = prof_site_at((uint32_t)(page->sample & ((UINT64_C(1) << SITE_BITS) - 1)));
    uint64_t count = page->sample >> SITE_BITS, gone16 = prof_blocks16(count, prof_opts.every_bytes, had);
    prof_lock_take();
    site->live_blocks16 -= gone16 < site->live_blocks16 ? gone16 : site->live_blocks16;
    site->live_blocks16 += prof_blocks16(count, prof_opts.every_bytes, bytes);
    prof_lock_drop();
    return true;
}

static NOINLINE void *realloc_counted(void *p, size_t bytes, struct prof_call call)
{
    bool none = prof_passes(bytes);
    const struct heap_page *page = heap_page_find(p);
    if (likely(none) && (!page || !heap_is_large(page) || page->sample == 0))
        return quire_heap_realloc(&heap_of_process, p, bytes);
    uint64_t count = none || heap_is_inside() ? 0 : points_in(bytes), token = 0;
    int kept = errno;
    if (count)
        token = born(count, bytes, call);
    errno = kept;
    return token && bytes <= HEAP_SMALL_MAX ? realloc_to_small(p, bytes, token) : realloc_to_large(p, bytes, token);
}

void *prof_realloc(void *p, size_t bytes, struct prof_call call)
{
    struct heap_page *page = heap_page_of(pagemap_find(p));
    if (likely(heap_is_quick(page, &heap_of_process)))
        return likely(heap_stays(page->slot_bytes, bytes)) ? quire_heap_realloc(&heap_of_process, p, bytes) : realloc_counted(p, bytes, call);
    page = heap_page_find(p);
    if (!page || !stays_there(page, p, bytes))
        return realloc_counted(p, bytes, call);
    if (!heap_is_large(page) || page->sample == 0)
        return quire_heap_realloc(&heap_of_process, p, bytes);
    return sample_keeps(page, p, bytes) ? p : realloc_counted(p, bytes, call);
}

/* ---- looking ---- */

bool prof_due(void)
{
    return u32_load_relaxed(&is_due) != 0 && u32_exchange_acquire(&is_due, 0) != 0;
}

void prof_stats(struct prof_stats *out)
{
    uint64_t live_blocks16 = 0, all_blocks16 = 0, all_points = 0, live_points = 0;
    prof_lock_take();
    for (uint32_t i = 1; i <= prof_sites(); i++) {
        const struct prof_site *site = prof_site_at(i);
        live_points += site->live_points;
        all_points += site->all_points;
        live_blocks16 += site->live_blocks16;
        all_blocks16 += site->all_blocks16;
    }
    *out = (struct prof_stats){
        .every_bytes = prof_opts.every_bytes,
        .live_bytes = live_points * prof_opts.every_bytes,
        .all_bytes = all_points * prof_opts.every_bytes,
        .live_blocks = live_blocks16 >> 16,
        .all_blocks = all_blocks16 >> 16,
        .samples = sums.samples,
        .lost = sums.lost,
        .stacks = prof_sites(),
        .nodes = prof_nodes(),
        .held_bytes = prof_table_bytes(),
    };
    prof_lock_drop();
}

const char *prof_check(void)
{
    prof_lock_take();
    const char *broken = prof_table_check();
    prof_lock_drop();
    return broken;
}

/* ---- begin, fork ---- */

static const struct heap_watch watch = {gone};

void prof_start(const struct prof_opts *opts)
{
    prof_table_reset();
    memset(&sums, 0, sizeof sums);
    u32_store_relaxed(&is_due, 0);
    prof_opts = *opts;
    sums.due_points = opts->at_bytes && opts->every_bytes ? opts->at_bytes / opts->every_bytes : 0;
    prof_points = (struct prof_points){0, 0, 0, 0};
    heap_watch = &watch;
}

void prof_after_fork(void)
{
    (void)lock_reset(&lock);
    guard_after_fork();
    prof_points.random ^= os_process_id() << 8; /* not the parent's places */
    prof_points.random |= 1;
}
