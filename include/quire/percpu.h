// SPDX-License-Identifier: MIT
/*
 * quire/percpu.h - objects of which every CPU has a copy of its own.
 *
 * Use it for what many threads write and few read: counters, statistics, small caches and free lists. A write goes to the copy of the CPU that the
 * thread runs on: no atomic instruction, no line that moves between CPUs, no padding; a copy costs memory only where it is written.
 *
 *     struct quire_percpu *pool = quire_percpu_create(NULL);
 *     struct quire_percpu_ref hits = quire_percpu_alloc(pool, sizeof(intptr_t), 0);      // zero on every CPU
 *     quire_percpu_add(pool, hits, 1);                       // from any thread
 *     printf("%ld\n", (long)quire_percpu_sum(pool, hits));
 *     quire_percpu_free(pool, hits);
 *     quire_percpu_destroy(pool);
 *
 * Freeing twice, freeing a place inside an object, freeing what is none of this pool's stops the process with one line that names the pool, the
 * address and what was broken: "percpu E1" to "percpu E5"; so does asking for a copy or the sum of what lies in none of its chunks (of a freed object's place there it is given).  Adding,
 * cmpxchg, push and pop look at a CPU's first write into a chunk only.
 * A member of an object: a ref whose bits are moved by its offset; good for everything but quire_percpu_free() and _owns().
 *
 * Threads: every function but destroy may be called from any thread at any time.  What one copy holds is changed by quire_percpu_add(), _cmpxchg(),
 * _push() and _pop() only as one whole step; who writes through quire_percpu_at() orders that with the rest himself.
 * Copies: a CPU that goes offline keeps its copy.  What threads add on CPUs without a copy (more CPUs than the pool was made for) goes to one more,
 * which all such threads share and quire_percpu_sum() counts.
 * Without the kernel's restartable sequences (an old libc, the tunable glibc.pthread.rseq=0, valgrind) every function gives the same results by
 * atomic instructions.  Only the area that glibc has registered is used.
 * Signals and fork: add, sum and at may be called from a signal handler; cmpxchg, push and pop too, where restartable sequences work
 * and the thread's CPU has a copy; the others not.  After fork the child goes on with copies of its own; over a file or memfd source the copies
 * are shared between the two, so only one of them may use the pool.
 * A program that takes quire_percpu_add() inline must not be unloaded (dlclose) while a thread that called it lives; QUIRE_PERCPU_INLINE 0 makes calls of it.
 */
#ifndef QUIRE_PERCPU_H
#define QUIRE_PERCPU_H

