// SPDX-License-Identifier: MIT
/*
 * arena_span.c - how large the arena's spans are, where they come from, and giving them back.
 *
 *     chain:   hint, 2 x, 4 x, ... up to 4 MiB (or the hint, when it is larger)
 *     large:   as large as its one block, whole pages; whole huge pages from four on
 *
 * When memory is short (the limit, or the source says no) the next span is only as large as the request, and spans kept by a reset go back first.
 *
 * Locks: none.
 */
#include "arena/arena_internal.h"
#include "base/align.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "pages/pagemap.h"

enum { HUGE_PAGES_LEAST = 4 };
/* The default source keeps spans of powers of two up to this warm for each CPU. */
static const size_t warm_bytes_max = (size_t)512 << 10;

enum arena_place arena_choose(size_t need, size_t next_room, size_t tail, bool tail_used)
{
    if (need > next_room)
        return ARENA_PLACE_LARGE;
    /* A request that fills much of the next span does not cost this one half of its room, unless nobody has used that room since the last time. */
    if (tail_used && need > next_room / 4 && tail > next_room / 4)
        return ARENA_PLACE_LARGE;
    return ARENA_PLACE_CHAIN;
}

bool arena_first_span(struct quire_source *source, size_t bytes, size_t limit_bytes, struct quire_span *out)
{
    size_t page_bytes = os_page_bytes(), rounded;
    if (bytes < page_bytes)
        bytes = page_bytes;
    if (!align_up_checked(bytes, page_bytes, &rounded))
        return false;
    if (limit_bytes != 0 && rounded > limit_bytes)
        return false;
    size_t warm_bytes = rounded <= warm_bytes_max ? (size_t)1 << log2_ceil(rounded) : rounded;
    bool rounds = warm_bytes != rounded && (limit_bytes == 0 || warm_bytes <= limit_bytes);
    if (rounds && source->verbs->take(source, warm_bytes, page_bytes, out) == 0)
        return true;
    return source->verbs->take(source, rounded, page_bytes, out) == 0;
}

/* A span of `bytes`, or when that cannot be had of `least`, within the limit; the page map told.  NULL: none. */
struct arena_span *arena_span_take(struct quire_arena *arena, size_t bytes, size_t least)
{
    size_t page_bytes = os_page_bytes();
    size_t budget = arena->limit_bytes == 0 ? SIZE_MAX : align_down(arena->limit_bytes - arena->mapped_bytes, page_bytes);
    if (bytes > budget)
        bytes = budget;
    if (bytes < least)
        return NULL;
    struct quire_span span;
    if (arena->source->verbs->take(arena->source, bytes, page_bytes, &span) != 0 &&
        (bytes == least || arena->source->verbs->take(arena->source, least, page_bytes, &span) != 0))
        return NULL;
    if (pagemap_set(span.start, span.bytes, owner_make(arena, OWNER_ARENA)) != 0) {
        arena->source->verbs->give(arena->source, &span);
        return NULL;
    }
    struct arena_span *header = span.start;
    *header = (struct arena_span){.span = span};
    header->zero_from = span.flags & QUIRE_SPAN_ZERO ? (char *)(header + 1) : arena_span_end(header);
    sanitize_no_access(header + 1, span.bytes - sizeof *header);
    sanitize_root(span.start, span.bytes, true);
    arena->mapped_bytes += span.bytes;
    if (arena->mapped_bytes > arena->mapped_bytes_peak)
        arena->mapped_bytes_peak = arena->mapped_bytes;
    return header;
}

/* The same, once more after what a reset kept has gone back. */
struct arena_span *arena_span_take_hard(struct quire_arena *arena, size_t bytes, size_t least)
{
    struct arena_span *span = arena_span_take(arena, bytes, least);
    if (!span && (arena->current->next || arena->large_spare) && quire_arena_trim(arena) > 0)
        span = arena_span_take(arena, bytes, least);
    return span;
}

struct arena_span *arena_chain_grow(struct quire_arena *arena, size_t room)
{
    size_t least = align_up(room + arena_header_bytes(arena), os_page_bytes());
    struct arena_span *span = arena_span_take_hard(arena, arena->next_bytes, least);
    if (!span)
        return NULL;
    arena->current->next = span;
    arena->next_bytes = arena->next_bytes < arena->span_bytes_max / 2 ? 2 * arena->next_bytes : arena->span_bytes_max;
    return span;
}

/* One that a reset kept, if its size is not far from what is needed. */
static struct arena_span *large_kept(struct quire_arena *arena, size_t bytes)
{
    for (struct arena_span **link = &arena->large_spare; *link; link = &(*link)->next) {
        struct arena_span *span = *link;
        if (span->span.bytes >= bytes && span->span.bytes / 2 <= bytes) {
            *link = span->next;
            if (span->zero_from < span->used_end)
                span->zero_from = span->used_end;
            return span;
        }
    }
    return NULL;
}

struct arena_span *arena_large_new(struct quire_arena *arena, size_t room)
{
    size_t least, bytes, huge_bytes = os_huge_bytes();
    if (!add_checked(room, arena_header_bytes(arena), &least) || !align_up_checked(least, os_page_bytes(), &least))
        return NULL;
    bytes = huge_bytes && least >= HUGE_PAGES_LEAST * huge_bytes ? align_up(least, huge_bytes) : least;
    struct arena_span *span = large_kept(arena, least);
    return span ? span : arena_span_take_hard(arena, bytes, least);
}

void arena_span_give(struct quire_arena *arena, struct arena_span *header)
{
    struct quire_span span = header->span;
    arena->mapped_bytes -= span.bytes;
    pagemap_clear(span.start, span.bytes);
    sanitize_undefined(span.start, span.bytes);
    sanitize_root(span.start, span.bytes, false);
    arena->source->verbs->give(arena->source, &span);
}

size_t arena_list_give(struct quire_arena *arena, struct arena_span **list)
{
    size_t bytes = 0;
    struct arena_span *span = *list;
    *list = NULL;
    while (span) {
        struct arena_span *next = span->next;
        bytes += span->span.bytes;
        arena_span_give(arena, span);
        span = next;
    }
    return bytes;
}
