// SPDX-License-Identifier: MIT
/*
 * look_roll.c - the objects of a kind, 32 at a time, copied.
 *
 *     registry: 90 89 88 ... 59 | 58 57 ... 27 | 26 ... 1        order falls; a batch ends where the room does
 *               first()           next()         next()          next(): false
 *
 * Invariants: the orders of what is handed out fall strictly, so that an object is never shown twice in a pass; one that was there from the pass's beginning
 * to its end is never left out.
 *
 * Locks: none here.  Not here: where objects come from (look_slab.c and its like).
 */
#include <string.h>

#include "look/look.h"

const struct look_kind *const look_kinds[LOOK_KINDS] = {
    &look_source_kind,
#if WITH_ARENA
    &look_arena_kind,
#endif
#if WITH_SLAB
    &look_slab_kind,
#endif
#if WITH_PERCPU
    &look_percpu_kind,
#endif
#if WITH_HEAP
    &look_heap_kind, &look_heap_class_kind,
#endif
};

bool look_is_shown(const struct look_kind *kind)
{
    return !kind->is_on || kind->is_on();
}

void look_name_copy(struct look_object *object, const char *name)
{
    memset(object->name, 0, LOOK_NAME_BYTES);
    if (name)
        memcpy(object->name, name, strnlen(name, LOOK_NAME_BYTES - 1));
}

struct look_object *look_collect_next(struct look_collect *collect, uint64_t order)
{
    if (order >= collect->below || collect->count == collect->room)
        return NULL;
    struct look_object *object = &collect->out[collect->count++];
    object->order = order;
    return object;
}

void look_roll_init(struct look_roll *roll, const struct look_kind *kind)
{
    roll->kind = kind;
    roll->is_whole = false;
    roll->count = 0;
}

bool look_roll_first(struct look_roll *roll)
{
    if (!roll->is_whole) {
        roll->count = roll->kind->collect(UINT64_MAX, roll->objects, LOOK_BATCH);
        roll->is_whole = roll->count < LOOK_BATCH;
    }
    return roll->count != 0;
}

bool look_roll_next(struct look_roll *roll)
{
    if (roll->count < LOOK_BATCH)
        return false;
    roll->count = roll->kind->collect(roll->objects[LOOK_BATCH - 1].order, roll->objects, LOOK_BATCH);
    return roll->count != 0;
}

void look_sum_add(struct look_sum *sum, const struct look_roll *roll)
{
    sum->objects += roll->count;
    for (unsigned i = 0; i < roll->count; i++)
        for (unsigned f = 0; f < roll->kind->field_count; f++)
            if (look_adds_up(roll->kind->fields[f].role))
                sum->values[f] += roll->objects[i].values[f];
}
