// SPDX-License-Identifier: MIT
/*
 * bitmap.c - taking and freeing runs of bits.
 *
 *     taken   ..######...####..     1: taken
 *     starts  ..1..1.....1.....     1: a taken run begins; here runs of 3, 3 and 4 bits
 *
 * The end of a run is the next start or the next free bit, so freeing needs no size.
 *
 * Invariants, checked by bitmap_look.c (B3 to B7 stand beside their fields in bitmap_hint.h and
 * bitmap_tree.h):
 *   B1  a taken bit after a free one is a start, a start is taken, and all padding is taken; but
 *   B2  words of `starts` over 64 free bits hold no starts: the first and the last of them in each
 *       free run hold the run's ends
 *
 * A fork in another thread may see an operation half done.  Taking sets the start first and freeing
 * clears it last, from the top downwards: so no run is ever seen longer than it was handed out.
 *
 * Locks: none, the caller's.  Not here: where there is room (bitmap_hint.h, bitmap_hint.c), looking
 * (bitmap_look.c).
 */
#include "base/bitmap_hint.h"

/* Keeps the compiler, and that is enough for a fork, from moving stores across. */
static ALWAYS_INLINE void order_for_fork(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* ---- memory ---- */

/* hints | promises | ceilings x SLOTS | one word, taken, one word | starts */
struct layout {
    size_t words, bytes;
    struct tree_shape shape, stripes;
};

static struct layout layout_of(size_t bits)
{
    struct layout l = {.words = (bits + WORD_BITS - 1) / WORD_BITS};
    tree_shape_init(&l.shape, l.words);
    tree_shape_init(&l.stripes, (l.words + STRIPE_WORDS - 1) / STRIPE_WORDS);
    l.bytes = sizeof(struct bitmap_hints) +
              (l.shape.cells + SLOTS * l.stripes.cells) * sizeof(uint16_t) +
              (2 * l.words + 2) * sizeof(uint64_t);
    return l;
}

size_t bitmap_memory_bytes(size_t bits)
{
    return layout_of(bits).bytes;
}

void bitmap_init(struct bitmap *map, void *zeroed, size_t bits)
{
    struct layout l = layout_of(bits);
    struct bitmap_hints *hints = zeroed;
    hints->shape = l.shape;
    hints->stripes = l.stripes;
    hints->promises = (uint16_t *)(hints + 1);
    uint16_t *cells = hints->promises + l.shape.cells;
    for (int i = 0; i < SLOTS; i++, cells += l.stripes.cells)
        hints->slot[i].ceilings = cells;
    uint64_t *taken = (uint64_t *)(void *)cells + 1;
    *map = (struct bitmap){.taken = taken, .starts = taken + l.words + 1, .hints = hints, .bits = (uint32_t)bits};
    taken[-1] = taken[l.words] = ~UINT64_C(0);
    taken[l.words - 1] = ~bits_within(l.words - 1, 0, bits);
    hint_add(map, 0, bits);
}

/* ---- finding ---- */

/* The first word that owns a run of `run` bits, `nwords` if none does. */
static inline size_t search_word(struct bitmap *map, size_t run)
{
    struct bitmap_hints *hints = map->hints;
    struct bitmap_cursor *cursor = &hints->cursor;
    size_t w = run >= cursor->run ? cursor->word : 0, nwords = hints->shape.count[0];
    uint16_t code = code_of(run);
    if (w < nwords && hints->promises[w] >= code && run <= CODE_EXACT)
        return w;
    w = tree_lowest(&hints->shape, hints->promises, code);
    /* Above CODE_EXACT a run may be in the right class and still too short. */
    while (unlikely(run > CODE_EXACT && w < nwords && word_longest(map, w) < run))
        w = tree_first(&hints->shape, hints->promises, w + 1, code);
    *cursor = (struct bitmap_cursor){(uint32_t)run, (uint32_t)w};
    return w;
}

/* The lowest place that needs no alignment: the first of the first run long enough. */
static inline bool search_plain(struct bitmap *map, size_t run, struct bitmap_place *out)
{
    size_t w = search_word(map, run);
    if (unlikely(w == map->hints->shape.count[0]))
        return false;
    uint64_t x = word_own_free(map, w);
    uint64_t at = run <= WORD_BITS ? bits_runs(x, (unsigned)run) : 0;
    out->from = w * WORD_BITS + (at ? bits_lowest(at) : WORD_BITS - bits_ones_at_top(x));
    out->at = out->from;
    return true;
}

/* ---- taking ---- */

static inline void mark_taken(struct bitmap *map, size_t at, size_t run)
{
    size_t w = at / WORD_BITS, last = (at + run - 1) / WORD_BITS;
    uint64_t start = UINT64_C(1) << (at % WORD_BITS), bits = bits_from(at % WORD_BITS);
    for (; w <= last; w++, start = 0, bits = ~UINT64_C(0)) {
        /* What stood over free words was no start (B2). */
        map->starts[w] = (map->taken[w] ? map->starts[w] : 0) | start;
        order_for_fork();
        map->taken[w] |= w < last ? bits : bits & bits_low((unsigned)((at + run - 1) % WORD_BITS + 1));
    }
}

/* The longest run of word w, if the remainder of a cut, `after` bits, is one of those in it. */
static inline size_t longest_with(const struct bitmap *map, size_t w, size_t after)
{
    uint64_t x = word_own_free(map, w);
    bool one = (x & (x + (x & -x))) == 0;
    return one && (after || x == 0) ? after : word_longest(map, w);
}

/* A run of word w that was `before` bits long has `after` left in this word. */
static inline void cut_inside(struct bitmap *map, size_t w, size_t before, size_t after)
{
    uint16_t *promises = map->hints->promises, promise = promises[w];
    /* Otherwise it is still the longest (so long that its class is the same), or never was. */
    if (promise != code_of(after) && promise == code_of(before))
        tree_set(&map->hints->shape, promises, w, code_of(longest_with(map, w, after)));
}

/* A run of word w was cut; [end, to) is left of it in a later word. */
static inline void cut_across(struct bitmap *map, size_t w, size_t end, size_t to)
{
    struct bitmap_hints *hints = map->hints;
    uint16_t *promises = hints->promises, old = promises[w];
    size_t next = end / WORD_BITS;
    if (end < to)
        hint_add(map, end, to);
    uint16_t code = code_of(longest_with(map, w, 0));
    /* The commonest cut takes the head of a very long run: its class goes to a near word. */
    if (end < to && promises[next] >= old && next / TREE_FAN == w / TREE_FAN)
        promises[w] = code;
    else if (code != old)
        tree_set(&hints->shape, promises, w, code);
}

/* Take the place out of its free run, and leave the hints right for what remains of that. */
static inline void cut_run(struct bitmap *map, const struct bitmap_place *place, size_t run)
{
    size_t from = place->from, at = place->at, end = at + run, to = run_end(map, from);
    size_t w = from / WORD_BITS;
    mark_taken(map, at, run);
    if (from < at)
        run_tag(map, from, at);
    if (end / WORD_BITS != w) {
        cut_across(map, w, end, to);
        return;
    }
    run_tag(map, end, to);
    cut_inside(map, w, to - from, to - end);
}

size_t bitmap_alloc(struct bitmap *map, size_t run, unsigned align_log2)
{
    if (unlikely(run - 1 >= map->bits))
        return BITMAP_NONE;
    struct bitmap_want want = {run, align_log2 < ALIGN_LOG2_MAX ? align_log2 : ALIGN_LOG2_MAX};
    struct bitmap_place place;
    if (!(align_log2 ? hint_search_aligned(map, &want, &place) : search_plain(map, run, &place)))
        return BITMAP_NONE;
    cut_run(map, &place, run);
    size_t w = place.from / WORD_BITS;
    /* Nothing long enough is left before the remainder: the next search need not find that out. */
    if (align_log2 == 0 && map->hints->promises[w] < code_of(run))
        map->hints->cursor = (struct bitmap_cursor){(uint32_t)run, (uint32_t)((place.at + run) / WORD_BITS)};
    return place.at;
}

/* ---- freeing ---- */

/* The end of the taken run that starts at idx: the next start, or the next free bit. */
static inline size_t taken_end(const struct bitmap *map, size_t idx)
{
    size_t i = idx + 1, w = i / WORD_BITS, words = map_words(map);
    uint64_t keep = bits_from(i % WORD_BITS);
    for (; w < words; w++, keep = ~UINT64_C(0)) {
        uint64_t stop = (~map->taken[w] | map->starts[w]) & keep;
        if (stop) /* no padding: that is taken, and nothing starts there */
            return w * WORD_BITS + bits_lowest(stop);
    }
    return map->bits;
}

static inline bool is_start(const struct bitmap *map, size_t idx)
{
    size_t w = idx / WORD_BITS;
    return idx < map->bits && (map->starts[w] & map->taken[w]) >> (idx % WORD_BITS) & 1;
}

size_t bitmap_run(const struct bitmap *map, size_t idx)
{
    return is_start(map, idx) ? taken_end(map, idx) - idx : 0;
}

/* They are taken as a run of their own first. */
bool bitmap_extend(struct bitmap *map, size_t idx, size_t more)
{
    size_t end = bitmap_run(map, idx) + idx;
    if (end == idx || end >= map->bits || more == 0 || bits_test(map->taken, end) || run_end(map, end) - end < more)
        return false;
    cut_run(map, &(struct bitmap_place){.from = end, .at = end}, more);
    order_for_fork();
    bits_clear_one(map->starts, end);
    return true;
}

static inline void mark_free(struct bitmap *map, size_t from, size_t to)
{
    bits_clear(map->taken, from, to);
    order_for_fork();
    bits_clear_one(map->starts, from);
}

size_t bitmap_free_merged(struct bitmap *map, size_t idx, size_t *merged)
{
    *merged = 0;
    if (unlikely(!is_start(map, idx)))
        return 0;
    size_t end = taken_end(map, idx), from = idx, to = end;
    mark_free(map, idx, end);
    if (idx > 0 && !bits_test(map->taken, idx - 1))
        from = run_start(map, idx - 1);
    if (!bits_test(map->taken, end))
        to = run_end(map, end);
    hint_add(map, from, to);
    /* A run behind that joined this one starts no longer where it did. */
    if (end < to && end / WORD_BITS != from / WORD_BITS)
        hint_set(map->hints, end / WORD_BITS, word_longest(map, end / WORD_BITS));
    *merged = to - from;
    return end - idx;
}
