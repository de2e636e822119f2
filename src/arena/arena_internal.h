// SPDX-License-Identifier: MIT
/*
 * arena_internal.h - the arena's own structs and what its files know of each other; nobody else includes it.
 */
#ifndef QUIRE_ARENA_ARENA_INTERNAL_H
#define QUIRE_ARENA_ARENA_INTERNAL_H

#include <quire/arena.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ARENA_ALIGN_BYTES = 16, ARENA_NAME_BYTES = 32, ARENA_REWINDS = 4 };
/* Growth by doubling ends here: two huge pages, the smallest span that the default source backs with them. */
#define ARENA_SPAN_BYTES_MAX ((size_t)4 << 20)

/* The header of every span, at its start. */
struct __attribute__((aligned(ARENA_ALIGN_BYTES))) arena_span {
    struct arena_span *next; /* chain: the next one in order of use; large: the one before */
    struct quire_span span;
    char *used_end;     /* chain: the cursor when it was left; large: the end of its block */
    char *zero_from;    /* from here on every byte is still zero */
    size_t used_before; /* chain: bytes handed out in the chain before this span; large: bytes of its block */
};

struct arena_defer {
    struct arena_defer *next;
    void (*fn)(void *);
    void *arg;
};

/* A rewind that makes marks stale: those of an older epoch that had more in use than it left. */
struct arena_rewound {
    uint64_t epoch;
    size_t used_bytes;
};

struct quire_arena {
    /* the fast path, first because it is compiled into callers: `end` is the end of the current span, or `cursor` itself when somebody watches
     * (os/sanitize.h) */
    struct quire_arena_window window;
    /* the slow path */
    struct arena_span *current, *first, *furthest; /* furthest: of the chain, in this round */
    struct arena_span *large, *large_spare;
    struct arena_defer *defers;
    char *span_end, *zero_from, *tail_refused; /* of the current span; where the cursor was when a large span last spared it */
    size_t next_bytes, large_bytes, mapped_bytes, mapped_bytes_peak;
    uint64_t epoch;
    struct arena_rewound rewound[ARENA_REWINDS];
    uint32_t rewound_count;
    /* fixed at birth */
    uint32_t watched;
    size_t span_bytes_max, limit_bytes;
    struct quire_source *source;
    char name[ARENA_NAME_BYTES];
};

static inline char *arena_span_data(const struct quire_arena *arena, const struct arena_span *span)
{
    size_t header = sizeof(struct arena_span) + (span == arena->first ? sizeof(struct quire_arena) : 0);
    return (char *)span->span.start + ((header + ARENA_ALIGN_BYTES - 1) & ~(size_t)(ARENA_ALIGN_BYTES - 1));
}

static inline char *arena_span_end(const struct arena_span *span)
{
    return (char *)span->span.start + span->span.bytes;
}

/* What is handed out, without the large blocks. */
static inline size_t arena_chain_bytes(const struct quire_arena *arena)
{
    return arena->current->used_before + (size_t)(arena->window.cursor - arena_span_data(arena, arena->current));
}

/* arena_span.c */
enum arena_place { ARENA_PLACE_CHAIN, ARENA_PLACE_LARGE };
/* Pure: does a request of `need` go into the next span of the chain, or into a span of its own so that the tail stays in use? */
enum arena_place arena_choose(size_t need, size_t next_room, size_t tail, bool tail_used);
bool arena_first_span(struct quire_source *source, size_t bytes, struct quire_span *out);
struct arena_span *arena_chain_grow(struct quire_arena *arena, size_t room);
struct arena_span *arena_large_new(struct quire_arena *arena, size_t room);
void arena_span_give(struct quire_arena *arena, struct arena_span *span);
size_t arena_list_give(struct quire_arena *arena, struct arena_span **list);

/* arena.c */
void arena_verify(const struct quire_arena *arena, const char *what);
void arena_enter(struct quire_arena *arena, struct arena_span *span, char *cursor);

#ifdef __cplusplus
}
#endif
#endif
