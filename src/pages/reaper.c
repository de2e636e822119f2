// SPDX-License-Identifier: MIT
/*
 * reaper.c - the clock of the default source.
 *
 *                reaper_wake()              nothing idle
 *     NONE ------------------> TICKING <-----------------> ASLEEP
 *       ^  no thread to be had    |         reaper_wake()
 *       |                         v
 *     fork (child)              ALONE: callers tick on their slow paths, and try again for a thread after each
 *
 * A page is given back after more than one tick and at most two (region_idle.c); a tick is three quarters of the decay, so that "gone within
 * two decays" has room for a late thread.  Ticks begin at a fixed rate, however long one takes.  On a busy machine the thread may get little of a CPU: who
 * comes to the source half a tick after a tick was due, and finds it not done, gives some of the memory back himself; where that is gone he lets the rest
 * age, and the next tick is due one later.  Guests are left alone: he may be inside of one.
 *
 * Where memory pressure is watched (pressure.c) it is looked at with each tick, and once a second where ticks are rarer; while the clock is asleep there is
 * nothing to give back.
 *
 * No wake-up is lost: a giver makes memory idle under a lock, then reads the state; the reaper writes ASLEEP, then reads the idle bytes under
 * the same locks.  Whoever has the lock second sees what the other wrote.
 *
 * Locks: none of its own.  Not here: what a tick does (source_default.c, region_idle.c).
 */
#include "base/atomic.h"
#include "os/os.h"
#include "pages/pressure.h"
#include "pages/reaper.h"
#include "pages/region.h"
#include "pages/source_internal.h"

enum reaper_state { REAPER_NONE, REAPER_TICKING, REAPER_ASLEEP, REAPER_ALONE };
#define DECAY_NS_DEFAULT UINT64_C(1000000000)
#define DESERTED_LOOK_NS UINT64_C(50000000)

static struct {
    atomic_u32 state;
    atomic_u32 changed; /* the decay was set: a futex word that ends a tick's sleep */
    atomic_u64 decay_ns_plus_1;
    atomic_u64 ticked_ns; /* ALONE: when it last ticked */
    atomic_u64 due_ns;    /* TICKING: when the next tick is to begin; 0: at no time */
    atomic_u32 is_deferred, is_due;
    atomic_size floor_bytes_more; /* than REAPER_FLOOR_BYTES */
} reaper;

enum { GUESTS_MAX = 4 };
static const struct reaper_guest *guests[GUESTS_MAX];
static int guest_count;

void reaper_join(const struct reaper_guest *guest)
{
    guests[guest_count] = guest;
    atomic_fence_signal(); /* the child of a fork asks all that are counted */
    guest_count++;
}

static bool guests_pending(void)
{
    bool pending = false;
    for (int i = 0; i < guest_count; i++)
        pending |= u32_load_relaxed(guests[i]->pending) != 0;
    return pending;
}

static size_t guests_tick(void)
{
    size_t freed = 0;
    for (int i = 0; i < guest_count; i++)
        freed += u32_load_relaxed(guests[i]->pending) != 0 ? guests[i]->tick() : 0;
    return freed;
}

size_t reaper_guests_trim(void)
{
    size_t freed = 0;
    for (int i = 0; i < guest_count; i++)
        freed += u32_load_relaxed(guests[i]->used) != 0 ? guests[i]->trim() : 0;
    return freed;
}

static bool idle_is_worth_it(void)
{
    return source_default_idle_bytes() > REAPER_FLOOR_BYTES + size_load_relaxed(&reaper.floor_bytes_more);
}

static bool work_left(void)
{
    return idle_is_worth_it() || guests_pending();
}

/* A tick that returns nothing may only have aged its pages; after the second the system is refusing: ask it less and less often. */
enum { TICK_NS_LEAST = 1000000, FUTILE_SHIFT_MAX = 8 };

