// SPDX-License-Identifier: MIT
/*
 * percpu_look.c - looking: statistics, whether the invariants hold, whose a ref is.
 *
 * One local after the other is visited, so its threads wait for the time of one pass over its maps and the sum is of moments that follow each
 * other.  Everything is written to the caller's struct or the stack.
 *
 * The median of sizes comes from counts: exact to 1 KiB, above that the lower end of its class, which is at most a fifth below.
 *
 * Locks: a local's at a time; a pool's, for the list of its chunks.  Not here: changing anything.
 */
#include <string.h>

#include "base/abi.h"
#include "os/os.h"
#include "os/sanitize.h"
#include "percpu/percpu_page.h"

enum { EXACT_WORDS = 256 };

struct sizes {
    size_t min_words, max_words, count;
    size_t exact[EXACT_WORDS + 1], class[PERCPU_CLASSES];
};

/* ---- every local, one after the other ---- */

struct look {
    struct quire_percpu_stats *stats;
    struct sizes sizes;
};

static void count_object(struct sizes *sizes, size_t words)
{
    sizes->min_words = sizes->count == 0 || words < sizes->min_words ? words : sizes->min_words;
    sizes->max_words = words > sizes->max_words ? words : sizes->max_words;
    sizes->count++;
    if (words <= EXACT_WORDS)
        sizes->exact[words]++;
    else
        sizes->class[percpu_class_floor(words)]++;
}

static size_t class_min(unsigned class)
{
    return class < 8 ? class : (size_t)(4 + class % 4) << (class / 4 - 1);
}

static size_t median_words(const struct sizes *sizes)
{
    size_t before = 0, half = (sizes->count + 1) / 2;
    for (size_t words = 1; words <= EXACT_WORDS; words++)
        if ((before += sizes->exact[words]) >= half && half)
            return words;
    for (unsigned class = 0; class < PERCPU_CLASSES; class++)
        if ((before += sizes->class[class]) >= half && half)
            return class_min(class) > sizes->min_words ? class_min(class) : sizes->min_words;
    return 0;
}

/* The largest object that a free run has room for: an empty unit's is longer than any object may be. */
static size_t object_bytes_in(const struct quire_percpu *pool, size_t run_bytes)
{
    return run_bytes < pool->object_bytes_max ? run_bytes : pool->object_bytes_max;
}

/* The largest object that the chunk has room for. */
static size_t longest_bytes(const struct percpu_chunk *chunk)
{
    if (percpu_is_paged(chunk->grain))
        return chunk->room ? (size_t)PERCPU_PAGED_WORDS << WORD_LOG2 : 0;
    return object_bytes_in(chunk->pool, bitmap_longest_hint(&chunk->map) << chunk->bit_log2);
}

/* The objects of a chunk, and the free runs between them. */
static void look_at_chunk(struct look *look, const struct percpu_chunk *chunk)
{
    struct quire_percpu_stats *out = look->stats;
    size_t bytes, end = (size_t)1 << EDGE_LOG2, longest = longest_bytes(chunk);
    for (size_t at = percpu_chunk_next(chunk, end, &bytes); at != SIZE_MAX; at = percpu_chunk_next(chunk, end, &bytes)) {
        size_t gap_bytes = at - end;
        out->fragments += gap_bytes != 0;
        out->fragments_bytes += gap_bytes;
        out->fragment_bytes_max = gap_bytes > out->fragment_bytes_max ? gap_bytes : out->fragment_bytes_max;
        count_object(&look->sizes, bytes >> WORD_LOG2);
        out->live_bytes += bytes;
        end = at + bytes;
    }
    out->longest_free_bytes = longest > out->longest_free_bytes ? longest : out->longest_free_bytes;
    out->empty_chunks += percpu_chunk_is_empty(chunk);
    for (uint32_t w = 0; w * 64 < chunk->pool->units; w++)
        out->copies_written += bits_count(u64_load_relaxed(&chunk->written[w]));
}

static void look_at_local(struct look *look, struct percpu_local *local)
{
    struct quire_percpu_stats *out = look->stats;
    out->live_objects += percpu_objects(local);
    out->live_objects_peak += local->objects_peak;
    out->chunks += local->chunks;
    out->allocs += local->allocs;
    out->frees += local->frees;
    out->caches += percpu_has_thread(local);
    FOR_EACH_CHUNK(local, chunk)
        look_at_chunk(look, chunk);
    if (local == &local->pool->reserve)
        out->reserve_bytes = object_bytes_in(local->pool, percpu_reserve_words(local) << WORD_LOG2);
}

