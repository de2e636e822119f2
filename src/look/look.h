// SPDX-License-Identifier: MIT
/*
 * look.h - all kinds of objects made alike: a name, a number, and a row of values that the kind's fields explain.
 *
 *     look_slab.c  look_percpu.c  look_heap.c  look_source.c  look_arena.c      registries, under their locks
 *              \         |            |          /
 *               look_roll  (32 objects at a time, copied)         no lock
 *              /         |            |
 *     stats_text.c  stats_json.c  stats_prometheus.c --> look_out
 *
 * Objects come in falling order of `order`, and a collector begins below the last one, so that nothing has to be held between two batches.
 *
 * Locks: a collector takes its registry's, and gives it back before it returns.
 */
#ifndef QUIRE_LOOK_LOOK_H
#define QUIRE_LOOK_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"
#include "look/look_fields.h"

C_DECLARATIONS_BEGIN

enum { LOOK_VALUES_MAX = 26, LOOK_NAME_BYTES = 32, LOOK_BATCH = 32 };

/* Texts, not pointers to them: these would be relocated, and written to, in every process. */
struct look_field {
    enum look_role role;
    bool column;
    char name[24], what[112];
};

struct look_object {
    uint64_t order; /* falls from one to the next */
    uint64_t id;    /* never another object's of this kind */
    char name[LOOK_NAME_BYTES]; /* "": it has none */
    uint64_t values[LOOK_VALUES_MAX];
};

struct look_kind {
    const char *singular, *plural; /* of names in Prometheus; of JSON's arrays and the text's headings */
    const struct look_field *fields;
    unsigned field_count;
    /* Up to `count` objects whose order is below `below`, the greatest first; returns how many, fewer only at the end. */
    unsigned (*collect)(uint64_t below, struct look_object *out, unsigned count);
    bool (*is_on)(void); /* NULL: always */
};

/* All kinds, in the order in which they are shown. */
enum { LOOK_KINDS = 1 + WITH_ARENA + WITH_SLAB + WITH_PERCPU + 2 * WITH_HEAP };
extern const struct look_kind *const look_kinds[LOOK_KINDS];
extern const struct look_kind look_source_kind, look_arena_kind, look_slab_kind, look_percpu_kind, look_heap_kind, look_heap_class_kind;
bool look_is_shown(const struct look_kind *kind); /* false: arenas, where nobody lists them */

/* An entry of a list of look_fields.h as a field, and as a value of `stats`, which a collector has. */
#define LOOK_FIELD(field, role, column, what) {role, column, #field, what},
#define LOOK_VALUE(field, role, column, what) *value++ = stats.field;
#define LOOK_COUNT_OF(fields) (sizeof(fields) / sizeof((fields)[0]))

void look_name_copy(struct look_object *object, const char *name); /* NULL: none */

/* What all collectors over a registry do: skip what is not below `below`, fill in the others until there is no room. */
struct look_collect {
    uint64_t below;
    struct look_object *out;
    unsigned count, room;
};
/* The next object to fill in; NULL: this one is not asked for.  `order` falls from call to call. */
struct look_object *look_collect_next(struct look_collect *collect, uint64_t order);

/* The objects of a kind, a batch at a time.  As long as they fit into one they are looked at only once, so that several passes show the same. */
struct look_roll {
    const struct look_kind *kind;
    bool is_whole;
    unsigned count;
    struct look_object objects[LOOK_BATCH];
};
void look_roll_init(struct look_roll *roll, const struct look_kind *kind);
bool look_roll_first(struct look_roll *roll); /* false: no objects */
bool look_roll_next(struct look_roll *roll);  /* false: that was all */

/* What may be added up of several objects. */
static inline bool look_adds_up(enum look_role role)
{
    return role == LOOK_WHOLE || role == LOOK_PART || role == LOOK_COUNT || role == LOOK_EVENTS;
}
struct look_sum {
    uint64_t objects;
    uint64_t values[LOOK_VALUES_MAX]; /* 0 where nothing adds up */
};
void look_sum_add(struct look_sum *sum, const struct look_roll *roll);

/* The printers, each to the end or the first error. */
struct out;
void stats_text(struct out *out, struct look_roll *roll);
void stats_json(struct out *out, struct look_roll *roll);
void stats_prometheus(struct out *out, struct look_roll *roll);

C_DECLARATIONS_END
#endif
