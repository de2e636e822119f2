// SPDX-License-Identifier: MIT
/*
 * quire/heap.h - a big bag of pages: blocks of any size, for each size its own pages.
 *
 * Use a heap for what fits none of the others: small objects of many sizes that live and die on their own.  Small blocks have no header and no
 * free list inside them: which slots of a page are free stands in bits beside it, so that allocation goes upwards through memory, and a program's
 * stray writes do not reach the allocator.  The default heap serves the whole process; heaps of your own have their own pages, account and limit, and are
 * destroyed at once with all that is left in them:
 *
 *     struct quire_heap *heap = quire_heap_create(&(struct quire_heap_opts){.name = "session", .limit_bytes = 64 << 20});
 *     char *text = quire_heap_alloc(heap, 100);
 *     text = quire_heap_realloc(heap, text, 200);
 *     quire_heap_free(heap, text);           // from any thread
 *     quire_heap_destroy(heap);
 *
 * Freeing twice, freeing what is no block of this heap, or a pointer into the middle of a block stops the process with one line that names the
 * heap, the address and what was broken: "heap E1" to "heap E7".
 *
 * Threads: every function but destroy may be called from any thread at any time; a block may be freed by another thread than allocated it.
 * Signals and fork: no function here may be called from a signal handler (one that does all the same gets NULL where it would have to wait for its own
 * thread, and its frees are lost then).  After fork parent and child each go on with their copy, also when other
 * threads were in the middle of an operation (each may lose to the child the block, or the blocks from others, that it was about to take in); over a
 * file or memfd source the blocks themselves are shared between the two, so only one of them may use the heap.
 * The verbs of a source of the user's own must not call any heap.
 */
#ifndef QUIRE_HEAP_H
#define QUIRE_HEAP_H

#include <quire/export.h>
#include <quire/source.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and the function that fills it have one name, as in stat(2) */
extern "C" {
#endif

struct quire_heap;

/* All zero, or NULL in place of the struct: the defaults. */
struct quire_heap_opts {
    size_t struct_bytes;         /* sizeof; 0: as it was in 0.2 */
    const char *name;            /* NULL: none.  Copied, cut to 31 bytes */
    struct quire_source *source; /* NULL: quire_source_default().  Blocks come from it; bookkeeping is anonymous memory.  Must outlive the heap */
    size_t limit_bytes;          /* memory the heap may hold at once, bookkeeping included (some 70 KiB before the first block); 0: no limit */
    uint64_t flags;              /* QUIRE_HEAP_* or'ed */
};

/* Flags. */
#define QUIRE_HEAP_SECURE 1u /* random order, canaries, freed blocks wiped, kept back (of each thread 128 of up to 1 KiB, 16 larger ones, and the pages \
                                they are in) and verified, guards round large ones; of small ones usable is what was asked for */

/* One snapshot.  mapped_bytes == live_bytes + free_bytes + meta_bytes when nobody else uses the heap, and nearly so otherwise. */
struct quire_heap_stats {
    size_t struct_bytes;   /* sizeof, set by the caller */
    size_t mapped_bytes;   /* held from the source and for bookkeeping */
    size_t live_bytes;     /* slots of live blocks, rounding included, and live large blocks */
    size_t free_bytes;     /* slots ready to be handed out, ends of pages, guards */
    size_t meta_bytes;     /* bookkeeping */
    size_t rounding_bytes; /* of live_bytes, what nobody asked for: an estimate from one allocation for each page */
    size_t live_blocks;
    size_t large_bytes;    /* of live_bytes, blocks with a span of their own */
    size_t large_blocks;
    size_t peak_bytes;     /* the most that mapped_bytes has been */
    size_t limit_bytes;    /* 0: none */
    size_t pages;          /* pages of small blocks */
    size_t caches;         /* sets of pages, one for each thread that uses the heap or one that has ended */
};

/* The blocks of one size. */
struct quire_heap_class_stats {
    size_t struct_bytes; /* sizeof, set by the caller */
    size_t slot_bytes;
    size_t live_blocks;
    size_t page_bytes; /* what its pages hold */
    size_t peak_bytes; /* the most that page_bytes has been */
    size_t rounding_bytes; /* as in quire_heap_stats */
};

/* The heap of the process: made at first use, never destroyed.  Never NULL.  Cost: a load.  MT-Safe. */
QUIRE_API struct quire_heap *quire_heap_default(void);

/*
 * A new heap.  NULL with errno: ENOMEM (no memory, or a limit_bytes less than the heap itself; a little more may leave no room for a block), EINVAL (unknown flags, or a
 * struct_bytes that is none), E2BIG (options that this library does not know).  Nothing leaks on failure.  Cost: three OS pages.  MT-Safe.
 */
QUIRE_API struct quire_heap *quire_heap_create(const struct quire_heap_opts *opts);

/*
 * Free all blocks and give all memory back.  NULL and the default heap are left alone; errno is kept.  Nobody may be using the heap; an address
 * that is not a live heap stops the process ("heap E5").  Cost: one step for each page and large block.  MT-Unsafe race:heap.
 */
