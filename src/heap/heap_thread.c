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
#include "heap/heap_secure.h"
#include "heap/heap_walk.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "pages/source_fork.h"

enum { WORTH_A_THREAD_BYTES = 4 << 20 };

/* Its short way is closed for good. */
struct heap_local heap_local_none;
THREAD_LOCAL struct heap_tls heap_tls __attribute__((tls_model("initial-exec"))) = {HEAP_TLS_NONE};

void heap_release(struct heap_local *local)
{
    heap_tls.held = NULL;
    if (unlikely(heap_tls.is_counted)) {
        heap_tls.is_counted = false;
        heap_change_end(local->heap);
    }
    bias_drop(&local->bias, !heap_is_idle(local) && !local->is_sample);
}

void heap_visit(struct heap_local *local)
{
    if (addr_load_relaxed(&local->thread) == heap_thread_id())
        bias_take(&local->bias); /* the thread that it favours is not inside */
    else
        bias_visit(&local->bias);
    heap_tls.held = local;
}

struct heap_local *heap_visit_next(const struct quire_heap *heap, struct heap_local *local)
{
    struct heap_local *next = local ? local->next : heap_locals(heap);
    if (local)
        heap_release(local);
    if (next)
        heap_visit(next);
    return next;
}

/* Two locks of one rank are never held: who is in an idle local, or home, leaves the others alone. */
bool heap_idle_try(struct heap_local *local)
{
    if (heap_tls.idle || (heap_tls.held && heap_tls.held->bias.lock.rank != LOCK_HEAP_LOCAL))
        return false;
    if (!heap_is_idle(local) || !lock_try_if(&local->bias.lock, LOCK_HEAP_IDLE))
        return false;
    heap_tls.idle = local;
    if (heap_is_idle(local))
        return true;
    heap_idle_drop(local);
    return false;
}

void heap_idle_drop(struct heap_local *local)
{
    heap_tls.idle = NULL;
    lock_drop(&local->bias.lock);
}

