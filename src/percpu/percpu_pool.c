// SPDX-License-Identifier: MIT
/*
 * percpu_pool.c - pools: their birth and end.
 *
 * The size of a unit is a power of two: an address in unit 0 and a CPU are one shift and one addition from that CPU's copy.
 *
 * Locks: pools, the lowest of percpu's; a pool's own for its lists.  Not here: chunks (percpu_chunk.c), threads (percpu_thread.c).
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/fail.h"
#include "base/layout.h"
#include "base/panic.h"
#include "os/os.h"
#include "os/os_rseq.h"
#include "os/sanitize.h"
#include "pages/source_internal.h"
#include "percpu/percpu_page.h"

enum { UNIT_SHIFT_DEFAULT = 20, UNIT_SHIFT_MAX = 26, CPUS_MAX = 1 << 16 };

static uint64_t ids[PERCPU_IDS_MAX / WORD_BITS];
struct registry percpu_pools = {.lock = LOCK_INIT(LOCK_PERCPU_POOLS), .ids = ids, .ids_max = PERCPU_IDS_MAX};
struct quire_percpu *percpu_first;

void percpu_each(bool (*fn)(const struct quire_percpu *pool, void *arg), void *arg)
{
    registry_lock(&percpu_pools);
    for (const struct quire_percpu *pool = percpu_first; pool && fn(pool, arg); pool = pool->next) {
    }
    registry_unlock(&percpu_pools);
}

void percpu_refuse(const struct quire_percpu *pool, const char *what, uintptr_t bits)
{
    /* The hook may look at pools: it must not find this thread inside. */
    percpu_let_go();
    registry_let_go(&percpu_pools);
    panic("percpu", pool && pool->name[0] ? pool->name : NULL, what, (const void *)bits);
}

void percpu_local_init_locked(struct quire_percpu *pool, struct percpu_local *local, uint32_t rank)
{
    local->pool = pool;
    local->bias = (struct bias)BIAS_INIT(rank);
    local->inbox_lock = (struct lock)LOCK_INIT(LOCK_PERCPU_INBOX);
    local->next = percpu_locals(pool);
    addr_store_release(&pool->locals, (uintptr_t)local); /* release [percpu-locals] */
}

/* ---- birth ---- */

static size_t chunk_meta_bytes(uint32_t units, size_t map_bytes)
{
    return sizeof(struct percpu_chunk) + (units + 63) / 64 * sizeof(uint64_t) + map_bytes;
}

static size_t chunk_all_bytes(uint32_t units, unsigned shift)
{
    return ((size_t)units << shift) + align_up(chunk_meta_bytes(units, bitmap_memory_bytes((size_t)1 << (shift - WORD_LOG2))), os_page_bytes());
}

/* log2 of the unit: what was asked for and a page; or the default, smaller where a quarter of the limit asks for it.  0: no such unit. */
static unsigned unit_shift(const struct quire_percpu_opts *opts, uint32_t units)
{
    unsigned least = os_page_shift() + 1, shift = UNIT_SHIFT_DEFAULT;
    if (opts->chunk_bytes) {
        if (opts->chunk_bytes > ((size_t)1 << UNIT_SHIFT_MAX) - os_page_bytes())
            return 0;
        shift = log2_ceil(opts->chunk_bytes + os_page_bytes());
        return shift < least ? least : shift;
    }
    while (opts->limit_bytes && shift > least && chunk_all_bytes(units, shift) > opts->limit_bytes / 4)
        shift--;
    return shift;
}

/* What a pool of these options is, before it has any memory; 0 or an errno. */
static int pool_plan(const struct quire_percpu_opts *opts, struct quire_percpu *pool)
{
    unsigned cpus = opts->cpus ? opts->cpus : os_cpu_count();
    int error = source_verify(opts->source);
    if (error)
        return -error;
    if (opts->flags != 0 || cpus > CPUS_MAX)
        return EINVAL;
    unsigned shift = unit_shift(opts, cpus + 1);
    size_t unit_bytes = (size_t)1 << shift;
    if (shift == 0 || opts->reserve_bytes > unit_bytes - os_page_bytes())
        return EINVAL;
    pool->units = cpus + 1;
    pool->watched = sanitize_watched();
    pool->align_bytes_max = os_page_bytes();
    pool->object_bytes_max = unit_bytes - os_page_bytes();
    pool->rseq = os_rseq_works();
    pool->window.rseq_offset = os_rseq_offset();
    pool->window.unit_shift = shift;
    pool->window.unit_mask = ~(uintptr_t)(unit_bytes - 1);
    pool->window.cpus = cpus;
    pool->unit_words = unit_bytes >> WORD_LOG2;
    for (unsigned grain = 0; grain < PERCPU_GRAINS; grain++) {
        pool->room[grain] = pool->unit_words - FIRST_WORDS;
        pool->chunk_meta_bytes[grain] = chunk_meta_bytes(pool->units, bitmap_memory_bytes(pool->unit_words >> (2 * grain)));
    }
    for (unsigned kind = PERCPU_PAGED; kind < PERCPU_KINDS; kind++) {
        pool->room[kind] = unit_bytes >> percpu_page_log2(kind, shift);
        pool->chunk_meta_bytes[kind] =
            chunk_meta_bytes(pool->units, (pool->room[kind] + 63) / 64 * sizeof(uint64_t) + CACHE_LINE_BYTES + pool->room[kind] * percpu_page_stride(kind));
    }
    pool->account.limit_bytes = opts->limit_bytes;
    pool->reserve_words = (opts->reserve_bytes + 3) >> WORD_LOG2;
    pool->own_memory = !opts->source || opts->source == quire_source_default() || opts->source == quire_source_anon();
    pool->source = pool->own_memory ? quire_source_anon() : opts->source;
    if (opts->name)
        strncpy(pool->name, opts->name, PERCPU_NAME_BYTES - 1);
    return 0;
}

