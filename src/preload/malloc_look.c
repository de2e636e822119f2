// SPDX-License-Identifier: MIT
/*
 * malloc_look.c - libc's names that look at the allocator or tidy it: malloc_trim, mallinfo, mallinfo2, malloc_stats.
 *
 * The fields of mallinfo say of the default heap:
 *     arena     mapped, but for large blocks          hblkhd    large blocks, in bytes; hblks: their number
 *     uordblks  live beside those, rounding included  fordblks  free slots and bookkeeping
 *     keepcost  what the source keeps warm
 *
 * Where everything goes on to libc's malloc (passthrough) they are libc's.
 *
 * Locks: none.
 */
#include <limits.h>
#include <unistd.h>

#include <quire/heap.h>
#include <quire/source.h>

#include "preload/preload.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int malloc_trim(size_t pad_bytes);
EXPORT int malloc_trim(size_t pad_bytes)
{
    void *libcs = preload_passed("malloc_trim");
    if (libcs)
        return ((int (*)(size_t))(uintptr_t)libcs)(pad_bytes);
    return quire_heap_trim(quire_heap_default()) != 0;
}

/* glibc's struct mallinfo2, which its headers have from 2.33 on, and its struct mallinfo, which other libcs have not. */
struct narrow_mallinfo {
    int arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
EXPORT struct narrow_mallinfo preload_mallinfo(void) __asm__("mallinfo");
struct wide_mallinfo {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
EXPORT struct wide_mallinfo preload_mallinfo2(void) __asm__("mallinfo2");

EXPORT struct wide_mallinfo preload_mallinfo2(void)
{
    struct quire_heap_stats heap = {.struct_bytes = sizeof heap};
    struct quire_source_stats source = {.struct_bytes = sizeof source};
    void *libcs = preload_passed("mallinfo2"); /* glibc has it from 2.33 on */
    if (libcs)
        return ((struct wide_mallinfo (*)(void))(uintptr_t)libcs)();
    quire_heap_stats(quire_heap_default(), &heap);
    quire_source_stats(quire_source_default(), &source);
    return (struct wide_mallinfo){
        .arena = heap.mapped_bytes - heap.large_bytes,
        .ordblks = heap.pages,
        .hblks = heap.large_blocks,
        .hblkhd = heap.large_bytes,
        .usmblks = heap.peak_bytes,
        .uordblks = heap.live_bytes > heap.large_bytes ? heap.live_bytes - heap.large_bytes : 0,
        .fordblks = heap.free_bytes + heap.meta_bytes,
        .keepcost = source.idle_bytes,
    };
}

static int cut(size_t n)
{
    return n > INT_MAX ? INT_MAX : (int)n;
}

EXPORT struct narrow_mallinfo preload_mallinfo(void)
{
    void *libcs = preload_passed("mallinfo");
    if (libcs)
        return ((struct narrow_mallinfo (*)(void))(uintptr_t)libcs)();
    struct wide_mallinfo wide = preload_mallinfo2();
    return (struct narrow_mallinfo){
        .arena = cut(wide.arena),
        .ordblks = cut(wide.ordblks),
        .hblks = cut(wide.hblks),
        .hblkhd = cut(wide.hblkhd),
        .usmblks = cut(wide.usmblks),
        .uordblks = cut(wide.uordblks),
        .fordblks = cut(wide.fordblks),
        .keepcost = cut(wide.keepcost),
    };
}

EXPORT void malloc_stats(void);
EXPORT void malloc_stats(void)
{
    void *libcs = preload_passed("malloc_stats");
    if (libcs)
        ((void (*)(void))(uintptr_t)libcs)();
    else
        (void)report_text(STDERR_FILENO);
}
