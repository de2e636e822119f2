// SPDX-License-Identifier: MIT
/*
 * pageset.h - a plain set of page numbers, one bit each: ranges set, cleared, counted, searched a word at a time.
 *
 * Not here: which pages are taken (base/bitmap.h); a set has no runs and no hints.
 */
#ifndef QUIRE_PAGES_PAGESET_H
#define QUIRE_PAGES_PAGESET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pageset {
    uint64_t *words;
};

/* The bits of word number `word` that lie in [first, end). */
static inline uint64_t pageset_mask(size_t word, size_t first, size_t end)
{
    uint64_t mask = ~UINT64_C(0);
    if (first > word * 64)
        mask &= ~UINT64_C(0) << (first - word * 64);
    if (end < word * 64 + 64)
        mask &= ~UINT64_C(0) >> (word * 64 + 64 - end);
    return mask;
}

static inline void pageset_add(struct pageset set, size_t first, size_t end)
{
    for (size_t w = first / 64; w * 64 < end; w++)
        set.words[w] |= pageset_mask(w, first, end);
}

static inline void pageset_remove(struct pageset set, size_t first, size_t end)
{
    for (size_t w = first / 64; w * 64 < end; w++)
        set.words[w] &= ~pageset_mask(w, first, end);
}

static inline size_t pageset_count(struct pageset set, size_t first, size_t end)
{
    size_t count = 0;
    for (size_t w = first / 64; w * 64 < end; w++)
        count += (size_t)__builtin_popcountll(set.words[w] & pageset_mask(w, first, end));
    return count;
}

/* The first page in [first, end) that is in the set (member) or not in it; `end` if there is none. */
static inline size_t pageset_find(struct pageset set, size_t first, size_t end, bool member)
{
    for (size_t w = first / 64; w * 64 < end; w++) {
        uint64_t bits = (member ? set.words[w] : ~set.words[w]) & pageset_mask(w, first, end);
        if (bits)
            return w * 64 + (size_t)__builtin_ctzll(bits);
    }
    return end;
}

/* One behind the last page in [first, end) that is in the set (member) or not in it; `first` if there is none. */
static inline size_t pageset_find_last(struct pageset set, size_t first, size_t end, bool member)
{
    for (size_t w = (end + 63) / 64; w * 64 > first; w--) {
        uint64_t bits = (member ? set.words[w - 1] : ~set.words[w - 1]) & pageset_mask(w - 1, first, end);
        if (bits)
            return w * 64 - (size_t)__builtin_clzll(bits);
    }
    return first;
}

#endif
