// SPDX-License-Identifier: MIT
/*
 * area_map.c - the area-map allocator, after what was published about it: how per-CPU memory was handed out before bitmaps.
 *
 *   a chunk's unit, 32 KiB        |  live  |free|live|      free      |
 *   its areas, signed sizes        -64       16  -8    32696               < 0: live
 *
 *   slots: chunks by the width of their free bytes     [0: full] [3] [4] ... [16: empty] --> chunk <-> chunk
 *
 * Allocating takes the first area that fits, in the first chunk that may have one: chunks from the slot of the wanted size upwards, those whose
 * longest free area is known to be too short are passed over.  The rest of the area, before and behind, becomes areas of its own: the array shifts.
 * Freeing looks for the object's area from the array's start, and joins it with free neighbours: the array shifts.
 *
 * What that costs is the point.  A free reads half the array, thousands of areas where objects are small.  The longest free area says nothing of
 * alignment: a chunk of which only misplaced holes are left is read from end to end by each allocation, and so is each other such chunk.
 *
 * Invariants: A1  the sizes of a chunk's areas add up to the unit, without signs; the free ones to free_bytes.
 *             A2  no two neighbours are free.
 *             A3  no area is free before first_idx, which begins at first_offset_bytes.
 *             A4  longest_bytes is not below the longest free area's.
 *
 * Locks: none.  Written from descriptions in words; no line is anybody else's.
 * Not here: giving empty chunks back, growing a pool in the background.
 */
#include "area_map.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { UNIT_BYTES = 32 << 10, SLOTS = 17, AREAS_FIRST = 16, AREAS_SPLIT = 2, WORD_BYTES = 4 };

struct chunk {
    int32_t *areas;
    size_t count, capacity;
    size_t first_idx, first_offset_bytes;
    size_t free_bytes, longest_bytes;
    struct chunk *next, *before; /* in its slot */
    unsigned slot;
};

struct area_map {
    char *memory;
    size_t chunks_max, chunk_count;
    unsigned cpus;
    struct slot {
        struct chunk *first, *last;
    } slots[SLOTS];
    struct chunk chunks[];
};

static size_t memory_bytes(const struct area_map *map)
{
    return map->chunks_max * map->cpus * UNIT_BYTES;
}

/* 0: full; else the number of binary digits. */
static unsigned slot_of(size_t free_bytes)
{
    return free_bytes < WORD_BYTES ? 0 : 32u - (unsigned)__builtin_clz((unsigned)free_bytes);
}

static void slot_leave(struct area_map *map, struct chunk *chunk)
{
    struct slot *slot = &map->slots[chunk->slot];
    *(chunk->before ? &chunk->before->next : &slot->first) = chunk->next;
    *(chunk->next ? &chunk->next->before : &slot->last) = chunk->before;
}

static void slot_enter(struct area_map *map, struct chunk *chunk, bool front)
{
    chunk->slot = slot_of(chunk->free_bytes);
    struct slot *slot = &map->slots[chunk->slot];
    chunk->before = front ? NULL : slot->last;
    chunk->next = front ? slot->first : NULL;
    *(chunk->before ? &chunk->before->next : &slot->first) = chunk;
    *(chunk->next ? &chunk->next->before : &slot->last) = chunk;
}

/* To the front of its new slot when it has gained room, to the back when it has lost some. */
static void slot_update(struct area_map *map, struct chunk *chunk)
{
    unsigned slot = slot_of(chunk->free_bytes), old_slot = chunk->slot;
    if (slot != old_slot) {
        slot_leave(map, chunk);
        slot_enter(map, chunk, slot > old_slot);
    }
}

