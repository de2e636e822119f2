// SPDX-License-Identifier: MIT
/*
 * slab_trim.c - giving memory back: at once on request, by the clock, and when somebody else needs it.
 *
 *     page emptied       tick            tick
 *     ----|----------------|---------------|-----
 *       kept       nobody needed it     given to the source          the same rule as for idle spans: a whole tick without use
 *
 * A tick gives back as many empty pages as the least there were since the last one; a lane that has not moved since the last tick, and whose
 * page has nothing live, gives that page up.  Ticks run on the default source's clock (pages/reaper.c), and also collect what threads that sleep
 * have had freed by others.
 *
 * Locks: registry > visits.  A tick that would have to wait for a thread leaves the headers for the next.
 * Not here: visiting (slab_thread.c), what an empty page is (slab_page.c).
 */
#include "base/align.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "slab/slab_internal.h"

/* Nothing in the lane's page is live. */
static bool lane_is_idle(const struct slab_lane *lane)
{
    return lane->page && slab_used(lane->page) == bits_count(u64_load_relaxed(&lane->avail));
}

/* The same as at the last tick. */
static bool lane_stood_still(struct slab_local *local, unsigned number)
{
    const struct slab_lane *lane = &local->lane[number];
    uint64_t avail = u64_load_relaxed(&lane->avail);
    bool same = local->tick_page[number] == lane->page && local->tick_avail[number] == avail;
    local->tick_page[number] = lane->page;
    local->tick_avail[number] = avail;
    return same;
}

size_t slab_local_trim(struct slab_local *local)
{
    size_t given = local->given_bytes;
    slab_drain(local);
    for (unsigned number = 0; number < SLAB_LANES; number++)
        if (lane_is_idle(&local->lane[number]))
            slab_lane_detach(local, number);
    slab_empties_give(local, local->empties, true);
    local->keep = local->returned = 0;
    return local->given_bytes - given;
}

/* One step of ageing; *left: there is more to come. */
static size_t local_tick(struct slab_local *local, bool *left)
{
    size_t given = local->given_bytes;
    slab_drain(local);
    uint32_t aged = local->empties_low;
    for (unsigned number = 0; number < SLAB_LANES; number++) {
        bool still = lane_stood_still(local, number);
        if (!lane_is_idle(&local->lane[number]) || local->lane[number].page->home)
            continue;
        *left |= !still;
        if (still) {
            slab_lane_detach(local, number);
            aged++;
        }
    }
    if (!slab_keeps_nothing(local->slab)) /* such a slab has given all but its last */
        slab_empties_give(local, aged, true);
    local->keep -= aged < local->keep ? aged : local->keep;
    local->returned = 0;
    local->empties_low = local->empties;
    *left |= local->empties != 0 && !slab_keeps_nothing(local->slab);
    return local->given_bytes - given;
}

/* Unused headers go back once nobody can be looking at one, and none is left on a stack (twice: a stack may pass one on). */
static size_t headers_trim_locked(struct quire_slab *slab, bool patient)
{
    if (!slab_headers_idle(slab))
        return 0;
    struct slab_chunk *idle = slab_headers_unlink(slab);
    if (!slab_grace(patient) || slab_is_settling()) {
        slab_headers_relink(slab, idle);
        return 0;
    }
    for (int round = 0; round < 2; round++)
        for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
            struct slab_visit visit;
            slab_visit_begin(&visit, local);
            slab_drain(local);
            slab_visit_end(&visit);
        }
    return slab_headers_give(slab, idle);
}

static size_t slab_trim_locked(struct quire_slab *slab, bool patient)
{
    size_t freed = 0;
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        struct slab_visit visit;
        if (!slab_visit_try(&visit, local, patient))
            continue;
        freed += slab_local_trim(local);
        slab_visit_end(&visit);
    }
    return freed + headers_trim_locked(slab, patient);
}

static size_t slab_trim(struct quire_slab *slab, bool patient)
{
    slab_registry_lock();
    size_t freed = slab_trim_locked(slab, patient);
    slab_registry_unlock();
    return freed;
}

