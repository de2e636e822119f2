// SPDX-License-Identifier: MIT
/*
 * look_slab.c - every slab of the process, for those who show them.
 *
 *     slab_each() --- name, birth, quire_slab_stats() ---> struct look_object
 *
 * Locks: the slabs' registry's, for a batch of statistics.  A thread that ends, a tick and a trim wait for it.
 * Not here: what the statistics are (slab/slab_look.c).
 */
#include "look/look.h"
#include "slab/slab_internal.h"

static const struct look_field fields[] = {LOOK_SLAB_FIELDS(LOOK_FIELD)};
STATIC_ASSERT(sizeof(struct quire_slab_stats) == (1 + LOOK_COUNT_OF(fields)) * sizeof(size_t), "the list has every field");
STATIC_ASSERT(LOOK_COUNT_OF(fields) <= LOOK_VALUES_MAX, "an object has room for them");
STATIC_ASSERT((int)SLAB_NAME_BYTES <= (int)LOOK_NAME_BYTES, "and for the name");

static bool look(const struct quire_slab *slab, void *arg)
{
    struct look_collect *collect = arg;
    struct look_object *object = look_collect_next(collect, slab->birth);
    if (object) {
        struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
        uint64_t *value = object->values;
        object->id = slab->birth;
        look_name_copy(object, slab->name);
        quire_slab_stats(slab, &stats);
        LOOK_SLAB_FIELDS(LOOK_VALUE)
    }
    return collect->count < collect->room;
}

static unsigned collect_all(uint64_t below, struct look_object *out, unsigned count)
{
    struct look_collect collect = {.below = below, .out = out, .room = count};
    slab_each(look, &collect);
    return collect.count;
}

const struct look_kind look_slab_kind = {"slab", "slabs", fields, LOOK_COUNT_OF(fields), collect_all, NULL};
