// SPDX-License-Identifier: MIT
/*
 * headers.c - headers of pages: which are in use, and which chunks are not.
 *
 * Locks: the caller's.
 */
#include "owner/headers.h"

#include <string.h>

#include "base/atomic.h"
#include "os/os.h"

static void roomy_push(struct headers *headers, struct header_chunk *chunk)
{
    chunk->roomy_next = headers->roomy[chunk->kind];
    headers->roomy[chunk->kind] = chunk;
}

static void enter(struct headers *headers, struct header_chunk *chunk)
{
    chunk->next = headers->chunks;
    if (chunk->used < chunk->count)
        roomy_push(headers, chunk);
    atomic_fence_signal(); /* the child of a fork walks the list */
    headers->chunks = chunk;
}

struct header_chunk *headers_add(struct headers *headers, const struct quire_span *span, uint32_t kind, uint32_t stride_bytes)
{
    struct header_chunk *chunk = span->start;
    size_t count = stride_bytes ? (span->bytes - sizeof *chunk) / stride_bytes : 0;
    *chunk = (struct header_chunk){.span = *span, .stride_bytes = stride_bytes, .kind = (uint16_t)kind, .count = count < HEADERS_MAX ? (uint32_t)count : HEADERS_MAX};
    enter(headers, chunk);
    return chunk;
}

/* Word by word: a slab's frees may look at any header, and then see that its page is not theirs (slab/slab_table.c). */
static void clear(atomic_u64 *header, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *header; i++)
        u64_store_relaxed(&header[i], 0);
}

/* The OS pages of its chunk that a header lies in, by bits. */
static uint32_t os_pages_of(const struct header_chunk *chunk, uint32_t idx)
{
    size_t first = (size_t)((char *)header_at(chunk, idx) - (char *)(uintptr_t)chunk), last = first + chunk->stride_bytes - 1;
    return (2U << last / os_page_bytes()) - (1U << first / os_page_bytes());
}

void *headers_take(struct headers *headers, uint32_t kind, struct header_chunk **out)
{
    struct header_chunk *chunk = *out = headers->roomy[kind];
    if (!chunk)
        return NULL;
    uint32_t idx = (uint32_t)bits_find(chunk->taken, 0, chunk->count, false);
    void *header = header_at(chunk, idx);
    if (idx == chunk->cut) {
        clear(header, chunk->stride_bytes);
        atomic_fence_signal(); /* H2 */
        chunk->cut++;
    }
    bits_set_one(chunk->taken, idx);
    if (unlikely(chunk->given != 0))
        chunk->given &= (uint16_t)~os_pages_of(chunk, idx);
    if (++chunk->used == chunk->count)
        headers->roomy[kind] = chunk->roomy_next;
    return header;
}

void headers_give(struct headers *headers, struct header_chunk *chunk, const void *header)
{
    bits_clear_one(chunk->taken, (size_t)((const char *)header - (const char *)(chunk + 1)) / chunk->stride_bytes);
    if (chunk->used-- == chunk->count)
        roomy_push(headers, chunk);
}

/* Those that were touched, and have none in use. */
static uint32_t os_pages_vacant(const struct header_chunk *chunk)
{
    uint32_t used = chunk->given | 1U, touched = 0; /* its own head is in the first */
    for (uint32_t idx = 0; idx < chunk->cut; idx++) {
        uint32_t pages = os_pages_of(chunk, idx);
        touched |= pages;
        used |= bits_test(chunk->taken, idx) ? pages : 0;
    }
    return touched & ~used;
}

void headers_discard(struct headers *headers)
{
    for (struct header_chunk *chunk = headers->chunks; chunk; chunk = chunk->next) {
        bool may = chunk->pins == 0 && chunk->used < chunk->cut && chunk->span.bytes <= WORD_BITS / 4 * os_page_bytes();
        uint32_t vacant = may ? os_pages_vacant(chunk) : 0;
        for (uint32_t rest = vacant; rest != 0; rest &= rest - 1)
            if (os_discard((char *)chunk + bits_lowest(rest) * os_page_bytes(), os_page_bytes()) == 0)
                chunk->given |= (uint16_t)(rest & -rest);
    }
}

size_t headers_bytes(const struct headers *headers)
{
    size_t bytes = 0;
    for (const struct header_chunk *chunk = headers->chunks; chunk; chunk = chunk->next)
        bytes += chunk->span.bytes;
    return bytes;
}

/* ---- idle chunks ---- */

static bool is_idle(const struct header_chunk *chunk)
{
    return chunk->used == 0 && chunk->pins == 0;
}

struct header_chunk *headers_unlink(struct headers *headers)
{
    struct header_chunk *idle = NULL, **link;
    for (uint32_t kind = 0; kind < HEADER_KINDS; kind++)
        for (link = &headers->roomy[kind]; *link;)
            if (is_idle(*link))
                *link = (*link)->roomy_next;
            else
                link = &(*link)->roomy_next;
    for (link = &headers->chunks; *link;) {
        struct header_chunk *chunk = *link;
        if (!is_idle(chunk)) {
            link = &chunk->next;
            continue;
        }
        *link = chunk->next;
        atomic_fence_signal(); /* the child of a fork finds all the others */
        chunk->next = idle;
        idle = chunk;
    }
    return idle;
}

void headers_relink(struct headers *headers, struct header_chunk *idle)
{
    for (struct header_chunk *next; idle; idle = next) {
        next = idle->next;
        enter(headers, idle);
    }
}

/* ---- the child of a fork ---- */

void headers_after_fork(struct headers *headers, bool (*is_used)(const void *header))
{
    memset(headers->roomy, 0, sizeof headers->roomy);
    for (struct header_chunk *chunk = headers->chunks; chunk; chunk = chunk->next) {
        chunk->used = chunk->pins = 0;
        memset(chunk->taken, 0, sizeof chunk->taken);
        for (uint32_t idx = 0; idx < chunk->cut; idx++)
            if (is_used(header_at(chunk, idx))) {
                bits_set_one(chunk->taken, idx);
                chunk->used++;
            }
        if (chunk->used < chunk->count)
            roomy_push(headers, chunk);
    }
}