size_t quire_slab_trim(struct quire_slab *slab)
{
    slab_verify(slab);
    return slab_trim(slab, false);
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

static size_t slab_tick_locked(struct quire_slab *slab)
{
    size_t freed = 0;
    bool left = false;
    u32_store_relaxed(&slab->pending, 0);
    atomic_fence_seq_cst();
    for (struct slab_local *local = slab_locals(slab); local; local = local->next) {
        struct slab_visit visit;
        if (!slab_visit_try(&visit, local, false)) {
            left = true; /* it is busy: the next time */
            continue;
        }
        freed += local_tick(local, &left);
        slab_visit_end(&visit);
    }
    freed += headers_trim_locked(slab, false);
    if (left || slab_headers_idle(slab))
        u32_store_relaxed(&slab->pending, 1);
    return freed;
}

static bool clock_pending(void)
{
    return u32_load_relaxed(&slab_pending) != 0;
}

static size_t clock_tick(void)
{
    size_t freed = 0;
    bool left = false;
    slab_registry_lock();
    u32_store_relaxed(&slab_pending, 0);
    atomic_fence_seq_cst();
    for (struct quire_slab *slab = slab_registry_first(); slab; slab = slab->next) {
        if (u32_load_relaxed(&slab->pending) != 0)
            freed += slab_tick_locked(slab);
        left |= u32_load_relaxed(&slab->pending) != 0;
    }
    if (left)
        u32_store_relaxed(&slab_pending, 1);
    slab_registry_unlock();
    return freed;
}

static size_t clock_trim(void)
{
    size_t freed = 0;
    slab_registry_lock();
    for (struct quire_slab *slab = slab_registry_first(); slab; slab = slab->next)
        freed += slab_trim_locked(slab, false);
    slab_registry_unlock();
    return freed;
}

static const struct reaper_guest clock_guest = {clock_pending, clock_tick, clock_trim};

static __attribute__((constructor)) void slab_at_load(void)
{
    reaper_join(&clock_guest);
    (void)os_after_fork_in_child(slab_after_fork);
}

/* ---- pages that ended threads left ---- */

/* Not while there are walks: the page would be visited twice, or not at all. */
static bool page_move(struct slab_local *from, struct slab_local *to, struct slab_page *page)
{
    lock_take(&from->slab->moves);
    bool moved = u32_load_relaxed(&from->slab->walkers) == 0 && slab_page_leave_all(from, page);
    if (moved)
        slab_page_enter_all(to, page);
    lock_drop(&from->slab->moves);
    return moved;
}

/* One page with room of the lane, or an empty one; the caller has both locals. */
static bool steal_one(struct slab_local *from, struct slab_local *to, unsigned number)
{
    slab_drain(from);
    struct slab_page *page = slab_page_pick(from, number);
    if (!page)
        page = slab_empty_pop(from);
    if (!page)
        return false;
    struct slab_local *now = page_move(from, to, page) ? to : from;
    page->lane = (uint8_t)number;
    slab_page_link(now, page);
    slab_page_freed(now, page);
    return now == to;
}

struct slab_local *slab_unbound_pop(struct quire_slab *slab)
{
    lock_take(&slab->lock);
    struct slab_local *local = slab->unbound;
    if (local) {
        slab->unbound = local->unbound_next;
        u32_sub_relaxed(&slab->unbound_count, 1);
    }
    lock_drop(&slab->lock);
    return local;
}

void slab_unbound_push(struct quire_slab *slab, struct slab_local *locals)
{
    lock_take(&slab->lock);
    for (struct slab_local *next; locals; locals = next) {
        next = locals->unbound_next;
        locals->unbound_next = slab->unbound;
        slab->unbound = locals;
        u32_add_relaxed(&slab->unbound_count, 1);
    }
    lock_drop(&slab->lock);
}

void slab_steal(struct slab_local *to, unsigned number)
{
    struct quire_slab *slab = to->slab;
    struct slab_local *seen = NULL, *from;
    bool got = false;
    if (u32_load_relaxed(&slab->walkers) != 0)
        return;
    while (!got && (from = slab_unbound_pop(slab)) != NULL) {
        struct slab_visit visit;
        slab_visit_begin(&visit, from); /* nobody's: its own lock, and known to slab_refuse() */
        got = steal_one(from, to, number);
        slab_visit_end(&visit);
        from->unbound_next = seen;
        seen = from;
    }
    slab_unbound_push(slab, seen);
}

/* ---- when memory is out, or the limit is reached ---- */

/* A page with room of the local, whoever has it, becomes nobody's: it goes to `to`.  Another thread's claim is broken for it. */
static bool lend_from(struct slab_local *from, struct slab_local *to)
{
    slab_drain(from);
    const struct slab_page *current = from->lane[LANE_ORDINARY].page;
    struct slab_page *page = slab_page_pick(from, LANE_ORDINARY);
    if (!page && current && (slab_page_has_room(current) || u64_load_relaxed(&from->lane[LANE_ORDINARY].avail) != 0)) {
        slab_lane_detach(from, LANE_ORDINARY);
        page = slab_page_pick(from, LANE_ORDINARY);
    }
    if (!page)
        return false;
    lock_take(&to->lock);
    bool moved = page_move(from, to, page);
    slab_page_link(moved ? to : from, page);
    lock_drop(&to->lock);
    return moved;
}

static bool lend(struct quire_slab *slab)
{
    struct slab_local *to = slab_unbound_pop(slab);
    bool lent = false;
    if (!to)
        to = slab_spare_take(slab);
    if (!to)
        to = slab_local_new(slab);
    if (!to)
        return false;
    for (struct slab_local *from = slab_locals(slab); from && !lent; from = from->next) {
        struct slab_visit visit;
        if (addr_load_relaxed(&from->thread) == 0)
            continue; /* nobody's: slab_steal() finds it */
        slab_visit_begin(&visit, from);
        lent = visit.thread && lend_from(from, to);
        slab_visit_end(&visit);
    }
    to->unbound_next = NULL;
    slab_unbound_push(slab, to);
    return lent;
}

/* Another page would be over the limit: what other slabs have is no help. */
static bool at_limit(const struct quire_slab *slab)
{
    size_t least = align_up(slab->slot_bytes, os_page_bytes());
    return slab->limit_bytes != 0 && size_load_relaxed(&slab->mapped_bytes) + least > slab->limit_bytes;
}

bool slab_reclaim(struct quire_slab *slab, unsigned lane)
{
    if (slab_trim(slab, true) != 0)
        return true;
    bool lent = false;
    slab_registry_lock(); /* one at a time, and no thread ends meanwhile */
    if (lane == LANE_ORDINARY)
        lent = lend(slab);
    slab_registry_unlock();
    return lent || (!at_limit(slab) && clock_trim() != 0);
}

size_t slab_alloc_elsewhere(struct quire_slab *slab, void **elements, size_t count)
{
    size_t got = 0;
    slab_registry_lock();
    for (struct slab_local *local = slab_locals(slab); local && got < count; local = local->next) {
        struct slab_visit visit;
        slab_visit_begin(&visit, local);
        got += slab_local_alloc_own(local, elements + got, count - got);
        slab_visit_end(&visit);
    }
    slab_registry_unlock();
    return got;
}
