// SPDX-License-Identifier: MIT
/*
 * arena_internal.h - the arena's own structs and what its files know of each other; nobody else includes it.
 */
#ifndef QUIRE_ARENA_ARENA_INTERNAL_H
#define QUIRE_ARENA_ARENA_INTERNAL_H

#include <quire/arena.h>

#include "base/compiler.h"
#include "os/sanitize.h"

C_DECLARATIONS_BEGIN

enum { ARENA_ALIGN_BYTES = 16, ARENA_NAME_BYTES = 32, ARENA_REWINDS = 4 };
/* Growth by doubling ends here: two huge pages; the default source backs spans of whole huge pages with them. */
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

/* A rewind that made marks stale: those of an older epoch that stood further than it went back to. */
struct arena_rewound {
    uint64_t epoch, position;
};

struct quire_arena {
    /* the fast path, first because it is compiled into callers: `end` is the end of the current span, or `cursor` itself when somebody watches
     * (os/sanitize.h) */
    struct quire_arena_window window;
    char *text, *text_end; /* where the next string goes, if it fits (arena_text.c); NULL: nowhere */
    /* the slow path */
    struct arena_span *current, *first, *furthest; /* furthest: of the chain, in this round */
    struct arena_span *large, *large_spare;
    struct arena_defer *defers;
    char *span_end, *zero_from, *tail_refused; /* of the current span; where the cursor was when a large span last spared it */
    size_t next_bytes, large_bytes, mapped_bytes, mapped_bytes_peak;
    uint64_t large_count;
    /* going back (arena_back.c) */
    size_t marked_bytes;           /* of the chain, at the newest mark: blocks below are older than it */
    struct arena_span *marked_large; /* and the newest large block then */
    uint64_t marked_position;      /* see arena_back.c */
    uint64_t epoch;
    struct arena_rewound *rewound; /* the first few in place, then in a span */
    struct arena_span *rewound_span;
    uint32_t rewound_count, rewound_max;
    struct arena_rewound rewound_first[ARENA_REWINDS];
    /* fixed at birth */
    uint64_t birth; /* no two arenas of a process have the same */
    uint32_t watched;
    size_t span_bytes_max, limit_bytes;
    struct quire_source *source;
    char name[ARENA_NAME_BYTES];
    /* for arena_list.c: of the current span, so that others need not look into it; and where the arena stands on the list */
    char *data;
    size_t used_before;
    struct quire_arena *list_next, *list_prev;
    uint64_t list_order; /* which named arena of the process it is, from 1; 0: on no list */
};

/* What is before the first block of a span: its header, and when somebody watches a red zone. */
static inline size_t arena_header_bytes(const struct quire_arena *arena)
{
    return sizeof(struct arena_span) + (arena->watched ? REDZONE_BYTES : 0);
}

static inline char *arena_span_data(const struct quire_arena *arena, const struct arena_span *span)
{
    size_t header_bytes = arena_header_bytes(arena) + (span == arena->first ? sizeof(struct quire_arena) : 0);
    return (char *)span->span.start + ((header_bytes + ARENA_ALIGN_BYTES - 1) & ~(size_t)(ARENA_ALIGN_BYTES - 1));
}

static inline char *arena_span_end(const struct arena_span *span)
{
    return (char *)span->span.start + span->span.bytes;
}

/* Where the newest block with a span of its own begins; NULL: there is none. */
static inline char *arena_newest_large(const struct quire_arena *arena)
{
    return arena->large ? arena->large->used_end - arena->large->used_before : NULL;
}

/* What the chain had handed out before the block that begins at `p` in the current span. */
static inline size_t arena_chain_bytes_at(const struct quire_arena *arena, const char *p)
{
    return arena->current->used_before + (size_t)(p - arena_span_data(arena, arena->current));
}

/* What is handed out, without the large blocks. */
static inline size_t arena_chain_bytes(const struct quire_arena *arena)
{
    return arena_chain_bytes_at(arena, arena->window.cursor);
}

/* Rises with every block, falls only when the arena goes back: a resize never passes the newest mark. */
static inline uint64_t arena_position(const struct quire_arena *arena)
{
    return 1 + arena_chain_bytes(arena) + arena->large_count * ARENA_ALIGN_BYTES;
}

/* The next string lies behind all that is there now. */
static inline void arena_text_close(struct quire_arena *arena)
{
    arena->text = arena->text_end = NULL;
}

/* arena_text.c: grow or shrink the last string where it is.  False: it is not that, or there is no room. */
bool arena_text_resize(struct quire_arena *arena, char *old, size_t old_bytes, size_t new_bytes);

/* arena_span.c */
enum arena_place { ARENA_PLACE_CHAIN, ARENA_PLACE_LARGE };
/* Pure: does a request of `need` go into the next span of the chain, or into a span of its own so that the tail stays in use? */
enum arena_place arena_choose(size_t need, size_t next_room, size_t tail, bool tail_used);
bool arena_first_span(struct quire_source *source, size_t bytes, size_t limit_bytes, struct quire_span *out);
struct arena_span *arena_chain_grow(struct quire_arena *arena, size_t room);
struct arena_span *arena_large_new(struct quire_arena *arena, size_t room);
struct arena_span *arena_span_take(struct quire_arena *arena, size_t bytes, size_t least);
struct arena_span *arena_span_take_hard(struct quire_arena *arena, size_t bytes, size_t least); /* what lies idle makes way */
void arena_span_give(struct quire_arena *arena, struct arena_span *span);
size_t arena_list_give(struct quire_arena *arena, struct arena_span **list);

/* arena_back.c */
bool arena_mark_is_stale(const struct quire_arena *arena, const struct quire_arena_mark *mark);

/* arena_list.c: named arenas, where somebody wants to see them */
struct arena_glance {
    uint64_t order;
    char name[ARENA_NAME_BYTES];
    struct arena_figures {
        size_t mapped_bytes, live_bytes, rest_bytes, peak_bytes, limit_bytes, large_blocks;
    } figures;
};
void arena_list_begin(void); /* from now on; those that are there already are left out */
bool arena_list_is_on(void);
void arena_list_enter(struct quire_arena *arena); /* if it has a name, and lists are kept */
void arena_list_leave(struct quire_arena *arena);
/* fn for each, the youngest first, until it returns false; it must not call an arena. */
void arena_list_each(bool (*fn)(const struct arena_glance *glance, void *arg), void *arg);

/* arena.c */
void arena_verify(const struct quire_arena *arena, const char *what);
void arena_enter(struct quire_arena *arena, struct arena_span *span, char *cursor);

C_DECLARATIONS_END
#endif
