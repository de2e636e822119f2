// SPDX-License-Identifier: MIT
/*
 * source_default.c - the process-wide source: a small cache of warm spans for each CPU in front of the regions.
 *
 *     take 64 KiB                                                give 64 KiB
 *        |   trylock one of this CPU's four shards                  |
 *        v                                                          v
 *     +-- shard 0 --------------+  +-- shard 1 --------------+   depth and bytes bounded; what does not fit
 *     | bin 4K  8K .. 512K  odd |  | bin 4K  8K .. 512K  odd |   goes to the regions
 *     |     []  [][]   []   []  |  |     [][] []             |
 *     +-------------------------+  +-------------------------+
 *        | empty: regions, one lock for all                         |
 *        v                                                          v
 *     regions: lowest address first; idle pages stay warm for a while (region_idle.c)
 *
 * In the `check` build a span given back first spends some time in limbo, a queue in front of the shards, so that its address is not handed out
 * again at once and a use after its end is found.
 *
 * Spans in a bin are of 2^bin pages and aligned to their size; the odd one has those of any other number below 256, which lie anywhere.  `low` is the least
 * depth since the last tick: that many spans, from the bottom, nobody needed for a whole tick, and they go back to the system.
 *
 * Invariants, checked by the default source's check:
 *   S5  low <= depth <= BIN_DEPTH in every bin
 *   S6  idle_bytes of a shard is the sum of its bins
 *
 * Locks: each shard's own, by trylock on the fast path, so that a preempted holder delays nobody; never together with another lock.
 * Not here: where spans are cut (region.c), the clock (reaper.c).
 */
#include <errno.h>
#include <string.h>

#include "base/align.h"
#include "base/bits.h"
#include "os/os.h"
#include "os/os_probe.h"
#include "os/sanitize.h"
#include "pages/limbo.h"
#include "pages/lost.h"
#include "pages/pagemap.h"
#include "pages/reaper.h"
#include "pages/region.h"
#include "pages/source_fork.h"
#include "pages/source_internal.h"

/* Several shards for each CPU: a thread that is preempted while it holds one sends the others to the next, not to another CPU's cache lines. */
enum { CPUS_MAX = 64, WAYS = 4, SHARDS_MAX = CPUS_MAX * WAYS, ODD = 8, BINS, NO_BIN = BINS, BIN_DEPTH = 16 };
static const size_t shard_bytes_most = (size_t)256 << 10, wake_bytes_least = (size_t)8 << 10;

struct warm_span {
    void *start;
    uint32_t cookie, pages;
};
struct bin {
    uint32_t depth, low;
    struct warm_span slot[BIN_DEPTH];
};
struct CACHE_ALIGNED shard {
    struct lock lock;
    size_t idle_bytes;
    uint64_t takes, gives;
    struct bin bin[BINS];
};

static struct shard shards[SHARDS_MAX];
static atomic_size shard_bytes_max; /* what one shard may hold; 0: none was ever used */
static atomic_size shard_wake_bytes; /* what one shard may hold without waking the reaper */
static struct {
    atomic_u64 takes, gives, failures; /* those that did not end in a shard */
} slow;

/* Those that were ever used: on a machine of many CPUs the others are half a megabyte that a short program need not touch, nor the child of a fork look at. */
static atomic_u64 shards_used[SHARDS_MAX / 64];

static inline bool shard_is_used(const struct shard *shard)
{
    size_t i = (size_t)(shard - shards);
    return u64_load_relaxed(&shards_used[i / 64]) >> i % 64 & 1;
}

#define FOR_EACH_USED(shard_)                                                                                                                                  \
    for (struct shard *shard_ = shards; shard_ < shards + SHARDS_MAX; shard_++)                                                                                \
        if (shard_is_used(shard_) && lock_is_ranked(&shard_->lock))

static size_t warm_bytes(const struct warm_span *warm, uint32_t count)
{
    size_t pages = 0;
    for (uint32_t i = 0; i < count; i++)
        pages += warm[i].pages;
    return pages << os_page_shift();
}

/* A push or pop cut in two by a fork loses one span at most: `depth` is what counts, the sums are made anew. */
static void shard_repair(struct shard *shard)
{
    shard->idle_bytes = 0;
    for (unsigned number = 0; number < BINS; number++) {
        struct bin *bin = &shard->bin[number];
        if (bin->low > bin->depth)
            bin->low = bin->depth;
        shard->idle_bytes += warm_bytes(bin->slot, bin->depth);
    }
}