#include <quire/export.h>
#include <quire/percpu_inline.h>
#include <quire/source.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and the function that fills it have one name, as in stat(2) */
extern "C" {
#endif

struct quire_percpu;

/* An object.  Not a pointer: it cannot be dereferenced by mistake; {0} is none. */
struct quire_percpu_ref {
    uintptr_t bits;
};

/* All zero, or NULL in place of the struct: the defaults. */
struct quire_percpu_opts {
    size_t struct_bytes;         /* sizeof; 0: as it was in 0.2 */
    const char *name;            /* NULL: none.  Copied, cut to 31 bytes */
    struct quire_source *source; /* NULL: anonymous memory straight from the system, without huge pages.  Others may commit more than what is written:
                                    file and memfd sources all, decorated ones by huge pages.  Must outlive the pool */
    size_t chunk_bytes;          /* the largest object that one CPU's part of a chunk, its unit, must hold; with a page it is rounded up to a power of
                                    two.  0: units of 1 MiB, or less where limit_bytes asks for it */
    unsigned cpus;               /* copies; 0: as many as the system may ever have */
    size_t limit_bytes;          /* address space for all copies together and bookkeeping; 0: no limit */
    uint64_t flags;              /* 0 */
    size_t reserve_bytes;        /* room that is kept for quire_percpu_alloc_nowait() alone, at most a unit; 0: none */
};

/* One snapshot.  mapped_bytes == live_bytes + free_bytes + meta_bytes, always; all three are of all copies together. */
struct quire_percpu_stats {
    size_t struct_bytes;       /* sizeof, set by the caller */
    size_t mapped_bytes;       /* address space of the copies, and bookkeeping; memory only where it was written */
    size_t live_bytes;         /* live objects, rounded up to 4 bytes (where there are many, to their alignment), times copies, the shared one included */
    size_t free_bytes;
    size_t meta_bytes;         /* bookkeeping */
    size_t live_objects;
    size_t live_objects_peak;  /* exact while one set of chunks serves all, else never too low */
    size_t limit_bytes;        /* 0: none */
    size_t peak_bytes;         /* the most that mapped_bytes has been */
    size_t unit_bytes;         /* the largest object */
    unsigned cpus;             /* copies that quire_percpu_at() knows */
    size_t chunks;
    size_t chunks_peak;
    size_t empty_chunks;       /* of these, chunks without a live object */
    size_t copies_written;     /* units, of all chunks, in which something was ever written or may have been */
    uint64_t allocs, frees;    /* successful ones, ever */
    size_t unit_free_bytes;    /* free in the units of one CPU, of all chunks together: fragments, and the first 64 bytes of each */
    size_t longest_free_bytes; /* the largest object that fits without a new chunk */
    size_t fragments;          /* free runs before the end of a chunk's last object */
    size_t fragments_bytes, fragment_bytes_max; /* their sum, and the largest */
    size_t object_bytes_min, object_bytes_median, object_bytes_max; /* of the live ones; 0: there are none */
    size_t reserve_bytes;      /* the largest object that is kept for quire_percpu_alloc_nowait() alone */
    size_t caches;             /* sets of chunks: one for each thread that has allocated more than a few hundred objects */
};

/*
 * A new pool.  NULL with errno: ENOMEM (no memory, limit_bytes less than one chunk, some 4,000 pools alive), EINVAL (flags not 0, chunk_bytes,
 * reserve_bytes or cpus too large, a struct_bytes that is none), E2BIG (options that this library does not know).  Nothing leaks on failure.  Cost: some 30 KiB of address space, touched as far as used; with reserve_bytes a chunk.
 * MT-Safe.
 */
QUIRE_API struct quire_percpu *quire_percpu_create(const struct quire_percpu_opts *opts);

/*
 * Free all objects and give all memory back.  NULL is left alone; errno is kept.  Nobody may be using the pool; an address that is not a live
 * pool stops the process ("percpu E5").  MT-Unsafe race:pool.
 */
QUIRE_API void quire_percpu_destroy(struct quire_percpu *pool);

/*
 * An object of `bytes` bytes (0: 1) at a multiple of align_bytes (0: 8, or 4 for less than 8 bytes; at most an OS page), zero on every CPU.  {0} with
 * errno: ENOMEM (no memory, over the limit, or more than a unit), EINVAL (align_bytes not a power of two, or above an OS page).  Cost: independent of
 * the number of CPUs and objects; now and then a new chunk.  MT-Safe.
 */
QUIRE_API struct quire_percpu_ref quire_percpu_alloc(struct quire_percpu *pool, size_t bytes, size_t align_bytes);

/*
 * The same without a system call and without waiting: from the chunks that the calling thread has (one that has allocated little: those that it shares
 * with others), then from the pool's reserve.  {0} with errno as
 * quire_percpu_alloc(); ENOMEM also when both are used up, or somebody else is at them this moment.  One that began to wait for this thread's chunks or
 * the reserve meanwhile is woken by the system.  The reserve is filled again by the next
 * quire_percpu_alloc(), _free() that gives a chunk back, or _trim().  MT-Safe.
 */
QUIRE_API struct quire_percpu_ref quire_percpu_alloc_nowait(struct quire_percpu *pool, size_t bytes, size_t align_bytes);

/*
 * Free an object: {0} is left alone; errno is kept.  A place that is free already, or never was handed out, stops the process ("percpu E1"), and so does what
 * lies inside an object, in no chunk, or was freed with its whole chunk ("percpu E2"), is not a multiple of 4 ("percpu E3"), or belongs to another pool ("percpu E4").  Copies that
 * were written are cleared.  Cost: as allocating, and reading the copies of the CPUs that ever wrote into the chunk.  MT-Safe.
 */
QUIRE_API void quire_percpu_free(struct quire_percpu *pool, struct quire_percpu_ref ref);

/*
 * The copy of one CPU.  NULL with errno EINVAL: cpu >= quire_percpu_cpus().  A ref of another pool stops the process ("percpu E4").  Reading through
 * it costs no memory.  Cost: a few loads.  MT-Safe.
 */
QUIRE_API void *quire_percpu_at(const struct quire_percpu *pool, struct quire_percpu_ref ref, unsigned cpu);

/* How many copies there are for quire_percpu_at(): ids 0 .. n-1.  Cost: a load.  MT-Safe. */
QUIRE_API unsigned quire_percpu_cpus(const struct quire_percpu *pool);

/*
 * Add to this CPU's copy, an intptr_t (of 8 bytes, at a multiple of 8), which wraps around.  Nothing is ever lost or counted twice, also when the thread is moved or interrupted in the
 * middle.  Cost: about 1 ns; without restartable sequences one atomic instruction.  MT-Safe.
 */
QUIRE_API void quire_percpu_add(struct quire_percpu *pool, struct quire_percpu_ref ref, intptr_t value);

/* The usual case, compiled into the caller; see quire/percpu_inline.h. */
#if QUIRE_PERCPU_INLINE
void quire_percpu_add_out_of_line(struct quire_percpu *pool, struct quire_percpu_ref ref, intptr_t value) __asm__("quire_percpu_add");
extern inline __attribute__((__gnu_inline__, __always_inline__)) void quire_percpu_add(struct quire_percpu *pool, struct quire_percpu_ref ref, intptr_t value)
{
    if (__builtin_expect(!quire_percpu_add_try((const struct quire_percpu_window *)(const void *)pool, ref.bits, value), 0))
        quire_percpu_add_out_of_line(pool, ref, value);
}
#endif

/*
 * All copies of an intptr_t added up: exact when nobody adds meanwhile, else some value it had between.  Cost: a load for each CPU that ever wrote
 * into the chunk.  MT-Safe.
 */
QUIRE_API intptr_t quire_percpu_sum(const struct quire_percpu *pool, struct quire_percpu_ref ref);

/*
 * If this CPU's copy, an intptr_t, is *expected it becomes `desired`: true.  False: *expected is what it holds.  MT-Safe.
 */
QUIRE_API bool quire_percpu_cmpxchg(struct quire_percpu *pool, struct quire_percpu_ref ref, intptr_t *expected, intptr_t desired);

/* Put a node onto this CPU's list; the node's first word becomes the link.  The object is one pointer, NULL at the start.  MT-Safe. */
QUIRE_API void quire_percpu_push(struct quire_percpu *pool, struct quire_percpu_ref list, void *node);

/* Take the node that was put onto this CPU's list last.  NULL: it is empty (others' may not be); it never fails otherwise.  MT-Safe. */
QUIRE_API void *quire_percpu_pop(struct quire_percpu *pool, struct quire_percpu_ref list);

/* True when `ref` is a live object of this pool; any bits may be asked about.  Cost: a lock, and that of the chunk's owner.  MT-Safe. */
QUIRE_API bool quire_percpu_owns(const struct quire_percpu *pool, struct quire_percpu_ref ref);

/*
 * Give back to the system: empty chunks, and in others, where they are anonymous memory of the pool's own, the pages of all copies on which nothing
 * lives.  Fill the reserve.  Returns bytes.  Cost: a pass over the pool's maps, and a system call for each run of free pages.  MT-Safe.
 */
QUIRE_API size_t quire_percpu_trim(struct quire_percpu *pool);

/* Fill `out`, whose struct_bytes is set, with a snapshot.  Cost: a pass over the pool's maps, during which threads that use it wait.  MT-Safe. */
QUIRE_API void quire_percpu_stats(const struct quire_percpu *pool, struct quire_percpu_stats *out);

/* NULL when the pool's invariants hold, else a static string such as "percpu P1".  Cost: as statistics, and reading what was written.  MT-Safe. */
QUIRE_API const char *quire_percpu_check(struct quire_percpu *pool);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif
