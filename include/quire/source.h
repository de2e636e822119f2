// SPDX-License-Identifier: MIT
/*
 * quire/source.h - where whole pages come from.
 *
 * Every allocator of Quire takes its memory as spans, runs of whole OS pages, from a source.  NULL in an allocator's options means the
 * default source: anonymous memory, recycled warm, given back to the system when it has been idle for a while.  Use another source to put
 * memory into files, under a budget, or on an account, and decorators to combine these:
 *
 *     struct quire_source *tenant = quire_source_count(quire_source_default());
 *     struct quire_source *budget = quire_source_limit(tenant, 64 << 20);
 *     struct quire_arena *arena = quire_arena_create(&(struct quire_arena_opts){.source = budget});
 *     ...
 *     quire_arena_destroy(arena);
 *     quire_source_destroy(budget);      // the decorator first, then what it decorates
 *     quire_source_destroy(tenant);
 *
 * Threads: every source of this header may be used by any number of threads; destroying one is for the last user.
 * The default source starts a thread of its own while there is idle memory (doc/locking.md); a program that must stay single-threaded, for
 * unshare(CLONE_NEWUSER) say, sets the decay to 0 first: then nothing stays idle and no thread is needed.
 * Signals and fork: no function here may be called from a signal handler.  After fork the child can go on using every source; the memory
 * of file and memfd sources is then shared between parent and child, all other memory is copied.
 */
#ifndef QUIRE_SOURCE_H
#define QUIRE_SOURCE_H

