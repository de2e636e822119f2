// SPDX-License-Identifier: MIT
/*
 * slab_trim.c - giving memory back: at once on request, by the clock, and when somebody else needs it.
 *
 *     page emptied       tick            tick
 *     ----|----------------|---------------|-----
 *       kept       nobody needed it     given to the source          the same rule as for idle spans: a whole tick without use
 *
 * A tick gives back as many empty pages as the least there were since the last one.  Where all threads together have cached more than one part in
 * fifty of what lives and 64 KiB for each CPU, it sends all that they have cached to the pages; a thread that has then not been seen for a whole tick
 * loses its caches.  Ticks run on the default source's clock (pages/reaper.c).
 *
 * Locks: registry > visits > a slab's.  A tick that would have to wait for a thread leaves it for the next.
 * Not here: visiting (slab_thread.c), what an empty page is (slab_page.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "slab/slab_internal.h"

enum { CACHED_OF_LIVE = 50, CACHED_BYTES_CPU = 64 << 10 };

static void flush_visited(struct slab_thread *thread, void *slab)
{
    struct slab_cache *cache = slab_visited_cache(thread, slab);
    if (cache)
        slab_cache_flush(cache, false);
}

void slab_collect(struct quire_slab *slab, bool patient)
{
    if (slab->straight)
        return;
    slab_visit_all(flush_visited, slab, patient);
    slab_depot_flush(slab, true);
}

/* Unused headers' memory goes back once nobody with a record can be looking at one. */
static void headers_trim(struct quire_slab *slab, bool patient)
{
    slab_lock(slab);
    struct header_chunk *idle = headers_unlink(&slab->headers);
    headers_discard(&slab->headers);
    slab_unlock(slab);
    if (!idle)
        return;
    bool out = slab_grace(patient);
    slab_lock(slab);
    if (out)
        slab_headers_retire(slab, idle);
    else
        headers_relink(&slab->headers, idle);
    slab->wakes |= !out; /* a tick tries again */
    slab_unlock(slab);
}

/* One step of ageing; or, at once, of all that is empty.  True: a tick has more to do. */
static bool age(struct quire_slab *slab, bool at_once, bool patient)
{
    slab_lock(slab);
    slab_currents_release(slab);
    uint32_t aged = at_once ? slab->empties : slab->empties_low;
    if (at_once || !slab_keeps_nothing(slab)) /* such a slab has given all but its last */
        slab_empties_give(slab, aged, true);
    slab_table_fit(slab);
    slab->keep -= !at_once && aged < slab->keep ? aged : slab->keep;
    slab->returned = 0;
    slab->spilled = slab->swing = 0;
    slab->empties_low = slab->empties;
    bool left = slab->empties != 0 && !slab_keeps_nothing(slab);
    slab_unlock(slab);
    headers_trim(slab, patient);
    return left;
}

static size_t trim_locked(struct quire_slab *slab, bool patient)
{
    size_t held = size_load_relaxed(&slab->account.mapped_bytes);
    slab_collect(slab, patient);
    (void)age(slab, true, patient);
    size_t now = size_load_relaxed(&slab->account.mapped_bytes);
    return now < held ? held - now : 0;
}

static size_t trim(struct quire_slab *slab, bool patient)
{
    slab_list_lock();
    size_t freed = trim_locked(slab, patient);
    (void)slab_mags_trim();
    registry_unlock(&slab_registry);
    return freed;
}

size_t quire_slab_trim(struct quire_slab *slab)
{
    slab_verify(slab);
    return trim(slab, false);
}

/* ---- the clock ---- */

void slab_wake(struct quire_slab *slab)
{
    u32_store_relaxed(&slab->pending, 1);
    atomic_fence_seq_cst(); /* a tick takes slab_pending back, then reads this */
    if (u32_load_relaxed(&slab_pending) == 0) {
        u32_store_relaxed(&slab_pending, 1);
        atomic_fence_seq_cst(); /* the reaper writes that it sleeps, then reads this */
        reaper_wake();
    }
}