QUIRE_API void quire_heap_destroy(struct quire_heap *heap);

/*
 * A block of at least `bytes` bytes (0: a block of its own all the same), aligned to 16 bytes, contents undefined.  NULL with errno ENOMEM: no
 * memory, over the limit, or more than PTRDIFF_MAX; the heap stays usable.  Cost: about 2 ns up to 32 KiB, a page from the source now and
 * then; a span from the source above.  MT-Safe.
 */
QUIRE_API void *quire_heap_alloc(struct quire_heap *heap, size_t bytes) __attribute__((__malloc__, __alloc_size__(2)));

/* `count` elements of `bytes` bytes each, all zero.  NULL with errno ENOMEM, also when the product overflows.  Cost: and clearing it, but for what comes from the system.  MT-Safe. */
QUIRE_API void *quire_heap_alloc_zero(struct quire_heap *heap, size_t count, size_t bytes) __attribute__((__malloc__, __alloc_size__(2, 3)));

/* The same as quire_heap_alloc() at a multiple of align_bytes.  NULL with errno: EINVAL (not a power of two), ENOMEM.  MT-Safe. */
QUIRE_API void *quire_heap_alloc_aligned(struct quire_heap *heap, size_t bytes, size_t align_bytes) __attribute__((__malloc__, __alloc_size__(2)));

/*
 * A block of at least `bytes` bytes that begins with what `p` held, as much as fits; p NULL: as quire_heap_alloc().  `p` is freed, unless the
 * result is NULL with errno ENOMEM: then it is as it was.  bytes 0: a block of the least size, never NULL for that.  Stops the process as quire_heap_free().
 * Cost: nothing when it fits where it is; a copy; large blocks grow and move without a copy where the system can.  MT-Safe.
 */
QUIRE_API void *quire_heap_realloc(struct quire_heap *heap, void *p, size_t bytes) __attribute__((__alloc_size__(3)));

/*
 * Give a block back, from any thread; NULL is left alone; errno is kept.  Stops the process: "heap E1" the block is free already, or was never handed out, "heap E2" not an
 * address of a heap (nor is one inside a large block, behind its first page), "heap E3" inside a block, "heap E4" another heap's, "heap E6" a freed block was written to, "heap E7" (secure heaps) one was past its
 * end.  Cost: about 2 ns on the thread that has its page; elsewhere one atomic operation for some thirty blocks.  MT-Safe.
 */
QUIRE_API void quire_heap_free(struct quire_heap *heap, void *p);

/*
 * How many bytes of the block may be used; 0 for NULL.  Stops the process ("heap E1", "heap E2", "heap E3") for what is no live block.  Cost: a few
 * loads.  MT-Safe.
 */
QUIRE_API size_t quire_heap_usable_bytes(const void *p);

/*
 * The heap that a live block is of; NULL: of none; it never fails.  Any address may be asked about: one inside of a small block is of its heap, one
 * inside of a large block may be of none.  Cost: a lock, a few loads.  MT-Safe.
 */
QUIRE_API struct quire_heap *quire_heap_of(const void *p);

/* Give all free pages back to the source, other threads' too, and what the source keeps idle to the system.  Returns bytes.  Cost: some microseconds for each thread.  MT-Safe. */
QUIRE_API size_t quire_heap_trim(struct quire_heap *heap);

/*
 * Call fn with each live block and its usable bytes until it returns something else than 0, and return that; 0 at the end.  Others may go on meanwhile,
 * `fn` too may use the heap: a block that lives during the whole walk is visited once; one that is allocated, freed or resized meanwhile may be visited or
 * not, its memory stays readable while fn runs (for AddressSanitizer only if no other thread frees it then).  EINVAL (returns -1 with errno): fn NULL.
 * Cost: a pass over the pages, and a lock for each.  MT-Safe.
 */
QUIRE_API int quire_heap_walk(struct quire_heap *heap, int (*fn)(void *p, size_t bytes, void *arg), void *arg);

/* True for an address inside a live block of this heap; any address may be asked about.  Cost: a lock, a few loads, and a pass over the large blocks for what is in no small one.  MT-Safe. */
QUIRE_API bool quire_heap_owns(const struct quire_heap *heap, const void *p);

/* Fill `out`, whose struct_bytes is set, with a snapshot.  Cost: a pass over the pages, each thread waiting while its own are visited.  MT-Safe. */
QUIRE_API void quire_heap_stats(const struct quire_heap *heap, struct quire_heap_stats *out);

/* The blocks of the size class number `index`, from 0 up, into `out`, whose struct_bytes is set.  Returns -1 with errno EINVAL past the last.  Cost: as quire_heap_stats().  MT-Safe. */
QUIRE_API int quire_heap_class_stats(const struct quire_heap *heap, unsigned index, struct quire_heap_class_stats *out);

/* NULL when the heap's invariants hold, else a static string such as "heap P1".  Cost: as statistics.  MT-Safe. */
QUIRE_API const char *quire_heap_check(struct quire_heap *heap);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif
