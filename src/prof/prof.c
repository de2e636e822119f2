// SPDX-License-Identifier: MIT
/*
 * prof.c - which blocks are sampled, and what becomes of them.
 *
 *     alloc    bytes <= what is left to the next point: the heap, as ever; malloc counts that down by itself
 *              else: stack walked, token found { stack, points }, the block made
 *                    up to 1 KiB    in a slot of the sample local (heap/heap_sample.c); the token stands in a table by its address (small.c)
 *                    above, or where that cannot be    with pages of its own, whose header has the token
 *     free     the heap's long way for such blocks calls slot_gone() or gone(): live -= points
 *     realloc  is a free and an alloc to the counters; where a block stays in its slot or on its pages, nothing is counted, and a sampled one stays sampled
 *     fork     the child has its parent's numbers and goes on; the lock is free in it
 *
 * A sample without memory for its stack is served and counted as lost; a block that can be neither in a slot nor on pages of its own is served from the
 * heap, and is counted as allocated, not as live.
 *
 * Locks: none of its own.  Not here: where the points lie (points.c), counters (count.c), stacks (walk.c, table.c), the file (write.c).
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "base/random.h"
#include "heap/heap_internal.h"
#include "heap/heap_large.h"
#include "heap/heap_quick.h"
#include "heap/heap_secure.h"
#include "look/live.h"
#include "os/os.h"
#include "os/os_probe.h"
#include "prof/guard.h"
#include "prof/prof_internal.h"

/* Of a block that will be made: its token.  Nothing is counted before it is there: one that no memory can be had for may be larger than all others. */
static NOINLINE uint64_t born(uint64_t point_count, struct prof_call call)
{
    uintptr_t ips[PROF_FRAMES_MAX];
    unsigned count = prof_walk(os_frame_here(), call, PROF_FRAMES_MAX, ips);
    return prof_token(ips, count, point_count);
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
    size_t room = tail_bytes(bytes);
    if (room) {
        tail[0] = 0;
        memset(tail + 1, TAIL_PATTERN, room - 1);
    }
}

static void tail_verify(const void *p, size_t bytes)
{
    const unsigned char *tail = (const unsigned char *)p + bytes;
    size_t room = tail_bytes(bytes);
    bool whole = room == 0 || tail[0] == 0;
    if (room > 1)
        whole = whole && tail[1] == TAIL_PATTERN && memcmp(tail + 1, tail + 2, room - 2) == 0; /* each byte is as the one before */
    if (unlikely(!whole))
        heap_refuse(&heap_of_process, HEAP_E7, p);
}

/* A sampled block is there: counted, and told to who looks from outside. */
static void *told(void *p, size_t bytes, uint64_t token)
{
    if (p && token) {
        prof_count(token, bytes, true);
        PROBE3(sample_alloc, (uintptr_t)p, bytes, prof_weight(token));
    }
    return p;
}

/* Its pages are still there. */
static void gone(uint64_t token, const void *p, size_t bytes)
{
    PROBE3(sample_free, (uintptr_t)p, bytes, prof_weight(token));
    if (!guard_has(p))
        tail_verify(p, bytes);
    prof_take_back(token, bytes);
}

/* ---- points, and whose turn it is to be guarded ---- */

/* A thread's places among both kinds of points.  What malloc counts down by itself is one count for both, taken off before either is looked at. */
static THREAD_LOCAL struct {
    struct prof_points samples, guards;
    int64_t lent_bytes;
    uint64_t guarded_ns, clock_ns; /* the thread's time when it last had a guarded block, and the clock's */
} mine __attribute__((tls_model("initial-exec")));

/*
 * Each block is as likely to be guarded as any other, whatever its size: points are looked for among bytes, one in each of these stretches, and a block
 * that has one is taken once in so many times, the oftener the smaller it is.  So malloc counts one thing.
 *
 * A guarded block costs 5 us, so a thread that allocates without end has one in 4 ms at most, and blocks of fewer than GUARD_LEAST_BYTES have less
 * than their share, so that the stretches are long; who asks for more than one in GUARD_OFTEN has all.
 */
enum { GUARD_STRETCH_MAX = 128 << 10, GUARD_OFTEN = 1000, GUARD_LEAST_BYTES = 16, GUARD_PAUSE_NS = 4000000 };

static uint64_t guard_stretch(void)
{
    uint64_t seldom = prof_opts.guard_every * GUARD_LEAST_BYTES;
    return prof_opts.guard_every < GUARD_OFTEN ? prof_opts.guard_every : seldom < GUARD_STRETCH_MAX ? seldom : GUARD_STRETCH_MAX;
}

/* Of this thread, before its first block, or its first one in the child of a fork. */
static COLD void begin(void)
{
    int kept = errno;
    mine.lent_bytes = 0;
    heap_tls.quick_bytes = -1;
    prof_points_begin(&mine.samples, prof_opts.every_bytes, random_seed());
    prof_points_begin(&mine.guards, guard_stretch(), random_seed());
    uint64_t ago_ns = random_seed() % GUARD_PAUSE_NS; /* threads that live for less have their share, too */
    mine.guarded_ns = os_thread_time_ns() - ago_ns;
    mine.clock_ns = os_time_ns() - ago_ns;
    errno = kept;
}

static void settle(void)
{
    int64_t left = heap_tls.quick_bytes < 0 ? 0 : heap_tls.quick_bytes;
    uint64_t used = (uint64_t)(mine.lent_bytes - left);
    mine.lent_bytes = 0;
    heap_tls.quick_bytes = -1;
    atomic_fence_signal(); /* who allocates in a handler, which nobody may, finds nothing lent */
    mine.samples.left_bytes -= used < mine.samples.left_bytes ? used : mine.samples.left_bytes;
    mine.guards.left_bytes -= used < mine.guards.left_bytes ? used : mine.guards.left_bytes;
}

/* Up to the next point of either kind; nothing, where each allocation is to be seen. */
static void *lend(void *p)
{
    if (unlikely(prof_opts.sees_all))
        return p;
    uint64_t most = prof_opts.every_bytes ? mine.samples.left_bytes : INT64_MAX;
    if (prof_opts.guard_every && mine.guards.left_bytes < most)
        most = mine.guards.left_bytes;
    heap_tls.quick_bytes = mine.lent_bytes = (int64_t)most;
    return p;
}

/* With nothing lent. */
static uint64_t sample_points_in(size_t bytes)
{
    return prof_opts.every_bytes && bytes <= PTRDIFF_MAX ? prof_points_in(&mine.samples, prof_opts.every_bytes, bytes) : 0; /* the heap refuses more */
}

/* Since the thread's last guarded block.  The clock costs no system call, and a thread has had no more time than has passed. */
static bool has_rested(void)
{
    uint64_t clock_ns = os_time_ns(), now_ns;
    if (clock_ns - mine.clock_ns < GUARD_PAUSE_NS || (now_ns = os_thread_time_ns()) - mine.guarded_ns < GUARD_PAUSE_NS)
        return false;
    mine.clock_ns = clock_ns;
    mine.guarded_ns = now_ns;
    return true;
}

