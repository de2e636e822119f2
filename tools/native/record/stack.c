// SPDX-License-Identifier: MIT
/*
 * stack.c - the current call stack as a number, in tens of nanoseconds.
 *
 *   1. a cache of this thread: (return address, sp) -> the slots where that stack's return addresses lay.
 *      When every slot still holds its address the stack is the same one: a load and a compare a frame.
 *   2. else walk by the learnt rules (rules.c) until a frame of this thread's last walk is met, whose outer slots still hold their
 *      addresses: recursion changes a few inner frames at a time.
 *   3. look the addresses' hash up in the process's table; a hash that is new gets the next number, and the trace a definition (meta.c).
 *
 *   last walk    main | parse | value | list | value | list | value       outermost first; a step begins at the other end
 *                                        ^ met here: what lies left of it stays, what lies right was walked anew
 *
 * Invariants:
 *   C2  a stack's number never changes and is defined in the trace before its first event is written
 *
 * Two stacks whose 64-bit hash is equal would be taken for one; with a million stacks the odds are 1 : 10^7.
 * Locks: none to look up; the recorder's to number a new stack.
 */
#include <errno.h>
#include <sys/mman.h>

#include "cache.h"

#define TABLE_LOG2  20
#define TABLE       (1u << TABLE_LOG2)
#define STACKS_MAX  (TABLE / 2)  // further ones get number 0, counted as unknown
#define SLOT_STEP   8u
#define SUM_FACTOR  UINT64_C(0x9fb21c651e98df25)
#define POWER_2(x)  ((x) * (x))
#define POWER_4(x)  POWER_2(POWER_2(x))
#define SUM_FACTOR_KEPT (POWER_4(POWER_4(SUM_FACTOR)) * POWER_2(POWER_4(SUM_FACTOR)))  // to the power of QTR_FRAMES_MAX

static_assert(QTR_FRAMES_MAX == 24, "SUM_FACTOR_KEPT is 16 and 8 of SUM_FACTOR");

struct table_entry {
    _Atomic uint64_t hash;
    uint32_t id;
    uint32_t slots_hash;  // of where its return addresses lay; SLOTS_DIFFER: not always at the same places, which the trace says
};

enum { SLOTS_DIFFER = 0 };

/* A stack: the innermost of the last walk's frames, innermost first. */
struct walk {
    const struct walked *innermost;
    unsigned count;
    bool cacheable;
};

static const struct walked *frame_at(const struct walk *walk, unsigned place) {
    return walk->innermost - place;
}

static struct table_entry *table;
static uint32_t stacks;

static void *map_lazily(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool rec_stack_start(void) {
    table = table != NULL ? table : map_lazily(TABLE * sizeof(struct table_entry));
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

static void cache_fill(struct cache_entry *entry, const struct rec_frame *frame, const struct walk *walk) {
    entry->ip = 0;
    entry->hint = 0;
    entry->offset[0] = 0;  // a stack of one frame: its own first word, which the caller owns
    entry->low_bits[0] = (uint32_t)*(const uintptr_t *)frame->sp;
    for (unsigned i = 1; i < walk->count; i++) {
        uintptr_t words = (frame_at(walk, i)->slot - frame->sp) / SLOT_STEP;
        if (words > UINT16_MAX) {
            return;
        }
        entry->offset[i - 1] = (uint16_t)words;
        entry->low_bits[i - 1] = (uint32_t)frame_at(walk, i)->ip;
    }
    entry->count = (uint16_t)(walk->count - 1);
    entry->sp = frame->sp;
    entry->ip = frame->ip;
}

/*
 * Whether the stack from this frame outwards is the last walk's first `count` frames: as far as a stack is kept that has `steps` frames
 * inside of it. The frame itself has to be in the same place, and all other slots hold what they held.
 */
static bool same_outside(const struct rec_stack_cache *cache, unsigned count, unsigned steps, const struct walked *frame) {
    const struct walked *here = &cache->last[count - 1];
    unsigned wanted = QTR_FRAMES_MAX - steps;
    if (here->slot != frame->slot || here->ip != frame->ip || here->bp != frame->bp || (count < wanted && !cache->is_rooted)) {
        return false;
    }
    for (unsigned i = count < wanted ? count : wanted; i > 0; i--, here--) {
        if (rec_address(*(const uintptr_t *)here->slot) != here->ip) {
            return false;
        }
    }
    return true;
}

/* The steps behind the first `kept` frames of the last walk, and the sums on from there. */
static void append(struct rec_stack_cache *cache, unsigned kept, unsigned steps) {
    uint64_t sum = kept ? cache->sum[kept - 1] : 0;
    while (steps-- > 0) {
        uint64_t mixed = cache->step[steps].ip * UINT64_C(0x9e3779b97f4a7c15);
        sum = sum * SUM_FACTOR + (mixed ^ mixed >> 29);
        cache->sum[kept] = sum;
        cache->last[kept++] = cache->step[steps];
    }
    cache->count = kept;
}

/* False: a step could not be made just now. */
static bool walk_by_rules(struct rec_stack_cache *cache, struct rec_frame frame, struct rec_bounds *bounds, bool *cacheable) {
    unsigned kept = cache->count, steps = 0;
    enum rec_step step = REC_STEP_OK;
    uintptr_t slot = 0;
    bool met = false;
    bounds->sp_is_low = bounds->is_interrupted = false;
    while (step == REC_STEP_OK && frame.ip != 0 && steps < STEPS_MAX) {
        cache->step[steps] = (struct walked){frame.ip, slot, frame.sp, frame.bp};
        while (kept > 0 && cache->last[kept - 1].sp < frame.sp) {
            kept--;
        }
        met = steps > 0 && steps < QTR_FRAMES_MAX && *cacheable && kept > 0 &&
              same_outside(cache, kept, steps, &cache->step[steps]);
        if (met) {
            break;
        }
        steps++;
        step = rec_rules_step(&frame, bounds, &slot);
        *cacheable = *cacheable && (step != REC_STEP_OK || slot != 0);
    }
    cache->count = 0; /* what was there is half gone */
    if (step == REC_STEP_BUSY) {
        return false;
    }
    if (!met) {
        kept = 0;
        cache->is_rooted = step == REC_STEP_END || frame.ip == 0;
    }
    if (kept + steps > WALK_MAX) {
        return walk_by_rules(cache, (struct rec_frame){cache->step[0].ip, cache->step[0].sp, cache->step[0].bp}, bounds, cacheable);
    }
    append(cache, kept, steps);
    return true;
}

/* Of the innermost frames alone. */
static uint64_t walk_hash(const struct rec_stack_cache *cache, unsigned count) {
    uint64_t hash = cache->sum[cache->count - 1];
    if (cache->count > count) {
        hash -= cache->sum[cache->count - 1 - count] * SUM_FACTOR_KEPT;  // then count == QTR_FRAMES_MAX
    }
    hash = (hash ^ hash >> 32 ^ count) * SUM_FACTOR;
    return (hash ^ hash >> 29) | 1;  // 0 marks a free place
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
        bool known = i + 1 < walk->count && frame_at(walk, i + 1)->slot >= sp && walk->cacheable;
        uintptr_t up = known ? (frame_at(walk, i + 1)->slot - sp) / SLOT_STEP : QTR_SLOT_NONE;
        words[i] = (uint16_t)(up < QTR_SLOT_NONE ? up : QTR_SLOT_NONE);
    }
}

static uint32_t slots_hash(const uint16_t words[QTR_SLOTS_MAX]) {
    uint64_t half[2];
    static_assert(sizeof half == QTR_SLOTS_MAX * sizeof words[0], "two multiplications take them all");
    memcpy(half, words, sizeof half);
    uint64_t hash = (half[0] * SUM_FACTOR ^ half[0] >> 32) + half[1] * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash * SUM_FACTOR >> 32) | 1;
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
    } else if (stacks < STACKS_MAX && rec_header->stop == QTR_STOP_NONE) {  // else it would have a number without a definition, in the next trace too
        id = ++stacks;
        rec_header->stacks = id;
        uintptr_t ips[QTR_FRAMES_MAX];
        for (unsigned i = 0; i < walk->count; i++) {
            ips[i] = frame_at(walk, i)->ip;
        }
        rec_meta_stack(id, ips, walk->count);
        rec_meta_slots(id, words);
        entry->id = id;
        entry->slots_hash = slots_hash(words);
        atomic_store_explicit(&entry->hash, hash, memory_order_release);
    }
    rec_unlock();
    return id;
}

/* The stack is in no place of its set. */
static uint32_t walked(struct rec_thread *thread, const struct rec_frame frame, struct cache_set *set) {
    struct rec_bounds bounds = {.thread_low = thread->stack_low, .thread_high = thread->stack_high};
    bounds.high = rec_bounds_high(&bounds, frame.sp);
    struct rec_stack_cache *cache = thread->cache;
    struct walk walk = {.cacheable = bounds.high == bounds.thread_high};
    if (!walk_by_rules(cache, frame, &bounds, &walk.cacheable)) {
        rec_header->unknown_stacks++;
        return 0;
    }
    walk.innermost = &cache->last[cache->count - 1];
    walk.count = cache->count < QTR_FRAMES_MAX ? cache->count : QTR_FRAMES_MAX;
    uint64_t hash = walk_hash(cache, walk.count);
    struct table_entry *known = table_place(hash);
    bool is_known = atomic_load_explicit(&known->hash, memory_order_relaxed) == hash;
    uint16_t words[QTR_SLOTS_MAX];
    if (!is_known || known->slots_hash != SLOTS_DIFFER) {
        slots_of(&walk, frame.sp, words);
    }
    uint32_t id = is_known ? known->id : number_new(hash, &walk, words);
    if (is_known && known->slots_hash != SLOTS_DIFFER && known->slots_hash != slots_hash(words)) {
        slots_differ(known, words);
    }
    if (id == 0) {
        rec_header->unknown_stacks++;
    } else if (walk.cacheable) {
        set->newest = (set->newest + WAYS - 1) % WAYS;  // the way that waited longest, where they are right in turn
        struct cache_entry *entry = &set->entry[set->newest];
        entry->id = id;
        cache_fill(entry, &frame, &walk);
    }
    if (!walk.cacheable) {
        cache->count = 0;
    }
    return id;
}

/* The stack is not its set's newest. */
__attribute__((noinline)) uint32_t rec_stack_slow(struct rec_thread *thread, const struct rec_frame *from) {
    struct rec_frame frame = *from;
    struct cache_set *set = cache_set_of(thread->cache, frame.ip, frame.sp);
    for (unsigned way = 1; way < WAYS; way++) {
        unsigned at = (set->newest + way) % WAYS;
        if (cache_holds(&set->entry[at], frame.ip, frame.sp)) {
            set->newest = at;
            return set->entry[at].id;
        }
    }
    int saved_errno = errno;  // libunwind asks the kernel what can be read
    uint32_t id = walked(thread, frame, set);
    errno = saved_errno;
    return id;
}
