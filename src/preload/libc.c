// SPDX-License-Identifier: MIT
/*
 * libc.c - the way to libc's own allocator, past the names that we have taken; or to the malloc that the process has instead.
 *
 *     passthrough: glibc exports its malloc a second time as __libc_malloc and so on: those names nobody takes
 *     beside another malloc: what free(), realloc() and malloc_usable_size() mean to the rest of the process
 *     and where that malloc has become ours since (its entries lead here, as the tool's swap makes them): a block that comes back is libc's or nobody's
 *     strangers: a library that is bound past us (RTLD_DEEPBIND, dlmopen) has blocks of libc's; those that come to us go back to libc
 *
 * On a libc without them the references are NULL, libc_is_there() says so, and passthrough is refused.
 *
 * Locks: none.  Not here: when libc is asked (careful.c).
 */
#include <dlfcn.h>
#include <errno.h>

#include "base/align.h"
#include "heap/heap_internal.h"
#include "os/os.h"
#include "pages/region.h"
#include "preload/preload.h"

extern void *__libc_malloc(size_t bytes) __attribute__((weak));
extern void *__libc_calloc(size_t count, size_t bytes) __attribute__((weak));
extern void *__libc_realloc(void *p, size_t bytes) __attribute__((weak));
extern void *__libc_memalign(size_t align_bytes, size_t bytes) __attribute__((weak));
extern void __libc_free(void *p) __attribute__((weak));

/* NULL: libc's. */
static struct {
    void *(*realloc)(void *p, size_t bytes);
    void (*free)(void *p);
    size_t (*usable)(void *p);
} process;
/* What this thread asks the process's malloc about. */
static THREAD_LOCAL const void *asked __attribute__((tls_model("initial-exec")));

