// SPDX-License-Identifier: MIT
/*
 * bitmap_tree.h - the largest of many small numbers, and the first that is large enough.
 *
 *     level 2                      9
 *     level 1        9             4             7        each the maximum of TREE_FAN below it
 *     level 0   3 9 0 .. 1    4 4 0 .. 2    7 1 0 .. 0    one cell for each block
 *
 * A cell is a length in 15 bits (code_of): exact below CODE_EXACT, above it rounded down to a part in
 * 256.  The same shape serves several trees; their cells are the caller's memory, all zero at first.
 *
 * A group of 32 cells is one cache line; it is searched four cells a word and without a branch.
 *
 * Invariant B5: a cell above level 0 is the maximum of the cells below it.
 * Not here: what the numbers mean (bitmap_hint.h).
 */
#ifndef QUIRE_BASE_BITMAP_TREE_H
#define QUIRE_BASE_BITMAP_TREE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/align.h"
#include "base/bits.h"
#include "base/compiler.h"

#if CPU_X86_64
#include <emmintrin.h>
#endif

enum { TREE_FAN = 32, TREE_LEVELS = 6, CODE_EXACT = 0x4000, GROUP_WORDS = TREE_FAN / 4 };

struct tree_shape {
    uint32_t levels, cells;
    uint32_t count[TREE_LEVELS];  /* cells in use */
    uint32_t offset[TREE_LEVELS]; /* of the level's first cell; levels are padded to whole groups */
};

static inline uint16_t code_of(size_t run)
{
    if (likely(run < CODE_EXACT))
        return (uint16_t)run;
    unsigned e = log2_floor(run);
    return (uint16_t)(CODE_EXACT + (e - 14) * 256 + (run >> (e - 8) & 255));
}

static inline void tree_shape_init(struct tree_shape *shape, size_t count)
{
    memset(shape, 0, sizeof *shape);
    for (;; count = (count + TREE_FAN - 1) / TREE_FAN) {
        shape->count[shape->levels] = (uint32_t)count;
        shape->offset[shape->levels] = shape->cells;
        shape->cells += (uint32_t)align_up(count, TREE_FAN);
        shape->levels++;
        if (count <= TREE_FAN)
            return;
    }
}

/* A bit for each of a group's 32 cells that is at least `code`. */
static inline uint32_t tree_group_enough_portable(const uint16_t *group, uint16_t code)
{
    const uint64_t tops = UINT64_C(0x8000800080008000), ones = UINT64_C(0x0001000100010001);
    const uint64_t gather = UINT64_C(0x0001000200040008); /* bits 0 16 32 48 to 48 49 50 51 */
    uint64_t needs = code * ones;
    uint32_t found = 0;
    for (unsigned i = 0; i < GROUP_WORDS; i++) {
        /* Four cells, the first at the bottom whatever the byte order; all are < 0x8000. */
        const uint16_t *c = group + (size_t)4 * i;
        uint64_t four = c[0] | (uint64_t)c[1] << 16 | (uint64_t)c[2] << 32 | (uint64_t)c[3] << 48;
        uint64_t enough = (((four | tops) - needs) & tops) >> 15;
        found |= (uint32_t)(enough * gather >> 48) << (4 * i);
    }
    return found;
}

static inline uint16_t tree_group_max_portable(const uint16_t *group)
{
    uint16_t most = 0;
    for (int i = 0; i < TREE_FAN; i++)
        most = group[i] > most ? group[i] : most;
    return most;
}

#if CPU_X86_64 /* SSE2 is part of it */
static inline __m128i tree_eight(const uint16_t *group, int i)
{
    return _mm_loadu_si128((const __m128i *)(const void *)(group + 8 * i));
}

/* Written out: a loop over four vectors goes through memory at -O2. */
static inline uint32_t tree_group_enough(const uint16_t *group, uint16_t code)
{
    __m128i less = _mm_set1_epi16((short)(code - 1));
    __m128i low = _mm_packs_epi16(_mm_cmpgt_epi16(tree_eight(group, 0), less),
                                  _mm_cmpgt_epi16(tree_eight(group, 1), less));
    __m128i high = _mm_packs_epi16(_mm_cmpgt_epi16(tree_eight(group, 2), less),
                                   _mm_cmpgt_epi16(tree_eight(group, 3), less));
    return (uint32_t)_mm_movemask_epi8(low) | (uint32_t)_mm_movemask_epi8(high) << 16;
}

static inline uint16_t tree_group_max(const uint16_t *group)
{
    __m128i most = _mm_max_epi16(_mm_max_epi16(tree_eight(group, 0), tree_eight(group, 1)),
                                 _mm_max_epi16(tree_eight(group, 2), tree_eight(group, 3)));
    most = _mm_max_epi16(most, _mm_unpackhi_epi64(most, most));
    most = _mm_max_epi16(most, _mm_shuffle_epi32(most, 1));
    most = _mm_max_epi16(most, _mm_shufflelo_epi16(most, 1));
    return (uint16_t)_mm_extract_epi16(most, 0);
}
#else
static inline uint32_t tree_group_enough(const uint16_t *group, uint16_t code)
{
    return tree_group_enough_portable(group, code);
}

static inline uint16_t tree_group_max(const uint16_t *group)
{
    return tree_group_max_portable(group);
}
#endif

/* The first of a group's cells from `lane` on that is at least `code`; TREE_FAN if none is. */
static inline size_t tree_group_first(const uint16_t *group, size_t lane, uint16_t code)
{
    uint32_t found = tree_group_enough(group, code) & (UINT32_MAX << lane);
    return found ? bits_lowest(found) : (size_t)TREE_FAN;
}

/* The first cell of level 0 from `i` on that is at least `code`; count[0] if none is. */
static inline size_t tree_first(const struct tree_shape *shape, const uint16_t *tree, size_t i,
                                uint16_t code)
{
    uint32_t level = 0;
    for (;; level++, i = i / TREE_FAN + 1) {
        if (level == shape->levels)
            return shape->count[0];
        if (i >= shape->count[level])
            continue;
        size_t group = i & ~(size_t)(TREE_FAN - 1);
        size_t lane = tree_group_first(tree + shape->offset[level] + group, i - group, code);
        if (lane < TREE_FAN) {
            i = group + lane;
            break;
        }
    }
    while (level-- > 0)
        i = i * TREE_FAN + tree_group_first(tree + shape->offset[level] + i * TREE_FAN, 0, code);
    return i;
}

/* The same from the first cell on, without going up. */
static inline size_t tree_lowest(const struct tree_shape *shape, const uint16_t *tree, uint16_t code)
{
    uint32_t level = shape->levels - 1;
    size_t i = tree_group_first(tree + shape->offset[level], 0, code);
    if (unlikely(i == TREE_FAN))
        return shape->count[0];
    while (level-- > 0)
        i = i * TREE_FAN + tree_group_first(tree + shape->offset[level] + i * TREE_FAN, 0, code);
    return i;
}

/* Give cell i of level 0 another value. */
static inline void tree_set(const struct tree_shape *shape, uint16_t *tree, size_t i, uint16_t code)
{
    uint16_t old = tree[i];
    tree[i] = code;
    for (uint32_t level = 1; level < shape->levels && code != old; level++) {
        uint16_t *above = tree + shape->offset[level] + i / TREE_FAN;
        if (code > old ? *above >= code : *above != old)
            return;
        if (code < old)
            code = tree_group_max(tree + shape->offset[level - 1] + (i & ~(size_t)(TREE_FAN - 1)));
        *above = code;
        i /= TREE_FAN;
    }
}

#endif