static bool guard_turn(size_t bytes)
{
    uint64_t stretch = guard_stretch();
    if (prof_opts.guard_every == 0 || bytes > PTRDIFF_MAX || prof_points_in(&mine.guards, stretch, bytes) == 0)
        return false;
    uint64_t seldom = bytes < stretch ? bytes : stretch; /* of so many stretches one has it in such a block */
    if ((uint64_t)((unsigned __int128)prof_random(&mine.guards.random) * prof_opts.guard_every * seldom >> 64) >= stretch)
        return false;
    return prof_opts.guard_every < GUARD_OFTEN || has_rested();
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

/* As without a profile.  What is to be zero is aligned as all blocks are; what the system just gave is not cleared again. */
static void *plain(size_t bytes, size_t align_bytes, bool zero)
{
    return zero ? heap_malloc_zero(bytes) : heap_malloc_aligned(bytes, align_bytes);
}

/* In a slot, zeroed; NULL: not this one. */
static void *small_alloc(struct prof_small small)
{
    void *p = heap_sample_always(&heap_of_process, small.bytes);
    if (!p || likely(prof_small_put(p, small)))
        return p;
    heap_free_any(p);
    return NULL;
}

static void slot_gone(const void *p)
{
    struct prof_small small = prof_small_take(p);
    if (small.token) {
        PROBE3(sample_free, (uintptr_t)p, small.bytes, prof_weight(small.token));
        prof_take_back(small.token, small.bytes);
    }
}

static void *alone(size_t bytes, size_t align_bytes, uint64_t token, bool zero)
{
    void *p = heap_malloc_sampled(bytes, align_bytes, zero, token);
    if (p)
        tail_write(p, bytes);
    return p;
}

/* In a slot, or on pages of its own.  NULL: no memory for either. */
static void *place(size_t bytes, size_t align_bytes, uint64_t token, bool zero)
{
    bool is_small = bytes <= HEAP_SAMPLE_MAX && align_bytes <= HEAP_SLOT_ALIGN;
    void *p = is_small ? small_alloc((struct prof_small){token, (uint32_t)bytes, heap_class_bytes(heap_class_of(bytes))}) : NULL;
    return likely(p != NULL) ? p : alone(bytes, align_bytes, token, zero);
}

/* As a sample; else as any block, and no longer live to us. */
static void *sampled(size_t bytes, size_t align_bytes, uint64_t token, bool zero)
{
    int kept = errno;
    void *p = token ? place(bytes, align_bytes, token, zero) : NULL;
    errno = kept;
    if (likely(p != NULL))
        return told(p, bytes, token);
    p = plain(bytes, align_bytes, zero);
    if (p && token)
        prof_count(token, bytes, false);
    return p;
}

static NOINLINE void *alloc_counted(size_t bytes, size_t align_bytes, bool zero, struct prof_call call)
{
    if (unlikely(mine.samples.random == 0))
        begin();
    bool is_inside = heap_is_inside();
    settle();
    uint64_t count = is_inside ? 0 : sample_points_in(bytes);
    bool is_guarded = !is_inside && guard_turn(bytes) && bytes != 0; /* of a secure heap's blocks of no bytes no byte can be touched: they stay the heap's */
    if (count == 0 && !is_guarded)
        return lend(plain(bytes, align_bytes, zero));
    int kept = errno;
    uint64_t token = count ? born(count, call) : 0;
    void *p = is_guarded ? told(guard_alloc(bytes, align_bytes > HEAP_SLOT_ALIGN ? align_bytes : HEAP_SLOT_ALIGN, token, call), bytes, token) : NULL;
    errno = kept;
    return lend(p ? p : sampled(bytes, align_bytes, token, zero));
}

void *prof_alloc(size_t bytes, struct prof_call call)
{
    return alloc_counted(bytes, HEAP_SLOT_ALIGN, false, call);
}

void *prof_alloc_zero(size_t bytes, struct prof_call call)
{
    return alloc_counted(bytes, HEAP_SLOT_ALIGN, true, call);
}

void *prof_alloc_aligned(size_t bytes, size_t align_bytes, struct prof_call call)
{
    return alloc_counted(bytes, align_bytes, false, call);
}

/* A guarded block always moves, so that whoever still has the old address is found out. */
static void *realloc_guarded(void *p, size_t bytes, struct prof_call call)
{
    size_t had = guard_bytes(p);
    void *fresh = prof_alloc(bytes, call);
    if (!fresh)
        return bytes <= had ? p : NULL;
    memcpy(fresh, p, had < bytes ? had : bytes);
    guard_free(p, call);
    return fresh;
}

/* A sample that is to be small needs pages of its own, so it moves there. */
static void *realloc_to_small(void *p, size_t bytes, uint64_t token)
{
    size_t had = quire_heap_usable_bytes(p);
    void *fresh = sampled(bytes, HEAP_SLOT_ALIGN, token, false);
    if (!fresh)
        return bytes <= had ? quire_heap_realloc(&heap_of_process, p, bytes) : NULL;
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
        return NULL;
    }
    if (old) {
        PROBE3(sample_free, (uintptr_t)p, asked_bytes, prof_weight(old));
        prof_take_back(old, asked_bytes);
    }
    if (page && heap_is_large(page)) {
        page->sample = fresh;
        if (fresh)
            tail_write(moved, bytes);
        return told(moved, bytes, fresh);
    }
    if (fresh)
        prof_count(fresh, bytes, false);
    return moved;
}

