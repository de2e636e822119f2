// SPDX-License-Identifier: MIT
/*
 * steer_internal.h - the structs of steering, and who may touch what.
 *
 *     return address ---> steer_entries[] ---> site, and where in steer_thread the lane of its pool (an arena, a slab) lies
 *                              | a wrapper's
 *                              v
 *                         node: how many words up the next return address lies ---> steer_entries[] again
 *
 *     steer_thread (one for each thread that allocates at a steered site)
 *       lane[pool]: tag, end ---> chunk (current) <---> chunk <---> ...
 *                                   | a span: header, a byte for each grain of 16 bytes, blocks
 *
 *     chunk:  | header | tags: a byte for each grain of the span | block | block | ... |
 *                         0 0 0 | 3 0 0 1 255 2 0 ...   of header and tags: nothing; a block of 3 grains, one of 1, a freed one, one of 2
 *
 * A block's tag stands at its first grain: how many grains it has; TAG_FREED once it is freed; 0 inside of blocks and where none was yet.
 * So every address in a span has a tag, at bias + address / STEER_GRAIN, and no bound has to be checked.
 *
 * A chunk is its owner's, a thread, which alone takes blocks from it and frees its own without an atomic instruction.  Others exchange the tag and
 * count grains down in `balance`.  When the owner lets go of a chunk (its thread ends, or others free in it) it adds what lives there by its own
 * count to `balance`: from then on the chunk is shared, all count there, and whoever comes to 0 gives the chunk back.
 *
 * Invariants, checked by steer_look.c:
 *   S1  the grains of live tags are those handed out, less those freed by the owner and, balance, by others; of a shared chunk: balance
 *   S2  from a tag to the next there are as many grains as it says, or more
 *   S3  no tag stands from the lane's place on
 *
 * Locks: steer (learning), steer threads (the list), a pool's (its shared chunks).  None is held while a block is handed out or freed.
 */
#ifndef QUIRE_STEER_STEER_INTERNAL_H
#define QUIRE_STEER_STEER_INTERNAL_H

#include <quire/source.h>

#include "base/align.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "os/os.h"
#include "owner/record.h"
#include "pages/pagemap.h"
#include "steer/steer.h"

C_DECLARATIONS_BEGIN

enum {
    STEER_GRAIN_SHIFT = 4,
    STEER_GRAIN = 1 << STEER_GRAIN_SHIFT,
    STEER_POOLS_MAX = 64, /* pool 0 is the heap */
    STEER_SITES_MAX = 4096,
    STEER_NODES_MAX = 4096,
    STEER_MODULES_MAX = 256,
    STEER_BUILD_ID_MAX = 32,
    STEER_DEPTH_MAX = 8,
    STEER_SLOT_WORDS_MAX = 512, /* how far up the stack a wrapper's caller is looked for */
    STEER_TABLE_LOG2 = 14,
    STEER_TABLE = 1 << STEER_TABLE_LOG2,
    STEER_PART_SHIFT = 15, /* chunks begin and end at parts of so many bytes */
    STEER_CHUNK_MIN = 1 << STEER_PART_SHIFT,
    STEER_CHUNK_MAX = 256 << 10,
    STEER_WASTE_PERCENT = 25
};
#define STEER_NO_PART UINTPTR_MAX
#define STEER_WASTE_SLACK_BYTES ((size_t)1 << 20)

/* Of an entry. */
enum steer_target { TARGET_UNKNOWN = 0, TARGET_HEAP = 1, TARGET_SITE = 2, TARGET_NODE = 1 << 15 };
STATIC_ASSERT(TARGET_SITE + STEER_SITES_MAX < TARGET_NODE, "a target has 15 bits");

enum { TAG_NONE = 0, TAG_MAX = 254, TAG_FREED = 255 };
STATIC_ASSERT(TAG_NONE == 0, "fresh memory is tagged so");

struct steer_thread;

struct CACHE_ALIGNED steer_chunk {
    /* fixed while it is in use: what a free by any thread reads */
    uintptr_t bias;    /* of tags, for all addresses of the span */
    atomic_addr owner; /* struct steer_thread *; 0: shared */
    char *base;        /* of the first block */
    uint8_t *tags;     /* of the first block's grain */
    uint32_t grains, pool;
    struct quire_span span;
    /* the owner's, in grains */
    CACHE_ALIGNED int32_t left; /* of `used`, less those that the owner has freed */
    uint32_t used;  /* handed out; of the current chunk: when it was looked at last */
    uint32_t epoch; /* of the pool's list; 0: not in it */
    struct steer_chunk *next, *prev; /* of the lane; of a shared one: of the pool, with its lock */
    /* any thread */
    CACHE_ALIGNED atomic_u64 balance;
};

