// SPDX-License-Identifier: MIT
/*
 * guard.c - the pool of guarded blocks.
 *
 *     | ---- | block| ---- |block | ---- | xxxx | ---- |   pages: ---- nobody may touch, xxxx a freed block's, which nobody may touch either
 *       guard  slot 0 guard  slot 1 guard  slot 2 guard
 *
 *     a block lies at the end of its page three times in four, as its alignment allows, else at the beginning: overruns are the commoner mistake
 *     a freed slot goes to the end of the queue: its page stays closed for as long as there are others
 *
 * Bytes of the page that are not the block's hold a pattern, verified at the free.  The idea is GWP-ASan's (Serebryany and others, "GWP-ASan: Sampling-Based
 * Detection of Memory-Safety Bugs in Production"), in turn Electric Fence's.
 *
 * Invariants:
 *   GU1  a slot is in the queue, or somebody's who makes or frees its block, or live
 *
 * Locks: one for the queue and the states (LOCK_PROF, a leaf).  The handler of a fault takes none: it reads, and the process ends.
 * Not here: what is said (guard_report.c), which blocks are guarded (prof.c).
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "base/lock.h"
#include "base/panic.h"
#include "heap/heap_internal.h"
#include "os/os.h"
#include "prof/guard_internal.h"

enum { PATTERN = 0xa7 };

uintptr_t guard_pool_start, guard_pool_bytes;
struct guard_slot *guard_slots;
static bool has_marks; /* fixed by guard_start(): pages are closed by marks, not by mappings */
static struct lock lock = LOCK_INIT(LOCK_PROF);
static struct {
    uint32_t first, count; /* of the ring */
    uint16_t ring[GUARD_SLOTS];
    uint64_t random;
} queue;

char *guard_page_of(const struct guard_slot *slot)
{
    return (char *)guard_pool_start + (2 * (size_t)(slot - guard_slots) + 1) * os_page_bytes();
}

/* ---- the queue ---- */

static struct guard_slot *slot_take(bool *at_end)
{
    struct guard_slot *slot = NULL;
    lock_take(&lock);
    if (queue.count) {
        slot = &guard_slots[queue.ring[queue.first]];
        queue.first = (queue.first + 1) % GUARD_SLOTS;
        queue.count--;
    }
    *at_end = (prof_random(&queue.random) >> 62) != 0;
    lock_drop(&lock);
    return slot;
}

static void slot_put_locked(struct guard_slot *slot)
{
    queue.ring[(queue.first + queue.count) % GUARD_SLOTS] = (uint16_t)(slot - guard_slots);
    atomic_fence_signal(); /* the child of a fork may find it half done */
    queue.count++;
}

static void slot_put(struct guard_slot *slot)
{
    lock_take(&lock);
    slot_put_locked(slot);
    lock_drop(&lock);
}

/* ---- blocks ---- */

static bool page_open(struct guard_slot *slot)
{
    if (slot->is_open) { /* could not be closed */
        memset(guard_page_of(slot), 0, os_page_bytes());
        return true;
    }
    return (slot->is_sealed ? os_commit(guard_page_of(slot), os_page_bytes()) : os_mark(guard_page_of(slot), os_page_bytes(), false)) == 0;
}

static void page_close(struct guard_slot *slot)
{
    slot->is_sealed = !has_marks || os_mark(guard_page_of(slot), os_page_bytes(), true) != 0;
    slot->is_open = slot->is_sealed && os_seal(guard_page_of(slot), os_page_bytes()) != 0;
}

static void pattern_write(const struct guard_slot *slot)
{
    char *page = guard_page_of(slot), *end = page + os_page_bytes(), *behind = (char *)slot->start + slot->bytes;
    size_t before = (size_t)((char *)slot->start - page);
    memset(page + before - (before < GUARD_PATTERN_BYTES ? before : GUARD_PATTERN_BYTES), PATTERN, before < GUARD_PATTERN_BYTES ? before : GUARD_PATTERN_BYTES);
    memset(behind, PATTERN, (size_t)(end - behind) < GUARD_PATTERN_BYTES ? (size_t)(end - behind) : GUARD_PATTERN_BYTES);
    if (behind < end)
        *behind = 0; /* ends a string */
}

/* The first byte beside the block that is not as it was; NULL: none. */
static const char *pattern_broken(const struct guard_slot *slot)
{
    const char *page = guard_page_of(slot), *end = page + os_page_bytes(), *start = (const char *)slot->start, *behind = start + slot->bytes;
    for (const char *at = behind; at < end && at < behind + GUARD_PATTERN_BYTES; at++)
        if ((unsigned char)*at != (at == behind ? 0 : PATTERN))
            return at;
    for (const char *at = start; at > page && at > start - GUARD_PATTERN_BYTES;)
        if ((unsigned char)*--at != PATTERN)
            return at;
    return NULL;
}

void *guard_alloc(size_t bytes, size_t align_bytes, uint64_t sample, struct prof_call call)
{
    bool at_end;
    size_t page = os_page_bytes(), behind = heap_of_process.flags & QUIRE_HEAP_SECURE || bytes == 0; /* a secure heap's strings end behind their block */
    if (bytes > page - behind || align_bytes > page)
        return NULL;
    struct guard_slot *slot = slot_take(&at_end);
    if (!slot)
        return NULL;
    if (!page_open(slot)) {
        slot_put(slot);
        return NULL;
    }
    slot->bytes = bytes;
    slot->sample = sample;
    slot->start = (uintptr_t)guard_page_of(slot) + (at_end ? align_down(page - bytes - behind, align_bytes) : 0); /* on its page, also without bytes */
    slot->birth_thread = os_thread_id();
    slot->birth_count = (uint16_t)prof_walk(os_frame_here(), call, GUARD_FRAMES_MAX, slot->birth);
    slot->death_count = 0;
    pattern_write(slot);
    u32_store_release(&slot->state, GUARD_LIVE); /* release [guard-state] */
    return (void *)slot->start;
}

