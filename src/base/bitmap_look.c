// SPDX-License-Identifier: MIT
/*
 * bitmap_look.c - looking at a bitmap: its runs, its hints checked, its hints made anew.
 *
 *     bits -> runs -> what every hint has to be -> compared (check) or written (rebuild)
 *
 * Invariants B1 to B7: bitmap.c, bitmap_hint.h and bitmap_tree.h.
 * Locks: none, the caller's.  Not here: anything a fast path needs.
 */
#include "base/bitmap_hint.h"

bool bitmap_taken(const struct bitmap *map, size_t idx)
{
    return idx < map->bits && bits_test(map->taken, idx);
}

size_t bitmap_next_taken(const struct bitmap *map, size_t from, size_t *run)
{
    uint64_t keep = bits_from(from % WORD_BITS);
    for (size_t w = from / WORD_BITS; w < map_words(map); w++, keep = ~UINT64_C(0)) {
        uint64_t starts = map->starts[w] & map->taken[w] & keep;
        if (starts) {
            size_t idx = w * WORD_BITS + bits_lowest(starts);
            *run = bitmap_run(map, idx);
            return idx;
        }
    }
    return BITMAP_NONE;
}

size_t bitmap_next_free(const struct bitmap *map, size_t from, size_t *run)
{
    size_t idx = bits_find(map->taken, from, map->bits, false);
    if (idx >= map->bits)
        return BITMAP_NONE;
    *run = bits_find(map->taken, idx, map->bits, true) - idx;
    return idx;
}

size_t bitmap_longest_hint(const struct bitmap *map)
{
    const struct bitmap_hints *hints = map->hints;
    size_t longest = 0, run;
    const struct tree_shape *shape = &hints->shape;
    uint16_t code = tree_group_max(hints->promises + shape->offset[shape->levels - 1]);
    if (code < CODE_EXACT)
        return code;
    /* Runs so long are few: look at each. */
    for (size_t w = 0; (w = tree_first(shape, hints->promises, w, code)) < shape->count[0]; w++) {
        run = word_longest(map, w);
        longest = run > longest ? run : longest;
    }
    return longest;
}

/* ---- making hints anew ---- */

/* Bits that a cut-off operation left: a start without its run goes, a run without its start gets
 * one, since somebody might hold it. */
static void repair_bits(struct bitmap *map)
{
    size_t words = map_words(map);
    map->taken[words - 1] |= ~bits_within(words - 1, 0, map->bits);
    uint64_t before = 0; /* the last bit of the word before */
    for (size_t w = 0; w < words; w++) {
        uint64_t taken = map->taken[w], own = taken & bits_within(w, 0, map->bits);
        map->starts[w] = (map->starts[w] & own) | (own & ~(taken << 1 | before));
        before = taken >> (WORD_BITS - 1);
    }
}

void bitmap_rebuild(struct bitmap *map)
{
    struct bitmap_hints *hints = map->hints;
    repair_bits(map);
    map->taken[-1] = map->taken[map_words(map)] = ~UINT64_C(0);
    memset(hints->promises, 0, hints->shape.cells * sizeof *hints->promises);
    hints->cursor = (struct bitmap_cursor){0, 0};
    for (int i = 0; i < SLOTS; i++) {
        struct bitmap_slot *slot = &hints->slot[i];
        memset(slot->ceilings, 0, hints->stripes.cells * sizeof *slot->ceilings);
        slot->word = slot->run = 0;
    }
    hints->nslots = 0;
    size_t run;
    for (size_t at = 0; (at = bitmap_next_free(map, at, &run)) != BITMAP_NONE; at += run)
        hint_add(map, at, at + run);
}

/* ---- checking ---- */

static const char *check_bits(const struct bitmap *map, size_t from_word, size_t to_word)
{
    for (size_t w = from_word; w < to_word; w++) {
        uint64_t taken = map->taken[w], padding = ~bits_within(w, 0, map->bits);
        uint64_t before = w ? map->taken[w - 1] >> (WORD_BITS - 1) : 0;
        if (~taken & padding)
            return "bitmap B1";
        if (taken && (map->starts[w] & (~taken | padding)))
            return "bitmap B1";
        if (taken & ~(taken << 1 | before) & ~padding & ~map->starts[w])
            return "bitmap B1";
    }
    return NULL;
}

/* B2 of one run, and that its length is promised, and allowed for by all that rules places out. */
static const char *check_run(const struct bitmap *map, size_t from, size_t to)
{
    const struct bitmap_hints *hints = map->hints;
    size_t first = (from + WORD_BITS - 1) / WORD_BITS, last = to / WORD_BITS;
    uint64_t tag = (uint64_t)to << 32 | from;
    if (first < last && (map->starts[first] != tag || map->starts[last - 1] != tag))
        return "bitmap B2";
    if (hints->promises[from / WORD_BITS] < code_of(to - from))
        return "bitmap B3";
    if (to - from >= hints->cursor.run && from / WORD_BITS < hints->cursor.word)
        return "bitmap B6";
    for (uint32_t i = 0; i < hints->nslots; i++) {
        const struct bitmap_slot *slot = &hints->slot[i];
        size_t stripe = from / STRIPE_BITS, at = align_up(from, (size_t)1 << slot->align_log2);
        if (at < to && slot->ceilings[stripe] < code_of(to - at))
            return "bitmap B4";
        if (at < to && slot->word > from / WORD_BITS && to - at >= slot->run)
            return "bitmap B7";
    }
    return NULL;
}

/* The runs that start in word w, each checked, and the longest of them against the promise.  Looks at no word behind the last of these runs. */
static const char *check_word(const struct bitmap *map, size_t w)
{
    size_t longest = 0, run;
    uint64_t taken = map->taken[w], left = ~taken;
    if (w && !bits_test(map->taken, w * WORD_BITS - 1)) /* a run of an earlier word */
        left = taken ? left & bits_from(bits_lowest(taken)) : 0;
    while (left) {
        size_t at = w * WORD_BITS + bits_lowest(left);
        run = bits_find(map->taken, at, map->bits, true) - at;
        const char *bad = check_run(map, at, at + run);
        if (bad)
            return bad;
        longest = run > longest ? run : longest;
        left &= at + run < (w + 1) * WORD_BITS ? bits_from((at + run) % WORD_BITS) : 0;
    }
    return map->hints->promises[w] == code_of(longest) ? NULL : "bitmap B3";
}

/* Every cell above those of level 0 that stand for [from, to). */
static bool tree_sound(const struct tree_shape *shape, const uint16_t *tree, size_t from, size_t to)
{
    for (uint32_t level = 1; level < shape->levels; level++) {
        const uint16_t *below = tree + shape->offset[level - 1];
        from /= TREE_FAN;
        to = (to + TREE_FAN - 1) / TREE_FAN;
        for (size_t i = from; i < to; i++)
            if (tree[shape->offset[level] + i] != tree_group_max(below + i * TREE_FAN))
                return false;
    }
    return true;
}

static const char *check_trees(const struct bitmap_hints *hints, size_t from, size_t to)
{
    if (!tree_sound(&hints->shape, hints->promises, from, to))
        return "bitmap B5";
    from /= STRIPE_WORDS;
    to = (to + STRIPE_WORDS - 1) / STRIPE_WORDS;
    for (uint32_t i = 0; i < hints->nslots; i++)
        if (!tree_sound(&hints->stripes, hints->slot[i].ceilings, from, to))
            return "bitmap B5";
    return NULL;
}

const char *bitmap_check_range(const struct bitmap *map, size_t from, size_t to)
{
    size_t w = from / WORD_BITS, end = (to + WORD_BITS - 1) / WORD_BITS;
    end = end < map_words(map) ? end : map_words(map);
    const char *bad = check_bits(map, w, end);
    if (!bad)
        bad = check_trees(map->hints, w, end);
    for (; !bad && w < end; w++)
        bad = check_word(map, w);
    return bad;
}

const char *bitmap_check(const struct bitmap *map)
{
    return bitmap_check_range(map, 0, map->bits);
}
