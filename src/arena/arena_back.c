// SPDX-License-Identifier: MIT
/*
 * arena_back.c - going back: mark, rewind, reset, trim.
 *
 *     mark m --- more --- rewind(m)                       used
 *                                                          |        /\ stale from here on
 *     A mark is stale when some later rewind left less     |   m   /  \
 *     in use than the mark had.  Of all rewinds only       |  /\  /    x rewind to r
 *     the lowest since each time matter: a short stack     | /  \/r
 *     whose epochs and used_bytes both rise.               +------------------ epoch
 *
 * Locks: none.
 */
#include <errno.h>

#include "arena/arena_internal.h"
#include "base/panic.h"
#include "os/sanitize.h"

struct quire_arena_mark quire_arena_mark(const struct quire_arena *arena)
{
    return (struct quire_arena_mark){.arena = arena,
                                     .span = arena->current,
                                     .cursor = arena->window.cursor,
                                     .large = arena->large,
                                     .defer = arena->defers,
                                     .used_bytes = arena_chain_bytes(arena) + arena->large_bytes,
                                     .epoch = arena->epoch};
}

static bool mark_is_stale(const struct quire_arena *arena, const struct quire_arena_mark *mark)
{
    for (uint32_t i = 0; i < arena->rewound_count; i++)
        if (arena->rewound[i].epoch > mark->epoch)
            return arena->rewound[i].used_bytes < mark->used_bytes; /* the lowest one since the mark */
    return false;
}

/* Remember a rewind that left `used_bytes`; when there is no room, the oldest one is forgotten: a very old stale mark may then pass. */
static void rewound_add(struct quire_arena *arena, size_t used_bytes)
{
    uint32_t count = arena->rewound_count;
    while (count > 0 && arena->rewound[count - 1].used_bytes >= used_bytes)
        count--;
    if (count == ARENA_REWINDS) {
        for (uint32_t i = 1; i < ARENA_REWINDS; i++)
            arena->rewound[i - 1] = arena->rewound[i];
        count--;
    }
    arena->rewound[count] = (struct arena_rewound){++arena->epoch, used_bytes};
    arena->rewound_count = count + 1;
}

/* Last first; each is taken off before it runs. */
static void defers_run(struct quire_arena *arena, const struct arena_defer *until)
{
    int kept = errno;
    while (arena->defers != until) {
        struct arena_defer *defer = arena->defers;
        arena->defers = defer->next;
        defer->fn(defer->arg);
    }
    errno = kept;
}

/* The cursor back to `cursor` in `span`; what lay behind it may not be touched, and is no longer known to be zero. */
static void cursor_back(struct quire_arena *arena, struct arena_span *span, char *cursor)
{
    struct arena_span *from = arena->current;
    from->zero_from = arena->zero_from > arena->window.cursor ? arena->zero_from : arena->window.cursor;
    arena_enter(arena, span, cursor);
    if (arena->watched)
        for (const struct arena_span *s = span;; s = s->next) {
            const char *start = s == span ? cursor : arena_span_data(arena, s);
            sanitize_no_access(start, (size_t)(arena_span_end(s) - start));
            if (s == from)
                break;
        }
}

void quire_arena_rewind(struct quire_arena *arena, struct quire_arena_mark mark)
{
    arena_verify(arena, "A1 rewound: not a live arena");
    if (mark.arena != arena)
        panic("arena", arena->name[0] ? arena->name : NULL, "A3 mark of another arena", mark.arena);
    if (mark_is_stale(arena, &mark))
        panic("arena", arena->name[0] ? arena->name : NULL, "A4 mark was rewound past", mark.cursor);
    defers_run(arena, mark.defer);
    while (arena->large != mark.large) {
        struct arena_span *span = arena->large;
        arena->large = span->next;
        arena->large_bytes -= span->used_before;
        arena_span_give(arena, span);
    }
    cursor_back(arena, mark.span, mark.cursor);
    rewound_add(arena, mark.used_bytes);
}

void quire_arena_reset(struct quire_arena *arena)
{
    arena_verify(arena, "A1 reset: not a live arena");
    defers_run(arena, NULL);
    /* What the round that ends now did not need goes back; what it needed is kept for the next. */
    arena_list_give(arena, &arena->furthest->next);
    arena_list_give(arena, &arena->large_spare);
    arena->large_spare = arena->large;
    arena->large = NULL;
    arena->large_bytes = 0;
    if (arena->watched)
        for (const struct arena_span *s = arena->large_spare; s; s = s->next)
            sanitize_no_access(s + 1, s->span.bytes - sizeof *s);
    cursor_back(arena, arena->first, arena_span_data(arena, arena->first));
    arena->furthest = arena->first;
    arena->tail_refused = NULL;
    rewound_add(arena, 0);
}

size_t quire_arena_trim(struct quire_arena *arena)
{
    size_t bytes = arena_list_give(arena, &arena->current->next) + arena_list_give(arena, &arena->large_spare);
    arena->furthest = arena->current;
    return bytes;
}
