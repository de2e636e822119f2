// SPDX-License-Identifier: MIT
/*
 * source_malloc.c - libc's allocator as a source, by posix_memalign.
 *
 * Locks: none of ours.
 */
#include <errno.h>
#include <stdint.h>

#include "os/os.h"
#include "pages/source_account.h"
#include "pages/source_internal.h"

static struct source_account account;

static int malloc_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    (void)source;
    void *start;
    int error = bytes > PTRDIFF_MAX || os_libc_alloc(bytes, align_bytes, &start) != 0 ? -ENOMEM : 0;
    if (!error)
        *out = (struct quire_span){start, bytes, 0, 0};
    return account_take(&account, bytes, error);
}

static void malloc_give(struct quire_source *source, const struct quire_span *span)
{
    (void)source;
    size_t bytes = span->bytes;
    os_libc_free(span->start);
    account_gave(&account, bytes);
}

static void malloc_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    (void)source;
    account_stats(&account, out);
}

static const struct quire_source_verbs malloc_verbs = {
    .take = malloc_take, .give = malloc_give, .idle = source_leave, .busy = source_is_ready, .fini = source_stays, .stats = malloc_stats};
static struct quire_source malloc_source = {&malloc_verbs, "malloc"};

struct quire_source *quire_source_malloc(void)
{
    return &malloc_source;
}
