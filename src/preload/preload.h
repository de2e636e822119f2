// SPDX-License-Identifier: MIT
/*
 * preload.h - what the files of libquire-malloc.so know of each other.
 *
 *     malloc.c  new.c           libc's and C++'s names: one compare, then the heap
 *          |
 *     start.c  conf.c           the first call: reads QUIRE_CONF, sets the default heap up
 *     careful.c                 every other mode: checks, passthrough, a process whose malloc is somebody else's
 *     libc.c                    the way to libc's own allocator
 *     steer/                    by a plan: which call site is this? an arena, a slab or the heap
 *     prof/                     by a profile: is a sample due? then with a stack, else the heap
 *     profile.c                 the profile's files: by a signal, at a threshold, at exit
 *     record.c before_main.c    the tool's recorder: at the start, by a signal
 *     report*.c rss.c leaks.c   at exit
 */
#ifndef QUIRE_PRELOAD_PRELOAD_H
#define QUIRE_PRELOAD_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/align.h"
#include "base/atomic.h"
#include "heap/heap_quick.h"
#include "preload/conf.h"
#include "prof/prof.h"
#include "steer/steer.h"

/* Who answers a call of malloc. */
enum preload_mode {
    PRELOAD_UNASKED,  /* nobody has called yet */
    PRELOAD_CAREFUL,  /* the default heap, with checks round it */
    PRELOAD_DOUBTS,   /* the same, and some blocks are sampled, or lie between guards */
    PRELOAD_SECURED,  /* the default heap, made secure */
    PRELOAD_PASSES,   /* libc: QUIRE_CONF=passthrough */
    PRELOAD_BESIDE,   /* the default heap, but the process's malloc is another: blocks of others come to our free */
    PRELOAD_SERVES,   /* the default heap, by the short way; from here on frees have it */
    PRELOAD_SAMPLES,  /* the default heap, and some blocks are sampled, or lie between guards */
    PRELOAD_STEERS,   /* by a plan: arenas and slabs for some call sites, the default heap for the rest */
    PRELOAD_TIMES,    /* the same, and some frees are timed */
};
extern atomic_u32 preload_mode;
extern struct conf preload_conf; /* written before the mode is, then fixed */

static ALWAYS_INLINE bool preload_serves(void)
{
    return likely(u32_load_relaxed(&preload_mode) == PRELOAD_SERVES);
}

/* Behind preload_serves(), with the caller's frame. */
static ALWAYS_INLINE bool preload_steers(void)
{
    return u32_load_relaxed(&preload_mode) >= PRELOAD_STEERS;
}

bool careful_looks(void); /* true, after a check where it is time for one */

/* Behind preload_serves(), once a call. */
static ALWAYS_INLINE bool preload_samples(void)
{
    uint32_t mode = u32_load_relaxed(&preload_mode);
    return mode == PRELOAD_SAMPLES || (unlikely(mode == PRELOAD_DOUBTS) && careful_looks());
}

static ALWAYS_INLINE struct prof_call prof_call_of(struct steer_call call)
{
    return (struct prof_call){call.ret, call.frame};
}

/* ---- start.c ---- */
/* The mode, with everything set up that it needs.  Cheap after the first call. */
enum preload_mode preload_ready(void);
/* libc's function of that name, where everything goes on to libc's malloc; NULL: ours serves, which has everything set up then. */
void *preload_passed(const char *name);
uint64_t preload_start_ns(void);
/* Why the plan that was asked for is not in force; "": it is, or none was. */
const char *preload_plan_refused(void);
/* 1 when this library serves the process's malloc; 0: another does, or libc by passthrough.  For `quire check`, by dlsym. */
__attribute__((visibility("default"))) int quire_malloc_serving(void);

/* ---- careful.c: the long way of each call, in any mode; `careful_alloc` and its like set errno ---- */
void *careful_alloc(size_t bytes);
void *careful_alloc_zero(size_t count, size_t bytes);
void *careful_alloc_aligned(size_t bytes, size_t align_bytes);
void *careful_realloc(void *p, size_t bytes);
void careful_free(void *p);
/* The caller says how large the block was made, and at which alignment (0: none said). */
enum { CAREFUL_C = 1 }; /* an alignment: it is C's, where a block may have been reallocated */
void careful_free_sized(void *p, size_t bytes, size_t align_bytes);
void careful_refuse_alignment(const void *p);
size_t careful_usable_bytes(void *p);
/* M2: the caller says at which alignment the block was made. */
static ALWAYS_INLINE void preload_verify_alignment(const void *p, size_t align_bytes)
{
    if (unlikely(!is_pow2(align_bytes)) || unlikely((uintptr_t)p % align_bytes != 0))
        careful_refuse_alignment(p);
}

/*
 * malloc.c: in any mode; what has no short way.
 *
 * The short ways ask for no mode: they end soon in a thread whose heap_tls.quick_bytes are used up, or whose quick_free is closed.  The first long way that
 * a thread goes sets them where the mode allows it; while a profile samples, to what is left to the next point.
 */
void *preload_alloc_next(size_t bytes, struct steer_call call); /* behind preload_quick_alloc() */
void preload_free_long(void *p);

static ALWAYS_INLINE bool preload_is_open(void)
{
    return likely(heap_tls.quick_bytes >= 0);
}