static void default_after_fork(void)
{
    for (struct shard *shard = shards; shard < shards + SHARDS_MAX; shard++) /* also one that was just being taken for the first time */
        if (shard_is_used(shard) && lock_reset_others(&shard->lock))
            shard_repair(shard);
    region_after_fork();
    pagemap_after_fork();
    lost_after_fork();
    limbo_after_fork();
    reaper_after_fork();
    source_fork_after_fork();
}

/* Before main, and before any thread or lock: a program may use the page map or another source only, and fork. */
static __attribute__((constructor)) void pages_at_load(void)
{
    (void)os_after_fork_in_child(default_after_fork);
    os_threads_at_load();
}

/* Of the CPUs that this process has run on. */
static uint32_t shards_in_use(void)
{
    uint32_t cpus = 0;
    for (size_t w = 0; w < SHARDS_MAX / 64; w++)
        cpus += bits_count(u64_load_relaxed(&shards_used[w]) & UINT64_C(0x1111111111111111)); /* the first of each four: no other was used before it */
    return (cpus ? cpus : 1) * WAYS;
}

/* All shards together may hold half of what may be idle at all: each less as more CPUs come, more as the peak rises. */
static void shards_resize(void)
{
    uint32_t count = shards_in_use();
    size_t share = region_idle_bytes_max(region_peak_bytes(), 0) / 2 / count, most = share < shard_bytes_most ? share : shard_bytes_most;
    size_store_relaxed(&shard_wake_bytes, REAPER_FLOOR_BYTES / count > wake_bytes_least ? REAPER_FLOOR_BYTES / count : wake_bytes_least);
    if (most == size_load_relaxed(&shard_bytes_max) || reaper_decay_is_0())
        return;
    size_store_relaxed(&shard_bytes_max, most);
    atomic_fence_seq_cst();
    if (unlikely(reaper_decay_is_0())) /* said meanwhile */
        size_store_relaxed(&shard_bytes_max, 0);
    region_set_cached_max(most * count + (QUIRE_CHECK ? LIMBO_BYTES_MAX : 0));
}

static COLD void shard_note_used(const struct shard *shard)
{
    size_t i = (size_t)(shard - shards);
    (void)__atomic_fetch_or(&shards_used[i / 64].word, UINT64_C(1) << i % 64, __ATOMIC_RELAXED);
    shards_resize();
}

/* The bin of a span of `bytes`, NO_BIN when it has none. */
static ALWAYS_INLINE unsigned bin_of(size_t bytes)
{
    size_t pages = bytes >> os_page_shift();
    if (unlikely(pages >= (size_t)1 << ODD))
        return NO_BIN;
    return likely(is_pow2(pages)) ? log2_floor(pages) : ODD;
}

/* One of this CPU's shards, locked; NULL when all are busy. */
static ALWAYS_INLINE struct shard *shard_lock(void)
{
    struct shard *shard = &shards[os_cpu_id() % CPUS_MAX * WAYS];
    for (int way = 0; way < WAYS; way++, shard++) {
        if (unlikely(!lock_is_ranked(&shard->lock))) /* before it is taken: the child of a fork must find it */
            shard_note_used(shard);
        if (likely(lock_try_fresh(&shard->lock, LOCK_SHARD)))
            return shard;
    }
    return NULL;
}

static NOINLINE int default_take_slow(size_t bytes, size_t align_bytes, struct quire_span *out)
{
    reaper_tick_if_late();
    size_t align = bin_of(bytes) < ODD && align_bytes < bytes ? bytes : align_bytes;
    int error = region_take(bytes, align, false, out);
    if (unlikely(error)) { /* there is no more, but what lies warm, with other CPUs, too */
        (void)source_default_drain(true);
        error = region_take(bytes, align, true, out);
    }
    u64_add_relaxed(error ? &slow.failures : &slow.takes, 1);
    shards_resize();
    if (!error) {
        sanitize_defined(out->start, bytes);
        PROBE2(pages_take, (uintptr_t)out->start, bytes);
    }
    return error;
}

/* One of so many pages, the youngest; false: there is none.  The top takes its place: the child of a fork may lose one, and has none twice. */
static ALWAYS_INLINE bool bin_pop(struct bin *bin, size_t pages, struct warm_span *out)
{
    uint32_t at = bin->depth;
    while (at != 0 && unlikely(bin->slot[at - 1].pages != pages))
        at--;
    if (at-- == 0)
        return false;
    struct warm_span top = bin->slot[bin->depth - 1];
    *out = bin->slot[at];
    bin->depth--;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    bin->slot[at] = top;
    if (at < bin->low)
        bin->low = at;
    return true;
}

