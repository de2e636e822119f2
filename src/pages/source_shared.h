// SPDX-License-Identifier: MIT
/*
 * source_shared.h - spans that are shared mappings: what the file and the memfd source have in common.
 */
#ifndef QUIRE_PAGES_SOURCE_SHARED_H
#define QUIRE_PAGES_SOURCE_SHARED_H

#include "pages/source_account.h"

struct source_shared {
    struct source_counted counted; /* first: it is a source */
    atomic_size stuck_bytes; /* addresses that could not be unmapped, without memory */
};

/* Reserve bytes in the new file `fd`, map it as the span, and close fd in any case; counted.  fd negative: there is none.  0 or -ENOMEM. */
int shared_take(struct source_shared *shared, int fd, size_t bytes, size_t align_bytes, struct quire_span *out);

/* Verbs. */
void shared_give(struct quire_source *source, const struct quire_span *span);
void shared_idle(struct quire_source *source, void *start, size_t bytes);
int shared_busy(struct quire_source *source, void *start, size_t bytes);
void shared_stats(const struct quire_source *source, struct quire_source_stats *out);

#endif
