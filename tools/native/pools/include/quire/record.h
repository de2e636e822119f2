// SPDX-License-Identifier: MIT
/*
 * quire/record.h - tells `quire record` and `quire try` of blocks that a program's own pools hand out.
 *
 * Use it in an allocator of your own, or in what embeds one: a pool's blocks then have call sites, sizes and lifetimes in the trace, as malloc's
 * have. Without the recorder each call is a load and a branch that is not taken. Link libquire-record.a; it needs nothing else of Quire.
 *
 *     static struct quire_record_pool nodes = {"nodes"};              // lives as long as the program
 *     struct node *node_new(struct arena *a) {
 *         struct node *n = arena_take(a, sizeof *n);
 *         quire_record_alloc(&nodes, n, sizeof *n);                   // call sites: node_new, or with --wrapper its callers
 *         return n;
 *     }
 *     quire_record_free(&nodes, n);                                   // before the block may be handed out again
 *
 * What the pool itself takes from malloc is in the trace too, so that both are seen: the pool's chunks at their call site, its blocks at theirs.
 *
 * Threads: every function may be called by any thread at any time.
 * Signals and fork: not from a signal handler; a child has a trace of its own, as with malloc.
 */
#ifndef QUIRE_RECORD_H
#define QUIRE_RECORD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Yours to place; two blocks at one address are two blocks where their pools differ.  Set the name, leave the rest zero. */
struct quire_record_pool {
    const char *name; /* at most 60 bytes are kept */
    uint32_t number;  /* the recorder's */
};

/* 1 where a recorder listens, else 0: to leave out work that only serves these calls.  Cost: a load.  Keeps errno.  MT-Safe. */
int quire_record_on(void);

/*
 * A block of `bytes` was handed out; its call site is this call's, and its callers' where that function is told to be a wrapper (`try --wrapper
 * node_new`) or has the name of one, as one that ends in malloc.  NULL is left alone.  Cost: a load and a branch; with a recorder about as much as a recorded malloc.  Keeps errno.  MT-Safe.
 */
void quire_record_alloc(struct quire_record_pool *pool, const void *block, size_t bytes);

/* A block is given back; NULL is left alone.  Call it before another thread can get the block.  Cost, errno as above.  MT-Safe. */
void quire_record_free(struct quire_record_pool *pool, const void *block);

/* A block has another size, and maybe another place: `old` NULL is quire_record_alloc(), `block` NULL changes nothing.  Cost, errno as above.  MT-Safe. */
void quire_record_realloc(struct quire_record_pool *pool, const void *old, const void *block, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
