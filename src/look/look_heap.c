// SPDX-License-Identifier: MIT
/*
 * look_heap.c - every heap of the process, and the blocks of each size in it, for those who show them.
 *
 *     heap_each() --- name, birth, heap_stats_locked() ---> struct look_object               of the heaps
 *                 '-- heap_classes_stats_locked() ---> a struct look_object for each size that ever had a page
 *
 *     order    birth * 256 + 255 - class: falls, as heap_each() and the classes come
 *
 * Locks: the heaps', for a batch of statistics.  A thread that ends and a tick wait for it.
 * Not here: what the statistics are (heap/heap_look.c).
 */
#include "heap/heap_internal.h"
#include "look/look.h"

enum { CLASS_BITS = 8 };
STATIC_ASSERT(HEAP_CLASSES < 1 << CLASS_BITS, "a class fits into an order's low bits");

static const struct look_field fields[] = {LOOK_HEAP_FIELDS(LOOK_FIELD)};
static const struct look_field class_fields[] = {LOOK_HEAP_CLASS_FIELDS(LOOK_FIELD)};
STATIC_ASSERT(sizeof(struct quire_heap_stats) == (1 + LOOK_COUNT_OF(fields)) * sizeof(size_t), "the list has every field");
STATIC_ASSERT(sizeof(struct quire_heap_class_stats) == (1 + LOOK_COUNT_OF(class_fields)) * sizeof(size_t), "and that of the classes too");
STATIC_ASSERT(LOOK_COUNT_OF(fields) <= LOOK_VALUES_MAX, "an object has room for them");
STATIC_ASSERT((int)HEAP_NAME_BYTES <= (int)LOOK_NAME_BYTES, "and for the name");

/* Of the heap's first class, or of the heap. */
static uint64_t order_of(const struct quire_heap *heap)
{
    return heap->serial << CLASS_BITS | ((1 << CLASS_BITS) - 1);
}

static void describe(struct look_object *object, const struct quire_heap *heap)
{
    const char *name = heap_name(heap);
    object->id = heap->serial;
    look_name_copy(object, !name && heap == &heap_of_process ? "default" : name);
}

static void look(struct quire_heap *heap, void *arg)
{
    struct look_object *object = look_collect_next(arg, order_of(heap));
    if (!object)
        return;
    struct quire_heap_stats stats = {.struct_bytes = sizeof stats};
    uint64_t *value = object->values;
    describe(object, heap);
    heap_stats_locked(heap, &stats);
    LOOK_HEAP_FIELDS(LOOK_VALUE)
}

static unsigned collect_all(uint64_t below, struct look_object *out, unsigned count)
{
    struct look_collect collect = {.below = below, .out = out, .room = count};
    heap_each(look, &collect);
    return collect.count;
}

const struct look_kind look_heap_kind = {"heap", "heaps", fields, LOOK_COUNT_OF(fields), collect_all, NULL};

/* ---- the blocks of each size ---- */

static void look_at_classes(struct quire_heap *heap, void *arg)
{
    struct look_collect *collect = arg;
    uint64_t order = order_of(heap);
    struct quire_heap_class_stats all[HEAP_CLASSES];
    if (order - (HEAP_CLASSES - 1) >= collect->below || collect->count == collect->room)
        return;
    heap_classes_stats_locked(heap, all);
    for (unsigned class = 0; class < HEAP_CLASSES; class++) {
        struct look_object *object = all[class].peak_bytes ? look_collect_next(collect, order - class) : NULL;
        if (!object)
            continue;
        struct quire_heap_class_stats stats = all[class];
        uint64_t *value = object->values;
        describe(object, heap);
        LOOK_HEAP_CLASS_FIELDS(LOOK_VALUE)
    }
}

static unsigned collect_classes(uint64_t below, struct look_object *out, unsigned count)
{
    struct look_collect collect = {.below = below, .out = out, .room = count};
    heap_each(look_at_classes, &collect);
    return collect.count;
}

const struct look_kind look_heap_class_kind = {"heap_class", "heap_classes", class_fields, LOOK_COUNT_OF(class_fields), collect_classes, NULL};
