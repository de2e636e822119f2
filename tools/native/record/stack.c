// SPDX-License-Identifier: MIT
/*
 * stack.c - the current call stack as a number, in tens of nanoseconds.
 *
 *   1. a cache of this thread: (return address, sp) -> the slots where that stack's return addresses lay.
 *      When every slot still holds its address the stack is the same one: a load and a compare a frame.
 *   2. else walk by the learnt rules (rules.c) and look the addresses' hash up in the process's table.
 *   3. a hash that is new gets the next number, and the trace a definition (meta.c).
 *
 *   cache entry { ip sp | id n | low 32 bits of each address | slot offsets } x 1024, two for each call
 *
 * Invariants:
 *   C1  slots of an entry lie above its sp and within the thread's own stack: always readable by that thread
 *   C2  a stack's number never changes and is defined in the trace before its first event is written
 *
 * Two stacks whose 64-bit hash is equal would be taken for one; with a million stacks the odds are 1 : 10^7.
 * Locks: none to look up; the recorder's to number a new stack.
 */
#include <sys/mman.h>

#include "record.h"

#define CACHE_LOG2  10
#define CACHE       (1u << CACHE_LOG2)
#define TABLE_LOG2  20
#define TABLE       (1u << TABLE_LOG2)
#define STACKS_MAX  (TABLE / 2)  // further ones get number 0, counted as unknown
#define SLOT_STEP   8u

struct cache_entry {
    uintptr_t ip, sp;
    uint32_t id;
    uint32_t count;  // slots: frames but the innermost
    uint32_t low_bits[QTR_FRAMES_MAX];
    uint16_t offset[QTR_FRAMES_MAX];  // of a slot from sp, in words
};

struct rec_stack_cache {
    struct cache_entry entry[CACHE];
};

struct table_entry {
    _Atomic uint64_t hash;
    uint32_t id;
    uint32_t slots_hash;  // of where its return addresses lay; SLOTS_DIFFER: not always at the same places, which the trace says
};

enum { SLOTS_DIFFER = 0 };

struct walk {
    uintptr_t ip[QTR_FRAMES_MAX];
    uintptr_t slot[QTR_FRAMES_MAX];
    unsigned count;
    bool cacheable;
};

static struct table_entry *table;
static uint32_t stacks;

