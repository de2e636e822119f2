// SPDX-License-Identifier: MIT
/*
 * area_map.h - the area-map allocator of per-CPU memory: what bitmaps replaced, kept here as the thing to be compared with.
 *
 * One thread at a time.  Memory of all chunks is mapped and touched at creation: what it costs is not part of a comparison.
 */
#ifndef QUIRE_BENCH_AREA_MAP_H
#define QUIRE_BENCH_AREA_MAP_H

#include <stddef.h>

struct area_map;

/* Room for `chunks_max` chunks of `cpus` copies; NULL: no memory. */
struct area_map *area_map_create(unsigned cpus, size_t chunks_max);
void area_map_destroy(struct area_map *map);
/* How many objects of that size and alignment fit into a chunk: for chunks_max. */
size_t area_map_fits(size_t bytes, size_t align_bytes);
/* CPU 0's copy of an object that is zero on every CPU; NULL: all chunks are full.  bytes: a multiple of 4; align_bytes: a power of two. */
void *area_map_alloc(struct area_map *map, size_t bytes, size_t align_bytes);
void area_map_free(struct area_map *map, void *object);
/* NULL, or what is not as it should be. */
const char *area_map_check(const struct area_map *map, size_t live);

#endif
