// SPDX-License-Identifier: MIT
/*
 * quire/slab.h - elements of one size, allocated and freed by any thread, in any order.
 *
 * Use a slab when many objects of one size live and die on their own: connections, nodes, buffers, messages between threads.  Nothing is added
 * to an element; allocating and freeing is a few instructions without an atomic one, also on different threads; empty pages go back to the source,
 * also while other threads sleep; a slab that needs them again and again learns to keep them a while.  What threads keep at hand is bounded by what
 * lives, and by CPUs.
 *
 *     struct quire_slab *slab = quire_slab_create(sizeof(struct node), NULL);
 *     struct node *n = quire_slab_alloc(slab);
 *     ...
 *     quire_slab_free(slab, n);              // from any thread
 *     quire_slab_destroy(slab);              // frees what is left, at once
 *
 * Freeing twice, freeing what is no element of this slab, a pointer into the middle of an element, or writing into a free element's first word
 * stops the process with one line that names the slab, the address and what was broken: "slab E1" to "slab E7".  The last (E7) is not seen where free
 * elements have no mark: with QUIRE_SLAB_EXACT or QUIRE_SLAB_KEEP_NOTHING, of more than 32 KiB, or of a size or alignment that is no multiple of 8.
 *
 * Threads: every function but destroy may be called from any thread at any time.  What an ended thread had cached others use again.
 * Signals and fork: no function here may be called from a signal handler.  After fork parent and child each go on with their copy, also when
 * other threads were in the middle of an operation (each may lose one element to the child), or this one, whose signal handler forked; over a file or memfd source the elements
 * themselves are shared between the two, so only one of them may use the slab.
 * The verbs of a source of the user's own must not call any slab.
 */
#ifndef QUIRE_SLAB_H
#define QUIRE_SLAB_H

