// SPDX-License-Identifier: MIT
/*
 * bitmap_hint.h - what a bitmap knows about its blocks, so that it need not look at all the bits.
 *
 * A block is one word of 64 bits.  Its first free bit, and its runs, can be read off it in a few
 * instructions; what cannot be seen in it is kept:
 *
 *   - how long a run is that leaves the block: a free run of which some words are free throughout has
 *     both its ends written into the first and the last of these (their words of the boundary map
 *     have no other use, since nothing starts in them);
 *   - where to look: a free run belongs to the block in which it starts, with its whole length, and
 *     a tree of maxima over the blocks finds the first block that owns a run long enough.
 *
 *     bits     ..###...|........|....#.##|#..#....      # taken, . free, | block boundary
 *     owned    2  15                  1     2 4         the run of 15 belongs to block 0
 *     promise     15       0        1        4          block 1 starts no run: 0
 *
 * All zero is the state of a block inside a long free run: a fresh map needs no filling in.
 *
 * For bitmap*.c only.  Not here: the bits of a word (bits.h), taking and freeing (bitmap.c).
 */
#ifndef QUIRE_BASE_BITMAP_HINT_H
#define QUIRE_BASE_BITMAP_HINT_H

#include "base/align.h"
#include "base/bitmap.h"
#include "base/bitmap_tree.h"
#include "base/bits.h"
#include "base/compiler.h"

C_DECLARATIONS_BEGIN

enum {
    SLOTS = 4,          /* alignments that get ceilings of their own */
    STRIPE_WORDS = 8,   /* blocks that share a ceiling */
    STRIPE_BITS = STRIPE_WORDS * WORD_BITS,
    ALIGN_LOG2_MAX = 32 /* beyond this only bit 0 is aligned */
};

struct bitmap_hints {
    struct tree_shape shape;    /* of the promises: a cell for each word */
    struct tree_shape stripes;  /* of the ceilings: a cell for each stripe */
    uint16_t *promises;         /* B3: the longest free run that starts in the word, exact */
    /* B6: no run of cursor.run bits or more starts in a word before cursor.word */
    struct bitmap_cursor {
        uint32_t run, word;
    } cursor;
    uint32_t nslots;
    struct bitmap_slot {
        uint16_t *ceilings;     /* B4: no aligned place in a run of the stripe has more than this */
        uint32_t align_log2;
        uint32_t run, word;     /* B7: no aligned place of `run` bits in a run before `word` */
    } slot[SLOTS];              /* those that were used first; later ones have ceilings of a smaller alignment */
};

struct bitmap_want {
    size_t run;
    unsigned align_log2;
};

/* A place: in the free run that starts at `from`, `at` is the first that is aligned. */
struct bitmap_place {
    size_t from, at;
};

bool hint_search_aligned(struct bitmap *map, const struct bitmap_want *want,
                         struct bitmap_place *out);
void hint_ceilings_raise(struct bitmap_hints *hints, size_t from, size_t to);

static inline size_t map_words(const struct bitmap *map)
{
    return (map->bits + WORD_BITS - 1) / WORD_BITS;
}

/*
 * ---- free runs, from one end to the other ----
 * The words before the first and behind the last are taken: no run needs a look at the map's ends.
 */

/* Write the ends of the free run [from, to) into its words, if any are free throughout. */
static inline void run_tag(struct bitmap *map, size_t from, size_t to)
{
    size_t first = (from + WORD_BITS - 1) / WORD_BITS, last = to / WORD_BITS;
    if (first < last)
        map->starts[first] = map->starts[last - 1] = (uint64_t)to << 32 | from;
}

/* The end of the free run that starts at `from`. */
static inline size_t run_end(const struct bitmap *map, size_t from)
{
    size_t w = from / WORD_BITS;
    uint64_t taken = map->taken[w] >> (from % WORD_BITS);
    if (likely(taken))
        return from + bits_lowest(taken);
    w += from % WORD_BITS != 0;
    taken = map->taken[w];
    return taken ? w * WORD_BITS + bits_lowest(taken) : (size_t)(map->starts[w] >> 32);
}

/* The start of the free run that ends with bit `last`. */
static inline size_t run_start(const struct bitmap *map, size_t last)
{
    size_t w = last / WORD_BITS;
    uint64_t taken = map->taken[w] << (WORD_BITS - 1 - last % WORD_BITS);
    if (likely(taken))
        return last + bits_highest(taken) + 1 - (WORD_BITS - 1);
    if (last % WORD_BITS != WORD_BITS - 1) {
        taken = map->taken[(ptrdiff_t)w - 1];
        if (taken)
            return (w - 1) * WORD_BITS + bits_highest(taken) + 1;
        w--;
    }
    return (size_t)(map->starts[w] & UINT32_MAX);
}

/* The free bits of a word without a run that started in an earlier one. */
static inline uint64_t word_own_free(const struct bitmap *map, size_t w)
{
    uint64_t x = ~map->taken[w];
    return x & (x + (~map->taken[(ptrdiff_t)w - 1] >> (WORD_BITS - 1)));
}

/* The longest free run that starts in word w. */
static inline size_t word_longest(const struct bitmap *map, size_t w)
{
    uint64_t x = word_own_free(map, w);
    unsigned top = bits_ones_at_top(x);
    size_t longest = 0;
    if (top) {
        size_t from = (w + 1) * WORD_BITS - top;
        longest = run_end(map, from) - from;
        x = top < WORD_BITS ? x & bits_low(WORD_BITS - top) : 0;
    }
    if (x) {
        unsigned inner = bits_longest(x);
        longest = inner > longest ? inner : longest;
    }
    return longest;
}

static inline void hint_set(struct bitmap_hints *hints, size_t w, size_t run)
{
    uint16_t code = code_of(run);
    if (hints->promises[w] != code)
        tree_set(&hints->shape, hints->promises, w, code);
}

/* The free run [from, to) stands now: a new one, or one that grew.  No run of its word shrank. */
static inline void hint_add(struct bitmap *map, size_t from, size_t to)
{
    struct bitmap_hints *hints = map->hints;
    size_t w = from / WORD_BITS;
    uint16_t code = code_of(to - from);
    run_tag(map, from, to);
    if (hints->promises[w] < code)
        tree_set(&hints->shape, hints->promises, w, code);
    if (hints->cursor.word > w)
        hints->cursor.word = (uint32_t)w;
    if (unlikely(hints->nslots))
        hint_ceilings_raise(hints, from, to);
}

C_DECLARATIONS_END
#endif
