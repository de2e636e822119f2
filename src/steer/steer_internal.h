// SPDX-License-Identifier: MIT
/*
 * steer_internal.h - the structs of steering, and who may touch what.
 *
 *     return address ---> steer_slots[] ---> site ---> steer_pool_of[] ---> pool (an arena, a slab)
 *                              | a wrapper's
 *                              v
 *                         node: how many words up the next return address lies ---> steer_slots[] again
 *
 *     steer_thread (one for each thread that allocates at a steered site)
 *       lane[pool]: cursor, end ---> chunk (current) <---> chunk <---> ...
 *                                      | a span: header, a bit for each grain, blocks
 *
 *     chunk:  | header | live, last: 2 bits for 16 bytes | remote: 1 bit | block | block | ... |
 *                                                                        base          cursor   end
 *
 * A chunk is its owner's, a thread, which alone takes blocks from it and frees its own without an atomic instruction.  Others set a bit in
 * `remote` and count `balance` down.  When the owner lets go of a chunk (its thread ends, or others free in it) it adds what it counted itself to
 * `balance`: from then on the chunk is shared, all count there, and whoever comes to 0 gives the chunk back.
 *
 * Invariants, checked by steer_look.c:
 *   S1  mine + balance of an owned chunk, balance of a shared one: its live blocks, live & ~remote
 *   S2  a live bit stands where a block begins: at grain 0, or behind a `last` bit
 *   S3  no bit is set from the cursor on
 *
 * Locks: steer (learning), steer threads (the list), a pool's (its shared chunks).  None is held while a block is handed out or freed.
 */
#ifndef QUIRE_STEER_STEER_INTERNAL_H
#define QUIRE_STEER_STEER_INTERNAL_H

#include <quire/source.h>

#include "base/bits.h"
#include "base/lock.h"
#include "heap/heap_internal.h"
#include "os/os.h"
#include "pages/pagemap.h"
#include "steer/steer.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    STEER_CHUNK_MIN = 32 << 10,
    STEER_CHUNK_MAX = 256 << 10,
    STEER_WASTE_PERCENT = 25
};
#define STEER_WASTE_SLACK_BYTES ((size_t)1 << 20)

/* What a return address leads to. */
enum steer_target { TARGET_UNKNOWN = 0, TARGET_HEAP = 1, TARGET_SITE = 2, TARGET_NODE = 1 << 15 };
STATIC_ASSERT(TARGET_SITE + STEER_SITES_MAX < TARGET_NODE, "a target has 15 bits");

struct steer_word {
    uint64_t live; /* of 64 grains: where a block begins that its owner has not freed */
    uint64_t last; /* where a block ends */
};

struct steer_thread;

struct CACHE_ALIGNED steer_chunk {
    /* fixed while it is in use: what a free by any thread reads */
    struct quire_span span;
    char *base;
    uint32_t grains, pool;
    atomic_u64 *remote;
    atomic_addr owner; /* struct steer_thread *; 0: shared */
    /* the owner's */
    CACHE_ALIGNED uint64_t mine; /* blocks handed out, less those that it freed itself */
    uint64_t handed;             /* blocks handed out; of the current one: not kept */
    struct steer_chunk *next, *prev; /* of the lane; of a shared one: of the pool, with its lock */
    uint32_t epoch;              /* of the pool's list; 0: not in it */
    /* any thread */
    CACHE_ALIGNED atomic_u64 balance;
    struct steer_word word[];
};

/* Where one thread's blocks of one pool come from. */
struct steer_lane {
    char *cursor, *end; /* of the current chunk; NULL: there is none */
    struct steer_chunk *chunk, *chunks;
    uint32_t count, due; /* chunks; refills until the dead are counted */
};

struct steer_count {
    uint64_t blocks, bytes, fallbacks;
};

struct steer_thread {
    struct steer_lane lane[STEER_POOLS_MAX];
    struct steer_thread *next, *idle_next; /* all records: the list only grows */
    uint64_t frees, timed_frees, timed_ticks;
    struct steer_count count[]; /* by target */
};

struct CACHE_ALIGNED steer_pool {
    bool is_slab;
    uint32_t chunk_bytes, block_max;
    size_t peak_bytes; /* that the recorded run had */
    atomic_u32 is_crossed;  /* its blocks are freed by others */
    atomic_u32 is_sent_back;
    atomic_size held_bytes, held_peak_bytes; /* chunks */
    struct lock lock;
    struct steer_chunk *shared;
    uint32_t epoch;
};

