// SPDX-License-Identifier: MIT
/*
 * quire/compat/netdata.h - netdata's One Way Allocator and Array Allocator by their own names, over quire/arena.h and quire/slab.h.
 *
 * Use it to run a program written for netdata's allocators without changing it; new programs use quire/arena.h and quire/slab.h, which report
 * errors.  A function here never returns NULL: when memory is out, a size overflows, or a copy of NULL is asked for, the process stops with one
 * line, after the hook of quire_on_panic() (quire/quire.h).  As in the original, a `z` at the end of a name means just that, not "zeroed".
 *
 *     ONEWAYALLOC *owa = onewayalloc_create(0);
 *     char *copy = onewayalloc_strdupz(owa, "one way");
 *     onewayalloc_destroy(owa);
 *
 *     ARAL *nodes = aral_create("nodes", sizeof(struct node), 0, 0, NULL, NULL, NULL, false, false, false);
 *     struct node *node = aral_callocz(nodes);
 *     aral_freez(nodes, node);
 *     aral_destroy(nodes);
 *
 * Threads: one ONEWAYALLOC is for one thread at a time; any number of threads may each use their own.  An ARAL is for any number of threads,
 * unless it was created `lockless`.
 * Signals and fork: no function here may be called from a signal handler.  After fork parent and child each go on with their copy; the pages of
 * an ARAL in files are shared by both, so only one of them may use it.
 */
#ifndef QUIRE_COMPAT_NETDATA_H
#define QUIRE_COMPAT_NETDATA_H

#include <quire/export.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- One Way Allocator ---- */

typedef void ONEWAYALLOC;

/* A new arena whose first span is of `size_hint` bytes, its header included; 0: one OS page.  Never NULL.  MT-Safe. */
QUIRE_API ONEWAYALLOC *onewayalloc_create(size_t size_hint);

/* All memory of the arena is gone; NULL is left alone.  errno is kept.  MT-Unsafe race:owa. */
QUIRE_API void onewayalloc_destroy(ONEWAYALLOC *owa);

/* Empty again, in O(1), the pages kept; contents are not cleared.  NULL is left alone.  MT-Unsafe race:owa. */
QUIRE_API void onewayalloc_reset(ONEWAYALLOC *owa);

/* `size` bytes, 16-byte aligned; 0 gives a valid address.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API void *onewayalloc_mallocz(ONEWAYALLOC *owa, size_t size);

/* `nmemb` times `size` bytes, zeroed, the product checked.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API void *onewayalloc_callocz(ONEWAYALLOC *owa, size_t nmemb, size_t size);

/* A copy of a string; of `size` bytes.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API char *onewayalloc_strdupz(ONEWAYALLOC *owa, const char *s);
QUIRE_API void *onewayalloc_memdupz(ONEWAYALLOC *owa, const void *src, size_t size);

/* A block of twice `oldsize` that begins with the old contents: in place when it is the last one.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API void *onewayalloc_doublesize(ONEWAYALLOC *owa, const void *src, size_t oldsize);

/* Does nothing; NULL is allowed.  In the `check` build a pointer that is not the arena's stops the process.  MT-Unsafe race:owa. */
QUIRE_API void onewayalloc_freez(ONEWAYALLOC *owa, const void *ptr);

/* Bytes held by all ONEWAYALLOCs of the process.  MT-Safe. */
QUIRE_API size_t onewayalloc_allocated_memory(void);

/* a * b and a * b * c; an overflow stops the process with a line that names `context`.  MT-Safe. */
QUIRE_API size_t onewayalloc_mul_or_fatal(size_t a, size_t b, const char *context);
QUIRE_API size_t onewayalloc_mul3_or_fatal(size_t a, size_t b, size_t c, const char *context);

/* ---- Array Allocator ---- */

struct quire_slab;
typedef struct aral ARAL;

/* What aral_name() keeps of a name, in bytes. */
#define ARAL_MAX_NAME 23

/*
 * What one array, or all that share this struct, hold at this moment.  The fields are written by relaxed atomic operations, so that they may be
 * read at any time; each group has a cache line.  allocated_bytes of `malloc` and `mmap` is the room for elements in bytes as asked:
 * used + free == allocated, and structures.allocated_bytes + both allocated_bytes + both padding_bytes is what is held of the system's memory.
 * All zero is the start; the caller's own must stay as long as an array that was created with it.
 */
struct aral_statistics {
    struct {
        size_t allocations;     /* arrays and pages */
        size_t allocated_bytes; /* for bookkeeping */
    } structures __attribute__((__aligned__(64)));
    struct {
        size_t allocations;     /* pages of anonymous memory */
        size_t allocated_bytes; /* room in them: elements * bytes as asked */
        size_t used_bytes;      /* live elements * bytes as asked */
        size_t padding_bytes;   /* what alignment and ends of pages take */
    } malloc __attribute__((__aligned__(64)));
    struct {
        size_t allocations; /* the same of arrays in files */
        size_t allocated_bytes;
        size_t used_bytes;
        size_t padding_bytes;
    } mmap __attribute__((__aligned__(64)));
};

