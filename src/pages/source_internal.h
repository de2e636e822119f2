// SPDX-License-Identifier: MIT
/*
 * source_internal.h - what the sources, the reaper and those who use a source know of each other.
 */
#ifndef QUIRE_PAGES_SOURCE_INTERNAL_H
#define QUIRE_PAGES_SOURCE_INTERNAL_H

#include <quire/source.h>

#include "base/lock.h"

C_DECLARATIONS_BEGIN

/* A source that a program hands in, before anything is called in it: 0 also for NULL; -EINVAL, -E2BIG: the verbs are of a length, or say something, that
 * this library does not know. */
int source_verify(const struct quire_source *source);

/* Zeroed memory for what the library itself keeps, from the default source whatever the elements' is: it must be private to the process.  NULL with
 * errno ENOMEM. */
void *source_own_take(size_t bytes, struct quire_span *span);
void source_own_give(struct quire_span span); /* a copy: it lies in the memory that it describes */

/* Verbs that several have.  Idle memory is discarded: of a private mapping it comes back, zeroed, when it is touched; or it is left as it is, for it is
 * somebody else's: neither has anything to do when it is busy again.  Those of the process stay for ever. */
void source_discard(struct quire_source *source, void *start, size_t bytes);
void source_leave(struct quire_source *source, void *start, size_t bytes);
int source_is_ready(struct quire_source *source, void *start, size_t bytes);
void source_stays(struct quire_source *source);

/* The default source, for the reaper. */
size_t source_default_drain(bool all); /* a tick; or all that is idle, without the clock's guests, inside of which the caller may be */
size_t source_default_idle_bytes(void);
void source_default_decay_set(void); /* reaper_set_decay() */
/* The library serves malloc: threads are started with care, for more than a trifle, and idle memory is kept until the clock takes it. */
void source_default_serve_malloc(void);
/* Give a span that has been idle long enough with its last owner: the default source does not keep it warm once more. */
void source_give_cold(struct quire_source *source, const struct quire_span *span);
/* A span of the default source is longer by so much, in its place.  False: another source's, or there is no room behind it; nothing has changed. */
bool source_extend(const struct quire_source *source, struct quire_span *span, size_t more_bytes);
/* region_fill(); of another source's span its own memory. */
int source_fill(const struct quire_source *source, const struct quire_span *span);
void source_default_give_now(const struct quire_span *span); /* limbo passed */

C_DECLARATIONS_END
#endif
