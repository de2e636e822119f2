// SPDX-License-Identifier: MIT
/*
 * bits.h - one word of bits, and ranges of bits in an array of words.
 *
 * Bit i of an array is bit i % 64 of word i / 64.  Word shifts by 64 are undefined in C: every mask
 * here is made so that no count ever reaches it.
 *
 * Not here: which bits are taken and why (bitmap.h).
 */
#ifndef QUIRE_BASE_BITS_H
#define QUIRE_BASE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

enum { WORD_BITS = 64 };

static inline unsigned bits_lowest(uint64_t word) /* word != 0 */
{
    return (unsigned)__builtin_ctzll(word);
}

static inline unsigned bits_highest(uint64_t word) /* word != 0 */
{
    return 63U - (unsigned)__builtin_clzll(word);
}

/* How many one bits stand together at the top of a word. */
static inline unsigned bits_ones_at_top(uint64_t word)
{
    return ~word ? (unsigned)__builtin_clzll(~word) : 64;
}

static inline uint32_t bits_count(uint64_t word)
{
    word -= word >> 1 & UINT64_C(0x5555555555555555); /* the builtin is a call where the processor is not known to have it */
    word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
    word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (uint32_t)(word * UINT64_C(0x0101010101010101) >> 56);
}

/* Ones from `bit` (0..63) upwards. */
static inline uint64_t bits_from(unsigned bit)
{
    return ~UINT64_C(0) << bit;
}

/* `count` ones (1..64) at the bottom. */
static inline uint64_t bits_low(unsigned count)
{
    return ~UINT64_C(0) >> (WORD_BITS - count);
}

/* The places where `run` (1..64) one bits of the word begin. */
static inline uint64_t bits_runs(uint64_t word, unsigned run)
{
    for (unsigned have = 1; have < run && word;) {
        unsigned more = have < run - have ? have : run - have;
        word &= word >> more;
        have += more;
    }
    return word;
}

/* The length of the longest row of ones in a word. */
static inline unsigned bits_longest(uint64_t word)
{
    if ((word & word >> 1) == 0)
        return word != 0;
    /* One row alone: the commonest case after that. */
    uint64_t above = word + (word & -word);
    if ((above & word) == 0)
        return above ? bits_lowest(above) - bits_lowest(word) : WORD_BITS - bits_lowest(word);
    /* rows[k]: where 2^k ones begin.  Double as long as some are left, then halve the steps. */
    uint64_t rows[6] = {word}, at;
    unsigned k = 0, run = 1;
    for (; k < 5 && (at = rows[k] & rows[k] >> run) != 0; run *= 2)
        rows[++k] = at;
    for (at = rows[k]; k-- > 0;) {
        uint64_t longer = at & rows[k] >> run;
        run += longer ? 1U << k : 0;
        at = longer ? longer : at;
    }
    return run;
}

/* The bits of word number `word` that are multiples of 2^align_log2. */
static inline uint64_t bits_aligned(size_t word, unsigned align_log2)
{
    static const uint64_t within[] = {
        ~UINT64_C(0),
        UINT64_C(0x5555555555555555),
        UINT64_C(0x1111111111111111),
        UINT64_C(0x0101010101010101),
        UINT64_C(0x0001000100010001),
        UINT64_C(0x0000000100000001),
        1,
    };
    if (align_log2 <= 6)
        return within[align_log2];
    return (word & (((size_t)1 << (align_log2 - 6)) - 1)) == 0;
}

static inline bool bits_test(const uint64_t *words, size_t bit)
{
    return words[bit / WORD_BITS] >> (bit % WORD_BITS) & 1;
}

static inline void bits_set_one(uint64_t *words, size_t bit)
{
    words[bit / WORD_BITS] |= UINT64_C(1) << (bit % WORD_BITS);
}

static inline void bits_clear_one(uint64_t *words, size_t bit)
{
    words[bit / WORD_BITS] &= ~(UINT64_C(1) << (bit % WORD_BITS));
}

/* Sixteen bytes, and the places of those that are zero: bit i is byte i. */
typedef char bytes16 __attribute__((vector_size(16)));
static inline unsigned bytes16_zeros(bytes16 bytes)
{
#if CPU_X86_64
    return (unsigned)__builtin_ia32_pmovmskb128(bytes == 0);
#else
    unsigned zeros = 0;
    for (unsigned i = 0; i < sizeof bytes; i++)
        zeros |= (unsigned)(bytes[i] == 0) << i;
    return zeros;
#endif
}

/* ---- the bits [from, to) of an array ---- */

/* Those of word number `word`, of which some are. */
static inline uint64_t bits_within(size_t word, size_t from, size_t to)
{
    size_t at = word * WORD_BITS;
    uint64_t mask = from > at ? bits_from((unsigned)(from - at)) : ~UINT64_C(0);
    return to < at + WORD_BITS ? mask & ~bits_from((unsigned)(to - at)) : mask;
}

static inline void bits_set(uint64_t *words, size_t from, size_t to)
{
    for (size_t w = from / WORD_BITS; w * WORD_BITS < to; w++)
        words[w] |= bits_within(w, from, to);
}

/* from < to.  Downwards: see bitmap.c. */
static inline void bits_clear(uint64_t *words, size_t from, size_t to)
{
    size_t first = from / WORD_BITS, last = (to - 1) / WORD_BITS;
    uint64_t tail = bits_low((unsigned)((to - 1) % WORD_BITS + 1));
    for (size_t w = last; w > first; w--, tail = ~UINT64_C(0))
        words[w] &= ~tail;
    words[first] &= ~(tail & bits_from(from % WORD_BITS));
}

/* How many are 1. */
static inline size_t bits_count_in(const uint64_t *words, size_t from, size_t to)
{
    size_t count = 0;
    for (size_t w = from / WORD_BITS; w * WORD_BITS < to; w++)
        count += bits_count(words[w] & bits_within(w, from, to));
    return count;
}

/* The first that is 1 (ones), or 0; `to`: none is. */
static inline size_t bits_find(const uint64_t *words, size_t from, size_t to, bool ones)
{
    for (size_t w = from / WORD_BITS; w * WORD_BITS < to; w++) {
        uint64_t found = (ones ? words[w] : ~words[w]) & bits_within(w, from, to);
        if (found)
            return w * WORD_BITS + bits_lowest(found);
    }
    return to;
}

/* One behind the last that is; `from`: none is. */
static inline size_t bits_find_last(const uint64_t *words, size_t from, size_t to, bool ones)
{
    for (size_t w = (to + WORD_BITS - 1) / WORD_BITS; w * WORD_BITS > from; w--) {
        uint64_t found = (ones ? words[w - 1] : ~words[w - 1]) & bits_within(w - 1, from, to);
        if (found)
            return (w - 1) * WORD_BITS + bits_highest(found) + 1;
    }
    return from;
}

#endif