struct area_map *area_map_create(unsigned cpus, size_t chunks_max)
{
    struct area_map *map = calloc(1, sizeof *map + chunks_max * sizeof(struct chunk));
    if (!map)
        return NULL;
    map->cpus = cpus;
    map->chunks_max = chunks_max;
    map->memory = mmap(NULL, memory_bytes(map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map->memory == MAP_FAILED) {
        free(map);
        return NULL;
    }
    for (size_t at = 0; at < memory_bytes(map); at += 4096)
        ((volatile char *)map->memory)[at] = 0;
    return map;
}

void area_map_destroy(struct area_map *map)
{
    if (!map)
        return;
    for (size_t i = 0; i < map->chunk_count; i++)
        free(map->chunks[i].areas);
    munmap(map->memory, memory_bytes(map));
    free(map);
}

size_t area_map_fits(size_t bytes, size_t align_bytes)
{
    return UNIT_BYTES / ((bytes + align_bytes - 1) & ~(align_bytes - 1));
}

static bool areas_reserve(struct chunk *chunk, size_t count)
{
    if (count <= chunk->capacity)
        return true;
    size_t capacity = chunk->capacity ? 2 * chunk->capacity : AREAS_FIRST;
    int32_t *areas = realloc(chunk->areas, capacity * sizeof *areas);
    if (!areas)
        return false;
    chunk->areas = areas;
    chunk->capacity = capacity;
    return true;
}

static struct chunk *chunk_new(struct area_map *map)
{
    struct chunk *chunk = &map->chunks[map->chunk_count];
    if (map->chunk_count == map->chunks_max || !areas_reserve(chunk, 1))
        return NULL;
    map->chunk_count++;
    chunk->areas[0] = UNIT_BYTES;
    chunk->count = 1;
    chunk->free_bytes = chunk->longest_bytes = UNIT_BYTES;
    slot_enter(map, chunk, true);
    return chunk;
}

/* Area `i` becomes [head] [live] [tail]; the array has room for two more. */
static void area_take(struct chunk *chunk, size_t i, size_t head_bytes, size_t bytes)
{
    size_t tail_bytes = (size_t)chunk->areas[i] - head_bytes - bytes, more = (head_bytes > 0 ? 1u : 0u) + (tail_bytes > 0 ? 1u : 0u);
    memmove(chunk->areas + i + 1 + more, chunk->areas + i + 1, (chunk->count - i - 1) * sizeof *chunk->areas);
    chunk->count += more;
    if (head_bytes > 0)
        chunk->areas[i++] = (int32_t)head_bytes;
    chunk->areas[i++] = -(int32_t)bytes;
    if (tail_bytes > 0)
        chunk->areas[i] = (int32_t)tail_bytes;
    chunk->free_bytes -= bytes;
}

/* The offset of a new object; SIZE_MAX: no area fits, and longest_bytes is exact now. */
static size_t chunk_take(struct chunk *chunk, size_t bytes, size_t align_bytes)
{
    size_t longest_bytes = 0, offset_bytes = chunk->first_offset_bytes;
    bool first = true;
    if (!areas_reserve(chunk, chunk->count + AREAS_SPLIT))
        return SIZE_MAX;
    for (size_t i = chunk->first_idx; i < chunk->count; i++) {
        int32_t area = chunk->areas[i];
        if (area < 0) {
            offset_bytes += (size_t)-area;
            continue;
        }
        size_t head_bytes = -offset_bytes & (align_bytes - 1), area_bytes = (size_t)area;
        if (first) {
            chunk->first_idx = i;
            chunk->first_offset_bytes = offset_bytes;
            first = false;
        }
        if (head_bytes + bytes <= area_bytes) {
            area_take(chunk, i, head_bytes, bytes);
            if (i == chunk->first_idx && head_bytes == 0) {
                chunk->first_idx++;
                chunk->first_offset_bytes += bytes;
            }
            return offset_bytes + head_bytes;
        }
        longest_bytes = area_bytes > longest_bytes ? area_bytes : longest_bytes;
        offset_bytes += area_bytes;
    }
    chunk->longest_bytes = longest_bytes;
    return SIZE_MAX;
}

static char *object_at(const struct area_map *map, const struct chunk *chunk, size_t offset_bytes)
{
    return map->memory + (size_t)(chunk - map->chunks) * map->cpus * UNIT_BYTES + offset_bytes;
}

void *area_map_alloc(struct area_map *map, size_t bytes, size_t align_bytes)
{
    struct chunk *chunk = NULL;
    size_t offset_bytes = SIZE_MAX;
    for (unsigned slot = slot_of(bytes); slot < SLOTS && offset_bytes == SIZE_MAX; slot++)
        for (struct chunk *c = map->slots[slot].first; c && offset_bytes == SIZE_MAX; c = c->next)
            if (bytes <= c->longest_bytes) {
                chunk = c;
                offset_bytes = chunk_take(c, bytes, align_bytes);
            }
    if (offset_bytes == SIZE_MAX) {
        chunk = chunk_new(map);
        if (!chunk || (offset_bytes = chunk_take(chunk, bytes, align_bytes)) == SIZE_MAX)
            return NULL;
    }
    slot_update(map, chunk);
    char *object = object_at(map, chunk, offset_bytes);
    for (unsigned cpu = 0; cpu < map->cpus; cpu++)
        memset(object + (size_t)cpu * UNIT_BYTES, 0, bytes);
    return object;
}

/* Takes `count` areas out from `i` on. */
static void areas_remove(struct chunk *chunk, size_t i, size_t count)
{
    memmove(chunk->areas + i, chunk->areas + i + count, (chunk->count - i - count) * sizeof *chunk->areas);
    chunk->count -= count;
}

void area_map_free(struct area_map *map, void *object)
{
    size_t at_bytes = (size_t)((char *)object - map->memory), chunk_bytes = (size_t)map->cpus * UNIT_BYTES;
    struct chunk *chunk = &map->chunks[at_bytes / chunk_bytes];
    size_t wanted_bytes = at_bytes % chunk_bytes, offset_bytes = 0, i = 0;
    for (; i < chunk->count && offset_bytes < wanted_bytes; i++)
        offset_bytes += (size_t)abs(chunk->areas[i]);
    if (i == chunk->count || offset_bytes != wanted_bytes || chunk->areas[i] > 0)
        abort();
    int32_t *area = &chunk->areas[i];
    *area = -*area;
    chunk->free_bytes += (size_t)*area;
    if (i + 1 < chunk->count && area[1] > 0) {
        *area += area[1];
        areas_remove(chunk, i + 1, 1);
    }
    if (i > 0 && area[-1] > 0) {
        offset_bytes -= (size_t)area[-1];
        area[-1] += *area;
        areas_remove(chunk, i--, 1);
    }
    if (i <= chunk->first_idx) {
        chunk->first_idx = i;
        chunk->first_offset_bytes = offset_bytes;
    }
    size_t free_bytes = (size_t)chunk->areas[i];
    chunk->longest_bytes = free_bytes > chunk->longest_bytes ? free_bytes : chunk->longest_bytes;
    slot_update(map, chunk);
}

const char *area_map_check(const struct area_map *map, size_t live)
{
    size_t found = 0;
    for (const struct chunk *chunk = map->chunks; chunk < map->chunks + map->chunk_count; chunk++) {
        size_t sum_bytes = 0, free_bytes = 0;
        for (size_t i = 0; i < chunk->count; i++) {
            size_t area_bytes = (size_t)abs(chunk->areas[i]);
            if (chunk->areas[i] > 0 && i + 1 < chunk->count && chunk->areas[i + 1] > 0)
                return "area map A2";
            if (chunk->areas[i] > 0 && i < chunk->first_idx)
                return "area map A3";
            if (i == chunk->first_idx && sum_bytes != chunk->first_offset_bytes)
                return "area map A3";
            if (chunk->areas[i] > 0 && area_bytes > chunk->longest_bytes)
                return "area map A4";
            sum_bytes += area_bytes;
            free_bytes += chunk->areas[i] > 0 ? area_bytes : 0;
            found += chunk->areas[i] < 0 ? 1 : 0;
        }
        if (sum_bytes != UNIT_BYTES || free_bytes != chunk->free_bytes)
            return "area map A1";
    }
    return found == live ? NULL : "area map: another number of objects than the workload holds";
}
