// SPDX-License-Identifier: MIT
/*
 * arena_list.c - named arenas, for those who look from outside; kept only where somebody asked for it before.
 *
 *     newest <-> ... <-> oldest          under a lock, taken when a named arena is born or ends: never while it allocates
 *       | what lies in struct quire_arena itself, for that stays mapped until the arena has left the list:
 *       |     used_before   what the chain had handed out before the current span       \
 *       |     data, cursor  how far the current span is used                             > read while the owner writes
 *       '---- large_bytes, mapped_bytes, ...                                            /
 *
 * A glance takes no part in the owner's order of writing, so its figures are of about now: the cursor counts only while it lies in the span that
 * was current before and after it was read, and what is live is never more than what is mapped.
 *
 * Locks: the arenas'.  Not here: statistics for the owner (arena_look.c).
 */
#include <string.h>

#include "arena/arena_internal.h"
#include "base/atomic.h"
#include "base/list.h"
#include "base/lock.h"
#include "os/os.h"

enum { GLANCES = 8 };
LIST_OF(arenas, struct quire_arena, list_next, list_prev);

static struct {
    struct lock lock;
    atomic_u32 is_on;
    struct quire_arena *first;
    uint64_t orders;
} arenas = {.lock = LOCK_INIT(LOCK_ARENAS)};

bool arena_list_is_on(void)
{
    return u32_load_relaxed(&arenas.is_on) != 0;
}

static void after_fork(void)
{
    if (lock_is_mine(&arenas.lock)) /* by a signal's handler: this thread goes on with what it was doing to the list */
        return;
    lock_reset(&arenas.lock);
    arenas_mend(arenas.first);
}

void arena_list_begin(void)
{
    if (!arena_list_is_on())
        (void)os_after_fork_in_child(after_fork);
    u32_store_relaxed(&arenas.is_on, 1);
}

void arena_list_enter(struct quire_arena *arena)
{
    if (likely(!arena_list_is_on()) || !arena->name[0])
        return;
    lock_take(&arenas.lock);
    arena->list_order = ++arenas.orders;
    arenas_push(&arenas.first, arena);
    lock_drop(&arenas.lock);
}

void arena_list_leave(struct quire_arena *arena)
{
    if (likely(arena->list_order == 0))
        return;
    lock_take(&arenas.lock);
    arenas_remove(&arenas.first, arena);
    lock_drop(&arenas.lock);
    arena->list_order = 0;
}

#define GLANCE(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/* Handed out in the current span.  In the middle of a change of spans: what was there before the last one, as far as it is seen. */
static NO_SANITIZE size_t chain_bytes(const struct quire_arena *arena)
{
    for (int i = 0; i < GLANCES; i++) {
        const char *data = GLANCE(arena->data), *cursor = GLANCE(arena->window.cursor), *end = GLANCE(arena->span_end);
        size_t before = GLANCE(arena->used_before);
        if (cursor >= data && cursor <= end && GLANCE(arena->data) == data && GLANCE(arena->span_end) == end)
            return before + (size_t)(cursor - data);
        cpu_pause();
    }
    return GLANCE(arena->used_before);
}

static NO_SANITIZE void glance_at(const struct quire_arena *arena, struct arena_glance *out)
{
    struct arena_figures *figures = &out->figures;
    out->order = arena->list_order;
    memcpy(out->name, arena->name, ARENA_NAME_BYTES);
    figures->mapped_bytes = GLANCE(arena->mapped_bytes);
    figures->live_bytes = chain_bytes(arena) + GLANCE(arena->large_bytes);
    if (figures->live_bytes > figures->mapped_bytes)
        figures->live_bytes = figures->mapped_bytes;
    figures->rest_bytes = figures->mapped_bytes - figures->live_bytes;
    figures->peak_bytes = GLANCE(arena->mapped_bytes_peak);
    figures->peak_bytes = figures->peak_bytes < figures->mapped_bytes ? figures->mapped_bytes : figures->peak_bytes;
    figures->limit_bytes = arena->limit_bytes;
    figures->large_blocks = GLANCE(arena->large_count);
}

void arena_list_each(bool (*fn)(const struct arena_glance *glance, void *arg), void *arg)
{
    struct arena_glance glance;
    bool more = true;
    lock_take(&arenas.lock);
    for (const struct quire_arena *arena = arenas.first; arena && more; arena = arena->list_next) {
        glance_at(arena, &glance);
        more = fn(&glance, arg);
    }
    lock_drop(&arenas.lock);
}
