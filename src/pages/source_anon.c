// SPDX-License-Identifier: MIT
/*
 * source_anon.c - plain mmap and munmap: nothing is kept.
 *
 * When the kernel refuses to unmap (no VMA left for a split) the memory goes back all the same; the addresses stay, and are counted
 * in reserved_bytes.
 *
 * Locks: none.
 */
#include <errno.h>
#include <stdint.h>

#include "os/os.h"
#include "pages/source_account.h"
#include "pages/source_internal.h"

static struct source_account account;
static atomic_size stuck_bytes; /* addresses that could not be unmapped, without memory */

static int anon_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    (void)source;
    void *start;
    int error = bytes > PTRDIFF_MAX ? -ENOMEM : os_map(bytes, align_bytes, &start);
    if (error) {
        account_failed(&account);
        return -ENOMEM;
    }
    *out = (struct quire_span){start, bytes, QUIRE_SPAN_ZERO, 0};
    account_took(&account, bytes);
    return 0;
}

static void anon_give(struct quire_source *source, const struct quire_span *span)
{
    (void)source;
    size_t bytes = span->bytes;
    if (os_unmap(span->start, bytes) != 0) {
        (void)os_discard(span->start, bytes);
        size_add_relaxed(&stuck_bytes, bytes);
    }
    account_gave(&account, bytes);
}

static void anon_idle(struct quire_source *source, void *start, size_t bytes)
{
    (void)source;
    (void)os_discard(start, bytes);
}

static int anon_busy(struct quire_source *source, void *start, size_t bytes)
{
    (void)source;
    (void)start;
    (void)bytes;
    return 0; /* discarded pages come back, zeroed, when they are touched */
}

static void anon_fini(struct quire_source *source)
{
    (void)source; /* never: quire_source_destroy() leaves it alone */
}

static void anon_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    (void)source;
    account_stats(&account, out);
    out->reserved_bytes = out->taken_bytes + size_load_relaxed(&stuck_bytes);
}

static const struct quire_source_verbs anon_verbs = {
    .take = anon_take, .give = anon_give, .idle = anon_idle, .busy = anon_busy, .fini = anon_fini, .stats = anon_stats};
static struct quire_source anon = {&anon_verbs, "anon"};

struct quire_source *quire_source_anon(void)
{
    return &anon;
}
