// SPDX-License-Identifier: MIT
/*
 * source.c - what all sources have in common: dispatch, and the pages that hold a source itself.
 *
 * Locks: none.
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/align.h"
#include "base/fail.h"
#include "os/os.h"
#include "pages/reaper.h"
#include "pages/source_account.h"
#include "pages/source_internal.h"

/* A program's verb that was compiled against a longer struct may write all of it. */
enum { STATS_ROOM_BYTES = 512 };

int source_verify(const struct quire_source *source)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_source_verbs, check);
    return source ? abi_verify(&layout, source->verbs) : 0;
}

void source_discard(struct quire_source *source, void *start, size_t bytes)
{
    (void)source;
    (void)os_discard(start, bytes);
}

void source_leave(struct quire_source *source, void *start, size_t bytes)
{
    (void)source, (void)start, (void)bytes;
}

int source_is_ready(struct quire_source *source, void *start, size_t bytes)
{
    source_leave(source, start, bytes);
    return 0;
}

void source_stays(struct quire_source *source)
{
    (void)source;
}

void *source_counted_new(size_t bytes, const struct quire_source_verbs *verbs, const char *name)
{
    void *memory;
    size_t struct_bytes = align_up(bytes, os_page_bytes());
    if (os_map(struct_bytes, os_page_bytes(), &memory) != 0)
        return fail_null(ENOMEM);
    *(struct source_counted *)memory = (struct source_counted){.source = {verbs, name}, .struct_bytes = struct_bytes};
    account_born(&((struct source_counted *)memory)->account);
    return memory;
}

void counted_fini(struct quire_source *source)
{
    source_account_end(&source_counted(source)->account, source);
    (void)os_unmap(source, source_counted(source)->struct_bytes);
}

void counted_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    account_stats(&source_counted(source)->account, out);
}

void *source_own_take(size_t bytes, struct quire_span *span)
{
    struct quire_source *source = quire_source_default();
    if (source->verbs->take(source, align_up(bytes, os_page_bytes()), os_page_bytes(), span) != 0)
        return fail_null(ENOMEM);
    return span->flags & QUIRE_SPAN_ZERO ? span->start : memset(span->start, 0, span->bytes);
}

void source_own_give(struct quire_span span)
{
    quire_source_default()->verbs->give(quire_source_default(), &span);
}

void quire_source_destroy(struct quire_source *source)
{
    int kept = errno;
    if (source) /* those of the process stay: source_stays() */
        source->verbs->fini(source);
    errno = kept;
}

size_t quire_source_trim(struct quire_source *source)
{
    return source && source->verbs->trim ? source->verbs->trim(source) : 0;
}

int quire_source_set_decay(struct quire_source *source, uint64_t decay_ns)
{
    if (source != quire_source_default() || decay_ns > REAPER_DECAY_NS_MAX)
        return fail_int(source != quire_source_default() ? ENOTSUP : EINVAL);
    reaper_set_decay(decay_ns); /* first: what the guests are asked to give back they must not keep again */
    source_default_decay_set();
    return 0;
}

void quire_source_stats(const struct quire_source *source, struct quire_source_stats *out)
{
    static const struct abi_layout layout = ABI_LAYOUT(quire_source_stats, failures);
    union {
        struct quire_source_stats stats;
        char room[STATS_ROOM_BYTES];
    } own = {.room = {0}};
    own.stats.struct_bytes = sizeof own.stats;
    if (source && source->verbs->stats)
        source->verbs->stats(source, &own.stats);
    abi_write(&layout, &own.stats, out);
}

const char *quire_source_check(struct quire_source *source)
{
    return source && source->verbs->check ? source->verbs->check(source) : NULL;
}