struct steer_plan {
    uint32_t sites, pools, nodes, modules;
    uint32_t program; /* the module of the program itself, and 1 more; 0: any program's plan */
    bool control;
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
extern atomic_u64 steer_slots[STEER_TABLE];     /* key << 16 | target */
extern uint16_t steer_node_words[STEER_NODES_MAX]; /* fixed once the plan is read */
extern uint8_t steer_pool_of[TARGET_SITE + STEER_SITES_MAX]; /* by target; 0: the heap.  Any thread may write 0 */
extern THREAD_LOCAL struct steer_thread *steer_self __attribute__((tls_model("initial-exec")));
extern struct steer_thread steer_nobody; /* all its lanes are empty */

/* ---- steer_plan.c ---- */
bool steer_plan_read(const char *path, char why[STEER_WHY_BYTES]);
/* The target of an edge; TARGET_HEAP: none. */
unsigned steer_edge_find(unsigned parent, unsigned module, uint64_t offset);

/* ---- steer_site.c ---- */
enum { STEER_KEY_BITS = 48 };
#define STEER_KEY_MASK ((UINT64_C(1) << STEER_KEY_BITS) - 1)
static ALWAYS_INLINE uint64_t steer_key(unsigned node, uintptr_t ret)
{
    return (ret + node * UINT64_C(0x9e3779b97f4a7c15)) & STEER_KEY_MASK;
}
static ALWAYS_INLINE size_t steer_place(uint64_t key)
{
    return (key ^ key >> STEER_TABLE_LOG2) & (STEER_TABLE - 1);
}
unsigned steer_learn(unsigned node, uintptr_t ret);
static ALWAYS_INLINE unsigned steer_find(unsigned node, uintptr_t ret)
{
    uint64_t key = steer_key(node, ret);
    for (size_t at = steer_place(key);; at = (at + 1) & (STEER_TABLE - 1)) {
        uint64_t word = u64_load_relaxed(&steer_slots[at]);
        if (likely(word >> 16 == key))
            return (unsigned)(word & UINT16_MAX);
        if (word == 0)
            return steer_learn(node, ret);
    }
}
/* The same where the first place that is looked at has it; else TARGET_NODE or more. */
static ALWAYS_INLINE unsigned steer_site_quick(struct steer_call call)
{
    uint64_t key = steer_key(0, call.ret), word = u64_load_relaxed(&steer_slots[steer_place(key)]);
    return likely(word >> 16 == key) ? (unsigned)(word & UINT16_MAX) : TARGET_NODE;
}
unsigned steer_site_deep(unsigned target, const uintptr_t *frame);
static ALWAYS_INLINE unsigned steer_site_of(struct steer_call call)
{
    unsigned target = steer_find(0, call.ret);
    return likely((target & TARGET_NODE) == 0) ? target : steer_site_deep(target, call.frame);
}
uint32_t steer_learnt(void);
void steer_sites_after_fork(void);

/* ---- steer_module.c ---- */
/* The plan's number of the module that an address lies in, and the offset in it; false: none of the plan's. */
bool steer_module_of(uintptr_t address, unsigned *module, uint64_t *offset);

bool steer_module_is_program(unsigned module);

/* ---- steer_chunk.c ---- */
struct steer_chunk *steer_chunk_take(unsigned pool, struct steer_thread *owner);
void steer_chunk_give(struct steer_chunk *chunk);
void steer_chunk_clear(struct steer_chunk *chunk, char *cursor);
/* The owner lets go of it; it may be gone. */
void steer_chunk_share(struct steer_chunk *chunk);
void steer_chunk_dead(struct steer_chunk *chunk); /* a shared one whose balance is 0 */
uint64_t steer_chunk_live(const struct steer_chunk *chunk);
uint64_t steer_chunk_handed(const struct steer_chunk *chunk);
void steer_pools_after_fork(void);

static ALWAYS_INLINE uint64_t steer_freed_by_others(const struct steer_chunk *chunk)
{
    return -u64_load_relaxed(&chunk->balance);
}

/* ---- steer_thread.c ---- */
struct steer_thread *steer_thread_get(void); /* NULL: this thread has none */
struct steer_thread *steer_threads(void);
void steer_threads_after_fork(void);

/* ---- steer_alloc.c ---- */
void steer_lane_drop(struct steer_lane *lane, struct steer_chunk *chunk); /* out of the list */
size_t steer_pool_dead(unsigned pool, const struct steer_lane *lane, size_t *live);

/* A clock that costs little. */
static inline uint64_t steer_ticks(void)
{
#if CPU_X86_64
    return __builtin_ia32_rdtsc();
#else
    return os_time_ns();
#endif
}

static ALWAYS_INLINE void steer_bit_set(uint64_t *word, uint64_t bits)
{
    __atomic_store_n(word, bits, __ATOMIC_RELAXED); /* others read single bits of it */
}
static ALWAYS_INLINE uint64_t steer_bits(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif
#endif
