// SPDX-License-Identifier: MIT
/*
 * leaks.c - what is still live when the program ends, added up by size.
 *
 *     walk --> a table of all sizes --> the LEAK_SIZES_MAX with most bytes, most first
 *
 * A size is what a block has room for, but of a secure heap what was asked for: of others that is known of some blocks alone, which would
 * stand in lines of their own.  A block that is live at the end need not be lost: what libc and the loader keep for themselves is among them.
 *
 * Locks: those of a walk.
 */
#include <string.h>

#include <quire/heap.h>

#include "base/align.h"
#include "os/os.h"
#include "preload/preload.h"
#include "prof/guard.h"

static size_t shown_bytes(size_t bytes)
{
    bool is_small = bytes != 0 && bytes <= HEAP_SMALL_MAX;
    return is_small && !heap_is_secure(&heap_of_process) ? heap_class_bytes(heap_class_of(bytes)) : bytes;
}

/* As many sizes as there may be lines for: of more than that, or without memory for it, those that are met first. */
enum { TABLE = 1 << 16 };
struct sums {
    struct leaks *leaks;
    struct leak *table; /* by size; count 0: unused */
    size_t used, room;
};

static struct leak *line_of(const struct sums *sums, size_t bytes)
{
    size_t at = (bytes * UINT64_C(0x9e3779b97f4a7c15) >> 40) % sums->room;
    while (sums->table[at].count != 0 && sums->table[at].size_bytes != bytes)
        at = (at + 1) % sums->room;
    return &sums->table[at];
}

static int leak_add(void *p, size_t bytes, void *arg)
{
    struct sums *sums = arg;
    bytes = shown_bytes(bytes);
    sums->leaks->bytes += bytes;
    sums->leaks->blocks++;
    struct leak *line = line_of(sums, bytes);
    if (line->count == 0 && sums->used + 1 >= sums->room)
        return 0;
    if (line->count == 0) {
        sums->used++;
        *line = (struct leak){.size_bytes = bytes, .example = p};
    }
    line->count++;
    return 0;
}

static size_t weight(const struct leak *leak)
{
    return leak->size_bytes * leak->count;
}

void leaks_collect(struct leaks *out)
{
    struct leak few[LEAK_SIZES_MAX + 1];
    struct sums sums = {.leaks = out};
    size_t table_bytes = align_up(TABLE * sizeof(struct leak), os_page_bytes());
    void *table = NULL;
    memset(out, 0, sizeof *out);
    memset(few, 0, sizeof few);
    bool is_mapped = os_map(table_bytes, os_page_bytes(), &table) == 0;
    sums.table = is_mapped ? table : few;
    sums.room = is_mapped ? TABLE : LEAK_SIZES_MAX + 1;
    (void)quire_heap_walk(quire_heap_default(), leak_add, &sums);
    size_t of_heap = out->blocks;
    (void)guard_walk(leak_add, &sums);
    out->guarded = out->blocks - of_heap;
    for (size_t i = 0; i < sums.room; i++) {
        const struct leak *line = &sums.table[i];
        size_t at = out->sizes;
        if (line->count == 0 || (at == LEAK_SIZES_MAX && weight(line) <= weight(&out->of[at - 1])))
            continue;
        at -= at == LEAK_SIZES_MAX;
        for (; at > 0 && weight(&out->of[at - 1]) < weight(line); at--)
            out->of[at] = out->of[at - 1];
        out->of[at] = *line;
        out->sizes += out->sizes < LEAK_SIZES_MAX;
    }
    if (is_mapped)
        (void)os_unmap(table, table_bytes);
}
