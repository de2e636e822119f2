// SPDX-License-Identifier: MIT
/*
 * look_source.c - the sources that every process has, for those who show them.
 *
 *     default    what arenas, slabs, heaps and most bookkeeping take, recycled      1
 *     anon       per-CPU chunks, and slabs that keep out of core dumps              2
 *     malloc     only where somebody asks for it                                    3
 *
 * Sources of the user's own are in no list: their statistics are for who made them to ask for.
 *
 * Locks: none.
 */
#include <quire/source.h>

#include "base/compiler.h"
#include "look/look.h"

enum { SOURCES = 3 };

static const struct look_field fields[] = {LOOK_SOURCE_FIELDS(LOOK_FIELD)};
STATIC_ASSERT(sizeof(struct quire_source_stats) == (1 + LOOK_COUNT_OF(fields)) * sizeof(size_t), "the list has every field");
STATIC_ASSERT(LOOK_COUNT_OF(fields) <= LOOK_VALUES_MAX, "an object has room for them");

static unsigned collect_all(uint64_t below, struct look_object *out, unsigned count)
{
    const struct quire_source *const sources[SOURCES] = {quire_source_default(), quire_source_anon(), quire_source_malloc()};
    static const char *const names[SOURCES] = {"default", "anon", "malloc"};
    struct look_collect collect = {.below = below, .out = out, .room = count};
    for (unsigned i = 0; i < SOURCES; i++) {
        struct look_object *object = look_collect_next(&collect, SOURCES - i);
        if (!object)
            continue;
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        uint64_t *value = object->values;
        object->id = i + 1;
        look_name_copy(object, names[i]);
        quire_source_stats(sources[i], &stats);
        LOOK_SOURCE_FIELDS(LOOK_VALUE)
    }
    return collect.count;
}

const struct look_kind look_source_kind = {"source", "sources", fields, LOOK_COUNT_OF(fields), collect_all, NULL};