#include <quire/export.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and the function that fills it have one name, as in stat(2) */
extern "C" {
#endif

/* A run of whole OS pages.  Keep it as you got it: give() wants every field back unchanged. */
struct quire_span {
    void *start;
    size_t bytes;
    uint32_t flags;  /* QUIRE_SPAN_ZERO: every byte is zero */
    uint32_t cookie; /* the source's own: which file, which way it was had */
};
enum quire_span_flags { QUIRE_SPAN_ZERO = 1 };

/*
 * A source of your own fills these five verbs in.  Sizes and alignments are multiples of the OS page size, alignments powers of two.
 *   take  a span of exactly `bytes`, aligned to `align_bytes`; returns 0 or a negative errno (-ENOMEM)
 *   give  take it back; must not fail: what cannot be returned now is kept and counted
 *   idle  the contents of these pages of a taken span are not needed: the memory may go, the addresses stay
 *   busy  the pages will be written again; returns 0, or -ENOMEM when there is no memory for them
 *   fini  the source ends; every span has been given back
 *   stats `out` is all zero but for its struct_bytes
 * Verbs that this library does not know must be NULL: creating an allocator or a decorator over the source fails with E2BIG otherwise.
 */
struct quire_source;
struct quire_source_stats;
struct quire_source_verbs {
    size_t struct_bytes; /* sizeof; 0: as it was in 0.2 */
    int (*take)(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out);
    void (*give)(struct quire_source *source, const struct quire_span *span);
    void (*idle)(struct quire_source *source, void *start, size_t bytes);
    int (*busy)(struct quire_source *source, void *start, size_t bytes);
    void (*fini)(struct quire_source *source);
    size_t (*trim)(struct quire_source *source); /* may be NULL: nothing is kept */
    void (*stats)(const struct quire_source *source, struct quire_source_stats *out); /* may be NULL */
    const char *(*check)(struct quire_source *source);                                /* may be NULL */
};
struct quire_source {
    const struct quire_source_verbs *verbs;
    const char *name;
};

/* One snapshot.  taken_bytes + idle_bytes + meta_bytes is what the source holds of the system's memory, at most. */
struct quire_source_stats {
    size_t struct_bytes;   /* sizeof, set by the caller */
    size_t taken_bytes;    /* spans in use */
    size_t idle_bytes;     /* in memory and nobody's: given back to the source, or brought ahead of its use */
    size_t meta_bytes;     /* the source's own bookkeeping */
    size_t reserved_bytes; /* address space reserved, committed or not */
    size_t peak_bytes;     /* the most that taken_bytes has been */
    size_t limit_bytes;    /* 0: none */
    uint64_t takes;        /* successful ones */
    uint64_t gives;
    uint64_t failures;     /* takes refused */
};

/* The process-wide source: anonymous, recycled, never destroyed.  Never NULL.  Cost: a load.  MT-Safe. */
QUIRE_API struct quire_source *quire_source_default(void);

/* Plain mmap and munmap: nothing is kept.  Never NULL, never destroyed.  MT-Safe. */
QUIRE_API struct quire_source *quire_source_anon(void);

/* libc's allocator, page-aligned.  Never NULL, never destroyed.  MT-Safe. */
QUIRE_API struct quire_source *quire_source_malloc(void);

/*
 * Shared mappings of files `directory/name.N`, one for each span, mode 0600, space reserved before a span is handed out, removed with their
 * span.  Files that an ended process left under the same name are removed here; those of living processes are not.  Both strings are copied.
 * Returns NULL with errno: EINVAL (NULL, empty, or a name with '/'), ENAMETOOLONG, ENOENT, ENOTDIR, EACCES (or `name.lock` is no file of ours),
 * EROFS, ELOOP (the directory's last component is a symbolic link), ENOMEM, EMFILE, EBUSY (a stopped process holds `name.lock` for more than five seconds).  Cost: system calls.  MT-Safe.
 */
QUIRE_API struct quire_source *quire_source_file(const char *directory, const char *name);

/*
 * Shared mappings of memory that has no file name (memfd_create): inherited by fork as shared.  `name` shows in /proc/PID/maps; NULL: "quire".
 * Returns NULL with errno: ENOMEM, ENOSYS (a kernel without memfd).  MT-Safe.
 */
QUIRE_API struct quire_source *quire_source_memfd(const char *name);

/*
 * The caller's buffer, cut into whole pages; what does not fill a page at its ends is not used.  The buffer must outlive the source.
 * Returns NULL with errno: EINVAL (NULL, or bytes that pass the end of memory), ENOMEM (no room for one page beside the bookkeeping, which lies in the buffer).  MT-Safe.
 */
QUIRE_API struct quire_source *quire_source_fixed(void *buffer, size_t bytes);

/* A hard budget over `inner`: past it, take fails with ENOMEM.  Returns NULL with errno EINVAL (inner NULL, bytes 0), E2BIG or ENOMEM.  MT-Safe. */
QUIRE_API struct quire_source *quire_source_limit(struct quire_source *inner, size_t bytes);

/* Accounts what goes through it: quire_source_stats() of it is one tenant's.  Returns NULL with errno EINVAL, E2BIG or ENOMEM.  MT-Safe. */
QUIRE_API struct quire_source *quire_source_count(struct quire_source *inner);

/* For tests: the nth take (from 1) fails with ENOMEM, all others go through.  Returns NULL with errno EINVAL, E2BIG or ENOMEM.  MT-Safe. */
QUIRE_API struct quire_source *quire_source_fail(struct quire_source *inner, uint64_t nth);

/*
 * End a source: NULL and the never-destroyed ones are left alone; errno is kept.  A decorator's inner source stays.  Spans still taken from it
 * stop the process ("source S1").  MT-Unsafe race:source.
 */
QUIRE_API void quire_source_destroy(struct quire_source *source);

/* Give idle memory back to the system now.  Returns how many bytes.  Cost: a system call for each run of idle pages.  MT-Safe. */
QUIRE_API size_t quire_source_trim(struct quire_source *source);

/*
 * How long the default source keeps idle memory warm before it goes back to the system: 1 s at the start; 0 gives back at once.  It is gone
 * within twice this time.  Returns -1 with errno ENOTSUP for other sources, EINVAL past an hour.  MT-Safe.
 */
QUIRE_API int quire_source_set_decay(struct quire_source *source, uint64_t decay_ns);

/* Fill `out`, whose struct_bytes is set, with a snapshot.  Cost: a pass over the CPUs.  MT-Safe. */
QUIRE_API void quire_source_stats(const struct quire_source *source, struct quire_source_stats *out);

/* NULL when the source's invariants hold, else a static string such as "source S2".  Cost: a pass over its maps.  MT-Safe. */
QUIRE_API const char *quire_source_check(struct quire_source *source);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif
