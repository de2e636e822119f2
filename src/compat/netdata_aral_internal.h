// SPDX-License-Identifier: MIT
/*
 * netdata_aral_internal.h - what the files of the Array Allocator's names know together.
 */
#ifndef QUIRE_COMPAT_NETDATA_ARAL_INTERNAL_H
#define QUIRE_COMPAT_NETDATA_ARAL_INTERNAL_H

#include <quire/compat/netdata.h>
#include <quire/slab.h>
#include <quire/source.h>

#include "base/atomic.h"

/* A group of struct aral_statistics as the atomic words it is made of: `malloc` or `mmap`. */
struct aral_group {
    atomic_size allocations, allocated_bytes, used_bytes, padding_bytes;
};

struct aral {
    struct quire_source source; /* first: the slab's pages come through the array that counts them */
    /* fixed at birth */
    struct quire_slab *slab;
    size_t requested_bytes, slot_bytes;
    struct aral_statistics *stats; /* the caller's, or `own` */
    struct quire_source *files;    /* NULL: anonymous memory */
    bool follows;                  /* aral_optimal_malloc_page_size() */
    char name[ARAL_MAX_NAME + 1];
    /* any thread */
    atomic_addr used;         /* atomic_size *: kept current by every call; 0: nobody has asked */
    atomic_size structures;   /* bytes of bookkeeping that the statistics have of this array */
    atomic_u32 said_no_files; /* once is enough */
    /* under the registry's lock (netdata_aral_registry.c) */
    atomic_addr next; /* ARAL * */
    ARAL *prev;
    size_t acquired; /* by aral_by_size_acquire() */
    /* any thread, in groups of a cache line */
    struct aral_statistics own;
};

/* ---- netdata_aral.c ---- */

/* The process stops: `what` of the array `name`, NULL where it has none. */
__attribute__((noreturn, cold)) void aral_fatal(const char *name, const char *what, const void *address);
/* Memory of zeroes for an array's struct; its end; is this one? */
ARAL *aral_struct_new(void);
void aral_struct_delete(ARAL *ar);
bool aral_is_live(const ARAL *ar);

/* ---- netdata_aral_source.c ---- */

/* Where the slab of `ar` gets its pages.  The name is set before; slot_bytes before the first page is taken. */
void aral_source_init(ARAL *ar);
void aral_source_fini(ARAL *ar);
bool aral_source_is_of(const ARAL *ar);
/* Put the pages into files; without success a line is written, and `files` stays NULL. */
void aral_source_open_files(ARAL *ar, const char *filename, const char **cache_dir);

/* ---- netdata_aral_stats.c ---- */

void aral_count_created(ARAL *ar);
void aral_count_destroyed(ARAL *ar, size_t live_elements);
/* A page of `bytes` has come (or gone). */
void aral_count_page(ARAL *ar, size_t bytes, bool come);
void aral_count_meta(struct quire_source *source); /* bookkeeping has come or gone */

/* ---- netdata_aral_registry.c ---- */

/* Into and out of the list of all arrays. */
void aral_registry_add(ARAL *ar);
void aral_registry_remove(ARAL *ar);

#endif