static uint64_t tick_ns(void)
{
    uint64_t stored = u64_load_relaxed(&reaper.decay_ns_plus_1);
    uint64_t decay_ns = stored ? stored - 1 : DECAY_NS_DEFAULT;
    uint64_t ns = decay_ns * 3 / 4;
    return ns > TICK_NS_LEAST ? ns : TICK_NS_LEAST;
}

/* The next tick begins one period after the last one did; after one that took most of it, a quarter of it from now. */
static uint64_t due_after(uint64_t began_ns, uint64_t now, uint64_t period_ns)
{
    uint64_t due = began_ns ? began_ns + period_ns : now + period_ns, least = now + period_ns / 4;
    return due > least ? due : least;
}

/* Memory is short: nothing is kept for later.  Without the thread (alone) who calls may be inside of a guest. */
static void look_at_pressure(bool alone)
{
    if (pressure_is_watched() && pressure_is_high(os_time_ns()))
        (void)(alone ? source_default_drain(true) : quire_source_trim(quire_source_default()));
}

/* Until the tick is due, or a shorter decay was set, or nobody else is left. */
static void wait_for_tick(uint32_t changed, uint64_t due, uint64_t now)
{
    for (; now < due && u32_load_relaxed(&reaper.changed) == changed && !os_is_deserted(); now = os_time_ns()) {
        uint64_t look_ns = os_main_has_ended() ? DESERTED_LOOK_NS : pressure_is_watched() ? PRESSURE_LOOK_NS : UINT64_MAX;
        os_futex_wait(&reaper.changed.word, changed, due - now < look_ns ? due - now : look_ns);
        look_at_pressure(false);
    }
}

static void reaper_main(void *unused)
{
    (void)unused;
    unsigned futile = 0;
    uint64_t began_ns = 0;
    for (;;) {
        uint32_t changed = u32_load_relaxed(&reaper.changed);
        size_t idle_bytes = source_default_idle_bytes();
        uint64_t now = os_time_ns(), due = due_after(began_ns, now, tick_ns() << (futile > 1 ? futile - 1 : 0));
        u64_store_relaxed(&reaper.due_ns, due);
        wait_for_tick(changed, due, now);
        began_ns = os_time_ns();
        bool freed = guests_tick() != 0;
        freed |= source_default_drain(false) != 0 || source_default_idle_bytes() != idle_bytes || guests_pending();
        futile = freed || !idle_is_worth_it() ? 0 : /* what is pending at a guest's is no refusal, and more may be given meanwhile */
                  futile < FUTILE_SHIFT_MAX ? futile + 1 : futile;
        if (os_is_deserted())
            return;
        if (work_left())
            continue;
        u64_store_relaxed(&reaper.due_ns, 0);
        u32_store_release(&reaper.state, REAPER_ASLEEP);
        atomic_fence_seq_cst(); /* a guest writes "pending", then reads the state */
        uint32_t asleep = REAPER_ASLEEP;
        if (work_left() && u32_cas_relaxed(&reaper.state, &asleep, REAPER_TICKING))
            continue;
        while (u32_load_relaxed(&reaper.state) == REAPER_ASLEEP) {
            if (os_is_deserted())
                return;
            os_futex_wait(&reaper.state.word, REAPER_ASLEEP, os_main_has_ended() ? DESERTED_LOOK_NS : 0);
        }
        began_ns = 0;
    }
}

void reaper_thread_ends(void)
{
    if (likely(!os_thread_ends()))
        return;
    u32_add_relaxed(&reaper.changed, 1); /* whether it waits for a tick or for work: it looks whether anybody is left, and from now on again and again */
    (void)os_futex_wake(&reaper.changed.word, 1);
    (void)os_futex_wake(&reaper.state.word, 1);
}

/* The state says TICKING, from before the thread is there: it may be asleep before this one is back. */
static void thread_begin(void)
{
    if (os_thread_start(reaper_main, NULL) != 0) {
        u64_store_relaxed(&reaper.ticked_ns, os_time_ns());
        u32_store_relaxed(&reaper.state, REAPER_ALONE);
    }
}

