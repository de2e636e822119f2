// SPDX-License-Identifier: MIT
/*
 * heap.c - heaps: their birth and end, and what they hold of memory.
 *
 *     newest heap <-> ... <-> heap_of_process (static)        serial: never used twice, so that what a thread remembers of a heap that is gone is
 *                                                             never taken for another's
 *
 * Locks: the registry's, the lowest of the heap's; a heap's own for its lists.  Not here: locals (heap_thread.c), pages (heap_page.c).
 */
#include <string.h>

#include "base/abi.h"
#include "base/fail.h"
#include "base/panic.h"
#include "base/random.h"
#include "heap/heap_cache.h"
#include "heap/heap_large.h"
#include "heap/heap_secure.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/region.h"
#include "pages/source_internal.h"

struct quire_heap heap_of_process; /* zeros until heap_init(): what is not touched is no memory */
atomic_u32 heap_is_ready;
uintptr_t heap_key_word;

LIST_OF(heaps, struct quire_heap, next, prev);
static struct registry registry = {.lock = LOCK_INIT(LOCK_HEAPS)};
struct quire_heap *heap_first;

/* A word of zeros for bins without a page. */
static uint64_t no_slots;

static void bins_init(struct heap_local *local, unsigned from, unsigned to)
{
    for (unsigned c = from; c < to; c++) {
        uint32_t bytes = heap_class_bytes(c);
        local->bin[c] = (struct heap_bin){.word = &no_slots, .reciprocal = local->is_secure ? 0 : heap_reciprocal(bytes), .slot_bytes = (uint16_t)bytes, .sizes = (uint16_t)heap_class_sizes(c)};
        heap_cache_none(&local->bin[c].slots);
    }
}

unsigned heap_bins_ready(const struct heap_local *local)
{
    if (local->bytes_max == HEAP_SMALL_MAX)
        return HEAP_BINS;
    return HEAP_NEAR;
}

/* The others are not touched before their time. */
void heap_bins_clear(struct heap_local *local)
{
    bins_init(local, 0, heap_bins_ready(local));
    if (local->bytes_max == 0)
        local->bytes_max = heap_class_bytes(HEAP_NEAR - 1);
}

void heap_bins_reach(struct heap_local *local, unsigned class)
{
    if (likely(class < HEAP_NEAR) || likely(local->bytes_max == HEAP_SMALL_MAX))
        return;
    bins_init(local, HEAP_NEAR, HEAP_BINS);
    atomic_fence_signal(); /* the child of a fork */
    local->bytes_max = HEAP_SMALL_MAX;
}

STATIC_ASSERT(offsetof(struct heap_local, bin[HEAP_NEAR]) == 4096, "an OS page");

static bool has_nothing(const struct heap_bin *bin)
{
    return !bin->page && !bin->partial && (!bin->slots.cur || slots_count(&bin->slots) == 0);
}

/* As if it were new.  Bins that are not ready may be of zeros or empty: the system need not take the pages, and large ones hold other bins, too. */
void heap_local_shrink(struct heap_local *local)
{
    bool was_used = local->bytes_max == HEAP_SMALL_MAX;
    if (!heap_is_idle(local) || local->span_bytes == 0 || local->has_larges)
        return;
    for (unsigned c = 0; c < heap_bins_ready(local); c++) {
        if (!has_nothing(&local->bin[c]))
            return;
        was_used |= local->bin[c].slots.cur != NULL;
    }
    uintptr_t from = align_up((uintptr_t)&local->bin[HEAP_NEAR], os_page_bytes()), end = (uintptr_t)local + local->span_bytes;
    if (!was_used || from >= end)
        return;
    heap_bins_clear(local);
    atomic_fence_signal(); /* the child of a fork */
    local->bytes_max = heap_class_bytes(HEAP_NEAR - 1);
    atomic_fence_signal();
    (void)os_discard((void *)from, end - from);
}

void heap_local_init(struct heap_local *local, struct quire_heap *heap)
{
    local->heap = heap;
    local->is_secure = heap_is_secure(heap);
    local->door = (struct heap_door)HEAP_DOOR_INIT(LOCK_HEAP_LOCAL);
    heap_bins_clear(local);
}