static void *map_lazily(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool rec_stack_start(void) {
    table = map_lazily(TABLE * sizeof(struct table_entry));
    return table != NULL;
}

void rec_stack_forget(bool forked) {
    if (forked) {
        madvise(table, TABLE * sizeof(struct table_entry), MADV_DONTNEED);
        stacks = 0;
    }
}

struct rec_stack_cache *rec_stack_cache_create(void) {
    return map_lazily(sizeof(struct rec_stack_cache));
}

void rec_stack_cache_clear(struct rec_stack_cache *cache) {
    memset(cache, 0, sizeof *cache);
}

/* The first of the two entries that may hold this call: the newer one; the older one follows it. */
static inline struct cache_entry *cache_place(struct rec_stack_cache *cache, const struct rec_frame *frame) {
    uint64_t mixed = (frame->ip ^ frame->sp << 20 ^ frame->sp >> 4) * 0x9e3779b97f4a7c15u;
    return &cache->entry[(mixed >> (64 - CACHE_LOG2)) & ~(uint64_t)1];
}

static inline bool cache_holds(const struct cache_entry *entry, const struct rec_frame *frame) {
    if (entry->ip != frame->ip || entry->sp != frame->sp) {
        return false;
    }
    const uintptr_t *base = (const uintptr_t *)frame->sp;
    for (uint32_t i = 0; i < entry->count; i++) {
        if ((uint32_t)base[entry->offset[i]] != entry->low_bits[i]) {
            return false;
        }
    }
    return true;
}

static void cache_fill(struct cache_entry *entry, const struct rec_frame *frame, const struct walk *walk) {
    entry->ip = 0;
    for (unsigned i = 1; i < walk->count; i++) {
        uintptr_t words = (walk->slot[i] - frame->sp) / SLOT_STEP;
        if (words > UINT16_MAX) {
            return;
        }
        entry->offset[i - 1] = (uint16_t)words;
        entry->low_bits[i - 1] = (uint32_t)walk->ip[i];
    }
    entry->count = walk->count - 1;
    entry->sp = frame->sp;
    entry->ip = frame->ip;
}

/* False: a step could not be made just now. */
static bool walk_by_rules(struct walk *walk, struct rec_frame frame, struct rec_bounds *bounds) {
    for (walk->count = 0;;) {
        walk->ip[walk->count++] = frame.ip;
        if (walk->count == QTR_FRAMES_MAX) {
            return true;
        }
        uintptr_t *slot = &walk->slot[walk->count];
        enum rec_step step = rec_rules_step(&frame, bounds, slot);
        if (step != REC_STEP_OK || frame.ip == 0) {
            return step != REC_STEP_BUSY;
        }
        walk->cacheable = walk->cacheable && *slot != 0;
    }
}

static uint64_t walk_hash(const struct walk *walk) {
    uint64_t hash = walk->count;
    for (unsigned i = 0; i < walk->count; i++) {
        hash = (hash ^ walk->ip[i]) * 0x9fb21c651e98df25u;
        hash ^= hash >> 32;
    }
    return hash | 1;  // 0 marks a free place
}

static struct table_entry *table_place(uint64_t hash) {
    uint32_t at = (uint32_t)(hash >> (64 - TABLE_LOG2));
    for (;; at = (at + 1) & (TABLE - 1)) {
        uint64_t there = atomic_load_explicit(&table[at].hash, memory_order_acquire);
        if (there == hash || there == 0) {
            return &table[at];
        }
    }
}

/* How far up from malloc's caller the next return addresses lie. */
static void slots_of(const struct walk *walk, uintptr_t sp, uint16_t words[QTR_SLOTS_MAX]) {
    for (unsigned i = 0; i < QTR_SLOTS_MAX; i++) {
        bool known = i + 1 < walk->count && walk->slot[i + 1] > sp && walk->cacheable;
        uintptr_t up = known ? (walk->slot[i + 1] - sp) / SLOT_STEP : QTR_SLOT_NONE;
        words[i] = (uint16_t)(up < QTR_SLOT_NONE ? up : QTR_SLOT_NONE);
    }
}

static uint32_t slots_hash(const uint16_t words[QTR_SLOTS_MAX]) {
    uint64_t hash = 0;
    for (unsigned i = 0; i < QTR_SLOTS_MAX; i++) {
        hash = (hash ^ words[i]) * 0x9fb21c651e98df25u;
    }
    return (uint32_t)(hash >> 32) | 1;
}

/* A known stack whose return addresses lay elsewhere this time: said once. */
static __attribute__((noinline)) void slots_differ(struct table_entry *entry, const uint16_t words[QTR_SLOTS_MAX]) {
    if (rec_lock_try()) {
        if (entry->slots_hash != SLOTS_DIFFER) {
            rec_meta_slots(entry->id, words);
            entry->slots_hash = SLOTS_DIFFER;
        }
        rec_unlock();
    }
}

static uint32_t number_new(uint64_t hash, const struct walk *walk, const uint16_t words[QTR_SLOTS_MAX]) {
    uint32_t id = 0;
    if (!rec_lock_try()) {
        return 0;
    }
    struct table_entry *entry = table_place(hash);
    if (atomic_load_explicit(&entry->hash, memory_order_relaxed) == hash) {
        id = entry->id;
    } else if (stacks < STACKS_MAX) {
        id = ++stacks;
        rec_header->stacks = id;
        rec_meta_stack(id, walk->ip, walk->count);
        rec_meta_slots(id, words);
        entry->id = id;
        entry->slots_hash = slots_hash(words);
        atomic_store_explicit(&entry->hash, hash, memory_order_release);
    }
    rec_unlock();
    return id;
}

static __attribute__((noinline)) uint32_t stack_slow(struct rec_thread *thread, struct rec_frame frame,
                                                     struct cache_entry *entry) {
    struct rec_bounds bounds = {.thread_low = thread->stack_low, .thread_high = thread->stack_high};
    bounds.high = rec_bounds_high(&bounds, frame.sp);
    struct walk walk = {.cacheable = bounds.high == bounds.thread_high};
    if (!walk_by_rules(&walk, frame, &bounds)) {
        rec_header->unknown_stacks++;
        return 0;
    }
    uint64_t hash = walk_hash(&walk);
    uint16_t words[QTR_SLOTS_MAX];
    slots_of(&walk, frame.sp, words);
    struct table_entry *known = table_place(hash);
    bool is_known = atomic_load_explicit(&known->hash, memory_order_relaxed) == hash;
    uint32_t id = is_known ? known->id : number_new(hash, &walk, words);
    if (is_known && known->slots_hash != SLOTS_DIFFER && known->slots_hash != slots_hash(words)) {
        slots_differ(known, words);
    }
    if (id == 0) {
        rec_header->unknown_stacks++;
    } else if (walk.cacheable) {
        entry[1] = entry[0];
        entry->id = id;
        cache_fill(entry, &frame, &walk);
    }
    return id;
}

uint32_t rec_stack(struct rec_thread *thread, struct rec_frame frame) {
    struct cache_entry *entry = cache_place(thread->cache, &frame);
    if (REC_LIKELY(cache_holds(entry, &frame))) {
        return entry->id;
    }
    if (cache_holds(entry + 1, &frame)) {
        return entry[1].id;
    }
    return stack_slow(thread, frame, entry);
}
