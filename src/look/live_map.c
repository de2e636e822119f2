// SPDX-License-Identifier: MIT
/*
 * live_map.c - which slots live, page for page, as JSON.
 *
 *     under the registries' locks:   slab_each()  percpu_each()  heap_each() --> rows, one behind the other, in memory of our own
 *     without any:                   rows --> {"schema": "quire.map/1", "process": 4711, "pages": [
 *                                       {"kind": "slab", "name": "nodes", "id": 2, "address": "0x7f..", "page_bytes": 65536, "slot_bytes": 64,
 *                                        "slots": 1020, "live": 3, "bits": "7000..."}, ...], "pages_left_out": 0}
 *
 * A digit of `bits` is four slots, the lowest bit the first of them; zeros at the end are left out.
 *
 * Memory: 64 MiB of addresses at most, of which only what is written to counts, 600 bytes for a page of 4096 slots; given back at once.  Pages for
 * which there is no room are counted.
 *
 * Locks: the slabs', the pools', the heaps', one after the other.  Not here: pictures (tools/quire/cmd_map.py).
 */
#include <string.h>

#include <quire/quire.h>

#include "heap/heap_internal.h"
#include "look/live.h"
#include "look/look.h"
#include "look/look_out.h"
#include "os/os.h"
#include "percpu/percpu_internal.h"
#include "slab/slab_internal.h"

#define ROWS_BYTES_MAX ((size_t)64 << 20)
#define ROWS_BYTES_MIN ((size_t)1 << 20)

struct map_row {
    const char *kind;
    const void *start;
    uint64_t id;
    char name[LOOK_NAME_BYTES];
    size_t bytes, slot_bytes, slots, words;
    uint64_t live[]; /* as many as are not 0 behind the last */
};

struct map {
    char *rows;
    size_t used_bytes, room_bytes, left_out;
    const char *kind; /* of the object that is looked at */
    struct look_object object;
};

static void add_row(const struct page_look *page, void *arg)
{
    struct map *map = arg;
    size_t words = (page->slots + WORD_BITS - 1) / WORD_BITS;
    while (words > 0 && page->live[words - 1] == 0)
        words--;
    size_t row_bytes = sizeof(struct map_row) + words * sizeof page->live[0];
    if (map->room_bytes - map->used_bytes < row_bytes) {
        map->left_out++;
        return;
    }
    struct map_row *row = (struct map_row *)(void *)(map->rows + map->used_bytes);
    *row = (struct map_row){
        .kind = map->kind, .start = page->start, .id = map->object.id, .bytes = page->bytes, .slot_bytes = page->slot_bytes, .slots = page->slots, .words = words};
    memcpy(row->name, map->object.name, LOOK_NAME_BYTES);
    memcpy(row->live, page->live, words * sizeof page->live[0]);
    map->used_bytes += row_bytes;
}

static void object_is(struct map *map, const char *kind, uint64_t id, const char *name)
{
    map->kind = kind;
    map->object.id = id;
    look_name_copy(&map->object, name);
}

#if WITH_SLAB
static bool look_slab(const struct quire_slab *slab, void *arg)
{
    object_is(arg, "slab", slab->birth, slab->name);
    slab_pages_look(slab, add_row, arg);
    return true;
}
#endif

#if WITH_PERCPU
static bool look_percpu(const struct quire_percpu *pool, void *arg)
{
    object_is(arg, "percpu", pool->birth, pool->name);
    percpu_pages_look(pool, add_row, arg);
    return true;
}
#endif

#if WITH_HEAP
static void look_heap(struct quire_heap *heap, void *arg)
{
    const char *name = heap_name(heap);
    object_is(arg, "heap", heap->serial, !name && heap == &heap_of_process ? "default" : name);
    heap_pages_look_locked(heap, add_row, arg);
}
#endif

/* ---- writing ---- */

/* The lowest four bits first. */
static void bits(struct out *out, const struct map_row *row)
{
    for (size_t w = 0; w < row->words; w++)
        for (uint64_t rest = row->live[w], digit = 0; w + 1 == row->words ? rest != 0 : digit < 16; digit++, rest >>= 4)
            out_char(out, "0123456789abcdef"[rest & 15]);
}

static void row_line(struct out *out, const struct map_row *row)
{
    size_t live = 0;
    for (size_t w = 0; w < row->words; w++)
        live += bits_count(row->live[w]);
    out_text(out, "{\"kind\": \"");
    out_text(out, row->kind);
    out_text(out, "\", \"name\": ");
    out_name_json(out, row->name);
    out_member(out, "id", row->id);
    out_text(out, ", \"address\": \"");
    out_hex(out, (uintptr_t)row->start);
    out_char(out, '"');
    out_member(out, "page_bytes", row->bytes);
    out_member(out, "slot_bytes", row->slot_bytes);
    out_member(out, "slots", row->slots);
    out_member(out, "live", live);
    out_text(out, ", \"bits\": \"");
    bits(out, row);
    out_text(out, "\"}");
}

static void document(struct out *out, const struct map *map)
{
    out_text(out, "{\"schema\": \"quire.map/1\", \"version\": \"");
    out_text(out, quire_version());
    out_char(out, '"');
    out_member(out, "process", os_process_id());
    out_text(out, ",\n\"pages\": [");
    for (size_t at = 0; at < map->used_bytes;) {
        const struct map_row *row = (const struct map_row *)(const void *)(map->rows + at);
        out_text(out, at ? ",\n  " : "\n  ");
        row_line(out, row);
        at += sizeof *row + row->words * sizeof row->live[0];
    }
    out_char(out, ']');
    out_member(out, "pages_left_out", map->left_out);
    out_text(out, "}\n");
}

void live_map(struct out *out, const void *unused)
{
    struct map map = {.room_bytes = ROWS_BYTES_MAX};
    void *rows = NULL;
    (void)unused;
    while (os_map(map.room_bytes, os_page_bytes(), &rows) != 0 && map.room_bytes > ROWS_BYTES_MIN)
        map.room_bytes /= 2;
    map.rows = rows;
    map.room_bytes = rows ? map.room_bytes : 0;
#if WITH_SLAB
    slab_each(look_slab, &map);
#endif
#if WITH_PERCPU
    percpu_each(look_percpu, &map);
#endif
#if WITH_HEAP
    heap_each(look_heap, &map);
#endif
    document(out, &map);
    if (rows)
        os_unmap(rows, map.room_bytes);
}