static void pool_stats(const struct quire_percpu *pool, struct quire_percpu_stats *out)
{
    struct look look = {.stats = out};
    FOR_EACH_VISITED(pool, local)
        look_at_local(&look, local);
    out->unit_free_bytes = out->chunks * (pool->unit_words << WORD_LOG2) - out->live_bytes;
    out->live_bytes *= pool->units;
    out->meta_bytes = size_load_relaxed(&pool->account.meta_bytes);
    out->mapped_bytes = size_load_relaxed(&pool->account.mapped_bytes);
    /* Chunks may have come and gone between one look and the other. */
    if (out->mapped_bytes < out->live_bytes + out->meta_bytes)
        out->mapped_bytes = out->live_bytes + out->meta_bytes;
    out->free_bytes = out->mapped_bytes - out->live_bytes - out->meta_bytes;
    out->peak_bytes = size_load_relaxed(&pool->account.peak_bytes);
    if (out->peak_bytes < out->mapped_bytes)
        out->peak_bytes = out->mapped_bytes; /* charged for, but not had yet */
    out->chunks_peak = size_load_relaxed(&pool->chunks_peak);
    if (out->chunks_peak < out->chunks)
        out->chunks_peak = out->chunks; /* a chunk that went from one owner to the other while we looked is in the sum twice */
    out->limit_bytes = pool->account.limit_bytes;
    out->cpus = pool->window.cpus;
    out->unit_bytes = pool->object_bytes_max;
    out->object_bytes_min = look.sizes.min_words << WORD_LOG2;
    out->object_bytes_max = look.sizes.max_words << WORD_LOG2;
    out->object_bytes_median = median_words(&look.sizes) << WORD_LOG2;
}

void quire_percpu_stats(const struct quire_percpu *pool, struct quire_percpu_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_percpu_stats, caches);
    struct quire_percpu_stats own = {0};
    pool_stats(pool, &own);
    abi_write(&layout, &own, out);
}

/* ---- chunks, for a picture ---- */

enum { PICTURE_SLOTS_MAX = PAGE_LOOK_WORDS * 64 };

static void picture_chunk(const struct percpu_chunk *chunk, page_look_fn *fn, void *arg)
{
    size_t unit_bytes = chunk->pool->unit_words << WORD_LOG2, slot_bytes = (size_t)1 << EDGE_LOG2, bytes;
    while (unit_bytes / slot_bytes > PICTURE_SLOTS_MAX)
        slot_bytes *= 2;
    struct page_look seen = {.start = chunk->base, .bytes = unit_bytes, .slot_bytes = slot_bytes, .slots = unit_bytes / slot_bytes};
    for (size_t at = percpu_chunk_next(chunk, (size_t)1 << EDGE_LOG2, &bytes); at != SIZE_MAX; at = percpu_chunk_next(chunk, at + bytes, &bytes))
        for (size_t slot = at / slot_bytes; slot <= (at + bytes - 1) / slot_bytes; slot++)
            seen.live[slot / 64] |= UINT64_C(1) << slot % 64;
    fn(&seen, arg);
}

void percpu_pages_look(const struct quire_percpu *pool, page_look_fn *fn, void *arg)
{
    FOR_EACH_VISITED(pool, local)
        FOR_EACH_CHUNK(local, chunk)
            picture_chunk(chunk, fn, arg);
}

/* ---- invariants ---- */

/* P4, where anything may be written: the first word is zero, and each is as the one before. */
static bool zero_between(const struct percpu_chunk *chunk, size_t from, size_t to)
{
    for (uint32_t w = 0; w * 64 < chunk->pool->units; w++)
        for (uint64_t units = u64_load_relaxed(&chunk->written[w]); units; units &= units - 1) {
            const uint32_t *word = (const void *)(percpu_unit(chunk, w * 64 + bits_lowest(units)) + from);
            if (from < to && (*word != 0 || memcmp(word, word + 1, to - from - sizeof *word) != 0))
                return false;
        }
    return true;
}

static const char *check_pages(const struct percpu_local *local, const struct percpu_chunk *chunk)
{
    size_t free_pages = 0;
    for (size_t i = 0; i < chunk->pool->room[chunk->grain]; i++) {
        const struct percpu_page *page = percpu_page_of(chunk, i);
        bool free = bits_test(chunk->free_pages, i);
        free_pages += free;
        if (free != (page->words == 0))
            return "percpu G2";
        if (free)
            continue;
        size_t free_slots = 0;
        for (unsigned w = 0; w < page->free_words; w++) {
            free_slots += bits_count(page->free[w]);
            if ((page->free[w] != 0) != (page->filled >> w & 1))
                return "percpu G1";
        }
        if (free_slots + page->used != page->slots)
            return "percpu G1";
        if (page->used == 0 || (page->filled && !percpu_pages_is_linked(local->partial[page->words], page)))
            return "percpu G2";
    }
    return free_pages == chunk->room && chunk->class == percpu_class_floor(free_pages) ? NULL : "percpu G2";
}