void libc_is_not_the_malloc(void)
{
    process.realloc = (void *(*)(void *, size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "realloc");
    process.free = (void (*)(void *))(uintptr_t)dlsym(RTLD_DEFAULT, "free");
    process.usable = (size_t(*)(void *))(uintptr_t)dlsym(RTLD_DEFAULT, "malloc_usable_size");
}

bool libc_is_asked(const void *p)
{
    return asked == p;
}

bool libc_is_there(void)
{
    return __libc_malloc && __libc_calloc && __libc_realloc && __libc_memalign && __libc_free;
}

void *libc_alloc(size_t bytes)
{
    return __libc_malloc(bytes);
}

void *libc_alloc_zero(size_t count, size_t bytes)
{
    return __libc_calloc(count, bytes);
}

void *libc_alloc_aligned(size_t bytes, size_t align_bytes)
{
    return __libc_memalign(align_bytes, bytes);
}

void *libc_realloc(void *p, size_t bytes)
{
    const void *outer = asked;
    if (!process.realloc || (p && asked == p))
        return __libc_realloc(p, bytes);
    asked = p;
    void *moved = process.realloc(p, bytes);
    asked = outer;
    return moved;
}

void libc_free(void *p)
{
    const void *outer = asked;
    int kept = errno;
    if (process.free && asked != p) {
        asked = p;
        process.free(p);
        asked = outer;
    } else {
        __libc_free(p);
    }
    errno = kept;
}

static size_t libc_own_usable_bytes(void *p)
{
    static atomic_addr found;
    uintptr_t usable = addr_load_relaxed(&found);
    if (usable == 0) {
        usable = (uintptr_t)dlsym(RTLD_NEXT, "malloc_usable_size");
        addr_store_relaxed(&found, usable);
    }
    return usable ? ((size_t(*)(void *))usable)(p) : 0;
}

void *preload_passed(const char *name)
{
    return preload_ready() == PRELOAD_PASSES ? dlsym(RTLD_NEXT, name) : NULL;
}

size_t libc_usable_bytes(void *p)
{
    const void *outer = asked;
    if (!process.usable || asked == p)
        return libc_own_usable_bytes(p);
    asked = p;
    size_t bytes = process.usable(p);
    asked = outer;
    return bytes;
}

/* ---- strangers ---- */

/* What glibc keeps in front of a block; the flags are the low bits of `size`. */
struct chunk {
    size_t before_bytes, size;
};
enum { IN_OTHER_ARENA = 4, IS_MAPPED = 2, IS_BEHIND_LIVE = 1, FLAGS = 7, CHUNK_BYTES_MIN = 32 };
/* Arenas but the first lie in areas of this alignment, which begin with: arena, area before, bytes. */
static const size_t arena_area_bytes = (size_t)64 << 20;

/* libc maps its first arena like any other memory where the kernel refuses it brk(): then there is no [heap], though libc's malloc is in use. */
static bool first_arena_is_mapped(void)
{
    struct sums {
        size_t in_arenas, others[9];
    } (*sums)(void) = NULL;
    if (!os_has_brk())
        sums = (struct sums(*)(void))(uintptr_t)dlsym(RTLD_NEXT, "mallinfo2");
    return sums && sums().in_arenas != 0;
}

/* The memory around a chunk.  Where the kernel cannot be asked: as far as its header can be read, and libc's own functions look at it once more. */
static enum os_memory memory_of(const void *p, uintptr_t *start, uintptr_t *end)
{
    enum os_memory kind = os_memory_of(p, start, end);
    if (likely(kind != OS_MEMORY_UNKNOWN))
        return kind;
    const struct chunk *chunk = (const struct chunk *)p - 1;
    const void *area = (const void *)align_down((uintptr_t)p, arena_area_bytes);
    if (!os_is_readable(chunk))
        return OS_MEMORY_NONE;
    *start = os_is_readable(area) ? (uintptr_t)area : align_down((uintptr_t)chunk, os_page_bytes());
    *end = UINTPTR_MAX;
    return (uintptr_t)p < os_brk() ? OS_MEMORY_BRK : OS_MEMORY_ANON;
}

bool libc_has(const void *p)
{
    uintptr_t start, end, at = (uintptr_t)p;
    if (!libc_is_there() || at % sizeof(struct chunk) != 0 || region_holds(p))
        return false;
    enum os_memory kind = memory_of(p, &start, &end);
    if ((kind != OS_MEMORY_BRK && kind != OS_MEMORY_ANON) || at - start < sizeof(struct chunk))
        return false;
    const struct chunk *chunk = (const struct chunk *)p - 1;
    if (!os_is_readable(chunk)) /* a page may be guarded inside of a mapping that is not */
        return false;
    size_t bytes = chunk->size & ~(size_t)FLAGS, pages = os_page_bytes() - 1;
    if (bytes < CHUNK_BYTES_MIN || bytes % sizeof(struct chunk) != 0 || bytes > end - (uintptr_t)chunk)
        return false;
    if (chunk->size & IS_MAPPED)
        return kind == OS_MEMORY_ANON && chunk->before_bytes <= (uintptr_t)chunk - start &&
               ((((uintptr_t)chunk - chunk->before_bytes) | (bytes + chunk->before_bytes)) & pages) == 0;
    if (!(chunk->size & IN_OTHER_ARENA)) {
        const struct chunk *next = (const struct chunk *)((uintptr_t)chunk + bytes);
        return kind == OS_MEMORY_BRK || (end - (uintptr_t)next >= sizeof *next && os_is_readable(next) && (next->size & IS_BEHIND_LIVE) && first_arena_is_mapped());
    }
    const uintptr_t *area = (const uintptr_t *)align_down(at, arena_area_bytes);
    return kind == OS_MEMORY_ANON && (uintptr_t)area >= start && os_is_readable(area + 2) && area[2] <= arena_area_bytes && at < (uintptr_t)area + area[2];
}

void libc_takes_its_own(void)
{
    static const struct heap_strangers strangers = {libc_has, libc_free, libc_realloc};
    profile_strangers(&strangers);
}

/*
 * The source of libc's memory must not come round to us: os_page.c asks for these.
 *
 * glibc's allocator sets itself up at its first call without a lock: elsewhere a process has one thread then, but here it may be asked by several at once
 * for the first time, and each would take the first arena for its own ("malloc assertion failure in detach_arena").  So one call goes alone.  The child of
 * a fork during that call has no such memory, and learns so after a tenth of a second.
 */
int os_libc_own_alloc(size_t bytes, size_t align_bytes, void **out)
{
    enum { NEVER, FIRST, READY, NAPS_MAX = 100, NAP_NS = 1000000 };
    static atomic_u32 state;
    uint32_t seen = NEVER;
    if (!__libc_memalign)
        return -ENOMEM;
    bool is_first = u32_cas_acquire(&state, &seen, FIRST);
    for (int i = 0; !is_first && u32_load_acquire(&state) == FIRST; i++) { /* acquire [libc-ready] */
        if (i == NAPS_MAX)
            return -ENOMEM;
        os_sleep_ns(NAP_NS);
    }
    *out = __libc_memalign(align_bytes, bytes);
    if (is_first)
        u32_store_release(&state, READY); /* release [libc-ready] */
    return *out ? 0 : -ENOMEM;
}

void os_libc_own_free(void *start)
{
    if (__libc_free)
        __libc_free(start);
}
