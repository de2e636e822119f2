// SPDX-License-Identifier: MIT
/*
 * source_system.c - memory straight from the system: plain mmap and munmap, or libc's allocator by posix_memalign.  Nothing is kept.
 *
 * What the kernel refuses to unmap is tried again later (lost.c), and counted in reserved_bytes until then.
 *
 * Locks: none of ours.
 */
#include <errno.h>
#include <stdint.h>

#include "os/os.h"
#include "pages/lost.h"
#include "pages/source_account.h"
#include "pages/source_internal.h"

/* The verbs look at no source: a program may have copied them into one of its own. */
static struct source_account anon, libc;

static int take(struct source_account *account, int (*map)(size_t, size_t, void **), struct quire_span span, size_t align_bytes, struct quire_span *out)
{
    int error = span.bytes > PTRDIFF_MAX || map(span.bytes, align_bytes, &span.start) != 0 ? -ENOMEM : 0;
    if (!error)
        *out = span;
    return account_take(account, span.bytes, error);
}

static int anon_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    (void)source;
    return take(&anon, os_map, (struct quire_span){.bytes = bytes, .flags = QUIRE_SPAN_ZERO}, align_bytes, out);
}

static void anon_give(struct quire_source *source, const struct quire_span *span)
{
    (void)source;
    size_t bytes = span->bytes;
    lost_unmap(span->start, bytes);
    account_gave(&anon, bytes);
}

static void anon_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    (void)source;
    account_stats(&anon, out);
    out->reserved_bytes = out->taken_bytes + lost_bytes();
}

static size_t anon_trim(struct quire_source *source)
{
    (void)source;
    lost_retry();
    return 0;
}

static int malloc_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    (void)source;
    return take(&libc, os_libc_alloc, (struct quire_span){.bytes = bytes}, align_bytes, out);
}

static void malloc_give(struct quire_source *source, const struct quire_span *span)
{
    (void)source;
    size_t bytes = span->bytes;
    os_libc_free(span->start);
    account_gave(&libc, bytes);
}

static void malloc_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    (void)source;
    account_stats(&libc, out);
}

static const struct quire_source_verbs anon_verbs = {
    .take = anon_take, .give = anon_give, .idle = source_discard, .busy = source_is_ready, .fini = source_stays, .trim = anon_trim, .stats = anon_stats};
static const struct quire_source_verbs malloc_verbs = {
    .take = malloc_take, .give = malloc_give, .idle = source_leave, .busy = source_is_ready, .fini = source_stays, .stats = malloc_stats};
static struct quire_source anon_source = {&anon_verbs, "anon"}, malloc_source = {&malloc_verbs, "malloc"};

struct quire_source *quire_source_anon(void)
{
    return &anon_source;
}

struct quire_source *quire_source_malloc(void)
{
    return &malloc_source;
}