static const char *check_map(const struct percpu_chunk *chunk)
{
    size_t bytes, edges = 0;
    if (bitmap_check(&chunk->map) || bitmap_run(&chunk->map, 0) != (size_t)FIRST_WORDS >> (2 * chunk->grain))
        return "percpu P1";
    for (size_t at = percpu_chunk_next(chunk, 0, &bytes); at != SIZE_MAX; at = percpu_chunk_next(chunk, at + bytes, &bytes))
        edges |= at | bytes;
    if (edges & (((size_t)1 << chunk->edge_log2) - 1))
        return "percpu P1";
    return chunk->class < percpu_class_floor(bitmap_longest_hint(&chunk->map)) ? "percpu P3" : NULL;
}

static const char *check_chunk(const struct percpu_local *local, const struct percpu_chunk *chunk, size_t *objects)
{
    size_t bytes, words = 0, end = (size_t)1 << EDGE_LOG2;
    const char *error = percpu_is_paged(chunk->grain) ? check_pages(local, chunk) : check_map(chunk);
    bool zero = true, look = !sanitize_watched();
    for (size_t at = percpu_chunk_next(chunk, end, &bytes); at != SIZE_MAX && !error; at = percpu_chunk_next(chunk, end, &bytes)) {
        words += bytes >> WORD_LOG2, ++*objects;
        zero = zero && (!look || zero_between(chunk, end, at));
        end = at + bytes;
    }
    if (error)
        return error;
    if (!percpu_is_paged(chunk->grain) && words + chunk->room != chunk->pool->room[chunk->grain])
        return "percpu P2";
    if (!zero || (look && !zero_between(chunk, end, chunk->pool->unit_words << WORD_LOG2)))
        return "percpu P4";
    if (percpu_owner(chunk) != local || pagemap_find(chunk->base) != owner_make(chunk, OWNER_PERCPU))
        return "percpu P5";
    return NULL;
}

static const char *check_local(const struct percpu_local *local)
{
    const char *error = NULL;
    size_t room[PERCPU_KINDS] = {0}, objects = 0, chunks = 0;
    FOR_EACH_LIST(grain, class) {
        if ((local->list[grain][class] != NULL) != bits_test(local->filled[grain], class))
            error = "percpu P3";
        for (struct percpu_chunk *chunk = local->list[grain][class]; chunk && !error; chunk = chunk->next) {
            error = chunk->class != class || chunk->grain != grain ? "percpu P3" : check_chunk(local, chunk, &objects);
            room[percpu_is_paged(grain) ? grain : 0] += chunk->room, chunks++;
        }
    }
    if (!error && (memcmp(room, local->room, sizeof room) != 0 || objects != percpu_objects(local) || chunks != local->chunks))
        error = "percpu P2";
    return error;
}

/* P6, if nobody was about to change it. */
static const char *check_sums(struct quire_percpu *pool)
{
    lock_take(&pool->lock);
    bool calm = u32_load_acquire(&pool->changing) == 0; /* acquire [percpu-changing]: whoever begins after this waits for the lock */
    size_t before = size_load_relaxed(&pool->account.mapped_bytes), meta = pool->span.bytes, bytes = 0;
    for (struct percpu_local *local = percpu_locals(pool); local; local = local->next)
        meta += local->span.bytes;
    for (struct percpu_chunk *chunk = pool->all; chunk; chunk = chunk->all_next) {
        bytes += chunk->span.bytes;
        meta += chunk->meta.bytes;
    }
    bool right = before == bytes + meta && size_load_relaxed(&pool->account.meta_bytes) == meta;
    bool still = calm && u32_load_relaxed(&pool->changing) == 0 && size_load_relaxed(&pool->account.mapped_bytes) == before;
    lock_drop(&pool->lock);
    return (still && !right) || !account_has_room(&pool->account, 0) ? "percpu P6" : NULL;
}

const char *quire_percpu_check(struct quire_percpu *pool)
{
    FOR_EACH_VISITED(pool, local) {
        const char *error = check_local(local);
        if (error) {
            percpu_release(local);
            return error;
        }
    }
    return check_sums(pool);
}

bool quire_percpu_owns(const struct quire_percpu *pool_, struct quire_percpu_ref ref)
{
    struct quire_percpu *pool = (struct quire_percpu *)(uintptr_t)pool_; /* its lock is taken */
    struct percpu_chunk *chunk;
    struct percpu_local *owner;
    while ((owner = percpu_chunk_owner_of(pool, ref.bits, &chunk)) != NULL) {
        percpu_visit(owner);
        percpu_inbox_drain(owner);
        bool still = percpu_chunk_owner_of(pool, ref.bits, &chunk) == owner;
        bool live = still && percpu_chunk_has(chunk, percpu_offset(pool, ref.bits));
        percpu_release(owner);
        if (still)
            return live;
    }
    return false;
}