static struct guard_slot *slot_of(const void *p)
{
    size_t page = ((uintptr_t)p - guard_pool_start) / os_page_bytes();
    return page % 2 ? &guard_slots[page / 2] : NULL;
}

/* Its slot, which is live; else the process stops. */
static struct guard_slot *slot_verify(const void *p)
{
    struct guard_slot *slot = slot_of(p);
    uint32_t state = slot ? u32_load_acquire(&slot->state) : GUARD_UNUSED; /* acquire [guard-state] */
    if (!slot || state == GUARD_UNUSED)
        guard_refuse(slot, HEAP_E2, p);
    if (state == GUARD_DEAD)
        guard_refuse(slot, HEAP_E1, p);
    if ((uintptr_t)p != slot->start)
        guard_refuse(slot, HEAP_E3, p);
    return slot;
}

void guard_free(void *p, struct prof_call call)
{
    int kept = errno;
    struct guard_slot *slot = slot_verify(p);
    const char *broken = pattern_broken(slot);
    if (broken)
        guard_refuse(slot, (uintptr_t)broken < slot->start ? GUARD_G4 : HEAP_E7, broken);
    uint32_t live = GUARD_LIVE;
    if (!u32_cas_acquire(&slot->state, &live, GUARD_DEAD)) /* by two threads at once */
        guard_refuse(slot, HEAP_E1, p);
    slot->death_thread = os_thread_id();
    slot->death_count = (uint16_t)prof_walk(os_frame_here(), call, GUARD_FRAMES_MAX, slot->death);
    page_close(slot);
    if (slot->sample)
        heap_watch->gone(slot->sample, p, slot->bytes);
    slot_put(slot);
    errno = kept;
}

size_t guard_bytes(const void *p)
{
    return slot_verify(p)->bytes;
}

int guard_walk(int (*fn)(void *p, size_t bytes, void *arg), void *arg)
{
    int ended = 0;
    for (unsigned i = 0; guard_slots && i < GUARD_SLOTS && !ended; i++)
        if (u32_load_acquire(&guard_slots[i].state) == GUARD_LIVE) /* acquire [guard-state] */
            ended = fn((void *)guard_slots[i].start, guard_slots[i].bytes, arg);
    return ended;
}

/* ---- faults ---- */

/* The slot that an address belongs to: its own, or the nearer neighbour that was ever used. */
static struct guard_slot *slot_near(uintptr_t at)
{
    size_t page = (at - guard_pool_start) / os_page_bytes(), in_page = (at - guard_pool_start) % os_page_bytes();
    if (page % 2)
        return &guard_slots[page / 2];
    struct guard_slot *left = page ? &guard_slots[page / 2 - 1] : NULL, *right = page / 2 < GUARD_SLOTS ? &guard_slots[page / 2] : NULL;
    bool is_left = in_page < os_page_bytes() / 2;
    struct guard_slot *first = is_left ? left : right, *second = is_left ? right : left;
    if (first && u32_load_relaxed(&first->state) != GUARD_UNUSED)
        return first;
    return second;
}

static bool on_fault(uintptr_t at, enum os_access access)
{
    if (at - guard_pool_start >= guard_pool_bytes)
        return false;
    struct guard_slot *slot = slot_near(at);
    uint32_t state = slot ? u32_load_acquire(&slot->state) : GUARD_UNUSED; /* acquire [guard-state] */
    if (state == GUARD_UNUSED)
        return false;
    const char *what = state == GUARD_DEAD ? (access == OS_ACCESS_WRITE ? GUARD_G1_WRITE : GUARD_G1)
        : at < slot->start                 ? (access == OS_ACCESS_WRITE ? GUARD_G3_WRITE : GUARD_G3)
                                           : (access == OS_ACCESS_WRITE ? GUARD_G2_WRITE : GUARD_G2);
    guard_refuse(slot, what, (const void *)at);
}

/* ---- begin, fork ---- */

int guard_start(void)
{
    size_t page = os_page_bytes(), bytes = (2 * (size_t)GUARD_SLOTS + 1) * page;
    void *pool, *slots;
    int error = os_map(align_up(GUARD_SLOTS * sizeof(struct guard_slot), page), page, &slots);
    if (error)
        return error;
    error = os_reserve(bytes, page, &pool);
    if (!error && (error = os_on_fault(on_fault)) != 0)
        (void)os_unmap(pool, bytes);
    if (error) {
        (void)os_unmap(slots, align_up(GUARD_SLOTS * sizeof(struct guard_slot), page));
        return error;
    }
    has_marks = os_commit(pool, bytes) == 0 && os_mark(pool, bytes, true) == 0;
    if (!has_marks)
        (void)os_seal(pool, bytes);
    os_name(pool, bytes, "quire:guarded");
    guard_slots = slots;
    queue.random = os_time_ns() | 1;
    queue.first = queue.count = 0;
    for (unsigned i = 0; i < GUARD_SLOTS; i++) {
        if (!has_marks) /* else they stay untouched until they are used */
            guard_slots[i].is_sealed = true;
        slot_put_locked(&guard_slots[i]);
    }
    guard_pool_start = (uintptr_t)pool;
    guard_pool_bytes = bytes;
    return 0;
}

void guard_after_fork(void)
{
    (void)lock_reset(&lock);
}
