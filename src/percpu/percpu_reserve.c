// SPDX-License-Identifier: MIT
/*
 * percpu_reserve.c - a chunk that is kept for those who must not wait; and giving idle memory back.
 *
 *     quire_percpu_alloc_nowait() --takes--> reserve --less than reserve_words left in one piece--> its chunks become home's, a new one takes their place
 *
 * The refill is done by whoever comes next and may wait.
 *
 * Locks: home's, then the reserve's.  Not here: allocating from it (percpu_alloc.c).
 */
#include <errno.h>

#include "os/os.h"
#include "percpu/percpu_internal.h"

size_t percpu_reserve_words(const struct percpu_local *reserve)
{
    const struct percpu_chunk *chunk = percpu_chunk_first(reserve, 0, 0); /* it has one at most, of words */
    return chunk ? bitmap_longest_hint(&chunk->map) : 0;
}

bool percpu_reserve_is_low(const struct percpu_local *reserve)
{
    return percpu_reserve_words(reserve) < reserve->pool->reserve_words + (os_page_bytes() >> WORD_LOG2); /* any alignment */
}

void percpu_reserve_fill(struct quire_percpu *pool)
{
    struct percpu_local *home = &pool->home, *reserve = &pool->reserve;
    if (likely(u32_load_relaxed(&pool->reserve_low) == 0))
        return;
    u32_store_relaxed(&pool->reserve_low, 0);
    percpu_visit(home); /* first, for the child of a fork: a chunk that no local has yet */
    struct percpu_chunk *chunk = percpu_chunk_new(pool, 0);
    if (chunk)
        (void)os_populate(chunk->meta.start, chunk->meta.bytes); /* nobody who takes from it shall enter the kernel */
    else
        u32_store_relaxed(&pool->reserve_low, 2);
    percpu_visit(reserve);
    if (chunk && percpu_reserve_is_low(reserve)) {
        percpu_chunks_move(reserve, home);
        percpu_chunk_link(reserve, chunk);
        chunk = NULL;
    }
    percpu_release(reserve);
    if (chunk)
        percpu_chunk_delete(chunk); /* another was faster */
    percpu_release(home);
}

/* ---- giving back ---- */

/* These bytes of all written units, which are free: whole pages of them. */
static size_t gap_trim(const struct percpu_chunk *chunk, size_t from, size_t to)
{
    size_t bytes = 0;
    from = align_up(from, os_page_bytes());
    to = align_down(to, os_page_bytes());
    for (uint32_t w = 0; w * 64 < chunk->pool->units && from < to; w++)
        for (uint64_t units = u64_load_relaxed(&chunk->written[w]); units; units &= units - 1) {
            char *start = percpu_unit(chunk, w * 64 + bits_lowest(units)) + from;
            size_t resident = os_resident_bytes(start, to - from);
            if (resident && os_discard(start, to - from) == 0)
                bytes += resident;
        }
    return bytes;
}

static size_t chunk_trim(const struct percpu_chunk *chunk)
{
    size_t freed = 0, end = (size_t)1 << EDGE_LOG2, bytes;
    if (u32_load_relaxed(&chunk->any_written) == 0 || !chunk->pool->own_memory)
        return 0;
    for (size_t at = percpu_chunk_next(chunk, end, &bytes); at != SIZE_MAX; at = percpu_chunk_next(chunk, end, &bytes)) {
        freed += gap_trim(chunk, end, at);
        end = at + bytes;
    }
    return freed + gap_trim(chunk, end, chunk->pool->unit_words << WORD_LOG2);
}

size_t quire_percpu_trim(struct quire_percpu *pool)
{
    int kept = errno;
    size_t bytes = 0;
    FOR_EACH_VISITED(pool, local) {
        if (local != &pool->reserve)
            percpu_empties_give(local, &bytes);
        FOR_EACH_CHUNK(local, chunk)
            bytes += chunk_trim(chunk);
    }
    percpu_reserve_fill(pool);
    errno = kept;
    return bytes;
}
