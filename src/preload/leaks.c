// SPDX-License-Identifier: MIT
/*
 * leaks.c - what is still live when the program ends, added up by size.
 *
 *     walk --> | size | size | size | ...  LEAK_SIZES_MAX, then only the sums --> most bytes first
 *
 * A size is what a block has room for, but of a secure heap what was asked for: of others that is known of some blocks alone, which would
 * stand in lines of their own.  A block that is live at the end need not be lost: what libc and the loader keep for themselves is among them.
 *
 * Locks: those of a walk.
 */
#include <string.h>

#include <quire/heap.h>

#include "preload/preload.h"
#include "prof/guard.h"

static size_t shown_bytes(size_t bytes)
{
    bool is_small = bytes != 0 && bytes <= HEAP_SMALL_MAX;
    return is_small && !heap_is_secure(&heap_of_process) ? heap_class_bytes(heap_class_of(bytes)) : bytes;
}

static int leak_add(void *p, size_t bytes, void *arg)
{
    struct leaks *leaks = arg;
    bytes = shown_bytes(bytes);
    leaks->bytes += bytes;
    leaks->blocks++;
    size_t i = 0;
    while (i < leaks->sizes && leaks->of[i].size_bytes != bytes)
        i++;
    if (i == LEAK_SIZES_MAX)
        return 0;
    if (i == leaks->sizes) {
        leaks->sizes++;
        leaks->of[i].size_bytes = bytes;
        leaks->of[i].example = p;
    }
    leaks->of[i].count++;
    return 0;
}

static size_t weight(const struct leak *leak)
{
    return leak->size_bytes * leak->count;
}

void leaks_collect(struct leaks *out)
{
    memset(out, 0, sizeof *out);
    (void)quire_heap_walk(quire_heap_default(), leak_add, out);
    size_t of_heap = out->blocks;
    (void)guard_walk(leak_add, out);
    out->guarded = out->blocks - of_heap;
    for (size_t i = 1; i < out->sizes; i++) {
        struct leak moved = out->of[i];
        size_t at = i;
        for (; at > 0 && weight(&out->of[at - 1]) < weight(&moved); at--)
            out->of[at] = out->of[at - 1];
        out->of[at] = moved;
    }
}