/*
 * A new array of elements of `element_size` bytes; 0 and 1 too.  Never NULL.  MT-Safe.
 *   name                   copied, cut to ARAL_MAX_NAME bytes; NULL: none
 *   initial_page_elements  room of the first page, at least 2, at most what the largest page holds
 *   max_page_size          the largest page in bytes, one element at least; 0: aral_optimal_malloc_page_size(), or 1 GiB for files
 *   stats                  the caller's, may be shared by many arrays, all kept current at the price of an atomic addition a call; NULL: private
 *   mmap                   pages are files `<*cache_dir>/array_alloc.mmap/<filename>.<n>`, removed with their page; both strings are copied.  The
 *                          directory is made (0775) where it is missing, and what an ended process left there under this name is removed.  Where
 *                          that cannot be, a line on standard error says why, and anonymous memory is used instead
 *   lockless               one thread at a time uses it; a promise that nothing is made of yet: its locks are there, and never waited for
 *   dont_dump              pages stay out of core dumps
 */
QUIRE_API ARAL *aral_create(const char *name, size_t element_size, size_t initial_page_elements, size_t max_page_size,
                            struct aral_statistics *stats, const char *filename, const char **cache_dir, bool mmap, bool lockless, bool dont_dump);

/*
 * Free what lives, remove the files, take what this array has in the caller's statistics off them.  NULL is left alone; errno is kept.  What is
 * no live array, or one of aral_by_size_acquire(), stops the process.  MT-Unsafe race:ar.
 */
QUIRE_API void aral_destroy(ARAL *ar);

/* One element, 16-byte aligned, contents undefined; the same, all zero.  Never NULL.  MT-Safe. */
QUIRE_API void *aral_mallocz(ARAL *ar) __attribute__((__malloc__));
QUIRE_API void *aral_callocz(ARAL *ar) __attribute__((__malloc__));

/* The same from pages that hold only marked elements: long-lived ones, say, beside short-lived ones.  Never NULL.  MT-Safe. */
QUIRE_API void *aral_mallocz_marked(ARAL *ar) __attribute__((__malloc__));
QUIRE_API void *aral_callocz_marked(ARAL *ar) __attribute__((__malloc__));

/*
 * Take the mark off, in O(1); nothing moves.  A page without marked elements joins the ordinary ones.  NULL and what is not marked, or free, is
 * left alone; another thread may be freeing the element meanwhile.  MT-Safe.
 */
QUIRE_API void aral_unmark_allocation(ARAL *ar, void *ptr);

/*
 * Give an element back, marked or not, from any thread; NULL is left alone; errno is kept.  Freeing twice, into another array or in the middle of an
 * element stops the process as quire_slab_free() does.  A page that becomes empty goes back at once, unless it is the last.  MT-Safe.
 */
QUIRE_API void aral_freez(ARAL *ar, void *ptr);

/* The name; the bytes of an element as asked, and with what alignment adds.  Never NULL.  MT-Safe. */
QUIRE_API const char *aral_name(const ARAL *ar);
QUIRE_API size_t aral_requested_element_size(const ARAL *ar);
QUIRE_API size_t aral_actual_element_size(const ARAL *ar);

/*
 * What one array holds: the sum of the four is all of it; used and free in bytes as asked.  Cost: some microseconds for each thread that uses
 * the array.  MT-Safe.
 */
QUIRE_API size_t aral_structures_bytes(const ARAL *ar);
QUIRE_API size_t aral_free_bytes(const ARAL *ar);
QUIRE_API size_t aral_used_bytes(const ARAL *ar);
QUIRE_API size_t aral_padding_bytes(const ARAL *ar);

/*
 * The struct that the array was created with, or its private one, which is kept current from the first such call on: call it before threads
 * share the array, else used_bytes may miss what they are doing right then.  Never NULL.  MT-Safe.
 */
QUIRE_API struct aral_statistics *aral_get_statistics(ARAL *ar);

/* The same four, out of a struct; 0 for NULL.  Cost: some loads.  MT-Safe. */
QUIRE_API size_t aral_structures_bytes_from_stats(const struct aral_statistics *stats);
QUIRE_API size_t aral_free_bytes_from_stats(const struct aral_statistics *stats);
QUIRE_API size_t aral_used_bytes_from_stats(const struct aral_statistics *stats);
QUIRE_API size_t aral_padding_bytes_from_stats(const struct aral_statistics *stats);

/*
 * The largest page of every array that was created with max_page_size 0 and no files: 64 KiB at the start.  Setting it, to 16 KiB or more, holds for
 * all of them from their next page on; returns what holds now.  Never fails.  MT-Safe.
 */
QUIRE_API size_t aral_optimal_malloc_page_size(void);
QUIRE_API size_t aral_optimal_malloc_page_size_set(size_t size);

/* One array for each exact size up to 1024 bytes, shared by all who ask and counted; above, one of the caller's own.  Never NULL.  MT-Safe. */
QUIRE_API ARAL *aral_by_size_acquire(size_t size);

/*
 * The caller needs it no longer; the last one ends it, with all its memory.  NULL is left alone; errno is kept.  One that was not acquired, or was
 * released too often, stops the process.  MT-Safe.
 */
QUIRE_API void aral_by_size_release(ARAL *ar);

/* What all arrays of aral_by_size_acquire() hold together.  Never NULL.  MT-Safe. */
QUIRE_API struct aral_statistics *aral_by_size_statistics(void);
QUIRE_API size_t aral_by_size_structures_bytes(void);
QUIRE_API size_t aral_by_size_free_bytes(void);
QUIRE_API size_t aral_by_size_used_bytes(void);
QUIRE_API size_t aral_by_size_padding_bytes(void);

/* The slab beneath: for quire_slab_set_defrag(), quire_slab_walk(), quire_slab_check().  It ends with the array.  Never NULL.  MT-Safe. */
QUIRE_API struct quire_slab *aral_slab(const ARAL *ar);

#ifdef __cplusplus
}
#endif
#endif
