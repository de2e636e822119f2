// SPDX-License-Identifier: MIT
/*
 * prof.h - a sample of the blocks that malloc hands out: which call stacks the live bytes come from, and all bytes so far.
 *
 *     malloc counts heap_tls.quick_bytes down ---- not below 0 ----> the heap's short way              a subtraction and a jump
 *                                  | a point lies in this block
 *                                  v
 *               prof.c        up to 1 KiB a slot among samples, else pages of its own; with it a number: stack, points
 *                  |  \
 *                  |   points.c    where the points lie                walk.c  cfi.c   the stack, by the unwind tables, without memory
 *                  |   guard.c       in the mode for it: one block in so many between guards; guard_report.c: what is said of it
 *                  v
 *               table.c       stacks as a tree                         small.c         the numbers of those in slots
 *               count.c       counters by stack, and of all            write.c         the file
 *
 *     free  -> the heap's own way, which is long for such slots and pages --> prof.c: minus what was added
 *
 * Invariants, checked by prof_check():
 *   PR1  of no stack more is live than was allocated
 *   PR2  a stack's counters lead to a node, and each node to one nearer to the root
 *   PR3  a sampled block in a slot is found by its address, and has a stack
 *
 * Threads: every function may be called by any number of threads, but prof_start().  Fork: the child goes on with what it has.
 * Locks: one for the table (LOCK_PROF), which is a leaf; no lock is held while a stack is walked or a file written.
 */
#ifndef QUIRE_PROF_PROF_H
#define QUIRE_PROF_PROF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/compiler.h"

C_DECLARATIONS_BEGIN

struct out;

#define PROF_EVERY_DEFAULT (UINT64_C(512) << 10)
#define PROF_EVERY_MIN UINT64_C(1024)
#define PROF_EVERY_MAX (UINT64_C(1) << 40)
enum { PROF_FRAMES_MAX = 64 };

/* All zero: nothing is sampled. */
struct prof_opts {
    uint64_t every_bytes; /* a mean, from one point to the next; 0: no profile */
    uint64_t guard_every; /* blocks, a mean, from one guarded block to the next; 0: none is.  guard_start() comes before */
    uint64_t at_bytes;    /* prof_due() whenever so many more bytes are live than ever before; 0: never */
    bool sees_all;        /* each allocation comes to us, though most are none of ours */
};

/* Where a call of malloc came from.  `frame`: the caller's stack pointer after the return, in the words of steer.h; any frame below it is ours. */
struct prof_call {
    uintptr_t ret;
    const uintptr_t *frame;
};
#define PROF_CALLER ((struct prof_call){(uintptr_t)__builtin_return_address(0), (const uintptr_t *)__builtin_dwarf_cfa()})

/* Before any other thread exists. */
void prof_start(const struct prof_opts *opts);
void prof_after_fork(void);

/* A thread's place among its points (points.c). */
struct prof_points {
    uint64_t left_bytes; /* before the next one */
    uint64_t rest_bytes; /* behind it, to the end of its stretch */
    uint64_t random;     /* 0: not begun */
};

/*
 * ---- malloc and its like, of the default heap; errno as there ----
 *
 * Each leaves in heap_tls.quick_bytes how many bytes may be handed out before the next call: none of them is a point.  Who hands out so many or fewer
 * counts them down there, and need not come.
 */
void *prof_alloc(size_t bytes, struct prof_call call);
void *prof_alloc_zero(size_t bytes, struct prof_call call);
void *prof_alloc_aligned(size_t bytes, size_t align_bytes, struct prof_call call);
void *prof_realloc(void *p, size_t bytes, struct prof_call call); /* p: not NULL, bytes: not 0 */

/* ---- looking ---- */
struct prof_stats {
    uint64_t every_bytes;
    uint64_t live_bytes, live_blocks, all_bytes, all_blocks; /* estimates, of the whole process */
    uint64_t samples; /* blocks that were sampled */
    uint64_t lost;    /* of these without a stack: there was no memory for it */
    uint64_t stacks, held_bytes;
};
void prof_stats(struct prof_stats *out);
/* So many more bytes are live than when it was last true: a file is to be written.  Once for each time. */
bool prof_due(void);
/* The profile as text: what gperftools' heap profiles look like, which pprof reads.  Neither allocates nor holds a lock while it writes. */
void prof_write(struct out *out);
/* Nothing was sampled, and there are no objects beside malloc's heap: the file would say nothing. */
bool prof_is_empty(void);
/* NULL, or what is broken. */
const char *prof_check(void);

C_DECLARATIONS_END
#endif