/* All threads together have more than is allowed. */
static bool is_too_much(void)
{
    size_t cached_bytes = slab_thread_bytes(), live_bytes = 0, caches = 0;
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next) {
        cached_bytes += slab_caches_count(slab, &caches) * slab->slot_bytes;
        slab_lock(slab);
        cached_bytes += magazines_count(slab->depot.full) * slab->slot_bytes;
        live_bytes += (slab->slots - slab->free_slots) * slab->slot_bytes;
        slab_unlock(slab);
    }
    return cached_bytes > live_bytes / CACHED_OF_LIVE + (size_t)CACHED_BYTES_CPU * os_cpu_count();
}

/* What one thread has, of all slabs; caches that it has not used the long way since the last tick, and that are empty, go. */
static void tick_thread(struct slab_thread *thread, void *arg)
{
    bool *left = arg;
    struct slab_cache *caches = (struct slab_cache *)(void *)thread->caches;
    for (uint32_t id = 0; id < thread->count; id++)
        if (caches[id].slab)
            slab_cache_flush(&caches[id], false);
    if (thread->count && thread->holds == thread->seen)
        slab_thread_detach(thread);
    *left |= thread->count != 0;
    thread->seen = thread->holds;
}

static size_t mapped_now(void)
{
    size_t bytes = 0;
    for (const struct quire_slab *slab = slab_first; slab; slab = slab->next)
        bytes += size_load_relaxed(&slab->account.mapped_bytes);
    return bytes;
}

static size_t clock_tick(void)
{
    bool left = false;
    slab_list_lock();
    size_t before = mapped_now();
    u32_store_relaxed(&slab_pending, 0);
    atomic_fence_seq_cst();
    size_store_relaxed(&slab_cached_bytes, 0);
    bool flush = is_too_much();
    if (flush)
        left |= !slab_visit_all(tick_thread, &left, false);
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next)
        if (flush || u32_load_relaxed(&slab->pending) != 0) {
            u32_store_relaxed(&slab->pending, 0);
            slab_depot_flush(slab, flush);
            if (age(slab, false, false)) { /* else as others may have said meanwhile */
                u32_store_relaxed(&slab->pending, 1);
                left = true;
            }
        }
    size_t now = mapped_now(), freed = before > now ? before - now : 0;
    freed += slab_mags_trim();
    if (left)
        u32_store_relaxed(&slab_pending, 1);
    registry_unlock(&slab_registry);
    return freed;
}

static size_t clock_trim(void)
{
    size_t freed = 0;
    slab_list_lock();
    for (struct quire_slab *slab = slab_first; slab; slab = slab->next)
        freed += trim_locked(slab, false);
    freed += slab_mags_trim();
    registry_unlock(&slab_registry);
    return freed;
}

static const struct reaper_guest clock_guest = {&slab_any, &slab_pending, clock_tick, clock_trim};

static __attribute__((constructor)) void slab_at_load(void)
{
    reaper_join(&clock_guest);
    (void)os_after_fork_in_child(slab_after_fork);
}

/* ---- when memory is out, or the limit is reached ---- */

static bool has_room(struct quire_slab *slab, unsigned lane)
{
    bool room = false;
    slab_lock(slab);
    for (const struct slab_page *page = NULL; !room && (page = slab_page_after(slab, page)) != NULL;)
        room = page->free_count != 0 && page->lane == lane;
    slab_unlock(slab);
    return room;
}

bool slab_reclaim(struct quire_slab *slab, unsigned lane)
{
    if (unlikely(u32_load_relaxed(&slab_fork_is_due) != 0)) { /* the slab may be torn */
        slab_fork_settle();
        return true;
    }
    if (trim(slab, true) != 0 || has_room(slab, lane))
        return true;
    bool is_limited = !account_has_room(&slab->account, align_up(slab->slot_bytes, os_page_bytes())); /* what other slabs have is no help */
    return !is_limited && clock_trim() != 0;
}
