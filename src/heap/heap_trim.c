// SPDX-License-Identifier: MIT
/*
 * heap_trim.c - memory that threads hold and do not use goes back.
 *
 *     pages that become empty go back at once; what is left are bins' current pages without a block, blocks parked on their way to another
 *     thread, and chunks of headers: looked after by the clock of the page source (reaper.h) while there is anything to do
 *
 * Locks: heaps, then each local in turn.  Not here: which page is empty (heap_page.c).
 */
#include "heap/heap_cache.h"
#include "heap/heap_secure.h"
#include "os/os.h"
#include "pages/reaper.h"

static atomic_u32 pending;

void heap_work_is_due(void)
{
    if (likely(u32_load_relaxed(&pending) != 0) && likely(!reaper_is_due()))
        return;
    u32_store_relaxed(&pending, 1);
    heap_tls.has_work = true;
}

/* There is no clock in the child: the next that has something for it wakes one. */
void heap_work_after_fork(void)
{
    u32_store_relaxed(&pending, 0);
    heap_tls.has_work = false;
}

struct trim {
    size_t freed;
    bool is_idle; /* no more than what lies idle */
};

/* What a secure heap keeps back is no idle memory. */
static void give_back(struct quire_heap *heap, void *trim_)
{
    struct trim *trim = trim_;
    size_t before = size_load_relaxed(&heap->account.mapped_bytes);
    heap_depots_unlearn(heap);
    if (!trim->is_idle)
        HEAP_EACH_VISITED(heap, local)
            heap_secure_flush(local);
    heap_all_home(heap);
    HEAP_EACH_VISITED(heap, local) {
        heap_late_verify(local);
        heap_local_settle(local, 0);
        heap_local_shrink(local);
    }
    heap_sealed_cool(heap);
    heap_chunks_trim(heap);
    size_t after = size_load_relaxed(&heap->account.mapped_bytes);
    trim->freed += before > after ? before - after : 0;
}

/* Nothing while this thread is inside: the source asks for memory that we are getting from it. */
static size_t idle_trim(void)
{
    struct trim trim = {.is_idle = true};
    if (!heap_is_in_local())
        heap_each(give_back, &trim);
    return trim.freed;
}

/*
 * What lies idle goes, whoever's it is.  What secure heaps keep back stays, or who asks for more than there is, as often as he likes, would have freed
 * blocks handed out again at once; but a heap's own makes way where its limit allows what is asked for.
 */
size_t heap_make_room(struct quire_heap *heap, size_t bytes)
{
    struct trim trim = {.freed = idle_trim() + quire_source_trim(heap->source)};
    if (bytes <= heap->account.limit_bytes && !account_has_room(&heap->account, bytes) && !heap_is_in_local()) {
        heap_list_lock();
        give_back(heap, &trim);
        heap_list_unlock();
    }
    return trim.freed;
}

size_t quire_heap_trim(struct quire_heap *heap)
{
    struct trim trim = {0};
    heap_list_lock();
    give_back(heap, &trim);
    heap_list_unlock();
    heap_thread_outside();
    quire_source_trim(heap->source);
    return trim.freed;
}

/* What is allocated or freed while we look makes another tick due. */
static size_t tick(void)
{
    u32_store_relaxed(&pending, 0);
    atomic_fence_seq_cst();
    size_t freed = idle_trim();
    if (freed != 0)
        u32_store_relaxed(&pending, 1);
    return freed;
}

static const struct reaper_guest guest = {&heap_is_ready, &pending, tick, idle_trim};

static __attribute__((constructor)) void heap_trim_at_load(void)
{
    reaper_join(&guest);
}
