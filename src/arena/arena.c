// SPDX-License-Identifier: MIT
/*
 * arena.c - a cursor that moves through a growing chain of spans.
 *
 *     first span                               next span, twice as large, up to 4 MiB
 *     +--------+-------+-----------+-----+     +--------+---------------------+---------+
 *     | header | arena | blocks    |lost | --> | header | blocks              |  free   |      large: one block a span,
 *     +--------+-------+-----------+-----+     +--------+---------------------+---------+      a list beside the chain
 *                                                                      cursor ^     end ^
 *
 * The life of an allocation: (1) round up to 16; (2) fits before `end`: move the cursor, done; (3) else the next span of the chain, kept by an
 * earlier round or new; (4) or, when it is larger than that span or the rest of this one is worth keeping, a span of its own.  Nothing is
 * written for a block but the cursor; all sums are derived from cursors (arena_look.c).
 *
 * When a sanitizer watches, `end` is kept equal to the cursor: every allocation takes the slow path, which sets red zones.
 *
 * Invariants, checked by quire_arena_check():
 *   A1  the page map says that the arena's pages are the arena's
 *   A2  data <= cursor <= span_end in the current span, and `end` is span_end (or the cursor, when watched)
 *   A3  a mark is used with the arena it came from
 *   A4  a mark is not rewound past
 *   A5  mapped == live + free + lost + meta, and no more than the limit
 *   A6  the cursor is a multiple of 16
 *   A7  is about strings (arena_text.c)
 *
 * Locks: none: one thread at a time.  Named ones take the list's at their birth and end, where it is kept (arena_list.c).
 * Not here: where spans come from and how large they are (arena_span.c), strings (arena_text.c), looking (arena_look.c), going back (arena_back.c).
 */
#define QUIRE_ARENA_INLINE 0 /* here is the function itself */
#include <errno.h>
#include <string.h>

#include "arena/arena_internal.h"
#include "base/abi.h"
#include "base/align.h"
#include "base/atomic.h"
#include "base/compiler.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"
#include "pages/source_internal.h"

STATIC_ASSERT(offsetof(struct quire_arena, window) == 0, "the window that is compiled into callers is the arena's beginning");
STATIC_ASSERT(sizeof(struct arena_span) % ARENA_ALIGN_BYTES == 0, "blocks behind a header are 16-byte aligned");

/* Births count up from a number of the thread's own in the high half: no two arenas have the same, and no two threads meet. */
static _Thread_local uint64_t births __attribute__((tls_model("initial-exec")));
static atomic_u64 births_threads;

static uint64_t arena_birth(void)
{
    if (unlikely((uint32_t)births == 0))
        births = (u64_add_relaxed(&births_threads, 1) + 1) << 32;
    return ++births;
}

void arena_verify(const struct quire_arena *arena, const char *what)
{
    if (unlikely((uintptr_t)arena % ARENA_ALIGN_BYTES != 0 || pagemap_find(arena) != owner_make(arena, OWNER_ARENA)))
        panic("arena", NULL, what, arena);
}

/* Make `span` the current one, with the cursor at `cursor`, and open its window. */
void arena_enter(struct quire_arena *arena, struct arena_span *span, char *cursor)
{
    arena->current = span;
    arena->window.cursor = cursor;
    arena->span_end = arena_span_end(span);
    arena->window.end = arena->watched ? cursor : arena->span_end;
    arena->zero_from = span->zero_from;
    arena->data = arena_span_data(arena, span);
    arena->used_before = span->used_before;
}

static const struct abi_layout opts_layout = ABI_LAYOUT(quire_arena_opts, flags);

/* The caller's options as this library knows them; 0 or a negative errno. */
static int opts_read(const struct quire_arena_opts *from, struct quire_arena_opts *opts)
{
    int error = abi_read(&opts_layout, opts, from);
    if (error == 0)
        error = opts->flags ? -EINVAL : source_verify(opts->source);
    return error;
}