static COLD void start_or_wake(uint32_t seen)
{
    u32_store_relaxed(&reaper.is_due, 0);
    if (seen == REAPER_NONE && u32_cas_relaxed(&reaper.state, &seen, REAPER_TICKING))
        thread_begin();
    else if (seen == REAPER_ASLEEP && u32_cas_relaxed(&reaper.state, &seen, REAPER_TICKING))
        os_futex_wake(&reaper.state.word, 1);
}

void reaper_defer(size_t floor_bytes)
{
    u32_store_relaxed(&reaper.is_deferred, 1);
    size_store_relaxed(&reaper.floor_bytes_more, floor_bytes > REAPER_FLOOR_BYTES ? floor_bytes - REAPER_FLOOR_BYTES : 0);
}

bool reaper_is_due(void)
{
    return unlikely(u32_load_relaxed(&reaper.is_due) != 0);
}

void reaper_start_due(bool after_free)
{
    if (likely(u32_load_relaxed(&reaper.is_deferred) == 0) || !reaper_is_due())
        return;
    bool alone = os_is_single_threaded();
    if (alone ? region_idle_bytes_roughly() <= REAPER_FLOOR_BYTES + size_load_relaxed(&reaper.floor_bytes_more) : after_free)
        return;
    start_or_wake(u32_load_relaxed(&reaper.state));
}

bool reaper_decay_is_0(void)
{
    return u64_load_relaxed(&reaper.decay_ns_plus_1) == 1;
}

void reaper_wake(void)
{
    uint32_t seen = u32_load_relaxed(&reaper.state);
    bool waits = u32_load_relaxed(&reaper.is_deferred) || (reaper_decay_is_0() && os_is_single_threaded()); /* such a program stays one of one thread */
    if (seen == REAPER_NONE && waits)
        u32_store_relaxed(&reaper.is_due, 1);
    else if (unlikely(seen != REAPER_TICKING))
        start_or_wake(seen);
}

static atomic_u32 helping;

/* One at a time, and not for long: the caller wants memory, or is giving some back. */
static COLD void help_if_late(void)
{
    uint64_t due = u64_load_relaxed(&reaper.due_ns), now = os_time_ns();
    uint32_t nobody = 0;
    if (due != 0 && now >= due && unlikely(os_is_unrepaired())) { /* there is no clock */
        os_repair();
        return;
    }
    if (due == 0 || now < due + tick_ns() / 2 || !u32_cas_acquire(&helping, &nobody, 1)) /* acquire [reaper-help] */
        return;
    if (region_help())
        u64_store_relaxed(&reaper.due_ns, now + tick_ns());
    u32_store_release(&helping, 0); /* release [reaper-help] */
}

void reaper_tick_if_late(void)
{
    uint32_t state = u32_load_relaxed(&reaper.state);
    if (state == REAPER_TICKING)
        help_if_late();
    if (likely(state != REAPER_ALONE))
        return;
    uint64_t now = os_time_ns(), last = u64_load_relaxed(&reaper.ticked_ns);
    if (now - last < tick_ns() || !u64_cas_relaxed(&reaper.ticked_ns, &last, now))
        return;
    look_at_pressure(true);
    source_default_drain(false);
    if (u32_cas_relaxed(&reaper.state, &state, REAPER_NONE))
        reaper_wake(); /* a thread can be had by now: at once, or by the next that holds nothing */
}

bool reaper_keeps_nothing(void)
{
    return reaper_decay_is_0() || u32_load_relaxed(&reaper.state) == REAPER_ALONE;
}

void reaper_set_decay(uint64_t decay_ns)
{
    u64_store_relaxed(&reaper.decay_ns_plus_1, decay_ns + 1);
    u32_add_relaxed(&reaper.changed, 1);
    os_futex_wake(&reaper.changed.word, 1);
}

void reaper_after_fork(void)
{
    os_threads_after_fork();
    u32_store_relaxed(&reaper.state, REAPER_NONE);
    u32_store_relaxed(&helping, 0);
}
