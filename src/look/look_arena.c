// SPDX-License-Identifier: MIT
/*
 * look_arena.c - named arenas, where they are listed (QUIRE_CONF=top:1), for those who show them.
 *
 *     arena_list_each() --- name, number, a glance from outside ---> struct look_object
 *
 * Elsewhere the kind is not shown at all: "none" would be a lie where arenas are, unlisted.
 *
 * Locks: the arenas', for a batch of glances.  A named arena that is born or ends waits for it.
 */
#include "arena/arena_internal.h"
#include "base/compiler.h"
#include "look/look.h"

static const struct look_field fields[] = {LOOK_ARENA_FIELDS(LOOK_FIELD)};
STATIC_ASSERT(sizeof(struct arena_figures) == LOOK_COUNT_OF(fields) * sizeof(size_t), "the list has every field");
STATIC_ASSERT(LOOK_COUNT_OF(fields) <= LOOK_VALUES_MAX, "an object has room for them");
STATIC_ASSERT((int)ARENA_NAME_BYTES <= (int)LOOK_NAME_BYTES, "and for the name");

static bool look(const struct arena_glance *glance, void *arg)
{
    struct look_collect *collect = arg;
    struct look_object *object = look_collect_next(collect, glance->order);
    if (object) {
        struct arena_figures stats = glance->figures;
        uint64_t *value = object->values;
        object->id = glance->order;
        look_name_copy(object, glance->name);
        LOOK_ARENA_FIELDS(LOOK_VALUE)
    }
    return collect->count < collect->room;
}

static unsigned collect_all(uint64_t below, struct look_object *out, unsigned count)
{
    struct look_collect collect = {.below = below, .out = out, .room = count};
    arena_list_each(look, &collect);
    return collect.count;
}

const struct look_kind look_arena_kind = {"arena", "arenas", fields, LOOK_COUNT_OF(fields), collect_all, arena_list_is_on};
