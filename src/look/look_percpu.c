// SPDX-License-Identifier: MIT
/*
 * look_percpu.c - every per-CPU pool of the process, for those who show them.
 *
 *     percpu_each() --- name, birth, quire_percpu_stats() ---> struct look_object
 *
 * Locks: the pools', for a batch of statistics.  A thread that ends and one that uses a pool for the first time wait for it.
 * Not here: what the statistics are (percpu/percpu_look.c).
 */
#include "look/look.h"
#include "percpu/percpu_internal.h"

static const struct look_field fields[] = {LOOK_PERCPU_FIELDS(LOOK_FIELD)};
STATIC_ASSERT(sizeof(struct quire_percpu_stats) == (1 + LOOK_COUNT_OF(fields)) * sizeof(size_t), "the list has every field");
STATIC_ASSERT(LOOK_COUNT_OF(fields) <= LOOK_VALUES_MAX, "an object has room for them");
STATIC_ASSERT((int)PERCPU_NAME_BYTES <= (int)LOOK_NAME_BYTES, "and for the name");

static bool look(const struct quire_percpu *pool, void *arg)
{
    struct look_collect *collect = arg;
    struct look_object *object = look_collect_next(collect, pool->birth);
    if (object) {
        struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
        uint64_t *value = object->values;
        object->id = pool->birth;
        look_name_copy(object, pool->name);
        quire_percpu_stats(pool, &stats);
        LOOK_PERCPU_FIELDS(LOOK_VALUE)
    }
    return collect->count < collect->room;
}

static unsigned collect_all(uint64_t below, struct look_object *out, unsigned count)
{
    struct look_collect collect = {.below = below, .out = out, .room = count};
    percpu_each(look, &collect);
    return collect.count;
}

const struct look_kind look_percpu_kind = {"percpu", "percpu", fields, LOOK_COUNT_OF(fields), collect_all, NULL};
