// SPDX-License-Identifier: MIT
/*
 * percpu_internal.h - the structs of a pool, and who may touch what.
 *
 *     struct quire_percpu (a pool)
 *       locals ---> percpu_local (thread 1) ---> percpu_local (thread 2)      and two of the pool's own: home, reserve
 *                     list[grain][class] ---> percpu_chunk <-> percpu_chunk
 *                                        |
 *        +----------------+--------------+-+----------------+------------------+
 *        | unit of CPU 0  | unit of CPU 1  |  ...           | the shared copy  |      one span; a ref is an address in unit 0
 *        +----------------+----------------+----------------+------------------+
 *         the first 64 bytes: a byte that says that this CPU has written here by a sequence; then objects
 *
 * A local is one thread's set of chunks; only its thread allocates from it, by a lock that favours it (bias.h).  Home has the chunks that ended
 * threads left, the reserve those of quire_percpu_alloc_nowait(): both by their plain lock.
 *
 * Invariants, checked by percpu_look.c:
 *   P1  the chunk's bitmap holds (its own check), its first 64 bytes are taken, and every run begins and ends at a multiple of 2^edge_log2 bytes
 *   P2  the room of a chunk is what its map or its pages say; that of a local, and its objects (allocs less frees), are the sums of its chunks'
 *   P3  a chunk is on the list of its class, which promises no less than its longest free run
 *   P4  every free word is zero in every copy
 *   P5  the page map says that the chunk's first page is the chunk's; its owner is the local that lists it
 *   P6  mapped_bytes is the sum of all chunks and bookkeeping, and not above limit_bytes
 *
 * Locks, in the order of their ranks: pools (percpu_pool.c) < a local's bias < home's < the reserve's < a pool's < an inbox's.
 */
#ifndef QUIRE_PERCPU_INTERNAL_H
#define QUIRE_PERCPU_INTERNAL_H

#include <quire/percpu.h>

#include "base/account.h"
#include "base/bias.h"
#include "base/bitmap.h"
#include "base/bits.h"
#include "base/list.h"
#include "owner/record.h"
#include "owner/registry.h"
#include "pages/page_look.h"
#include "pages/pagemap.h"
#include "percpu/percpu_policy.h"

C_DECLARATIONS_BEGIN

enum {
    PERCPU_NAME_BYTES = 32,
    PERCPU_IDS_MAX = 4096,
    PERCPU_INBOX = 64,      /* frees by others before one of them must visit */
    PERCPU_INBOX_DRAIN = 32, /* as many make the owner look on its short way */
    PERCPU_LIST_LOCKS = 8,
    PERCPU_SEEN = 1024, /* 2^10 */
    WORD_LOG2 = 2,           /* sizes are counted in words of 4 bytes */
    EDGE_LOG2 = 6,           /* a unit's first 64 bytes are not for objects */
    FIRST_WORDS = 1 << (EDGE_LOG2 - WORD_LOG2)
};

#define PERCPU_E1 "E1 free of an object that is free already"
#define PERCPU_E2 "E2 not an object: never handed out, or inside one"
#define PERCPU_E3 "E3 not a multiple of 4"
#define PERCPU_E4 "E4 an object of another pool"
#define PERCPU_E5 "E5 not a live pool"

struct percpu_thread;
struct percpu_local;
struct percpu_page;

struct CACHE_ALIGNED percpu_chunk {
    /* the first cache line is all that a free looks at; most of it is fixed at birth */
    struct quire_percpu *pool;
    char *base;          /* unit 0 */
    uint32_t grain, bit_log2; /* a bit of the map is 1 << bit_log2 bytes: 4, 16 or 64; or a paged kind: a page is, and there is no map */
    char *pages;              /* struct percpu_page, so far apart: */
    uint32_t page_stride;
    uint32_t room;          /* the owner's: free words of its map, or free pages */
    atomic_addr owner;      /* struct percpu_local *; changes under the old owner's lock and the new one's */
    atomic_u32 any_written; /* is any bit of `written` set?  Or somebody watches */
    uint64_t *free_pages;   /* the owner's: a bit for each */
    struct quire_span span, meta;
    atomic_u64 *written; /* a bit for each unit that may hold anything but zeros; any thread sets, the owner clears */
    /* under the pool's lock: can be walked forwards at any moment, also by the child of a fork */
    struct percpu_chunk *all_next, *all_prev;
    /* the owner's */
    struct percpu_chunk *next, *prev; /* of its list */
    uint32_t class;
    uint32_t edge_log2; /* of all runs since the chunk was empty, in bytes: an alignment up to it needs no search of its own */
    struct bitmap map;
};
STATIC_ASSERT(offsetof(struct percpu_chunk, free_pages) == 56, "a line");