/* Whatever this thread is in the middle of: the process is about to stop, and the hook must find everything open. */
void heap_let_go(const struct quire_heap *heap)
{
    if (heap_tls.idle)
        heap_idle_drop(heap_tls.idle);
    if (heap_tls.held)
        heap_release(heap_tls.held);
    bias_leave(&heap_tls.self->bias);
    if (heap)
        bias_leave(&heap_mine(heap)->bias);
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

static void local_leave(struct heap_local *local)
{
    struct quire_heap *heap = local->heap;
    bias_take(&local->bias);
    heap_tls.held = local;
    heap_caches_flush(local, true);
    heap_out_flush(local);
    heap_inbox_drain(local);
    heap_secure_flush(local); /* what has just arrived, too: an idle local keeps nothing back */
    heap_local_settle(local, HEAP_SLOTS_MAX);
    addr_store_relaxed(&local->thread, 0);
    lock_rerank(&local->bias.lock, LOCK_HEAP_IDLE);
    heap_release(local);
    lock_take(&heap->lock);
    local->idle_next = heap->idle;
    heap->idle = local;
    lock_drop(&heap->lock);
    u32_add_relaxed(&heap->idle_count, 1);
}

static struct heap_local *local_find(const struct quire_heap *heap)
{
    struct heap_local *local = heap_locals(heap);
    while (local && addr_load_relaxed(&local->thread) != heap_thread_id())
        local = local->next;
    return local;
}

static void thread_end(void *tls)
{
    (void)tls;
    heap_tls.is_ended = true;
    heap_tls.quick_free = heap_tls.self = &heap_local_none;
    memset(heap_tls.seen, 0, sizeof heap_tls.seen);
    heap_list_lock();
    for (struct quire_heap *heap = heap_first; heap; heap = heap->next) {
        struct heap_local *local = local_find(heap);
        if (local)
            local_leave(local);
    }
    heap_list_unlock();
    heap_thread_outside();
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
    bias_take(&local->bias);
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
    if (local) {
        bias_take(&local->bias);
        lock_rerank(&local->bias.lock, LOCK_HEAP_LOCAL);
    }
    return local;
}

/* Its bias is taken.  NULL: home it is. */
static struct heap_local *local_bind(struct quire_heap *heap)
{
    heap_change_begin(heap);
    struct heap_local *local = local_take_over(heap);
    if (!local)
        local = local_new(heap);
    if (local)
        addr_store_relaxed(&local->thread, heap_thread_id());
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

static struct heap_local *remember(struct quire_heap *heap, struct heap_local *local)
{
    if (heap == &heap_of_process) {
        heap_tls.self = local;
    } else {
        heap_tls.seen[heap->serial % HEAP_SEEN].serial = heap->serial;
        heap_tls.seen[heap->serial % HEAP_SEEN].local = local;
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
    if (unlikely(local == &heap->home)) {
        heap_change_begin(heap);
        heap_tls.is_counted = true;
    }
    bias_take(&local->bias);
    return heap_tls.held = local;
}

/* ---- the child of a fork ---- */

/* A thread that forks inside an operation (from a signal handler) goes on with it in the child. */
static bool is_mine_and_inside(const struct heap_local *local)
{
    return addr_load_relaxed(&local->thread) == heap_thread_id() && (heap_tls.held == local || u32_load_relaxed(&local->bias.active) != 0);
}

/* It was coming, going or moving. */
static bool is_torn(const struct heap_page *page)
{
    const void *start = heap_is_large(page) ? heap_large_start(page) : page->span.start;
    return owner_object(pagemap_find(start)) != page || (heap_is_large(page) && page->state != HEAP_LARGE);
}

static void page_repair(struct quire_heap *heap, struct heap_page *page)
{
    page->pins = 0;
    if (is_torn(page)) {
        heap_state_set(page, HEAP_UNUSED);
        return;
    }
    size_add_relaxed(&heap->account.mapped_bytes, page->state == HEAP_LARGE ? heap_large_held(page) : page->span.bytes);
    if (page->state == HEAP_LARGE) {
        heap_pages_push(&heap->large, page);
        return;
    }
    struct heap_local *owner = heap_owner(page);
    size_add_relaxed(&heap->of_class[heap_stat_class(page->class)].pages, 1);
    if (is_mine_and_inside(owner))
        return;
    if (owner->is_secure && addr_load_relaxed(&owner->thread) != heap_thread_id())
        heap_late_to_bits(page);
    page->pins = 1; /* an empty one stays: sources may not be in order yet */
    heap_page_to_partial(owner, page);
    page->pins = 0;
}

/* Of another than the thread that forked inside an operation. */
static void magazines_to_bits(struct quire_heap *heap)
{
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *header; (header = heap_header_next(heap, &headers)) != NULL;) {
        const struct heap_local *local = (const struct heap_local *)addr_load_relaxed(&header->owner);
        if (header->state == HEAP_MAGAZINE && (!local || !is_mine_and_inside(local)))
            heap_magazine_to_bits(header);
    }
    for (unsigned c = 0; c < HEAP_BINS; c++) {
        heap->of_class[c].depot = NULL;
        heap->of_class[c].depot_count = 0;
    }
}

static bool is_used(const void *header)
{
    return ((const struct heap_page *)header)->state != HEAP_UNUSED;
}

/* Everything anew from the headers and their bits, which are always whole. */
static void heap_repair(struct quire_heap *heap)
{
    size_t meta = heap->span.bytes;
    magazines_to_bits(heap);
    for (struct heap_local *local = heap_locals(heap); local; local = local->next) {
        meta += local->span_bytes + (local->late ? local->late->span.bytes : 0);
        if (addr_load_relaxed(&local->thread) != heap_thread_id())
            heap_late_drop(local);
        if (!is_mine_and_inside(local)) {
            heap_caches_to_bits(local);
            heap_bins_clear(local);
        }
    }
    for (unsigned c = 0; c < HEAP_CLASSES; c++)
        size_store_relaxed(&heap->of_class[c].pages, 0);
    account_set(&heap->account, meta + headers_bytes(&heap->headers) + heap_sealed_after_fork(heap));
    size_add_relaxed(&heap->account.mapped_bytes, heap->left_bytes);
    heap->large = NULL;
    struct heap_headers headers = {NULL, 0, 0};
    for (struct heap_page *page; (page = heap_header_next(heap, &headers)) != NULL;)
        if (page->state != HEAP_UNUSED && page->state != HEAP_MAGAZINE)
            page_repair(heap, page);
    headers_after_fork(&heap->headers, is_used);
}

void heap_thread_leave_for_good(void)
{
    for (struct quire_heap *heap = heap_first; heap; heap = heap->next)
        for (struct heap_local *local = heap_locals(heap); local; local = local->next)
            if (addr_load_relaxed(&local->thread) == heap_thread_id())
                addr_store_relaxed(&local->thread, (uintptr_t)&heap_local_none); /* no thread's id */
    heap_tls = (struct heap_tls){HEAP_TLS_NONE, .is_ended = true};
}

void heap_threads_after_fork(struct quire_heap *heap)
{
    heap->idle = NULL;
    u32_store_relaxed(&heap->idle_count, 0);
    u32_store_relaxed(&heap->changing, 0);
    bool lost = lock_reset(&heap->lock);
    for (struct heap_local *local = heap_locals(heap); local; local = local->next) {
        if (is_mine_and_inside(local))
            continue;
        lost |= bias_reset(&local->bias);
        bool is_mine = addr_load_relaxed(&local->thread) == heap_thread_id();
        if (is_mine) {
            bias_open(&local->bias);
        } else if (local != &heap->home && !local->is_sample) {
            lost |= addr_load_relaxed(&local->thread) != 0; /* a large block's span is taken outside of all locks */
            addr_store_relaxed(&local->thread, 0);
            local->bias.lock.rank = LOCK_HEAP_IDLE;
            heap_out_after_fork(local);
            local->idle_next = heap->idle;
            heap->idle = local;
            u32_add_relaxed(&heap->idle_count, 1);
        }
    }
    heap_repair(heap);
    if (lost)
        source_fork_lose();
}