static bool pool_register(struct quire_percpu *pool)
{
    registry_lock(&percpu_pools);
    pool->id = registry_id_new(&percpu_pools);
    bool found = pool->id != REGISTRY_FULL;
    if (found) {
        pool->birth = ++percpu_pools.births;
        pools_push(&percpu_first, pool);
    }
    registry_unlock(&percpu_pools);
    return found;
}

static struct quire_percpu *pool_new(const struct quire_percpu_opts *opts)
{
    struct quire_span span;
    struct quire_percpu *pool = source_own_take(sizeof *pool, &span);
    if (!pool)
        return NULL;
    pool->span = span;
    pool->lock = (struct lock)LOCK_INIT(LOCK_PERCPU_POOL);
    int error = pool_plan(opts, pool);
    if (error == 0 && opts->limit_bytes != 0 && span.bytes + chunk_all_bytes(pool->units, pool->window.unit_shift) > opts->limit_bytes)
        error = ENOMEM;
    if (error) {
        source_own_give(span);
        return fail_null(error);
    }
    percpu_local_init_locked(pool, &pool->home, LOCK_PERCPU_HOME);
    percpu_local_init_locked(pool, &pool->reserve, LOCK_PERCPU_RESERVE);
    account_set(&pool->account, span.bytes);
    return pool;
}

struct quire_percpu *quire_percpu_create(const struct quire_percpu_opts *opts)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_percpu_opts, reserve_bytes);
    struct quire_percpu_opts own;
    int kept = errno, error = abi_read(&layout, &own, opts);
    if (error)
        return fail_null(-error);
    struct quire_percpu *pool = pool_new(&own);
    if (!pool)
        return NULL;
    if (!pool_register(pool)) {
        source_own_give(pool->span);
        return fail_null(ENOMEM);
    }
    if (pool->reserve_words) {
        u32_store_relaxed(&pool->reserve_low, 1);
        percpu_reserve_fill(pool);
        if (u32_load_relaxed(&pool->reserve_low) != 0) {
            quire_percpu_destroy(pool);
            return fail_null(ENOMEM);
        }
    }
    errno = kept;
    return pool;
}

/* ---- end ---- */

static void pool_unregister(struct quire_percpu *pool)
{
    registry_lock(&percpu_pools);
    struct quire_percpu *seen = percpu_first;
    while (seen && seen != pool)
        seen = seen->next;
    if (unlikely(!seen))
        percpu_refuse(NULL, PERCPU_E5, (uintptr_t)pool);
    pools_remove(&percpu_first, pool);
    percpu_thread_forget(pool);
    registry_id_delete(&percpu_pools, pool->id);
    registry_unlock(&percpu_pools);
}

void quire_percpu_destroy(struct quire_percpu *pool)
{
    if (!pool)
        return;
    int kept = errno;
    pool_unregister(pool);
    while (pool->all)
        percpu_chunk_delete(pool->all);
    for (struct percpu_local *local = percpu_locals(pool), *next; local; local = next) {
        next = local->next;
        if (!percpu_is_pools_own(local))
            source_own_give(local->span);
    }
    source_own_give(pool->span);
    errno = kept;
}

static const LAYOUT struct layout_row layout[] = {
    LAYOUT_STRUCT(quire_percpu), LAYOUT_FIELD(quire_percpu, window.unit_shift), LAYOUT_FIELD(quire_percpu, unit_words),
    LAYOUT_FIELD(quire_percpu, name), LAYOUT_FIELD(quire_percpu, next), LAYOUT_FIELD(quire_percpu, birth), LAYOUT_FIELD(quire_percpu, all),
    LAYOUT_STRUCT(percpu_chunk), LAYOUT_FIELD(percpu_chunk, pool), LAYOUT_FIELD(percpu_chunk, base), LAYOUT_FIELD(percpu_chunk, all_next),
    LAYOUT_FIELD(percpu_chunk, pages), LAYOUT_FIELD(percpu_chunk, page_stride), LAYOUT_FIELD(percpu_chunk, map.bits),
    LAYOUT_FIELD(percpu_chunk, map.taken), LAYOUT_FIELD(percpu_chunk, map.starts), LAYOUT_FIELD(percpu_chunk, bit_log2),
    LAYOUT_STRUCT(percpu_page), LAYOUT_FIELD(percpu_page, start), LAYOUT_FIELD(percpu_page, words), LAYOUT_FIELD(percpu_page, slots),
    LAYOUT_FIELD(percpu_page, free_words), LAYOUT_FIELD(percpu_page, free),
};
static const ANCHORS struct layout_anchor anchors[] = {{"percpu_first", &percpu_first}};