/* No other memory is needed: a sampled block of a small size does as one in a slot would. */
static bool stays_there(const struct heap_page *page, const void *p, size_t bytes)
{
    size_t tail = heap_of_process.tail_bytes, small_most = HEAP_SMALL_MAX - tail;
    if (!heap_is_large(page))
        return heap_stays(page->slot_bytes - tail, bytes);
    size_t asked = page->asked_bytes;
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
    prof_resized(page->sample, had, bytes);
    return true;
}

/* The same in a slot.  A sample's has another size than that of a block like it: so it may have to move.  NULL: no memory. */
static void *small_keeps(const struct heap_page *page, void *p, struct prof_small had, size_t bytes)
{
    int kept = errno;
    struct prof_small now = {had.token, (uint32_t)bytes, had.room};
    if (!heap_secure_resize(page, p, bytes)) {
        void *fresh = small_alloc(now);
        fresh = fresh ? fresh : alone(bytes, HEAP_SLOT_ALIGN, had.token, false);
        if (!fresh && bytes > had.bytes)
            return NULL;
        errno = kept;
        if (!fresh)
            return p;
        memcpy(fresh, p, had.bytes < bytes ? had.bytes : bytes);
        (void)prof_small_take(p);
        heap_free_any(p);
        p = fresh;
    } else {
        prof_small_put(p, now);
    }
    prof_resized(had.token, had.bytes, bytes);
    return p;
}

static NOINLINE void *realloc_counted(void *p, struct prof_small small, size_t bytes, struct prof_call call)
{
    if (unlikely(mine.samples.random == 0))
        begin();
    settle();
    uint64_t count = heap_is_inside() ? 0 : sample_points_in(bytes), token = 0;
    if (small.token && count == 0)
        return heap_move(&heap_of_process, p, small.bytes, bytes); /* it is no sample any more, and leaves their slots */
    const struct heap_page *page = heap_page_find(p);
    bool is_alone = page && heap_is_large(page), begins = is_alone && p == heap_large_start(page);
    if ((likely(count == 0) && (!begins || page->sample == 0)) || unlikely(!page) || unlikely(is_alone && !begins)) /* libc's own; or refused there */
        return quire_heap_realloc(&heap_of_process, p, bytes);
    int kept = errno;
    if (count)
        token = born(count, call);
    errno = kept;
    return token && bytes <= HEAP_SMALL_MAX ? realloc_to_small(p, bytes, token) : realloc_to_large(p, bytes, token);
}

void *prof_realloc(void *p, size_t bytes, struct prof_call call)
{
    if (guard_has(p))
        return realloc_guarded(p, bytes, call);
    struct heap_page *page = heap_page_find(p);
    struct prof_small small = page && !heap_is_large(page) && heap_page_is_sample(page) ? prof_small_find(p) : (struct prof_small){0, 0, 0};
    if (small.token)
        return heap_stays(small.room, bytes) ? small_keeps(page, p, small, bytes) : lend(realloc_counted(p, small, bytes, call));
    bool stays = page && stays_there(page, p, bytes);
    if (stays && (!heap_is_large(page) || page->sample == 0))
        return quire_heap_realloc(&heap_of_process, p, bytes);
    return stays && sample_keeps(page, p, bytes) ? p : lend(realloc_counted(p, small, bytes, call));
}

/* ---- begin, fork ---- */

static const struct heap_watch watch = {gone, slot_gone};

void prof_start(const struct prof_opts *opts)
{
    prof_table_reset();
    prof_small_reset();
    prof_count_start(opts);
    memset(&mine, 0, sizeof mine);
    heap_tls.quick_bytes = -1;
    heap_watch = &watch;
}

void prof_after_fork(void)
{
    (void)lock_reset(&prof_lock);
    guard_after_fork();
    mine.samples.random = 0; /* not the parent's places, nor what malloc had been lent up to one of them */
    heap_tls.quick_bytes = -1;
}
