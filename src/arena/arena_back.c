// SPDX-License-Identifier: MIT
/*
 * arena_back.c - going back: mark, rewind, reset, trim.
 *
 *     mark m --- more --- rewind(m)                     position
 *                                                          |        /\ stale from here on
 *     A mark is stale when some later rewind went back     |   m   /  \
 *     to before it.  Of all rewinds only the lowest        |  /\  /    x rewind to r
 *     since each time matter: a stack whose epochs and     | /  \/r
 *     positions both rise.  A rewind past no mark makes    +------------------ epoch
 *     none stale, and is not on it.
 *
 * Invariant: marked_position is at least the position of every mark that is not stale and lies behind the top of the stack.
 * So a rewind that pops nothing and goes no further back than there has gone past no mark.  A mark's position is never 0: a reset goes back past all.
 * Locks: none.
 */
#include <errno.h>
#include <string.h>

#include "arena/arena_internal.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/sanitize.h"

enum { REWINDS_MAX = 4000 }; /* that went past marks, and are remembered: 64 KiB of them */

struct quire_arena_mark quire_arena_mark(const struct quire_arena *arena)
{
    struct quire_arena *marked = (struct quire_arena *)(uintptr_t)arena; /* a mark changes nothing that a caller could see */
    marked->marked_bytes = arena_chain_bytes(arena);
    marked->marked_large = arena->large;
    uint64_t position = arena_position(arena);
    if (marked->marked_position < position)
        marked->marked_position = position;
    arena_text_close(marked);
    return (struct quire_arena_mark){.arena = arena,
                                     .birth = arena->birth,
                                     .epoch = arena->epoch,
                                     .position = position,
                                     .span = arena->current,
                                     .cursor = arena->window.cursor,
                                     .large = arena->large,
                                     .defer = arena->defers};
}

bool arena_mark_is_stale(const struct quire_arena *arena, const struct quire_arena_mark *mark)
{
    uint32_t since = arena->rewound_count;
    while (since > 0 && arena->rewound[since - 1].epoch > mark->epoch)
        since--;
    return since < arena->rewound_count && arena->rewound[since].position < mark->position; /* the lowest one since the mark */
}

/* Twice the room for the stack, in a span of its own; false when there is no memory for it, or it has REWINDS_MAX. */
static bool rewound_grow(struct quire_arena *arena)
{
    size_t bytes = arena->rewound_span ? 2 * arena->rewound_span->span.bytes : os_page_bytes();
    struct arena_span *span = arena->rewound_max < REWINDS_MAX ? arena_span_take_hard(arena, bytes, bytes) : NULL, *old = arena->rewound_span;
    if (!span)
        return false;
    sanitize_undefined(span + 1, span->span.bytes - sizeof *span);
    struct arena_rewound *grown = (struct arena_rewound *)(void *)(span + 1);
    memcpy(grown, arena->rewound, arena->rewound_count * sizeof *grown);
    arena->rewound = grown;
    arena->rewound_span = span;
    arena->rewound_max = (uint32_t)((span->span.bytes - sizeof *span) / sizeof *grown);
    if (old)
        arena_span_give(arena, old);
    return true;
}

/* Remember a rewind that went past marks; where there is no room to remember it in, the older half is forgotten. */
static void rewound_add(struct quire_arena *arena, uint64_t position)
{
    uint32_t count = arena->rewound_count;
    while (count > 0 && arena->rewound[count - 1].position >= position)
        count--;
    if (count == arena->rewound_count && arena->marked_position <= position)
        return;
    arena->rewound_count = count;
    if (count == arena->rewound_max && !rewound_grow(arena)) {
        arena->rewound_count = count - count / 2;
        memmove(arena->rewound, arena->rewound + count / 2, arena->rewound_count * sizeof *arena->rewound);
    }
    arena->rewound[arena->rewound_count++] = (struct arena_rewound){++arena->epoch, position};
    arena->marked_position = position;
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
    arena_text_close(arena);
    if (arena->watched)
        for (const struct arena_span *s = span;; s = s->next) {
            const char *start = s == span ? cursor : arena_span_data(arena, s);
            sanitize_no_access(start, (size_t)(arena_span_end(s) - start));
            if (s == from)
                break;
        }
}

static __attribute__((noreturn)) void mark_refused(const struct quire_arena *arena, const char *what, const void *address)
{
    panic("arena", arena->name[0] ? arena->name : NULL, what, address);
}

void quire_arena_rewind(struct quire_arena *arena, struct quire_arena_mark mark)
{
    arena_verify(arena, "A1 rewound: not a live arena");
    if (mark.arena != arena || mark.birth != arena->birth)
        mark_refused(arena, "A3 mark of another arena", mark.arena);
    if (arena_mark_is_stale(arena, &mark))
        mark_refused(arena, "A4 mark was rewound past", mark.cursor);
    defers_run(arena, mark.defer);
    while (arena->large != mark.large) {
        struct arena_span *span = arena->large;
        arena->large = span->next;
        arena->large_bytes -= span->used_before;
        arena->large_count--;
        arena_span_give(arena, span);
    }
    cursor_back(arena, mark.span, mark.cursor);
    arena->marked_bytes = arena_chain_bytes(arena);
    arena->marked_large = arena->large;
    rewound_add(arena, mark.position);
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
    arena->large_count = 0;
    if (arena->watched)
        for (const struct arena_span *s = arena->large_spare; s; s = s->next)
            sanitize_no_access(s + 1, s->span.bytes - sizeof *s);
    cursor_back(arena, arena->first, arena_span_data(arena, arena->first));
    arena->furthest = arena->first;
    arena->tail_refused = NULL;
    arena->marked_bytes = 0;
    arena->marked_large = NULL;
    rewound_add(arena, 0);
}

/* The stack's span back to the source, if what is in it has room in the arena itself.  Returns bytes. */
static size_t rewound_trim(struct quire_arena *arena)
{
    struct arena_span *span = arena->rewound_span;
    if (!span || arena->rewound_count > ARENA_REWINDS)
        return 0;
    size_t bytes = span->span.bytes;
    memcpy(arena->rewound_first, arena->rewound, arena->rewound_count * sizeof *arena->rewound);
    arena->rewound = arena->rewound_first;
    arena->rewound_max = ARENA_REWINDS;
    arena->rewound_span = NULL;
    arena_span_give(arena, span);
    return bytes;
}

size_t quire_arena_trim(struct quire_arena *arena)
{
    size_t bytes = arena_list_give(arena, &arena->current->next) + arena_list_give(arena, &arena->large_spare) + rewound_trim(arena);
    arena->furthest = arena->current;
    return bytes;
}