static int default_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    (void)source;
    unsigned number = bin_of(bytes);
    struct shard *shard = number < BINS && align_bytes <= (number == ODD ? os_page_bytes() : bytes) ? shard_lock() : NULL;
    if (likely(shard != NULL)) {
        struct warm_span warm;
        if (likely(bin_pop(&shard->bin[number], bytes >> os_page_shift(), &warm))) {
            *out = (struct quire_span){warm.start, bytes, 0, warm.cookie};
            shard->idle_bytes -= bytes;
            shard->takes++;
            lock_drop(&shard->lock);
            if (QUIRE_CHECK)
                region_note(out, false);
            sanitize_undefined(out->start, bytes);
            PROBE2(pages_take, (uintptr_t)out->start, bytes);
            return 0;
        }
        lock_drop(&shard->lock);
    }
    return default_take_slow(bytes, align_bytes, out);
}

static NOINLINE void default_give_slow(const struct quire_span *span)
{
    region_give(span, true);
    u64_add_relaxed(&slow.gives, 1);
    if (region_idle_bytes_roughly() > REAPER_FLOOR_BYTES)
        reaper_wake();
    reaper_tick_if_late();
}

void source_default_give_now(const struct quire_span *span)
{
    unsigned number = bin_of(span->bytes);
    bool cut = span_origin(span) == SPAN_REGION;
    struct shard *shard = number < BINS && cut ? shard_lock() : NULL;
    if (likely(shard != NULL)) {
        struct bin *bin = &shard->bin[number];
        size_t idle_bytes = shard->idle_bytes + span->bytes;
        if (unlikely(bin->depth != 0 && bin->slot[bin->depth - 1].start == span->start)) { /* free here, and the commonest mistake */
            lock_drop(&shard->lock);
            region_refuse(span->start);
        }
        if (likely(bin->depth < BIN_DEPTH && idle_bytes <= size_load_relaxed(&shard_bytes_max))) {
            bin->slot[bin->depth] = (struct warm_span){span->start, span->cookie, (uint32_t)(span->bytes >> os_page_shift())};
            __atomic_signal_fence(__ATOMIC_RELEASE); /* a fork's child must not see the depth before the slot */
            bin->depth++;
            shard->idle_bytes = idle_bytes;
            shard->gives++;
            lock_drop(&shard->lock);
            if (unlikely(idle_bytes > size_load_relaxed(&shard_wake_bytes)))
                reaper_wake();
            return;
        }
        lock_drop(&shard->lock);
    }
    default_give_slow(span);
}

/* It is nobody's from now on.  False: it waits in limbo, and nothing is to be given. */
static bool is_given(struct quire_span *span)
{
    PROBE2(pages_give, (uintptr_t)span->start, span->bytes);
    if (span_origin(span) != SPAN_REGION)
        return true; /* it goes back to somebody who has his own mind about its memory */
    sanitize_no_access(span->start, span->bytes);
    if (!QUIRE_CHECK)
        return true;
    region_note(span, true);
    bool passes = size_load_relaxed(&shard_bytes_max) == 0 || limbo_pass(span);
    if (unlikely(size_load_relaxed(&shard_bytes_max) == 0)) /* said meanwhile, and limbo was empty then */
        limbo_drain();
    return passes;
}

static void default_give(struct quire_source *source, const struct quire_span *span)
{
    (void)source;
    struct quire_span given = *span;
    if (is_given(&given))
        source_default_give_now(&given);
}

void source_give_cold(struct quire_source *source, const struct quire_span *span)
{
    struct quire_span given = *span;
    if (source != quire_source_default()) {
        source->verbs->give(source, span);
    } else if (is_given(&given)) {
        region_give(&given, false);
        u64_add_relaxed(&slow.gives, 1);
    }
}

/* Who takes a span from a bin relies on its alignment. */
bool source_extend(const struct quire_source *source, struct quire_span *span, size_t more_bytes)
{
    size_t bytes = span->bytes + more_bytes;
    bool fits = bin_of(bytes) >= ODD || (uintptr_t)span->start % bytes == 0;
    return source == quire_source_default() && fits && region_extend(span, more_bytes);
}

int source_fill(const struct quire_source *source, const struct quire_span *span)
{
    return source == quire_source_default() ? region_fill(span) : os_populate(span->start, span->bytes);
}

