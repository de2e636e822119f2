// SPDX-License-Identifier: MIT
/*
 * source_fixed.c - the caller's buffer, cut into whole pages.
 *
 *     buffer |  | source, bitmap |  | page | page | page | ... | page |  |
 *             ^ to a cache line   ^ to a page                          ^ what fills no page is not used
 *
 * Bit i of the bitmap is the page at base + i * page_bytes.  `base` lies before the first page, at a
 * multiple of a power of two not less than all pages together, so that an aligned bit is an aligned
 * address; the bits before the first page are taken for ever.
 *
 * Invariants, beside S1 (source_account.h), checked by quire_source_check():
 *   S3  a span that is given back is a taken run of just that length
 *   S8  taken_bytes is what the bitmap says
 *
 * Locks: fixed->lock over the bitmap.  A child of a fork finds it free and the bitmap rebuilt.
 */
#include <string.h>

#include "base/align.h"
#include "base/bitmap.h"
#include "base/fail.h"
#include "base/panic.h"
#include "os/os.h"
#include "pages/source_account.h"
#include "pages/source_fork.h"
#include "pages/source_internal.h"

struct source_fixed {
    struct quire_source source; /* first: it is a source */
    /* fixed at birth */
    uintptr_t base;
    size_t bias;         /* pages before the first one */
    unsigned align_log2; /* of the base, in pages */
    size_t page_bytes, meta_bytes;
    struct source_fork fork;
    /* under the lock */
    CACHE_ALIGNED struct lock lock;
    struct bitmap map;
    struct source_account account;
};

static size_t bits_taken(const struct source_fixed *fixed)
{
    size_t sum = 0, run;
    for (size_t at = fixed->bias; (at = bitmap_next_taken(&fixed->map, at, &run)) != BITMAP_NONE; at += run)
        sum += run;
    return sum;
}

/* In a child: the thread that held the lock is not here, and may have left an operation half done. */
static void fixed_repair(void *source)
{
    struct source_fixed *fixed = source;
    if (!lock_reset(&fixed->lock))
        return;
    bitmap_rebuild(&fixed->map);
    size_store_relaxed(&fixed->account.bytes.mapped_bytes, bits_taken(fixed) * fixed->page_bytes);
}

static struct source_fixed *fixed_locked(struct quire_source *source)
{
    struct source_fixed *fixed = (struct source_fixed *)(void *)source;
    source_fork_repair(&fixed->fork, fixed_repair, fixed);
    lock_take(&fixed->lock);
    return fixed;
}

static int fixed_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    struct source_fixed *fixed = fixed_locked(source);
    unsigned align_log2 = log2_floor(align_bytes / fixed->page_bytes);
    align_log2 = align_log2 < fixed->align_log2 ? align_log2 : fixed->align_log2;
    size_t idx = bitmap_alloc(&fixed->map, bytes / fixed->page_bytes, align_log2);
    uintptr_t start = fixed->base + idx * fixed->page_bytes;
    /* For an alignment larger than the base's at most this one address can serve, or none. */
    if (idx != BITMAP_NONE && start % align_bytes != 0) {
        bitmap_free(&fixed->map, idx);
        idx = BITMAP_NONE;
    }
    int error = account_take(&fixed->account, bytes, idx == BITMAP_NONE ? -ENOMEM : 0);
    lock_drop(&fixed->lock);
    if (!error)
        *out = (struct quire_span){(void *)start, bytes, 0, 0};
    return error;
}

static void fixed_give(struct quire_source *source, const struct quire_span *span)
{
    void *start = span->start;
    size_t bytes = span->bytes;
    struct source_fixed *fixed = fixed_locked(source);
    size_t idx = ((uintptr_t)start - fixed->base) / fixed->page_bytes;
    if ((uintptr_t)start % fixed->page_bytes != 0 || idx < fixed->bias || bitmap_run(&fixed->map, idx) * fixed->page_bytes != bytes) {
        lock_drop(&fixed->lock); /* the hook may look */
        panic("source", source->name, "S3 a span that was not taken is given back", start);
    }
    bitmap_free(&fixed->map, idx);
    account_gave(&fixed->account, bytes);
    lock_drop(&fixed->lock);
}

static void fixed_fini(struct quire_source *source)
{
    source_account_end(&((struct source_fixed *)(void *)source)->account, source);
}

static void fixed_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    const struct source_fixed *fixed = (const struct source_fixed *)(const void *)source;
    account_stats(&fixed->account, out);
    out->reserved_bytes = (fixed->map.bits - fixed->bias) * fixed->page_bytes;
    out->idle_bytes = out->reserved_bytes - out->taken_bytes;
    out->meta_bytes = fixed->meta_bytes;
    out->limit_bytes = out->reserved_bytes;
}

static const char *fixed_check(struct quire_source *source)
{
    struct source_fixed *fixed = fixed_locked(source);
    const char *bad = bitmap_check(&fixed->map);
    if (!bad && bits_taken(fixed) * fixed->page_bytes != size_load_relaxed(&fixed->account.bytes.mapped_bytes))
        bad = "source S8 taken_bytes is what the map says";
    lock_drop(&fixed->lock);
    return bad;
}

static const struct quire_source_verbs fixed_verbs = {.take = fixed_take,
                                                      .give = fixed_give,
                                                      .idle = source_leave,
                                                      .busy = source_is_ready,
                                                      .fini = fixed_fini,
                                                      .stats = fixed_stats,
                                                      .check = fixed_check};

/* The least power of two of pages that is not less than `pages`. */
static size_t span_pages(size_t pages)
{
    return (size_t)1 << log2_ceil(pages);
}

struct quire_source *quire_source_fixed(void *buffer, size_t bytes)
{
    size_t page = os_page_bytes(), end = (size_t)buffer + bytes, at = align_up((uintptr_t)buffer, CACHE_LINE_BYTES);
    if (!buffer || end < (size_t)buffer)
        return fail_null(EINVAL);
    /* As many bits as there can be with the most pages and the longest way from the base. */
    size_t pages_max = bytes / page, bits_max = pages_max + span_pages(pages_max + 1);
    size_t meta = sizeof(struct source_fixed) + (bits_max <= BITMAP_BITS_MAX ? bitmap_memory_bytes(bits_max) : SIZE_MAX / 2);
    size_t first, last = align_down(end, page);
    if (!add_checked(at, meta, &first) || !align_up_checked(first, page, &first) || first >= last)
        return fail_null(ENOMEM);
    struct source_fixed *fixed = (struct source_fixed *)at;
    memset(fixed, 0, meta);
    size_t pages = (last - first) / page;
    fixed->source = (struct quire_source){&fixed_verbs, "fixed"};
    source_fork_init(&fixed->fork);
    account_born(&fixed->account);
    fixed->lock = (struct lock)LOCK_INIT(LOCK_FILE);
    fixed->align_log2 = log2_ceil(pages);
    fixed->base = align_down(first, span_pages(pages) * page);
    fixed->bias = (first - fixed->base) / page;
    fixed->page_bytes = page;
    fixed->meta_bytes = meta;
    bitmap_init(&fixed->map, fixed + 1, fixed->bias + pages);
    if (fixed->bias)
        bitmap_alloc(&fixed->map, fixed->bias, 0);
    return &fixed->source;
}