/* Whoever adds up must know whether the sums held still: what threads do that have no local of this heap is seen only here. */
void heap_change_begin(struct quire_heap *heap)
{
    (void)heap_fork_settle();
    heap_tls.inside++;
    u32_add_seq_cst(&heap->changing, 1);
}

void heap_change_end(struct quire_heap *heap)
{
    u32_add_seq_cst(&heap->changes, 1);
    u32_add_seq_cst(&heap->changing, UINT32_MAX);
    heap_tls.inside--;
}

/* ---- the heap of the process ---- */

static void key_make(void)
{
    if (heap_key_word)
        return;
    heap_key_word = (uintptr_t)random_seed();
    slots_setup();
}

/* The places of its pages cannot be guessed. */
static bool is_scattered(const struct quire_heap *heap)
{
    return heap_is_secure(heap) && heap->source == quire_source_default();
}

static void heap_init(struct quire_heap *heap, const struct quire_heap_opts *opts)
{
    heap->flags = (uint32_t)opts->flags & ~(uint32_t)HEAP_SAMPLES;
    heap->account.limit_bytes = opts->limit_bytes;
    heap->source = opts->source ? opts->source : quire_source_default();
    heap->own_memory = heap->source == quire_source_default() || heap->source == quire_source_anon();
    heap->is_watched = sanitize_watched();
    heap->tail_bytes = (opts->flags & QUIRE_HEAP_SECURE ? HEAP_CANARY_BYTES : 0U) + (heap->is_watched ? REDZONE_BYTES : 0U);
    heap->samples = (opts->flags & (HEAP_SAMPLES | QUIRE_HEAP_SECURE)) == HEAP_SAMPLES && !heap->is_watched;
    heap->lock = (struct lock)LOCK_INIT(LOCK_HEAP);
    if (opts->name)
        strncpy(heap->name, opts->name, HEAP_NAME_BYTES - 1);
    if (is_scattered(heap))
        region_scatter(true);
    heap_local_init(&heap->home, heap);
    heap->home.door.bias.lock.rank = LOCK_HEAP_IDLE;
    addr_store_release(&heap->locals, (uintptr_t)&heap->home); /* release [heap-locals] */
}

static void enter_locked(struct quire_heap *heap)
{
    heap->serial = ++registry.births;
    heaps_push(&heap_first, heap);
}

void heap_default_configure(const struct quire_heap_opts *opts)
{
    lock_take(&registry.lock);
    if (u32_load_relaxed(&heap_is_ready) == 0) {
        key_make();
        heap_init(&heap_of_process, opts);
        if (!heap_first) /* in the child of a fork it may have been */
            enter_locked(&heap_of_process);
        u32_store_release(&heap_is_ready, 1); /* release [heap-ready] */
    }
    lock_drop(&registry.lock);
}

struct quire_heap *quire_heap_default(void)
{
    static const struct quire_heap_opts defaults;
    if (unlikely(u32_load_acquire(&heap_is_ready) == 0)) /* acquire [heap-ready] */
        heap_default_configure(&defaults);
    return &heap_of_process;
}

const char *heap_name(const struct quire_heap *heap)
{
    return heap->name[0] ? heap->name : NULL;
}

void heap_refuse(const struct quire_heap *heap, const char *what, const void *address)
{
    /* The hook may look at heaps, and allocate: it must not find this thread inside. */
    heap_let_go(heap);
    registry_let_go(&registry);
    heap_tls.inside = 0;
    panic("heap", heap ? heap_name(heap) : NULL, what, address);
}

/* ---- heaps of the user's ---- */

/* The caller's options as this library knows them; 0 or a negative errno. */
static int opts_read(const struct quire_heap_opts *from, struct quire_heap_opts *opts)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_heap_opts, flags);
    int error = abi_read(&layout, opts, from);
    if (error == 0)
        error = opts->flags & ~(uint64_t)QUIRE_HEAP_SECURE ? -EINVAL : source_verify(opts->source);
    return error;
}

struct quire_heap *quire_heap_create(const struct quire_heap_opts *from)
{
    (void)quire_heap_default();
    struct quire_heap_opts opts;
    struct quire_span span;
    size_t bytes = align_up(sizeof(struct quire_heap), os_page_bytes());
    int error = opts_read(from, &opts);
    if (error == 0)
        error = opts.limit_bytes && opts.limit_bytes < bytes ? -ENOMEM : heap_meta_map((opts.flags & QUIRE_HEAP_SECURE) != 0, bytes, &span);
    if (error)
        return fail_null(-error);
    struct quire_heap *heap = span.start;
    if (!(span.flags & QUIRE_SPAN_ZERO))
        memset(heap, 0, bytes);
    heap_init(heap, &opts);
    heap->span = span;
    account_set(&heap->account, bytes);
    /* The page map names it when it is whole: whoever kept the address of a heap that was here before believes the map. */
    lock_take(&registry.lock);
    error = pagemap_set(heap, os_page_bytes(), owner_make(heap, OWNER_HEAP_HEAD));
    if (error == 0)
        enter_locked(heap);
    lock_drop(&registry.lock);
    if (error == 0)
        return heap;
    if (is_scattered(heap))
        region_scatter(false);
    heap_meta_unmap(heap_is_secure(heap), &span);
    return fail_null(-error);
}

bool heap_is_live(const struct quire_heap *heap)
{
    return (uintptr_t)heap % CACHE_LINE_BYTES == 0 && pagemap_find(heap) == owner_make(heap, OWNER_HEAP_HEAD);
}

static void heap_unlist(struct quire_heap *heap)
{
    lock_take(&registry.lock);
    bool found = heap_is_live(heap);
    if (found) {
        pagemap_clear(heap, os_page_bytes());
        heaps_remove(&heap_first, heap);
    }
    lock_drop(&registry.lock);
    if (unlikely(!found))
        heap_refuse(NULL, HEAP_E5, heap);
}

void quire_heap_destroy(struct quire_heap *heap)
{
    if (!heap || heap == &heap_of_process)
        return;
    (void)heap_fork_settle();
    int kept = errno;
    heap_unlist(heap);
    heap_larges_destroy(heap);
    heap_pages_destroy(heap);
    heap_list_lock(); /* whoever asks whose an address is may have found a header of ours: it is done with it now */
    heap_list_unlock();
    heap_chunks_give(heap, heap->headers.chunks);
    heap_sealed_destroy(heap);
    bool is_secure = heap_is_secure(heap);
    if (is_scattered(heap))
        region_scatter(false);
    for (struct heap_local *local = heap_locals(heap), *next; local; local = next) {
        struct quire_span span = heap_local_span(local);
        next = local->next;
        heap_late_destroy(local);
        if (addr_load_relaxed(&local->thread) == heap_thread_id())
            heap_tls.others--;
        if (local != &heap->home)
            heap_meta_unmap(is_secure, &span);
    }
    struct quire_span span = heap->span;
    heap_meta_unmap(is_secure, &span);
    heap_thread_outside();
    errno = kept;
}

void heap_list_lock(void)
{
    (void)quire_heap_default();
    (void)heap_fork_settle();
    heap_tls.inside++;
    registry_lock(&registry);
}

void heap_list_unlock(void)
{
    bool woke = lock_drop(&registry.lock);
    heap_tls.inside--;
    registry_leave_to(&registry, woke);
}

bool heap_has_others(void)
{
    registry_lock(&registry);
    bool has_others = heap_first && heap_first != &heap_of_process;
    registry_unlock(&registry);
    return has_others;
}

void heap_each(void (*fn)(struct quire_heap *heap, void *arg), void *arg)
{
    heap_list_lock();
    for (struct quire_heap *heap = heap_first; heap; heap = heap->next)
        fn(heap, arg);
    heap_list_unlock();
    if (!heap_is_inside()) /* who is goes on with it, and comes outside himself */
        heap_thread_outside();
}

/* ---- the child of a fork ---- */

static void after_fork(void)
{
    bias_after_fork();
    heap_tls.random = 0; /* parent and child go different ways */
    if (u32_load_relaxed(&heap_local_none.door.bias.active) != 0) /* of all threads without a local, one of which may have been inside */
        u32_store_relaxed(&heap_local_none.door.bias.active, 0);
    bool was_locked = false;
    if (!lock_is_mine(&registry.lock)) {
        was_locked = lock_reset_others(&registry.lock);
        heaps_mend(heap_first);
    }
    heap_work_after_fork();
    slots_after_fork();
    heap_fork_in_child(was_locked);
}

static __attribute__((constructor)) void heap_at_load(void)
{
    (void)os_after_fork_in_child(after_fork);
}