/* True: by the short way, as far as the mode goes.  Counted in either case.  More than PTRDIFF_MAX is to be found out behind it. */
static ALWAYS_INLINE bool preload_passes(size_t bytes)
{
    heap_tls.quick_bytes = (int64_t)((uint64_t)heap_tls.quick_bytes - bytes);
    return preload_is_open();
}

static ALWAYS_INLINE void preload_uncount(size_t bytes)
{
    heap_tls.quick_bytes = (int64_t)((uint64_t)heap_tls.quick_bytes + bytes);
}

/* NULL: not this way. */
static ALWAYS_INLINE void *preload_quick_alloc(size_t bytes)
{
    return preload_passes(bytes) ? heap_quick_alloc(heap_tls.self, bytes) : NULL;
}

static ALWAYS_INLINE void preload_free(void *p)
{
    if (unlikely(!heap_quick_free_noted(heap_tls.quick_free, p, false, 0)))
        preload_free_long(p);
}

/*
 * This thread's frees go the short way from now on, where the mode lets them and it has a local.  Where they have none, what says so is from now on no other
 * thread's memory: as for a secure heap's blocks, which have none either.
 */
static inline void preload_frees_open(uint32_t mode)
{
    bool opens = likely(mode >= PRELOAD_SERVES) || mode == PRELOAD_SECURED;
    heap_tls.quick_free = opens && likely(heap_tls.self != &heap_local_none) ? heap_tls.self : (struct heap_local *)(void *)&heap_tls.closed;
}
STATIC_ASSERT(offsetof(struct heap_local, door) == 0, "which is asked first, and nothing else where it is closed");

/* A small block of the heap that has this size; false: not this way. */
static ALWAYS_INLINE bool preload_quick_free_sized(void *p, size_t bytes)
{
    return likely(heap_quick_free_noted(heap_tls.quick_free, p, true, bytes));
}

/* ---- new.c ---- */
void new_begin(void); /* before C++ code of the program's runs: whether it has operators of its own */

/* ---- libc.c ---- */
/* Blocks that are not ours are those of whoever serves the process. */
void libc_is_not_the_malloc(void);
/* That malloc is being asked about this block by this thread: who asks us about it now has been led here by it. */
bool libc_is_asked(const void *p);
bool libc_is_there(void);
/* A live block of libc's own malloc, as far as what lies in front of it tells; such blocks are its to free from now on. */
bool libc_has(const void *p);
void libc_takes_its_own(void);
void *libc_alloc(size_t bytes);
void *libc_alloc_zero(size_t count, size_t bytes);
void *libc_alloc_aligned(size_t bytes, size_t align_bytes);
void *libc_realloc(void *p, size_t bytes);
void libc_free(void *p);
size_t libc_usable_bytes(void *p);

/* ---- report.c ---- */
/* The report that `conf` asks for, to its file. */
void report_at_exit(void);
void report_repair_copy(void); /* first in a copy of the process (os_in_copy()) */
/* Which file standard error is, at the start; `keeps`: and a second descriptor of it, for programs close theirs before the end. */
void report_know_stderr(bool keeps);
/* Where a line may be written late in the program's life; -1 where standard error is closed, or number 2 another file by now. */
int report_stderr(void);
/* The same as text, now; 0 or -errno. */
int report_text(int fd);

/* Handles SIGTERM, where a report was asked for and the program has not: when the library is loaded. */
void report_begin(void);

/* FILE with %p as the process's number, %h the host's name, %t seconds since 1970, and %n as `number` (UINT64_MAX: as it is).  False: too long. */
enum { REPORT_HOST_BYTES = 65, REPORT_PATH_BYTES = CONF_FILE_BYTES + 2 * REPORT_HOST_BYTES };
bool report_path(const char *file, uint64_t number, char path[REPORT_PATH_BYTES]);

/* ---- profile.c ---- */
bool profile_begin(void); /* when the library is loaded; true: the thread that shows the process may wait until it is wanted */
void profile_at_exit(void);

void profile_strangers(const struct heap_strangers *next); /* blocks of others than the heap: guarded ones, then libc's */

/* ---- before_main.c ---- */
/* When the library is loaded with the program: fn is called once libc is ready, before the program's own constructors.  False: its start is not known. */
bool before_main(void (*fn)(void));

/* ---- record.c ---- */
void record_begin(void); /* when the library is loaded, before profile_begin(): it may want the thread that shows the process */

/* ---- rss.c ---- */
struct rss {
    size_t rss_bytes, rss_peak_bytes;
    size_t live_bytes, rounding_bytes, page_slack_bytes, cached_bytes, metadata_bytes, untouched_bytes, not_ours_bytes;
};
/* `plan`: what its arenas and slabs hold.  live + rounding + page_slack + cached + metadata - untouched + not_ours == rss */
void rss_explain(struct rss *out, const struct steer_stats *plan);

/* ---- leaks.c ---- */
enum { LEAK_SIZES_MAX = 64 };
struct leaks {
    size_t bytes, blocks, sizes;
    size_t guarded; /* of these blocks: no heap's */
    struct leak {
        size_t size_bytes, count;
        const void *example;
    } of[LEAK_SIZES_MAX]; /* most bytes first; what does not fit is only in the sums */
};
void leaks_collect(struct leaks *out);

#endif