/* Where one thread's blocks of one pool come from. */
struct CACHE_ALIGNED steer_lane {
    uint8_t *tag, *end; /* of the next block, and behind the last grain; of the current chunk, NULL: there is none */
    uintptr_t shift;    /* a block lies at shift + its tag's address * STEER_GRAIN */
    struct steer_chunk *chunk, *chunks;
    uint32_t count, due; /* chunks; refills until the dead are counted */
    size_t told;         /* of the pool's dead_bytes */
};

struct steer_count {
    uint64_t blocks, bytes, fallbacks;
};

struct steer_thread {
    struct record record;
    struct steer_lane lane[STEER_POOLS_MAX]; /* that of pool 0 is empty */
    /* The chunk of this thread in which it freed last, and which part of memory that was; STEER_NO_PART: none. */
    struct steer_chunk *hot;
    uintptr_t hot_part;
    uint64_t frees, timed_frees, timed_ticks;
    struct steer_count count[]; /* by target; blocks and bytes only where that was asked for */
};

struct CACHE_ALIGNED steer_pool {
    bool is_slab;
    uint32_t chunk_bytes;
    
    size_t peak_bytes; /* that the recorded run had */
    atomic_u32 is_crossed;  /* its blocks are freed by others */
    atomic_u32 is_sent_back;
    atomic_size held_bytes, held_peak_bytes; /* chunks */
    atomic_size dead_bytes, dead_shared_bytes; /* in full chunks, as told by the lanes; in shared ones, as counted last */
    struct lock lanes_lock; /* against those who follow another thread's list of chunks */
    struct lock lock;
    struct steer_chunk *shared;
    uint32_t epoch;
};

/* What a return address leads to.  Written once, the key last; only the lane may go later. */
struct steer_entry {
    atomic_addr key; /* 0: nobody's */
    atomic_u32 lane; /* where in struct steer_thread the site's lane lies; 0: none, see the target */
    uint16_t target; /* enum steer_target */
};

struct steer_plan {
    uint32_t sites, pools, nodes, modules;
    uint32_t program; /* the module of the program itself, and 1 more; 0: any program's plan */
    size_t memory_bytes; /* that the recorded run needed */
    bool control, counts;
    uint64_t start_ns, start_ticks; /* when it came into force */
    struct steer_pool pool[STEER_POOLS_MAX];
    uint32_t number[STEER_SITES_MAX];       /* of a site, in the plan file */
    uint16_t pool_first[STEER_SITES_MAX];   /* that the plan gives it */
    struct steer_module {
        uint32_t id_bytes;
        unsigned char id[STEER_BUILD_ID_MAX];
    } module[STEER_MODULES_MAX];
    uint32_t edges_log2;
    struct steer_edge *edge; /* a hash table */
};

/* parent --(return address at offset in module)--> target */
struct steer_edge {
    uint64_t offset;
    uint16_t parent, module, target, is_used;
};

extern struct steer_plan steer_plan;
extern struct steer_entry steer_entries[STEER_TABLE];
extern uint16_t steer_node_words[STEER_NODES_MAX]; /* fixed once the plan is read */
extern uint8_t steer_pool_of[TARGET_SITE + STEER_SITES_MAX]; /* by target; 0: the heap.  Any thread may write 0 */
extern THREAD_LOCAL struct steer_thread *steer_self __attribute__((tls_model("initial-exec")));
extern struct steer_thread steer_nobody; /* all its lanes are empty */

/* ---- steer_plan.c ---- */
bool steer_plan_read(const char *path, char why[STEER_WHY_BYTES]);
/* The target of an edge; TARGET_HEAP: none. */
unsigned steer_edge_find(unsigned parent, unsigned module, uint64_t offset);

/* ---- steer_site.c ---- */
static ALWAYS_INLINE uintptr_t steer_key(unsigned node, uintptr_t ret)
{
    return ret + node * UINT64_C(0x9e3779b97f4a7c15);
}
static ALWAYS_INLINE struct steer_entry *steer_place(uintptr_t key)
{
    return &steer_entries[(key ^ key >> STEER_TABLE_LOG2) & (STEER_TABLE - 1)];
}
static ALWAYS_INLINE bool steer_is_of(const struct steer_entry *entry, uintptr_t key)
{
    return addr_load_acquire(&entry->key) == key; /* acquire [steer-entry] */
}
/* The entry of a call: a site's or the heap's, no wrapper's. */
const struct steer_entry *steer_entry_of(struct steer_call call);
/* The same from a wrapper's entry on. */
const struct steer_entry *steer_entry_deep(const struct steer_entry *entry, const uintptr_t *frame);
/* No call of the pool's sites finds a lane any more. */
void steer_entries_send_back(unsigned pool_idx);
uint32_t steer_learnt(void);
void steer_sites_after_fork(void);

/* ---- steer_module.c ---- */
/* The plan's number of the module that an address lies in, and the offset in it; false: none of the plan's. */
bool steer_module_of(uintptr_t address, unsigned *module, uint64_t *offset);

bool steer_module_is_program(unsigned module);

/* ---- steer_chunk.c ---- */
struct steer_chunk *steer_chunk_take(unsigned pool, struct steer_thread *owner);
void steer_chunk_give(struct steer_chunk *chunk);
void steer_chunk_clear(struct steer_chunk *chunk, size_t used);
/* The owner lets go of it; it may be gone. */
void steer_chunk_share(struct steer_lane *lane, struct steer_chunk *chunk);
void steer_chunk_verify(const struct steer_chunk *chunk); /* stops the process where a block lives in it */
void steer_chunk_dead(struct steer_chunk *chunk); /* a shared one whose balance is 0 */
uint64_t steer_chunk_live(const struct steer_chunk *chunk, uint64_t *blocks); /* grains */
void steer_pools_after_fork(void);

/* The owner's, of all that the lane handed out so far. */
static ALWAYS_INLINE void steer_chunk_count(struct steer_chunk *chunk, size_t used)
{
    chunk->left += (int32_t)((uint32_t)used - chunk->used);
    chunk->used = (uint32_t)used;
}
/* The owner knows of no block that lives in it; what others did with its blocks before they freed them is done. */
static ALWAYS_INLINE bool steer_chunk_is_dead(const struct steer_chunk *chunk)
{
    return (uint64_t)(int64_t)chunk->left + u64_load_acquire(&chunk->balance) == 0; /* acquire [steer-balance] */
}
static ALWAYS_INLINE uint64_t steer_freed_by_others(const struct steer_chunk *chunk)
{
    return -u64_load_relaxed(&chunk->balance);
}

/* ---- steer_thread.c ---- */
struct steer_thread *steer_thread_get(void); /* NULL: this thread has none */
struct steer_thread *steer_threads(void);
/* The chunk whose balance this thread is changing, for the child of a fork in a signal's handler; NULL: none. */
extern THREAD_LOCAL const struct steer_chunk *steer_counting __attribute__((tls_model("initial-exec")));
static inline void steer_count_begin(const struct steer_chunk *chunk)
{
    steer_counting = chunk;
    atomic_fence_signal();
}
static inline void steer_count_end(void)
{
    atomic_fence_signal();
    steer_counting = NULL;
}
/* A chunk that this thread has no longer. */
static inline void steer_thread_forget(const struct steer_chunk *chunk)
{
    if (steer_self->hot == chunk)
        steer_self->hot_part = STEER_NO_PART;
}
void steer_threads_after_fork(void);
void steer_threads_start(void); /* how large a record is: after the plan was read */

/* ---- steer_waste.c ---- */
bool steer_waste_is_too_much(unsigned pool_idx, struct steer_lane *lane); /* asked before the lane gets a chunk; it has no current one */
void steer_waste_leave(struct steer_pool *pool, struct steer_lane *lane); /* its chunks are shared */
size_t steer_waste_slack(void);

/* ---- steer_alloc.c ---- */
enum { STEER_BLOCK_MAX = TAG_MAX * STEER_GRAIN };
extern size_t steer_quick_max; /* blocks up to here go the short way; 0: none does, all are counted */
void steer_lane_drop(struct steer_lane *lane, struct steer_chunk *chunk); /* out of the list */

/* A clock that costs little, read when all before it is done. */
static inline uint64_t steer_ticks(void)
{
#if CPU_X86_64
    __builtin_ia32_lfence();
    return __builtin_ia32_rdtsc();
#else
    return os_time_ns();
#endif
}

static ALWAYS_INLINE void steer_tag_set(uint8_t *tag, size_t grains)
{
    __atomic_store_n(tag, (uint8_t)grains, __ATOMIC_RELAXED);
}
static ALWAYS_INLINE unsigned steer_tag(const uint8_t *tag)
{
    return __atomic_load_n(tag, __ATOMIC_RELAXED);
}
/* Of any address in the chunk's span. */
static ALWAYS_INLINE uint8_t *steer_tag_at(const struct steer_chunk *chunk, const void *p)
{
    return (uint8_t *)(chunk->bias + ((uintptr_t)p >> STEER_GRAIN_SHIFT));
}
static ALWAYS_INLINE unsigned steer_pool_now(unsigned site)
{
    return __atomic_load_n(&steer_pool_of[site], __ATOMIC_RELAXED);
}
static ALWAYS_INLINE size_t steer_lane_used(const struct steer_lane *lane)
{
    return (size_t)(lane->tag - lane->chunk->tags);
}

C_DECLARATIONS_END
#endif
