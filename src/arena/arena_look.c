// SPDX-License-Identifier: MIT
/*
 * arena_look.c - statistics, ownership and checks, all derived from cursors; never called while allocating.
 *
 * Locks: none.
 */
#include <string.h>

#include "arena/arena_internal.h"
#include "base/abi.h"
#include "base/align.h"
#include "base/layout.h"
#include "pages/pagemap.h"

/* One span's part of the sums; `used_end` NULL: it is kept, empty. */
static void sum_chain(const struct quire_arena *arena, const struct arena_span *span, const char *used_end, struct quire_arena_stats *sums)
{
    const char *data = arena_span_data(arena, span), *end = arena_span_end(span);
    sums->spans++;
    sums->meta_bytes += (size_t)(data - (char *)span->span.start);
    if (!used_end) {
        sums->free_bytes += (size_t)(end - data);
        return;
    }
    sums->live_bytes += (size_t)(used_end - data);
    *(span == arena->current ? &sums->free_bytes : &sums->lost_bytes) += (size_t)(end - used_end);
}

static void sum_all(const struct quire_arena *arena, struct quire_arena_stats *out)
{
    *out = (struct quire_arena_stats){
        .mapped_bytes = arena->mapped_bytes, .peak_bytes = arena->mapped_bytes_peak, .limit_bytes = arena->limit_bytes};
    bool past = false;
    for (const struct arena_span *s = arena->first; s; s = s->next) {
        sum_chain(arena, s, past ? NULL : s == arena->current ? arena->window.cursor : s->used_end, out);
        past = past || s == arena->current;
    }
    for (const struct arena_span *s = arena->large; s; s = s->next) {
        out->spans++;
        out->large_blocks++;
        out->meta_bytes += sizeof *s;
        out->live_bytes += s->used_before;
        out->lost_bytes += s->span.bytes - sizeof *s - s->used_before;
    }
    for (const struct arena_span *s = arena->large_spare; s; s = s->next) {
        out->spans++;
        out->meta_bytes += sizeof *s;
        out->free_bytes += s->span.bytes - sizeof *s;
    }
    if (arena->rewound_span) {
        out->spans++;
        out->meta_bytes += arena->rewound_span->span.bytes;
    }
}

void quire_arena_stats(const struct quire_arena *arena, struct quire_arena_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_arena_stats, large_blocks);
    struct quire_arena_stats own = {.struct_bytes = sizeof own};
    arena_verify(arena, "A1 asked: not a live arena");
    sum_all(arena, &own);
    abi_write(&layout, &own, out);
}

bool quire_arena_owns(const struct quire_arena *arena, const void *p)
{
    if (pagemap_find(p) != owner_make(arena, OWNER_ARENA))
        return false;
    const char *at = p;
    for (const struct arena_span *s = arena->first;; s = s->next) {
        const char *end = s == arena->current ? arena->window.cursor : s->used_end;
        if (at >= arena_span_data(arena, s) && at < end)
            return true;
        if (s == arena->current)
            break;
    }
    for (const struct arena_span *s = arena->large; s; s = s->next)
        if (at >= s->used_end - s->used_before && at < s->used_end)
            return true;
    return false;
}

static const char *check_list(const struct quire_arena *arena, const struct arena_span *list)
{
    owner_t owner = owner_make(arena, OWNER_ARENA);
    for (const struct arena_span *s = list; s; s = s->next)
        if (s->span.start != (const void *)s || pagemap_find(s) != owner || pagemap_find(arena_span_end(s) - 1) != owner)
            return "arena A1 the page map says whose the spans are";
    return NULL;
}

const char *quire_arena_check(const struct quire_arena *arena)
{
    if (pagemap_find(arena) != owner_make(arena, OWNER_ARENA))
        return "arena A1 not a live arena";
    const char *error = check_list(arena, arena->first);
    error = error ? error : check_list(arena, arena->large);
    error = error ? error : check_list(arena, arena->large_spare);
    if (error)
        return error;
    if (arena->window.cursor < arena_span_data(arena, arena->current) || arena->window.cursor > arena->span_end ||
        arena->window.end != (arena->watched ? arena->window.cursor : arena->span_end) || arena->span_end != arena_span_end(arena->current))
        return "arena A2 the cursor lies in the current span";
    if ((uintptr_t)arena->window.cursor % ARENA_ALIGN_BYTES != 0)
        return "arena A6 the cursor is a multiple of 16";
    if (arena->text > arena->text_end || (arena->text && !quire_arena_owns(arena, arena->text_end - 1)))
        return "arena A7 the next string's place lies in a block of this round";
    struct quire_arena_stats sums = {.struct_bytes = sizeof sums};
    sum_all(arena, &sums);
    if (sums.mapped_bytes != sums.live_bytes + sums.free_bytes + sums.lost_bytes + sums.meta_bytes ||
        sums.live_bytes != arena_chain_bytes(arena) + arena->large_bytes)
        return "arena A5 mapped == live + free + lost + meta";
    if (arena->limit_bytes != 0 && arena->mapped_bytes > arena->limit_bytes)
        return "arena A5 mapped is within the limit";
    return NULL;
}

static const LAYOUT struct layout_row layout[] = {
    LAYOUT_STRUCT(quire_arena), LAYOUT_FIELD(quire_arena, window.cursor), LAYOUT_FIELD(quire_arena, name),
    LAYOUT_FIELD(quire_arena, list_order), LAYOUT_FIELD(quire_arena, used_before), LAYOUT_FIELD(quire_arena, data),
    LAYOUT_FIELD(quire_arena, large_bytes), LAYOUT_FIELD(quire_arena, mapped_bytes),
};