#include <quire/export.h>
#include <quire/slab_inline.h>
#include <quire/source.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and the function that fills it have one name, as in stat(2) */
extern "C" {
#endif

struct quire_slab;

/* All zero, or NULL in place of the struct: the defaults. */
struct quire_slab_opts {
    size_t struct_bytes;         /* sizeof; 0: as it was in 0.2 */
    const char *name;            /* NULL: none.  Copied, cut to 31 bytes */
    struct quire_source *source; /* NULL: quire_source_default().  Elements come from it; bookkeeping is anonymous memory.  Must outlive the slab */
    size_t align_bytes;          /* of every element, a power of two; 0: 16 */
    size_t page_bytes_max;       /* the largest page, one element at least; 0: 64 KiB, more for large elements */
    size_t initial_elements;     /* room of the first page; 0: it grows from one OS page */
    size_t limit_bytes;          /* memory the slab may hold at once, bookkeeping included; 0: no limit */
    uint64_t flags;              /* QUIRE_SLAB_* or'ed */
};

/* Flags. */
#define QUIRE_SLAB_DEFRAG 1u        /* start with the defragmenter on */
#define QUIRE_SLAB_SINGLE_THREAD 2u /* the caller promises one thread at a time; a promise for later: the usual ways take no lock and no atomic instruction without it */
#define QUIRE_SLAB_DONT_DUMP 4u     /* keep out of core dumps */
#define QUIRE_SLAB_KEEP_NOTHING 8u  /* every page that becomes empty goes back at once, unless it is the last; without: but for as many as were
                                       missed soon after they had gone back, which stay up to two decays */
#define QUIRE_SLAB_EXACT 16u        /* no thread caches elements: each free is checked against its page, whatever was written into the element
                                       since an earlier one; some 40 ns a call */

/* One snapshot.  mapped_bytes == live_bytes + free_bytes + meta_bytes, always. */
struct quire_slab_stats {
    size_t struct_bytes;  /* sizeof, set by the caller */
    size_t mapped_bytes;  /* held from the source and for bookkeeping */
    size_t live_bytes;    /* live_elements * slot_bytes */
    size_t free_bytes;    /* ready to be handed out, ends of pages, and what threads have cached */
    size_t meta_bytes;    /* bookkeeping */
    size_t live_elements;
    size_t element_bytes; /* as asked */
    size_t slot_bytes;    /* element_bytes rounded up to the alignment */
    size_t peak_bytes;    /* the most that mapped_bytes has been */
    size_t limit_bytes;   /* 0: none */
    size_t pages;         /* pages held */
    size_t empty_pages;   /* of these, pages without a live element */
    size_t caches;        /* sets of free elements: one for each thread that is using it */
};

/*
 * A new slab for elements of element_bytes; 0: elements of one byte.  NULL with errno: ENOMEM (no memory, a size that overflows, a
 * limit_bytes less than one OS page, or some 16,000 slabs alive), EINVAL (unknown flags, align_bytes not a power of two, a
 * struct_bytes that is none), E2BIG (options that this library does not know).  Nothing leaks on failure.  Cost: one OS page.  MT-Safe.
 */
QUIRE_API struct quire_slab *quire_slab_create(size_t element_bytes, const struct quire_slab_opts *opts);

/*
 * Free all elements and give all memory back.  NULL is left alone; errno is kept.  Nobody may be using the slab; an address that is not a
 * live slab stops the process ("slab E5").  Cost: one step for each page.  MT-Unsafe race:slab.
 */
QUIRE_API void quire_slab_destroy(struct quire_slab *slab);

/*
 * One element, aligned, contents undefined.  Stops the process: "slab E7" (see above) this element's first word was written to while it was free, or it was freed
 * twice.  NULL with errno ENOMEM: no memory, or over the limit, after every cached page has been asked for;
 * the slab stays usable.  Cost: about 1 ns; a page from the source now and then.  MT-Safe.
 */
QUIRE_API void *quire_slab_alloc(struct quire_slab *slab) __attribute__((__malloc__));

/* The usual case, compiled into the caller; see quire/slab_inline.h. */
#if QUIRE_SLAB_INLINE
void *quire_slab_alloc_out_of_line(struct quire_slab *slab) __asm__("quire_slab_alloc");
extern inline __attribute__((__gnu_inline__, __always_inline__)) void *quire_slab_alloc(struct quire_slab *slab)
{
    void *element = quire_slab_alloc_try((const struct quire_slab_window *)(const void *)slab);
    return __builtin_expect(element != NULL, 1) ? element : quire_slab_alloc_out_of_line(slab);
}
#endif

/* The same, all zero.  NULL with errno ENOMEM.  Cost: and clearing it.  MT-Safe. */
QUIRE_API void *quire_slab_alloc_zero(struct quire_slab *slab) __attribute__((__malloc__));

/*
 * Give an element back, from any thread; NULL is left alone; errno is kept.  Stops the process: "slab E1" the element is free already, "slab
 * E2" not an address of a slab, "slab E3" inside an element or behind the last, "slab E4" another slab's.  That an element is free is said by its
 * first eight bytes: where these were written over since, or two threads free it at the same moment, the process is stopped when the second copy
 * is about to be handed out, with "slab E1" or "slab E7".  QUIRE_SLAB_EXACT: at once, whatever was written.  Cost: about 1.5 ns.  MT-Safe.
 */
QUIRE_API void quire_slab_free(struct quire_slab *slab, void *element);

/* The same as above. */
#if QUIRE_SLAB_INLINE
void quire_slab_free_out_of_line(struct quire_slab *slab, void *element) __asm__("quire_slab_free");
extern inline __attribute__((__gnu_inline__, __always_inline__)) void quire_slab_free(struct quire_slab *slab, void *element)
{
    if (__builtin_expect(!quire_slab_free_try((const struct quire_slab_window *)(const void *)slab, element), 0))
        quire_slab_free_out_of_line(slab, element);
}
#endif

/* Up to `count` elements; returns how many: fewer only when memory is out, with errno ENOMEM.  Cost: half of single calls.  MT-Safe. */
QUIRE_API size_t quire_slab_alloc_batch(struct quire_slab *slab, void **elements, size_t count);

/* Free `count` elements, NULLs among them left alone.  Cost: half of single calls.  MT-Safe. */
QUIRE_API void quire_slab_free_batch(struct quire_slab *slab, void **elements, size_t count);

/*
 * Switch the defragmenter, under load too: on, allocation always takes the fullest page, so that sparse pages drain and go back; off, the
 * fullest of the first few.  While it is on, frees go to their pages, under a lock.  Cost: some microseconds for each thread, once a pass over the
 * pages.  MT-Safe.
 */
QUIRE_API void quire_slab_set_defrag(struct quire_slab *slab, uint32_t on);

/*
 * Give every empty page back to the source now, other threads' too, but for a thread that is inside an operation at that moment and does not
 * come out within a microsecond.  Returns bytes, bookkeeping included.  Cost: some microseconds, less for each
 * thread, and one step for each element that threads have at hand.  MT-Safe.
 */
QUIRE_API size_t quire_slab_trim(struct quire_slab *slab);

/*
 * Call fn with every live element until it returns something else than 0, and return that; 0 at the end.  Others may go on meanwhile, `fn` too may
 * use the slab: an element that lives during the whole walk is visited once; one that is allocated or freed meanwhile may be visited or not,
 * its memory stays readable while fn runs (for AddressSanitizer only if no other thread frees it then).  EINVAL (returns -1 with errno): fn NULL.
 * Cost: one step for each page and element.  MT-Safe.
 */
QUIRE_API int quire_slab_walk(struct quire_slab *slab, int (*fn)(void *element, void *arg), void *arg);

/* True when `p` points into a live element of this slab; any pointer may be asked about, none is followed.  Cost: as free.  MT-Safe. */
QUIRE_API bool quire_slab_owns(const struct quire_slab *slab, const void *p);

/* Fill `out`, whose struct_bytes is set, with a snapshot.  Cost: some microseconds for each thread and a step for each page.  MT-Safe. */
QUIRE_API void quire_slab_stats(const struct quire_slab *slab, struct quire_slab_stats *out);

/* NULL when the slab's invariants hold, else a static string such as "slab P2".  Cost: one step for each slot.  MT-Safe. */
QUIRE_API const char *quire_slab_check(struct quire_slab *slab);

/*
 * One slab for each exact size up to 1024 bytes, shared by all who ask for it and counted; above 1024 bytes one of the caller's own.  Returns
 * NULL with errno ENOMEM.  MT-Safe.
 */
QUIRE_API struct quire_slab *quire_slab_shared_acquire(size_t element_bytes);

/*
 * The caller has freed its elements and needs the slab no longer; the last one ends it.  NULL is left alone; errno is kept.  A slab that was
 * not acquired, or released too often, stops the process ("slab E6").  MT-Safe.
 */
QUIRE_API void quire_slab_shared_release(struct quire_slab *slab);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif
