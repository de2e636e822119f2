// SPDX-License-Identifier: MIT
/*
 * quire/compat/netdata.h - netdata's One Way Allocator by its own names, over quire/arena.h.
 *
 * Use it to run a program written for netdata's allocator without changing it; new programs use quire/arena.h, which reports errors.
 * A function here never returns NULL: when memory is out, or a size overflows, the process stops with one line, after the hook of
 * quire_on_panic() (quire/quire.h).  As in the original, a `z` at the end of a name means just that, not "zeroed".
 *
 *     ONEWAYALLOC *owa = onewayalloc_create(0);
 *     char *copy = onewayalloc_strdupz(owa, "one way");
 *     onewayalloc_destroy(owa);
 *
 * Threads: one ONEWAYALLOC is for one thread at a time; any number of threads may each use their own.
 * Signals and fork: no function here may be called from a signal handler; after fork parent and child each go on with their copy.
 */
#ifndef QUIRE_COMPAT_NETDATA_H
#define QUIRE_COMPAT_NETDATA_H

#include <quire/export.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void ONEWAYALLOC;

/* A new arena whose first span is of `size_hint` bytes, its header included; 0: one OS page.  Never NULL.  MT-Safe. */
QUIRE_API ONEWAYALLOC *onewayalloc_create(size_t size_hint);

/* All memory of the arena is gone; NULL is left alone.  errno is kept.  MT-Unsafe race:owa. */
QUIRE_API void onewayalloc_destroy(ONEWAYALLOC *owa);

/* Empty again, in O(1), the pages kept; contents are not cleared.  NULL is left alone.  MT-Unsafe race:owa. */
QUIRE_API void onewayalloc_reset(ONEWAYALLOC *owa);

/* `size` bytes, 16-byte aligned; 0 gives a valid address.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API void *onewayalloc_mallocz(ONEWAYALLOC *owa, size_t size);

/* `nmemb` times `size` bytes, zeroed, the product checked.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API void *onewayalloc_callocz(ONEWAYALLOC *owa, size_t nmemb, size_t size);

/* A copy of a string; of `size` bytes.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API char *onewayalloc_strdupz(ONEWAYALLOC *owa, const char *s);
QUIRE_API void *onewayalloc_memdupz(ONEWAYALLOC *owa, const void *src, size_t size);

/* A block of twice `oldsize` that begins with the old contents: in place when it is the last one.  Never NULL.  MT-Unsafe race:owa. */
QUIRE_API void *onewayalloc_doublesize(ONEWAYALLOC *owa, const void *src, size_t oldsize);

/* Does nothing; NULL is allowed.  In the `check` build a pointer that is not the arena's stops the process.  MT-Unsafe race:owa. */
QUIRE_API void onewayalloc_freez(ONEWAYALLOC *owa, const void *ptr);

/* Bytes held by all ONEWAYALLOCs of the process.  MT-Safe. */
QUIRE_API size_t onewayalloc_allocated_memory(void);

/* a * b and a * b * c; an overflow stops the process with a line that names `context`.  MT-Safe. */
QUIRE_API size_t onewayalloc_mul_or_fatal(size_t a, size_t b, const char *context);
QUIRE_API size_t onewayalloc_mul3_or_fatal(size_t a, size_t b, size_t c, const char *context);

#ifdef __cplusplus
}
#endif
#endif
