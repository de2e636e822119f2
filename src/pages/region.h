// SPDX-License-Identifier: MIT
/*
 * region.h - large stretches of reserved addresses, cut into spans: the half of the default source that all CPUs share.
 */
#ifndef QUIRE_PAGES_REGION_H
#define QUIRE_PAGES_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <quire/source.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

/* What a span's cookie says in its low bits: how it was had, so how it goes back. */
enum span_origin { SPAN_REGION, SPAN_DIRECT, SPAN_LIBC };
enum { ORIGIN_BITS = 2 };
static inline uint32_t span_origin(const struct quire_span *span) { return span->cookie & ((1 << ORIGIN_BITS) - 1); }

/* How much may stay idle in the regions, as a pure function of the peak and of what the CPUs' caches may hold. */
size_t region_idle_bytes_max(size_t peak_bytes, size_t cached_bytes_max);
/* Under a malloc what is given back is soon wanted again, in another size: nothing goes before the clock says so. */
void region_keep_all(void);

/* So much memory is known to be wanted: as many huge pages of it as are sure to be filled come as such, eight times cheaper than page by page. */
void region_expect(size_t bytes);

/* There is one more secure heap, or one less: while there is any, spans lie at a random one of the eight lowest places that they fit in. */
void region_scatter(bool on);

/* Addresses that are reserved and hold nothing go back to the system, for a process that is about to have few.  More are reserved when they are wanted. */
void region_let_go(void);

/* -ENOMEM only after plain mmap has failed too, and, the last time that is tried, libc's malloc. */
int region_take(size_t bytes, size_t align_bytes, bool is_last, struct quire_span *out);
/* The span is larger by so many bytes behind it, in its place, if nobody has these: then true, and span->bytes says so. */
bool region_extend(struct quire_span *span, size_t more_bytes);
/* A fresh span is about to be written all over: its memory comes now, and with it some for those behind it, at most 256 KiB, idle until then.  -EINVAL: the system cannot. */
int region_fill(const struct quire_span *span);
/* A heap has mapped so many bytes more, or fewer, past the regions: idle memory makes way for them, too. */
void region_alone(ptrdiff_t change_bytes);
/* keep_warm false: its memory goes to the system before this returns. */
void region_give(const struct quire_span *span, bool keep_warm);

/* The `check` build: spans that have been given back and lie in a cache are noted, so that giving them once more is refused wherever it happens. */
void region_note(const struct quire_span *span, bool is_cached);
__attribute__((noreturn, cold)) void region_refuse(const void *start);

/* Idle memory goes back to the system: all of it, or at a tick of the clock, what was already idle at the last one.  Returns bytes. */
size_t region_drain(bool all);
bool region_help(void); /* what a tick would discard, some of it; true: that was gone already, and all that is idle has aged */

struct region_stats {
    size_t out_bytes;      /* taken and not given back */
    size_t out_bytes_peak; /* the most that has been */
    size_t idle_bytes;     /* given back, or filled ahead, and resident */
    size_t meta_bytes;
    size_t reserved_bytes;
};
void region_stats(struct region_stats *out);
size_t region_idle_bytes_roughly(void);
size_t region_peak_bytes(void);
/* How much of the regions is in memory, asked of the kernel; and whether this address is of one. */
size_t region_resident_bytes(void);
bool region_holds(const void *address);
const char *region_check(void);
void region_after_fork(void);
/* What the CPUs' caches may hold in all. */
void region_set_cached_max(size_t cached_bytes_max);

C_DECLARATIONS_END
#endif
