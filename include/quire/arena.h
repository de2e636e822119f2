// SPDX-License-Identifier: MIT
/*
 * quire/arena.h - allocate one way, free all at once.
 *
 * Use an arena when things are born together and die together: a request, a query, a parse, a frame.  Allocating is an addition and a
 * comparison, freeing one is not needed, and freeing all of them costs the same whether there are ten or ten million.
 *
 *     struct quire_arena *arena = quire_arena_create(NULL);
 *     struct point *p = quire_arena_alloc(arena, sizeof *p);
 *     char *name = quire_arena_strdup(arena, "origin");
 *     quire_arena_reset(arena);              // all gone, the memory stays warm for the next round
 *     quire_arena_destroy(arena);
 *
 * Threads: one arena is for one thread at a time; any number of threads may each use their own, and do not meet.
 * Signals and fork: no function here may be called from a signal handler.  After fork parent and child each go on with their copy; in an arena
 * over a file or memfd source the memory itself is shared between them, so only one of the two may use it.
 */
#ifndef QUIRE_ARENA_H
#define QUIRE_ARENA_H

#include <quire/export.h>
#include <quire/source.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* a struct and the function that fills it have one name, as in stat(2) */
extern "C" {
#endif

struct quire_arena;

/* All zero, or NULL in place of the struct: the defaults. */
struct quire_arena_opts {
    size_t struct_bytes;         /* sizeof; 0: as it was in 0.2 */
    const char *name;            /* NULL: none.  Copied, cut to 31 bytes */
    struct quire_source *source; /* NULL: quire_source_default().  Must outlive the arena */
    size_t size_hint_bytes;      /* the first span, its header included, rounded up; 0: one OS page */
    size_t limit_bytes;          /* memory the arena may hold at once, headers included; 0: no limit */
    uint64_t flags;              /* none yet: 0 */
};

/* A place in an arena's life to go back to.  Plain data: copy it, keep it, drop it. */
struct quire_arena_mark {
    const struct quire_arena *arena;
    uint64_t birth, epoch, position;
    void *span, *cursor, *large, *defer;
};

/* One snapshot.  mapped_bytes == live_bytes + free_bytes + lost_bytes + meta_bytes, always. */
struct quire_arena_stats {
    size_t struct_bytes; /* sizeof, set by the caller */
    size_t mapped_bytes; /* held from the source */
    size_t live_bytes;   /* handed out, with rounding to 16 bytes */
    size_t free_bytes;   /* ready to be handed out: the rest of the current span, and spans kept by reset or rewind */
    size_t lost_bytes;   /* ends of spans that a request did not fit in */
    size_t meta_bytes;   /* headers */
    size_t peak_bytes;   /* the most that mapped_bytes has been */
    size_t limit_bytes;  /* 0: none */
    size_t spans;        /* spans held, large ones included */
    size_t large_blocks; /* blocks with a span of their own */
};

/*
 * A new, empty arena.  NULL with errno: ENOMEM (no memory, or limit_bytes is less than one page), EINVAL (unknown flags, or a struct_bytes
 * that is none), E2BIG (options that this library does not know).  Nothing leaks on failure.  Cost: one span from the source, less than 100 ns when it is warm.  MT-Safe.
 */
QUIRE_API struct quire_arena *quire_arena_create(const struct quire_arena_opts *opts);

/*
 * Run the defers, last first, then give all memory back to the source.  NULL is left alone; errno is kept.  An address that is not a live
 * arena stops the process ("arena A1"): in the `check` build also when other arenas have come since.  Cost: the defers, and one step for each
 * span.  MT-Unsafe race:arena.
 */
QUIRE_API void quire_arena_destroy(struct quire_arena *arena);

/*
 * `bytes` bytes, 16-byte aligned, contents undefined; 0 bytes: a pointer different from all others.  NULL with errno ENOMEM: no memory, over
 * the limit, or bytes > PTRDIFF_MAX; the arena stays as it was.  Cost: under 1 ns; a span from the source now and then.  MT-Unsafe race:arena.
 */
QUIRE_API void *quire_arena_alloc(struct quire_arena *arena, size_t bytes) __attribute__((__malloc__, __alloc_size__(2), __assume_aligned__(16)));

/*
 * The window of free memory that every arena begins with.  It is public so that the usual case of quire_arena_alloc() is compiled into its
 * caller; do not use it otherwise.  The library closes the window (cursor == end) when it wants to see every allocation.
 */
struct quire_arena_window {
    char *cursor, *end;
};
#if QUIRE_ARENA_INLINE
void *quire_arena_alloc_out_of_line(struct quire_arena *arena, size_t bytes) __asm__("quire_arena_alloc");
extern inline __attribute__((__gnu_inline__, __always_inline__)) void *quire_arena_alloc(struct quire_arena *arena, size_t bytes)
{
    struct quire_arena_window *window = (struct quire_arena_window *)(void *)arena;
    char *p = window->cursor;
    size_t need = (bytes + 15) & ~(size_t)15;
    /* One comparison also sends 0 bytes, and sizes that wrapped to 0, the long way. */
    if (__builtin_expect(need - 1 >= (size_t)(window->end - p), 0))
        return quire_arena_alloc_out_of_line(arena, bytes);
    window->cursor = p + need;
    return p;
}
#endif

/* As quire_arena_alloc(), at a multiple of align_bytes.  Also errno EINVAL: align_bytes is not a power of two.  MT-Unsafe race:arena. */
QUIRE_API void *quire_arena_alloc_aligned(struct quire_arena *arena, size_t bytes, size_t align_bytes)
    __attribute__((__malloc__, __alloc_size__(2), __alloc_align__(3)));

/*
 * `count` elements of `bytes` bytes, all zero.  NULL with errno ENOMEM, also when the product overflows.  Cost: as quire_arena_alloc(), and
 * clearing; memory that is still zero from the system is not cleared again.  MT-Unsafe race:arena.
 */
QUIRE_API void *quire_arena_alloc_zero(struct quire_arena *arena, size_t count, size_t bytes)
    __attribute__((__malloc__, __alloc_size__(2, 3), __assume_aligned__(16)));

/*
 * A copy of a string, at any address: short ones lie side by side.  NULL with errno: ENOMEM, EINVAL (string NULL).  Cost: a few ns; a block of 1 KiB
 * for the short ones now and then.  MT-Unsafe race:arena.
 */
QUIRE_API char *quire_arena_strdup(struct quire_arena *arena, const char *string) __attribute__((__malloc__));

/*
 * What printf would write, as a string, at any address.  NULL with errno: ENOMEM, and what vsnprintf() refuses (EOVERFLOW, EILSEQ).  Cost: once
 * vsnprintf(), and once more where the text is longer than the room behind the last one.  MT-Unsafe race:arena; MT-Safe locale.
 */
QUIRE_API char *quire_arena_printf(struct quire_arena *arena, const char *format, ...) __attribute__((__malloc__, __format__(__printf__, 2, 3)));
QUIRE_API char *quire_arena_vprintf(struct quire_arena *arena, const char *format, va_list words) __attribute__((__malloc__, __format__(__printf__, 2, 0)));

/* A copy of `bytes` bytes, 16-byte aligned.  NULL with errno: ENOMEM, EINVAL (from NULL and bytes not 0).  MT-Unsafe race:arena. */
QUIRE_API void *quire_arena_memdup(struct quire_arena *arena, const void *from, size_t bytes)
    __attribute__((__malloc__, __alloc_size__(3), __assume_aligned__(16)));

/*
 * A block of `new_bytes` with the contents of `old`, up to the shorter of the two: in place when `old` is the arena's last block, or string, and there
 * is room, or when it shrinks; else a copy, 16-byte aligned, and `old` stays as it was until all is freed.  A block that is older than the newest
 * mark never grows in place: rewinding finds it as it was.  `old_bytes` is what it was allocated or last resized with.  old NULL:
 * quire_arena_alloc().  NULL with errno ENOMEM: `old` is untouched.  MT-Unsafe race:arena.
 */
QUIRE_API void *quire_arena_resize(struct quire_arena *arena, void *old, size_t old_bytes, size_t new_bytes)
    __attribute__((__alloc_size__(4)));

/*
 * Have fn(arg) called when the arena is rewound past here, reset or destroyed; the last deferred runs first.  `fn` may read the arena's memory
 * but must not call the arena.  Returns 0, or -1 with errno: ENOMEM, EINVAL (fn NULL).  Cost: one allocation.  MT-Unsafe race:arena.
 */
QUIRE_API int quire_arena_defer(struct quire_arena *arena, void (*fn)(void *), void *arg);

/* Where the arena is now, for quire_arena_rewind().  Marks nest, to any depth.  Cost: a few loads and stores.  MT-Unsafe race:arena. */
QUIRE_API struct quire_arena_mark quire_arena_mark(const struct quire_arena *arena);

/*
 * Free all that was allocated since `mark`, defers first.  The mark stays good, marks taken after it do not.  A mark of another arena
 * ("arena A3") or one that was rewound past or reset ("arena A4") stops the process; of rewinds that went past marks the last 2,000 are
 * remembered, or as many as there is memory for.  A mark taken at the very place that is gone back to is the same mark.
 * Cost: the defers, and one step for each large block since the mark.  MT-Unsafe race:arena.
 */
QUIRE_API void quire_arena_rewind(struct quire_arena *arena, struct quire_arena_mark mark);

/*
 * Free all, defers first; the spans stay with the arena for its next round, and those that a whole round did not need go back to the source.
 * Cost: the defers; O(1) in allocations and, amortised, in spans.  MT-Unsafe race:arena.
 */
QUIRE_API void quire_arena_reset(struct quire_arena *arena);

/* Give spans that reset or rewind kept, and that are not in use, back to the source.  Returns bytes.  MT-Unsafe race:arena. */
QUIRE_API size_t quire_arena_trim(struct quire_arena *arena);

/*
 * True when `p` lies in memory that this arena has handed out and not taken back; any pointer may be asked about, none is followed.
 * Cost: one step for each span.  MT-Unsafe race:arena.
 */
QUIRE_API bool quire_arena_owns(const struct quire_arena *arena, const void *p);

/* Fill `out`, whose struct_bytes is set, with a snapshot.  Cost: one step for each span.  MT-Unsafe race:arena. */
QUIRE_API void quire_arena_stats(const struct quire_arena *arena, struct quire_arena_stats *out);

/* NULL when the arena's invariants hold, else a static string such as "arena A2".  Cost: one step for each span.  MT-Unsafe race:arena. */
QUIRE_API const char *quire_arena_check(const struct quire_arena *arena);

#ifdef __cplusplus
}
#pragma GCC diagnostic pop
#endif
#endif
