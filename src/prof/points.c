// SPDX-License-Identifier: MIT
/*
 * points.c - where the sample points lie among the bytes that a thread allocates: one in each stretch, at a random place of it.
 *
 *     bytes   |----------x--|--x-----------|-------x------|---x----- ...        a stretch is every_bytes
 *                        ^left   rest ^
 *     blocks  [  ][][ ][    ][ ][][][   ][][ ][  ] ...                           a block is sampled when a point lies in it
 *
 * Each byte is a point with the same probability, 1/every_bytes, so a point stands for every_bytes bytes, whatever the sizes are: no estimate is biased.
 * Independent places (a Poisson process) would be that too; one in each stretch makes the sum over all stacks right to a stretch a thread, and the sum of
 * any stack no more uncertain than theirs (doc/adr/0032-heap-profile.md).  A program that allocates in step with the stretches is sampled all the same,
 * because each place is drawn anew.
 *
 * Locks: none; a thread's own.
 */
#include "prof/prof_internal.h"

/* Marsaglia's xorshift, with a multiplication behind it: enough for places, no secret. */
uint64_t prof_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t place(struct prof_points *points, uint64_t every_bytes)
{
    return (uint64_t)((unsigned __int128)prof_random(&points->random) * every_bytes >> 64);
}

void prof_points_begin(struct prof_points *points, uint64_t every_bytes, uint64_t seed)
{
    points->random = (seed ^ seed >> 32) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    (void)prof_random(&points->random);
    points->left_bytes = place(points, every_bytes);
    points->rest_bytes = every_bytes - points->left_bytes;
}

uint64_t prof_points_in(struct prof_points *points, uint64_t every_bytes, uint64_t bytes)
{
    uint64_t found = 0;
    if (bytes > points->left_bytes && (bytes - points->left_bytes) / every_bytes > 1) {
        found = (bytes - points->left_bytes) / every_bytes - 1; /* whole stretches have a point each */
        bytes -= found * every_bytes;
    }
    while (bytes > points->left_bytes) {
        uint64_t next = place(points, every_bytes);
        bytes -= points->left_bytes;
        points->left_bytes = points->rest_bytes + next;
        points->rest_bytes = every_bytes - next;
        found++;
    }
    points->left_bytes -= bytes;
    return found;
}
