// SPDX-License-Identifier: MIT
/*
 * heap_thread.c - which thread has which local.
 *
 *     heap_tls.self ---> its local of the default heap         heap_tls.seen[] ---> those of others, by the heap's serial
 *
 *     made, or an idle one taken over with all its pages, at the first operation; left whole, idle, when the thread ends.  A thread that cannot
 *     have one (no memory, or it is in its last destructors) works in home.
 *
 * Invariant T1: a local with a thread is used by the short way by that thread alone; an idle one, and home, by their locks.
 *
 * Locks: heaps, against heaps that end.  Not here: what is done inside.
 */
#include <errno.h>
#include <string.h>

#include "heap/heap_cache.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "os/os.h"
#include "pages/reaper.h"

enum { WORTH_A_THREAD_BYTES = 4 << 20, TRIES = 16 };

/* Its short way is closed for good. */
struct heap_local heap_local_none;
struct heap_door heap_door_closed = HEAP_DOOR_INIT(LOCK_HEAP_LOCAL);
THREAD_LOCAL struct heap_tls heap_tls __attribute__((tls_model("initial-exec"))) = {HEAP_TLS_NONE};

void heap_release(struct heap_local *local)
{
    heap_tls.held = NULL;
    if (unlikely(heap_tls.is_counted)) {
        heap_tls.is_counted = false;
        heap_change_end(local->heap);
    }
    heap_door_drop(&local->door, !heap_is_idle(local) && !local->is_sample);
}

void heap_visit(struct heap_local *local)
{
    if (addr_load_relaxed(&local->thread) == heap_thread_id())
        bias_take(&local->door.bias); /* the thread that it favours is not inside */
    else
        heap_door_visit(&local->door);
    heap_tls.held = local;
}

void heap_few_addresses(void)
{
    if (heap_is_inside()) /* a signal's handler */
        return;
    region_let_go();
    if (heap_tls.self != &heap_local_none) /* if there were other threads, all notes have stayed */
        heap_release(heap_hold(&heap_of_process));
}

bool heap_visit_try(struct heap_local *local)
{
    for (int i = 0; !lock_try(&local->door.bias.lock); i++, cpu_pause())
        if (i == TRIES)
            return false;
    heap_tls.held = local;
    return true;
}

struct heap_local *heap_visit_next(const struct quire_heap *heap, struct heap_local *local)
{
    struct heap_local *next = local ? local->next : heap_locals(heap);
    if (local)
        heap_release(local);
    for (; next; next = next->next) {
        heap_visit(next);
        if (likely(!next->is_torn))
            break;
        heap_release(next);
    }
    return next;
}

/* Two locks of one rank are never held: who is in an idle local, or home, leaves the others alone. */
bool heap_idle_try(struct heap_local *local)
{
    if (heap_tls.idle || (heap_tls.held && heap_tls.held->door.bias.lock.rank != LOCK_HEAP_LOCAL))
        return false;
    if (!heap_is_idle(local) || !lock_try_if(&local->door.bias.lock, LOCK_HEAP_IDLE))
        return false;
    heap_tls.idle = local;
    if (heap_is_idle(local) && likely(!local->is_torn))
        return true;
    heap_idle_drop(local);
    return false;
}

void heap_idle_drop(struct heap_local *local)
{
    heap_tls.idle = NULL;
    lock_drop(&local->door.bias.lock);
}

/* Whatever this thread is in the middle of: the process is about to stop, and the hook must find everything open. */
void heap_let_go(const struct quire_heap *heap)
{
    if (heap_tls.idle)
        heap_idle_drop(heap_tls.idle);
    if (heap_tls.held)
        heap_release(heap_tls.held);
    heap_fork_let_go();
    bias_leave(&heap_tls.self->door.bias);
    struct heap_local *mine = heap ? heap_mine(heap) : NULL;
    if (mine) /* what is left of a heap that was destroyed may look like one that this thread has not seen */
        bias_leave(&mine->door.bias);
}

static void wake(void)
{
    if (likely(!heap_tls.has_work))
        return;
    heap_tls.has_work = false;
    atomic_fence_seq_cst(); /* the reaper writes that it sleeps, then reads what is pending */
    reaper_wake();
}

void heap_thread_outside(void)
{
    int kept = errno;
    wake();
    reaper_start_due(true);
    errno = kept;
}

void heap_thread_allocated(const struct quire_heap *heap)
{
    wake();
    if (size_load_relaxed(&heap->account.mapped_bytes) > WORTH_A_THREAD_BYTES)
        reaper_start_due(false);
}

/* ---- a thread's end ---- */

static struct heap_local *local_find(const struct quire_heap *heap)
{
    struct heap_local *local = heap_locals(heap);
    while (local && addr_load_relaxed(&local->thread) != heap_thread_id())
        local = local->next;
    return local;
}

/* False: the thread has none there. */
static bool leave(struct quire_heap *heap)
{
    struct heap_local *local = local_find(heap);
    if (!local)
        return false;
    bias_take(&local->door.bias);
    heap_tls.held = local;
    if (likely(!local->is_torn)) {
        heap_caches_flush(local, true);
        heap_out_flush(local);
        heap_inbox_drain(local);
        heap_secure_flush(local); /* what has just arrived, too: an idle local keeps nothing back */
        heap_local_settle(local, HEAP_SLOTS_MAX);
    }
    addr_store_relaxed(&local->thread, 0);
    lock_rerank(&local->door.bias.lock, LOCK_HEAP_IDLE);
    heap_release(local);
    lock_take(&heap->lock);
    local->idle_next = heap->idle;
    heap->idle = local;
    lock_drop(&heap->lock);
    u32_add_relaxed(&heap->idle_count, 1);
    return true;
}

static void thread_end(void *tls)
{
    (void)tls;
    (void)heap_fork_settle(); /* what this thread has forked in the middle of is over, and nobody may look here for that any more */
    heap_tls.is_ended = true;
    heap_tls.quick_free = HEAP_LOCAL_CLOSED;
    heap_tls.self = &heap_local_none;
    memset(heap_tls.seen, 0, sizeof heap_tls.seen);
    heap_list_lock();
    (void)leave(&heap_of_process);
    for (int i = 0; i < HEAP_SEEN; i++)
        heap_tls.others -= heap_is_live(heap_tls.heaps_seen[i]) && leave(heap_tls.heaps_seen[i]);
    for (struct quire_heap *heap = heap_first; heap && heap_tls.others != 0; heap = heap->next)
        heap_tls.others -= heap != &heap_of_process && leave(heap);
    heap_list_unlock();
    heap_thread_outside();
    reaper_thread_ends();
}

/* ---- a thread's locals ---- */

struct heap_local *heap_local_make(struct quire_heap *heap)
{
    struct quire_span span;
    size_t bytes = sizeof(struct heap_local) + HEAP_BINS * sizeof(struct heap_small);
    if (!heap_meta_take(heap, align_up(bytes, os_page_bytes()), &span))
        return NULL;
    struct heap_local *local = span.start;
    if (!(span.flags & QUIRE_SPAN_ZERO))
        memset(local, 0, bytes);
    heap_local_init(local, heap);
    local->small = (struct heap_small *)(void *)(local + 1);
    local->span_bytes = (uint32_t)span.bytes;
    local->span_cookie = span.cookie;
    return local;
}

static struct heap_local *local_new(struct quire_heap *heap)
{
    struct heap_local *local = heap_local_make(heap);
    if (!local)
        return NULL;
    bias_take(&local->door.bias);
    lock_take(&heap->lock);
    local->next = heap_locals(heap);
    addr_store_release(&heap->locals, (uintptr_t)local); /* release [heap-locals] */
    lock_drop(&heap->lock);
    return local;
}

/* One that an ended thread left. */
static struct heap_local *local_take_over(struct quire_heap *heap)
{
    if (u32_load_relaxed(&heap->idle_count) == 0)
        return NULL;
    lock_take(&heap->lock);
    struct heap_local *local = heap->idle;
    if (local) {
        heap->idle = local->idle_next;
        u32_sub_relaxed(&heap->idle_count, 1);
    }
    lock_drop(&heap->lock);
    if (!local)
        return NULL;
    bias_take(&local->door.bias);
    if (unlikely(local->is_torn)) {
        heap_door_drop(&local->door, false);
        return NULL;
    }
    lock_rerank(&local->door.bias.lock, LOCK_HEAP_LOCAL);
    return local;
}

/* Its bias is taken.  NULL: home it is. */
static struct heap_local *local_bind(struct quire_heap *heap)
{
    heap_change_begin(heap);
    struct heap_local *local = local_take_over(heap);
    if (!local)
        local = local_new(heap);
    if (local) {
        addr_store_relaxed(&local->thread, heap_thread_id());
        heap_tls.others += heap != &heap_of_process;
    }
    heap_change_end(heap);
    return local;
}

/* Registering may itself allocate: then the thread has its local already when it comes back. */
static bool thread_may_have_one(void)
{
    if (heap_tls.is_ended)
        return false;
    if (likely(heap_tls.registered))
        return true;
    heap_tls.registered = true;
    if (os_at_thread_exit(thread_end, &heap_tls) != 0)
        heap_tls.registered = false;
    return heap_tls.registered;
}

/* Once more, too, in its last destructors. */
void heap_thread_watch_end(void)
{
    heap_tls.registered = os_at_thread_exit(thread_end, &heap_tls) == 0;
}

static struct heap_local *remember(struct quire_heap *heap, struct heap_local *local)
{
    if (unlikely(u32_load_relaxed(&heap_fork_is_due) != 0)) /* no short way yet */
        return local;
    if (heap == &heap_of_process) {
        heap_tls.self = local;
    } else {
        heap_tls.seen[heap->serial % HEAP_SEEN].serial = 0;
        atomic_fence_signal(); /* the child of a handler's fork finds no heap with another's local */
        heap_tls.seen[heap->serial % HEAP_SEEN].local = local;
        atomic_fence_signal();
        heap_tls.seen[heap->serial % HEAP_SEEN].serial = heap->serial;
        heap_tls.heaps_seen[heap->serial % HEAP_SEEN] = heap;
    }
    return local;
}

struct heap_local *heap_hold(struct quire_heap *heap)
{
    return unlikely(heap_is_inside()) ? NULL : heap_hold_with_list(heap);
}

struct heap_local *heap_hold_with_list(struct quire_heap *heap)
{
    struct heap_local *local = heap_mine(heap);
    if (local == &heap_local_none) {
        bool may = thread_may_have_one();
        local = may ? local_find(heap) : &heap->home;
        if (!local && (local = local_bind(heap)) != NULL)
            return heap_tls.held = remember(heap, local);
        if (!local)
            local = &heap->home;
        else if (local != &heap->home)
            remember(heap, local);
    }
    if (likely(local != &heap->home)) {
        bias_take(&local->door.bias);
        if (likely(!local->is_torn))
            return heap_tls.held = local;
        heap_door_drop(&local->door, false);
        local = &heap->home;
    }
    heap_change_begin(heap);
    heap_tls.is_counted = true;
    bias_take(&local->door.bias);
    return heap_tls.held = local;
}

/* ---- a copy of the process ---- */

void heap_thread_leave_for_good(void)
{
    for (struct quire_heap *heap = heap_first; heap; heap = heap->next)
        for (struct heap_local *local = heap_locals(heap); local; local = local->next)
            if (addr_load_relaxed(&local->thread) == heap_thread_id())
                addr_store_relaxed(&local->thread, (uintptr_t)&heap_local_none); /* no thread's id */
    heap_tls = (struct heap_tls){HEAP_TLS_NONE, .is_ended = true};
}
