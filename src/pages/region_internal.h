// SPDX-License-Identifier: MIT
/*
 * region_internal.h - what region.c, region_idle.c and region_look.c know together; nobody else includes it.
 */
#ifndef QUIRE_PAGES_REGION_INTERNAL_H
#define QUIRE_PAGES_REGION_INTERNAL_H

#include "base/atomic.h"
#include "base/bitmap.h"
#include "base/bits.h"
#include "base/lock.h"
#include "pages/region.h"

enum { REGIONS_MAX = 4096, REGION_LEAVING_MAX = 8 };
#define MIB ((size_t)1 << 20)
#define REGION_BYTES_MAX ((size_t)1 << 30)

C_DECLARATIONS_BEGIN

/* Spans that are whole huge pages live apart, so that only they are backed by huge pages and no VMA is split for one. */
enum region_kind { REGION_SMALL, REGION_HUGE };

struct region {
    /* fixed at birth */
    char *start;
    size_t pages, meta_bytes;
    enum region_kind kind;
    uint32_t id;
    /* under regions.lock */
    size_t committed_pages; /* [0, committed) may be written; beyond is PROT_NONE */
    struct bitmap map;      /* taken pages */
    uint64_t *idle;         /* free pages that are in memory: handed out since they last were zero, or filled ahead */
    size_t idle_end;        /* none at or behind it is idle */
    uint64_t *aged;         /* those that were idle at the last tick */
    size_t filled_from, filled_to; /* pages that came ahead of their use, the last time; as a tick may have given back */
    size_t filled_used;     /* so many of them were then to be filled */
    size_t zero_from;       /* of them, nobody had those from here on: idle or not, they are zero */
    size_t forget_from, forget_to; /* pages among which some were discarded: the page map's memory for them goes at the next tick */
    uint64_t *cached;       /* `check` build: first pages of spans that lie in a cache; where none is taken, it says nothing */
};

/* A span whose memory is on its way to the system, while the lock is open. */
struct region_leaving {
    struct region *region; /* NULL: this entry is free */
    size_t idx;
    size_t warm_bytes; /* of it, that stay: counted as idle already */
    const char *thread;
};

/* A span that becomes longer. */
struct region_growing {
    struct quire_span *span; /* NULL: none does */
    struct region *region;
    size_t end, had_bytes; /* end: its last page's, as it was */
};

struct regions {
    size_t expect_bytes; /* region_expect(); 0: nothing, or done */
    struct lock lock;
    uint32_t count;
    char *range_next, *range_end; /* reserved addresses not cut into regions yet */
    size_t range_region_bytes;    /* the size of a region of this range */
    struct region_leaving leaving[REGION_LEAVING_MAX];
    struct region_growing growing;
    size_t elsewhere_bytes; /* taken, but not cut from a region */
    atomic_u32 scatters; /* secure heaps; read without the lock, too */
    uint64_t random;     /* 0: not seeded */
    atomic_size cached_bytes_max;
    bool few; /* addresses: region_let_go() */
    size_t alone_bytes; /* mapped by heaps, for one block each */
    size_t most_bytes;  /* that were in memory: out, idle and alone */
    size_t used_bytes_most; /* out and alone, when fresh memory was taken */
    size_t way_bytes;   /* made way, and as it counts: region_over_locked() */
    struct region_stats sums;
};
extern struct regions regions;
extern struct region *region_by_id[REGIONS_MAX]; /* of regions.count; apart, or a file's pages would hold the zeros */

/* So much that is idle is to go, now that with so much more, more is used than ever was: for region_unlock(). */
size_t region_over_locked(size_t wanted_bytes);
/* Lets go of the lock; so much that is idle makes way before. */
void region_unlock(size_t over_bytes);
bool region_turns_over_locked(void); /* what made way is wanted again soon */
/* These pages are free and were discarded: the page map's memory for them goes later, where no page near them is taken then, or idle. */
void region_forgets_locked(struct region *region, size_t first, size_t stop);

C_DECLARATIONS_END
#endif
