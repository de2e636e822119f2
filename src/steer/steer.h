// SPDX-License-Identifier: MIT
/*
 * steer.h - a plan carried out on an unmodified program: malloc's callers are told apart, and each is served by its arena, its slab or the heap.
 *
 *     malloc <-- jv_string_sized <-- parse        return address: a wrapper's; the next one, 5 words up: site 17, arena 0
 *
 * The heap (heap/) is the fallback of every step: a site that is not in the plan, a block that is too large, a thread without memory for its part.
 *
 * Threads: every function here may be called by any number of threads, but steer_start().  Fork: the child can go on.
 */
#ifndef QUIRE_STEER_STEER_H
#define QUIRE_STEER_STEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* Where a call of malloc came from.  `frame`: the caller's stack pointer after the return. */
struct steer_call {
    uintptr_t ret;
    const uintptr_t *frame;
};
/* Of the function in which this stands. */
#define STEER_CALLER ((struct steer_call){(uintptr_t)__builtin_return_address(0), (const uintptr_t *)__builtin_dwarf_cfa()})

enum { STEER_WHY_BYTES = 128 };
#define STEER_OTHER_PROGRAM "it is of another program"

/* All zero: a plan is carried out. */
struct steer_opts {
    bool control; /* sites are found, and all of them served by the heap */
    bool counts;  /* blocks and bytes are counted by site, at a nanosecond or two for each block */
};

/*
 * Reads a plan, before any other thread exists.  True: it is in force.  False: `why` says why not in words, and nothing has changed.
 */
bool steer_start(const char *path, const struct steer_opts *opts, char why[STEER_WHY_BYTES]);

/* The plan has call sites.  False: all it says is how much memory will be wanted, and the heap serves every call. */
bool steer_has_sites(void);

/* ---- malloc and its like; of any address, also the heap's ---- */
void *steer_alloc(size_t bytes, struct steer_call call);                  /* NULL and errno ENOMEM */
void *steer_alloc_zero(size_t bytes, struct steer_call call);
void *steer_realloc(void *p, size_t bytes);                               /* p: not NULL */
void steer_free(void *p);                                                 /* NULL too; errno is kept */
size_t steer_usable_bytes(const void *p);

/* ---- what it did ---- */
struct steer_site_stats {
    uint32_t number;    /* in the plan file */
    uint32_t pool;      /* which arena or slab; 0: sent back to the heap */
    uint64_t blocks, bytes; /* handed out by its arena or slab, where that is counted; bytes as asked for */
    uint64_t fallbacks; /* blocks that the heap gave although the plan says otherwise */
};
struct steer_stats {
    uint32_t sites, modules_seen, learnt; /* learnt: call sites looked up for the first time */
    uint64_t blocks, bytes, fallbacks, live_blocks, live_bytes, held_bytes, peak_bytes;
    uint64_t needless_frees; /* frees of blocks in arenas */
    uint32_t sent_back;      /* arenas whose sites went back to the heap for good */
    uint64_t timed_frees, timed_ns; /* of needless frees, by steer_free_timed() */
};
void steer_stats(struct steer_stats *out);
bool steer_site_stats(uint32_t index, struct steer_site_stats *out); /* false: there are no more */

bool steer_has(const void *p);
bool steer_size_may_fit(const void *p, size_t bytes); /* of a block that steer_has(): it was asked for with so many, or may have been shortened to them */
bool steer_free_sized(void *p, size_t bytes); /* the same of any address, and it is freed; false: nothing was done */
/* As steer_free(), and one in so many needless frees is timed. */
void steer_free_timed(void *p);

/* NULL when the invariants of this thread's chunks hold, else a static string such as "steer S1".  All other threads outside. */
const char *steer_check(void);

C_DECLARATIONS_END
#endif
