// SPDX-License-Identifier: MIT
/*
 * bitmap_hint.c - finding an aligned place without looking at places that cannot serve.
 *
 *     stripe      | 8 words | 8 words | 8 words |     a ceiling for each, for each alignment in use
 *     ceiling         12         1         40         a search for 16 bits looks into the third only
 *
 * A *promise* says what a block has; it is exact after every call, whatever the alignment.  A
 * *ceiling* says what a stripe of blocks cannot have: how long an aligned place can be.  Freeing
 * raises ceilings, allocating leaves them, a search that looked in vain puts one right; so each
 * allocation can cause one vain look, and only one.
 *
 * Invariants B4 and B7 at their fields in bitmap_hint.h, checked by bitmap_look.c.
 * Locks: none.  Not here: places that need no alignment, taking and freeing (bitmap.c).
 */
#include "base/bitmap_hint.h"

void hint_ceilings_raise(struct bitmap_hints *hints, size_t from, size_t to)
{
    size_t stripe = from / STRIPE_BITS;
    for (uint32_t i = 0; i < hints->nslots; i++) {
        struct bitmap_slot *slot = &hints->slot[i];
        size_t at = align_up(from, (size_t)1 << slot->align_log2);
        if (at >= to)
            continue;
        uint16_t code = code_of(to - at);
        if (slot->ceilings[stripe] < code)
            tree_set(&hints->stripes, slot->ceilings, stripe, code);
        if (slot->word > from / WORD_BITS)
            slot->word = (uint32_t)(from / WORD_BITS);
    }
}

/* A fresh slot knows of each stripe what the promises of its words say; of a young map only a few words say anything, and the others stay untouched. */
static void slot_fill(struct bitmap_hints *hints, struct bitmap_slot *slot)
{
    size_t words = hints->shape.count[0], w = 0;
    while ((w = tree_first(&hints->shape, hints->promises, w, 1)) < words) {
        size_t stripe = w / STRIPE_WORDS, end = (stripe + 1) * STRIPE_WORDS;
        uint16_t most = 0;
        for (; w < words && w < end; w++)
            most = hints->promises[w] > most ? hints->promises[w] : most;
        tree_set(&hints->stripes, slot->ceilings, stripe, most);
    }
}

/* The slot for an alignment, made now if there is room; failing that one of a smaller alignment,
 * whose ceilings hold but may be too high.  There is one: the least of all gets the last slot. */
static struct bitmap_slot *slot_for(struct bitmap_hints *hints, unsigned align_log2)
{
    struct bitmap_slot *best = NULL;
    for (uint32_t i = 0; i < hints->nslots; i++) {
        struct bitmap_slot *slot = &hints->slot[i];
        if (slot->align_log2 <= align_log2 && (!best || slot->align_log2 > best->align_log2))
            best = slot;
    }
    if (best && (hints->nslots == SLOTS || best->align_log2 == align_log2))
        return best;
    best = &hints->slot[hints->nslots < SLOTS ? hints->nslots++ : SLOTS - 1];
    *best = (struct bitmap_slot){.ceilings = best->ceilings, .align_log2 = align_log2};
    slot_fill(hints, best);
    return best;
}

/* The first aligned place among the free bits x of word w that ends in it; WORD_BITS if none does. */
static inline unsigned word_place(uint64_t x, size_t w, const struct bitmap_want *want)
{
    uint64_t at = 0;
    if (want->run <= WORD_BITS)
        at = bits_runs(x, (unsigned)want->run) & bits_aligned(w, want->align_log2);
    return at ? bits_lowest(at) : WORD_BITS;
}

/* The lowest aligned place of the runs that start in word `w` or later in its stripe. */
static bool place_in_stripe(const struct bitmap *map, size_t w, const struct bitmap_want *want,
                            struct bitmap_place *out)
{
    size_t end = w / STRIPE_WORDS * STRIPE_WORDS + STRIPE_WORDS, words = map_words(map);
    uint16_t code = code_of(want->run);
    for (end = end < words ? end : words; w < end; w++) {
        if (map->hints->promises[w] < code)
            continue;
        uint64_t x = word_own_free(map, w);
        unsigned at = word_place(x, w, want), top = bits_ones_at_top(x);
        if (at < WORD_BITS) {
            out->at = w * WORD_BITS + at;
            out->from = out->at + 1 - bits_ones_at_top(x << (WORD_BITS - 1 - at));
            return true;
        }
        /* A run leaves the word at its top: its one place is its first aligned bit. */
        out->from = (w + 1) * WORD_BITS - top;
        out->at = align_up(out->from, (size_t)1 << want->align_log2);
        size_t to = top ? run_end(map, out->from) : 0;
        if (out->at < to && to - out->at >= want->run)
            return true;
    }
    return false;
}

/* A look was in vain: find out what the stripe has, so that the next search passes it by. */
static void ceiling_settle(struct bitmap *map, struct bitmap_slot *slot, size_t stripe)
{
    struct bitmap_want more = {1, slot->align_log2};
    struct bitmap_place place;
    while (place_in_stripe(map, stripe * STRIPE_WORDS, &more, &place))
        more.run = run_end(map, place.from) - place.at + 1;
    tree_set(&map->hints->stripes, slot->ceilings, stripe, code_of(more.run - 1));
}

bool hint_search_aligned(struct bitmap *map, const struct bitmap_want *want,
                         struct bitmap_place *out)
{
    struct bitmap_hints *hints = map->hints;
    struct bitmap_slot *slot = slot_for(hints, want->align_log2);
    bool own = slot->align_log2 == want->align_log2;
    size_t nstripes = hints->stripes.count[0], w = own && slot->run <= want->run ? slot->word : 0;
    size_t stripe = w / STRIPE_WORDS;
    uint16_t code = code_of(want->run);
    /* From the cursor on in its stripe; then stripe by stripe. */
    bool found = stripe < nstripes && place_in_stripe(map, w, want, out);
    while (!found && stripe < nstripes) {
        if (slot->ceilings[stripe] >= code)
            ceiling_settle(map, slot, stripe);
        stripe = tree_first(&hints->stripes, slot->ceilings, stripe + 1, code);
        found = stripe < nstripes && place_in_stripe(map, stripe * STRIPE_WORDS, want, out);
    }
    if (own) {
        slot->word = (uint32_t)(found ? out->from / WORD_BITS : nstripes * STRIPE_WORDS);
        slot->run = (uint32_t)want->run;
    }
    return found;
}