struct quire_arena *quire_arena_create(const struct quire_arena_opts *from)
{
    struct quire_arena_opts opts;
    struct quire_span span;
    int error = opts_read(from, &opts);
    if (error) {
        errno = -error;
        return NULL;
    }
    struct quire_source *source = opts.source ? opts.source : quire_source_default();
    size_t hint_bytes = opts.size_hint_bytes;
    size_t most_bytes = align_down(opts.limit_bytes, os_page_bytes());
    if (opts.limit_bytes != 0 && hint_bytes > most_bytes)
        hint_bytes = most_bytes;
    if (!arena_first_span(source, hint_bytes, opts.limit_bytes, &span)) {
        errno = ENOMEM;
        return NULL;
    }
    struct arena_span *first = span.start;
    struct quire_arena *arena = (struct quire_arena *)(first + 1);
    if (pagemap_set(span.start, span.bytes, owner_make(arena, OWNER_ARENA)) != 0) {
        source->verbs->give(source, &span);
        errno = ENOMEM;
        return NULL;
    }
    *first = (struct arena_span){.span = span};
    *arena = (struct quire_arena){.first = first, .furthest = first, .source = source, .limit_bytes = opts.limit_bytes};
    arena->birth = arena_birth();
    arena->rewound = arena->rewound_first;
    arena->rewound_max = ARENA_REWINDS;
    arena->watched = sanitize_watched();
    arena->mapped_bytes = arena->mapped_bytes_peak = span.bytes;
    arena->span_bytes_max = span.bytes > ARENA_SPAN_BYTES_MAX ? span.bytes : ARENA_SPAN_BYTES_MAX;
    arena->next_bytes = span.bytes < arena->span_bytes_max ? 2 * span.bytes : span.bytes;
    if (opts.name)
        strncpy(arena->name, opts.name, ARENA_NAME_BYTES - 1);
    char *data = arena_span_data(arena, first);
    first->zero_from = span.flags & QUIRE_SPAN_ZERO ? data : arena_span_end(first);
    arena_enter(arena, first, data);
    if (unlikely(arena->watched)) {
        sanitize_no_access(data - REDZONE_BYTES, (size_t)(arena->span_end - data) + REDZONE_BYTES);
        sanitize_root(span.start, span.bytes, true);
    }
    arena_list_enter(arena);
    return arena;
}