/* The spans nobody needed since the last tick (or all) leave one bin, and go back to the system. */
static size_t bin_drain(struct shard *shard, unsigned number, bool all)
{
    struct warm_span spans[BIN_DEPTH];
    struct bin *bin = &shard->bin[number];
    lock_take(&shard->lock);
    uint32_t depth = bin->depth, count = all ? depth : bin->low;
    bin->depth = bin->low = 0; /* while slots move: the child of a fork must not see one twice */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    memcpy(spans, bin->slot, count * sizeof *spans);
    memmove(bin->slot, bin->slot + count, (depth - count) * sizeof *spans);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    bin->depth = bin->low = depth - count;
    size_t freed = warm_bytes(spans, count);
    shard->idle_bytes -= freed;
    lock_drop(&shard->lock);
    for (uint32_t k = 0; k < count; k++) {
        struct quire_span span = {spans[k].start, warm_bytes(&spans[k], 1), 0, spans[k].cookie};
        region_give(&span, false);
    }
    return freed;
}

size_t source_default_drain(bool all)
{
    size_t freed = 0;
    limbo_drain();
    FOR_EACH_USED(shard)
        for (unsigned number = 0; number < BINS; number++)
            freed += bin_drain(shard, number, all);
    return freed + region_drain(all);
}

static size_t default_trim(struct quire_source *source)
{
    (void)source;
    reaper_guests_trim(); /* they give to us, or to other sources: what counts is what leaves here */
    return source_default_drain(true);
}

void source_default_serve_malloc(void)
{
    reaper_defer((size_t)2 << 20);
    region_keep_all();
}

void source_default_decay_set(void)
{
    atomic_fence_seq_cst(); /* shards_resize() */
    if (!reaper_decay_is_0()) {
        shards_resize();
        return;
    }
    size_store_relaxed(&shard_bytes_max, 0);
    default_trim(NULL);
}

static void default_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    (void)source;
    struct region_stats region;
    size_t cached_bytes = 0; /* in the shards, and limbo */
    uint64_t takes = u64_load_relaxed(&slow.takes), gives = u64_load_relaxed(&slow.gives);
    FOR_EACH_USED(shard) {
        lock_take(&shard->lock);
        cached_bytes += shard->idle_bytes;
        takes += shard->takes;
        gives += shard->gives;
        lock_drop(&shard->lock);
    }
    limbo_sum(&cached_bytes, &gives);
    region_stats(&region);
    /* Read one after the other while others work: what the shards hold may for a moment seem more than all that is out. */
    size_t taken = region.out_bytes > cached_bytes ? region.out_bytes - cached_bytes : 0;
    *out = (struct quire_source_stats){.taken_bytes = taken,
                                       .idle_bytes = region.idle_bytes + cached_bytes,
                                       .meta_bytes = region.meta_bytes + pagemap_meta_bytes(),
                                       .reserved_bytes = region.reserved_bytes + lost_bytes(),
                                       .peak_bytes = region.out_bytes_peak,
                                       .takes = takes,
                                       .gives = gives,
                                       .failures = u64_load_relaxed(&slow.failures)};
}

size_t source_default_idle_bytes(void)
{
    struct quire_source_stats stats;
    default_stats(NULL, &stats);
    return stats.idle_bytes;
}

static const char *shard_check_locked(const struct shard *shard)
{
    size_t bytes = 0;
    for (unsigned number = 0; number < BINS; number++) {
        const struct bin *bin = &shard->bin[number];
        if (bin->low > bin->depth || bin->depth > BIN_DEPTH)
            return "source S5 low <= depth <= BIN_DEPTH";
        bytes += warm_bytes(bin->slot, bin->depth);
    }
    return bytes == shard->idle_bytes ? NULL : "source S6 a shard's bytes are the sum of its bins";
}

static const char *default_check(struct quire_source *source)
{
    (void)source;
    const char *error = NULL;
    FOR_EACH_USED(shard) {
        lock_take(&shard->lock);
        const char *found = shard_check_locked(shard);
        lock_drop(&shard->lock);
        error = error ? error : found;
    }
    return error ? error : region_check();
}

static const struct quire_source_verbs default_verbs = {.take = default_take,
                                                        .give = default_give,
                                                        .idle = source_discard,
                                                        .busy = source_is_ready,
                                                        .fini = source_stays,
                                                        .trim = default_trim,
                                                        .stats = default_stats,
                                                        .check = default_check};
static struct quire_source default_source = {&default_verbs, "default"};

struct quire_source *quire_source_default(void)
{
    return &default_source;
}
