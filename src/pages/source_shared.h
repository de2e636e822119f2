// SPDX-License-Identifier: MIT
/*
 * source_shared.h - spans that are shared mappings: what the file and the memfd source have in common.
 */
#ifndef QUIRE_PAGES_SOURCE_SHARED_H
#define QUIRE_PAGES_SOURCE_SHARED_H

#include <quire/source.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reserve `bytes` in the new file `fd`, map it, and close fd in any case.  0 or -ENOMEM. */
int shared_map(int fd, size_t bytes, size_t align_bytes, struct quire_span *out);
/* Unmap the span.  Returns the bytes of addresses that the system would not take back: their memory is gone all the same. */
size_t shared_unmap(const struct quire_span *span);

/* Two verbs. */
void shared_idle(struct quire_source *source, void *start, size_t bytes);
int shared_busy(struct quire_source *source, void *start, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