LIST_OF(percpu_chunks, struct percpu_chunk, next, prev);
LIST_OF(percpu_all, struct percpu_chunk, all_next, all_prev);

struct percpu_local {
    struct bias bias;
    struct quire_percpu *pool;
    atomic_addr thread;          /* struct percpu_thread *, 0: none.  Goes under the bias and the inbox's lock */
    struct percpu_local *next;   /* of the pool's locals, home and reserve the last: only grows */
    struct percpu_local *unused_next;
    struct quire_span span;      /* where this struct lies, if not in the pool */
    /* under the bias; to `objects_peak`: what its chunks say, made anew from them in the child of a fork */
    uint64_t filled[PERCPU_KINDS][(PERCPU_CLASSES + 63) / 64]; /* classes with a chunk */
    struct percpu_chunk *list[PERCPU_KINDS][PERCPU_CLASSES];
    struct percpu_page *partial[PERCPU_PAGED_WORDS + 1]; /* by size, in words */
    uint32_t mapped[PERCPU_PAGED_WORDS + 1];             /* objects of the size that are not in pages */
    uint32_t pages_of[PERCPU_PAGED_WORDS + 1];
    uint32_t chunks;
    size_t room[PERCPU_KINDS];                   /* of the chunks of a kind together: percpu_room() */
    size_t objects_peak;
    uint64_t allocs, frees; /* what they differ by is the objects of these chunks */
    struct percpu_chunk **seen; /* chunks that objects were freed in, by address; NULL: not a thread's */
    /* frees by other threads, on lines of their own */
    CACHE_ALIGNED struct lock inbox_lock;
    atomic_u32 inbox_count;
    uintptr_t inbox[PERCPU_INBOX];
};

struct CACHE_ALIGNED percpu_list_lock {
    atomic_u32 word;
};

struct quire_percpu {
    struct quire_percpu_window window; /* first: quire/percpu_inline.h */
    /* fixed at birth */
    uint32_t id;
    uint32_t units;          /* CPUs, and the shared copy */
    bool rseq, own_memory;   /* sequences work; chunks are anonymous memory that nobody else uses */
    bool watched;            /* sanitize_watched() */
    size_t align_bytes_max, object_bytes_max;
    size_t unit_words, chunk_meta_bytes[PERCPU_KINDS], reserve_words;
    size_t room[PERCPU_KINDS]; /* of a chunk without an object: words, or pages */
    struct quire_span span;
    struct quire_source *source;
    char name[PERCPU_NAME_BYTES];
    atomic_u32 reserve_low;           /* 1: to be filled; 2: that failed, whoever goes the long way tries again */
    struct quire_percpu *next, *prev; /* all pools */
    uint64_t birth;                   /* which pool of the process it is, from 1; never used twice */
    /* any thread */
    CACHE_ALIGNED struct account account;
    atomic_size chunks, chunks_peak;
    atomic_u32 changing; /* threads between charging for memory and listing it, or the other way round */
    atomic_addr locals;
    struct lock lock;
    struct percpu_chunk *all;
    struct percpu_local *unused; /* locals without a thread, and empty */
    struct percpu_local home, reserve;
    struct percpu_list_lock list_lock[PERCPU_LIST_LOCKS];
};

struct percpu_want {
    size_t words;
    unsigned grain, align_log2, edge_log2; /* the alignment in bytes; the size is a multiple of 2^edge_log2 bytes */
    size_t slot_words;                     /* the size, rounded up to the alignment */
};

/* A thread's table of its locals, by the pools' ids. */
struct percpu_thread {
    struct record record;
    struct percpu_local *table[PERCPU_IDS_MAX];
};
extern uint32_t percpu_few; /* objects that a thread allocates before it has a local */
extern THREAD_LOCAL struct percpu_thread *percpu_thread_self __attribute__((tls_model("initial-exec")));

static ALWAYS_INLINE struct percpu_local *percpu_mine(const struct quire_percpu *pool)
{
    return percpu_thread_self->table[pool->id];
}

static inline struct percpu_local *percpu_owner(const struct percpu_chunk *chunk)
{
    return (struct percpu_local *)addr_load_acquire(&chunk->owner); /* acquire [percpu-owner] */
}

static inline bool percpu_has_thread(const struct percpu_local *local)
{
    return addr_load_relaxed(&local->thread) != 0;
}

/* Home, or the reserve. */
static inline bool percpu_is_pools_own(const struct percpu_local *local)
{
    return local->span.bytes == 0;
}

/* ---- percpu_pool.c: pools, their ids ---- */
LIST_OF(pools, struct quire_percpu, next, prev);
extern struct registry percpu_pools;
extern struct quire_percpu *percpu_first; /* the youngest */
/* fn for each pool, the youngest first, until it returns false.  Under the pools' lock: fn may look at the pool and do nothing else. */
void percpu_each(bool (*fn)(const struct quire_percpu *pool, void *arg), void *arg);
/* fn for each chunk, one CPU's unit, with its owner visited; with the pools' lock, so that the pool stays. */
void percpu_pages_look(const struct quire_percpu *pool, page_look_fn *fn, void *arg);
void percpu_local_init_locked(struct quire_percpu *pool, struct percpu_local *local, uint32_t rank); /* and it is one of the pool's */
static inline struct percpu_local *percpu_locals(const struct quire_percpu *pool)
{
    return (struct percpu_local *)addr_load_acquire(&pool->locals); /* acquire [percpu-locals] */
}
/* Stops the process; lets go of all that this thread is inside of first. */
__attribute__((noreturn, cold)) void percpu_refuse(const struct quire_percpu *pool, const char *what, uintptr_t bits);

/* ---- percpu_chunk.c: a chunk's life, and its place in a local ---- */
/* What this thread is in the middle of: in the child of its fork, in a signal's handler, it goes on with that. */
struct percpu_amid {
    const struct quire_percpu *pool; /* that it is changing */
    const struct percpu_chunk *chunk; /* made, and in no local yet */
};
extern THREAD_LOCAL struct percpu_amid percpu_amid __attribute__((tls_model("initial-exec")));
static inline void percpu_change_begin(struct quire_percpu *pool)
{
    percpu_amid.pool = pool;
    u32_add_relaxed(&pool->changing, 1);
}
static inline void percpu_change_end(struct quire_percpu *pool)
{
    u32_sub_release(&pool->changing, 1); /* release [percpu-changing] */
    percpu_amid.pool = NULL;
}
struct percpu_chunk *percpu_chunk_new(struct quire_percpu *pool, unsigned grain);
void percpu_chunk_delete(struct percpu_chunk *chunk); /* not listed */
void percpu_chunk_link(struct percpu_local *local, struct percpu_chunk *chunk);
void percpu_chunk_unlink(struct percpu_local *local, struct percpu_chunk *chunk);
/* Chunks without an object are in this class, and others. */
static inline unsigned percpu_class_empty(const struct quire_percpu *pool, unsigned grain)
{
    return percpu_class_floor(pool->room[grain] >> (percpu_is_paged(grain) ? 0 : 2 * grain));
}
#define FOR_EACH_LIST(grain, class) for (unsigned grain = 0; grain < PERCPU_KINDS; grain++) for (unsigned class = 0; class < PERCPU_CLASSES; class++)
#define FOR_EACH_CHUNK(local, chunk) FOR_EACH_LIST(grain, class) for (struct percpu_chunk *chunk = (local)->list[grain][class]; chunk; chunk = chunk->next)
void percpu_chunk_last(struct percpu_local *local, struct percpu_chunk *chunk); /* the last of its list to be asked */
void percpu_chunks_move(struct percpu_local *from, struct percpu_local *to);
void percpu_chunk_reclass(struct percpu_local *local, struct percpu_chunk *chunk, size_t longest);
/* The unit may hold anything from now on; `sequence`: sequences may take the short way there. */
void percpu_chunk_touch(struct percpu_chunk *chunk, uint32_t unit, bool sequence);
void percpu_chunk_clear(struct percpu_chunk *chunk, size_t offset, size_t bytes); /* the copies of an object that goes */
/* For AddressSanitizer and Valgrind: an object's copies may be used, and hold zeros; or may not. */
void percpu_tell(void (*tell)(const void *start, size_t bytes), const struct percpu_chunk *chunk, size_t offset, size_t bytes);
/* The chunk of a ref, without looking whether it is an object; NULL: none of this pool. */
struct percpu_chunk *percpu_chunk_find(const struct quire_percpu *pool, uintptr_t bits);
/* The same for any bits, while chunks come and go: its owner, NULL if there is none.  The chunk stays while that is visited, and is to be asked for
 * again then. */
struct percpu_local *percpu_chunk_owner_of(struct quire_percpu *pool, uintptr_t bits, struct percpu_chunk **chunk);
/* The same; stops the process (E2, E3, E4). */
struct percpu_chunk *percpu_chunk_verify(const struct quire_percpu *pool, uintptr_t bits);

static inline size_t percpu_offset(const struct quire_percpu *pool, uintptr_t bits)
{
    return bits & ~pool->window.unit_mask;
}

static inline size_t percpu_objects(const struct percpu_local *local)
{
    return (size_t)(local->allocs - local->frees);
}

/* Chunks of the local that were met lately: an unlinked one is never there. */
static inline struct percpu_chunk **percpu_seen(struct percpu_local *local, const struct quire_percpu *pool, uintptr_t bits)
{
    return &local->seen[(bits >> pool->window.unit_shift) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - 10)];
}

/* Where an object could begin in a chunk with a map. */
static inline bool percpu_offset_fits(const struct percpu_chunk *chunk, size_t offset)
{
    return offset >= (size_t)1 << EDGE_LOG2 && (offset & (((size_t)1 << chunk->bit_log2) - 1)) == 0;
}

/* The first chunk of a kind, of a class from `class` on. */
static inline struct percpu_chunk *percpu_chunk_first(const struct percpu_local *local, unsigned grain, unsigned class)
{
    for (unsigned w = class / 64; w < (PERCPU_CLASSES + 63) / 64; w++) {
        uint64_t filled = local->filled[grain][w] & (w == class / 64 ? bits_from(class % 64) : ~UINT64_C(0));
        if (filled)
            return local->list[grain][w * 64 + bits_lowest(filled)];
    }
    return NULL;
}

static inline char *percpu_unit(const struct percpu_chunk *chunk, uint32_t unit)
{
    return chunk->base + ((size_t)unit << chunk->pool->window.unit_shift);
}

/* That of chunks with a map is one sum, whatever their grain. */
static inline size_t *percpu_room(struct percpu_local *local, unsigned kind)
{
    return &local->room[percpu_is_paged(kind) ? kind : 0];
}

static inline void percpu_room_add(struct percpu_local *local, struct percpu_chunk *chunk, size_t change)
{
    chunk->room += (uint32_t)change;
    *percpu_room(local, chunk->grain) += change;
}

/* The first live object of a chunk at or behind `from`, an offset in the unit; its size.  SIZE_MAX: there is none. */
size_t percpu_chunk_next(const struct percpu_chunk *chunk, size_t from, size_t *bytes);
static inline bool percpu_chunk_is_empty(const struct percpu_chunk *chunk)
{
    return chunk->room == chunk->pool->room[chunk->grain];
}
/* Is there one that begins just there? */
bool percpu_chunk_has(const struct percpu_chunk *chunk, size_t offset);

/* ---- percpu_alloc.c, percpu_free.c: inside a local ---- */
/* An object of a map left the local, or came to it. */
static inline void percpu_mapped_add(struct percpu_local *local, size_t words, int change)
{
    if (words <= PERCPU_PAGED_WORDS)
        local->mapped[words] += (uint32_t)change;
}
/* What others have freed. */
void percpu_inbox_drain(struct percpu_local *local);
/* In the child of a fork, until all is in order again: sources may not be. */
void percpu_give_chunks(bool give);
/* All chunks without an object go; to *bytes, if not NULL, is added what of them was in memory.  False: there was none. */
bool percpu_empties_give(struct percpu_local *local, size_t *bytes);

/* ---- percpu_thread.c ---- */
/* The calling thread's local with its bias taken, made if need be; or home. */
struct percpu_local *percpu_hold(struct quire_percpu *pool);
void percpu_visit(struct percpu_local *local);
bool percpu_visit_try(struct percpu_local *local); /* its plain lock, if nobody has it */
void percpu_release(struct percpu_local *local);
/* The local after this one, which is let go of (NULL: the first), visited, with what others have freed; NULL: there is none, and none is held. */
struct percpu_local *percpu_visit_next(const struct quire_percpu *pool, struct percpu_local *local);
#define FOR_EACH_VISITED(pool, local) for (struct percpu_local *local = percpu_visit_next(pool, NULL); local; local = percpu_visit_next(pool, local))
void percpu_let_go(void);
void percpu_thread_forget(struct quire_percpu *pool); /* with the pools' lock */
bool percpu_threads_after_fork(void);
bool percpu_is_mine_and_inside(const struct percpu_local *local);

/* ---- percpu_reserve.c ---- */
void percpu_reserve_fill(struct quire_percpu *pool); /* if it is low; inside of nothing */
/* The longest free run. */
size_t percpu_reserve_words(const struct percpu_local *reserve);
bool percpu_reserve_is_low(const struct percpu_local *reserve); /* no object of its size, of whatever alignment, is sure to be had */

C_DECLARATIONS_END
#endif