void quire_arena_destroy(struct quire_arena *arena)
{
    if (!arena)
        return;
    int kept = errno;
    arena_verify(arena, "A1 destroyed: not a live arena");
    arena_list_leave(arena);
    quire_arena_reset(arena);
    (void)quire_arena_trim(arena);
    if (arena->rewound_span)
        arena_span_give(arena, arena->rewound_span);
    arena->window = (struct quire_arena_window){NULL, NULL}; /* whoever allocates from it now goes the long way, and is stopped there */
    /* The arena lies in its first span: what giving needs is copied out first. */
    struct quire_source *source = arena->source;
    struct quire_span span = arena->first->span;
    pagemap_clear(span.start, span.bytes);
    sanitize_undefined(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    source->verbs->give(source, &span);
    errno = kept;
}

/* A block in the current span, or NULL.  `need` is rounded, red zone included; `bytes` is what the caller may touch. */
static void *arena_carve(struct quire_arena *arena, size_t bytes, size_t need, size_t align_bytes)
{
    char *p = arena->window.cursor + (align_up((uintptr_t)arena->window.cursor, align_bytes) - (uintptr_t)arena->window.cursor);
    if (p > arena->span_end || need > (size_t)(arena->span_end - p))
        return NULL;
    arena->window.cursor = p + need;
    if (unlikely(arena->watched)) {
        arena->window.end = arena->window.cursor;
        sanitize_undefined(p, bytes);
    }
    return p;
}

/* A block in a span of its own: one that a reset kept, or a new one. */
static void *arena_carve_large(struct quire_arena *arena, size_t bytes, size_t need, size_t align_bytes)
{
    struct arena_span *span = arena_large_new(arena, need + align_bytes - ARENA_ALIGN_BYTES);
    if (!span)
        return NULL;
    char *data = (char *)span + arena_header_bytes(arena), *p = data + (align_up((uintptr_t)data, align_bytes) - (uintptr_t)data);
    span->used_end = p + need;
    span->used_before = need;
    span->next = arena->large;
    arena->large = span;
    arena->large_bytes += need;
    arena->large_count++;
    arena->tail_refused = arena->window.cursor;
    sanitize_undefined(p, bytes);
    return p;
}

/* The next span of the chain becomes the current one; what is left of this one is lost. */
static bool arena_advance(struct quire_arena *arena, size_t room)
{
    struct arena_span *from = arena->current, *to = from->next ? from->next : arena_chain_grow(arena, room);
    if (!to)
        return false;
    from->used_end = arena->window.cursor;
    from->zero_from = arena->zero_from > arena->window.cursor ? arena->zero_from : arena->window.cursor;
    to->used_before = arena_chain_bytes(arena);
    if (from == arena->furthest)
        arena->furthest = to;
    arena_enter(arena, to, arena_span_data(arena, to));
    return true;
}

static NOINLINE void *arena_alloc_slow(struct quire_arena *arena, size_t bytes, size_t align_bytes)
{
    size_t need, room;
    arena_verify(arena, "A1 used: not a live arena");
    if (align_bytes < ARENA_ALIGN_BYTES)
        align_bytes = ARENA_ALIGN_BYTES;
    if (bytes > PTRDIFF_MAX || !add_checked(align_up(bytes ? bytes : 1, ARENA_ALIGN_BYTES), arena->watched ? REDZONE_BYTES : 0, &need) ||
        !add_checked(need, align_bytes - ARENA_ALIGN_BYTES, &room) || room > PTRDIFF_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = arena_carve(arena, bytes, need, align_bytes);
    if (p)
        return p;
    size_t next_bytes = arena->current->next ? arena->current->next->span.bytes : arena->next_bytes;
    size_t tail = (size_t)(arena->span_end - arena->window.cursor);
    enum arena_place place = arena_choose(room, next_bytes - arena_header_bytes(arena), tail, arena->window.cursor != arena->tail_refused);
    if (place == ARENA_PLACE_CHAIN && arena_advance(arena, room))
        p = arena_carve(arena, bytes, need, align_bytes);
    if (!p)
        p = arena_carve_large(arena, bytes, need, align_bytes);
    if (!p)
        errno = ENOMEM;
    return p;
}

static ALWAYS_INLINE void *arena_alloc_fast(struct quire_arena *arena, size_t bytes)
{
    char *p = arena->window.cursor;
    size_t need = align_up(bytes, ARENA_ALIGN_BYTES);
    /* One comparison also sends 0 bytes, and sizes that wrapped to 0, to the slow path. */
    if (unlikely(need - 1 >= (size_t)(arena->window.end - p)))
        return arena_alloc_slow(arena, bytes, ARENA_ALIGN_BYTES);
    arena->window.cursor = p + need;
    return p;
}

void *quire_arena_alloc(struct quire_arena *arena, size_t bytes)
{
    return arena_alloc_fast(arena, bytes);
}

void *quire_arena_alloc_aligned(struct quire_arena *arena, size_t bytes, size_t align_bytes)
{
    if (unlikely(!is_pow2(align_bytes))) {
        errno = EINVAL;
        return NULL;
    }
    if (align_bytes <= ARENA_ALIGN_BYTES)
        return quire_arena_alloc(arena, bytes);
    return arena_alloc_slow(arena, bytes, align_bytes);
}

/* Clear a block of `bytes` rounded up to 16: few stores for the small ones, which are most. */
static ALWAYS_INLINE void clear_block(char *p, size_t bytes)
{
    typedef char v16 __attribute__((vector_size(16), may_alias));
    size_t rounded = align_up(bytes, ARENA_ALIGN_BYTES);
    if (rounded > 64) {
        memset(p, 0, bytes);
        return;
    }
    *(v16 *)(void *)p = (v16){0};
    *(v16 *)(void *)(p + rounded - 16) = (v16){0};
    if (rounded > 32) {
        *(v16 *)(void *)(p + 16) = (v16){0};
        *(v16 *)(void *)(p + rounded - 32) = (v16){0};
    }
}

/* From where on the memory of a block just handed out is still zero as the system gave it. */
static ALWAYS_INLINE char *block_zero_from(const struct quire_arena *arena, const char *p)
{
    if (likely((size_t)(p - (char *)arena->current) < arena->current->span.bytes))
        return arena->zero_from;
    return arena->large->zero_from;
}

void *quire_arena_alloc_zero(struct quire_arena *arena, size_t count, size_t bytes)
{
    size_t total;
    if (unlikely(!mul_checked(count, bytes, &total))) {
        errno = ENOMEM;
        return NULL;
    }
    char *p = arena_alloc_fast(arena, total);
    if (unlikely(!p || total == 0))
        return p;
    char *zero_from = block_zero_from(arena, p);
    if (unlikely(arena->watched))
        memset(p, 0, total); /* the red zones count on 16-byte stores not reaching beyond the block */
    else if (likely(zero_from >= p + total))
        clear_block(p, total);
    else if (zero_from > p)
        memset(p, 0, (size_t)(zero_from - p));
    return p;
}

void *quire_arena_memdup(struct quire_arena *arena, const void *from, size_t bytes)
{
    if (unlikely(!from && bytes != 0)) {
        errno = EINVAL;
        return NULL;
    }
    void *p = arena_alloc_fast(arena, bytes);
    if (likely(p && bytes))
        memcpy(p, from, bytes);
    return p;
}

/* Grow or shrink the block that ends at the cursor, where it is.  False: it is not that block, or there is no room. */
static bool arena_resize_last(struct quire_arena *arena, char *old, size_t old_bytes, size_t new_bytes)
{
    size_t redzone = arena->watched ? REDZONE_BYTES : 0;
    size_t had = align_up(old_bytes ? old_bytes : 1, ARENA_ALIGN_BYTES) + redzone;
    size_t need = align_up(new_bytes ? new_bytes : 1, ARENA_ALIGN_BYTES) + redzone;
    if (old + had == arena->text_end) /* a string: others may come to lie behind it */
        return false;
    if (old + had != arena->window.cursor || (size_t)(old - (char *)arena->current) >= arena->current->span.bytes ||
        need > (size_t)(arena->span_end - old))
        return false;
    if ((need != had || new_bytes > old_bytes) && arena_chain_bytes_at(arena, old) < arena->marked_bytes)
        return false;
    if (arena->zero_from < arena->window.cursor && need < had)
        arena->zero_from = arena->window.cursor;
    arena->window.cursor = old + need;
    if (unlikely(arena->watched)) {
        arena->window.end = arena->window.cursor;
        if (new_bytes > old_bytes)
            sanitize_undefined(old + old_bytes, new_bytes - old_bytes);
        else
            sanitize_no_access(old + new_bytes, had - new_bytes);
    }
    return true;
}

/* The same for the newest large block, which has its span to itself. */
static bool arena_resize_large(struct quire_arena *arena, char *old, size_t old_bytes, size_t new_bytes)
{
    struct arena_span *span = arena->large;
    size_t redzone = arena->watched ? REDZONE_BYTES : 0;
    size_t need = align_up(new_bytes ? new_bytes : 1, ARENA_ALIGN_BYTES) + redzone;
    if (!span || arena_newest_large(arena) != old || need > (size_t)(arena_span_end(span) - old))
        return false;
    if ((need != span->used_before || new_bytes > old_bytes) && span == arena->marked_large)
        return false;
    if (span->zero_from < span->used_end)
        span->zero_from = span->used_end;
    arena->large_bytes += need - span->used_before;
    span->used_end = old + need;
    span->used_before = need;
    if (new_bytes > old_bytes)
        sanitize_undefined(old + old_bytes, new_bytes - old_bytes);
    else
        sanitize_no_access(old + new_bytes, (size_t)(arena_span_end(span) - old) - new_bytes);
    return true;
}

void *quire_arena_resize(struct quire_arena *arena, void *old, size_t old_bytes, size_t new_bytes)
{
    if (!old)
        return quire_arena_alloc(arena, new_bytes);
    if (unlikely(new_bytes > PTRDIFF_MAX)) {
        errno = ENOMEM;
        return NULL;
    }
    if (arena_text_resize(arena, old, old_bytes, new_bytes) || arena_resize_last(arena, old, old_bytes, new_bytes) || arena_resize_large(arena, old, old_bytes, new_bytes))
        return old;
    if (new_bytes <= old_bytes) {
        sanitize_no_access((char *)old + new_bytes, old_bytes - new_bytes);
        return old;
    }
    void *p = quire_arena_alloc(arena, new_bytes);
    if (p)
        memcpy(p, old, old_bytes);
    return p;
}

int quire_arena_defer(struct quire_arena *arena, void (*fn)(void *), void *arg)
{
    if (!fn) {
        errno = EINVAL;
        return -1;
    }
    struct arena_defer *defer = quire_arena_alloc(arena, sizeof *defer);
    if (!defer)
        return -1;
    *defer = (struct arena_defer){arena->defers, fn, arg};
    arena->defers = defer;
    return 0;
}
