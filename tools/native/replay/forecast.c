// SPDX-License-Identifier: MIT
/*
 * forecast.c - how much memory the program would need if the plan were carried out.
 *
 *   recorded:  live bytes of everything
 *   planned:   live bytes of the sites that stay  +  bytes held by arenas, which only grow
 *              until they are empty  +  slots in use of slabs
 *
 * Invariants:
 *   F1  an arena instance holds nothing when none of its objects is alive
 *
 * Locks: none; one thread.
 * Not here: page granularity and what a page source keeps warm; the replay's peak memory has those.
 */
#include "replay/generations.h"

#include <string.h>

struct instance {
    uint64_t live;
    uint64_t held_bytes;
    uint64_t last_slot; // + 1
    uint32_t opener;    // the site that this generation began with
};

struct object {
    uint64_t bytes;
    uint32_t instance; // + 1; 0: of no arena
    uint32_t slab;     // + 1; 0: of no slab
    bool filled;
};

struct forecaster {
    const struct plan *plan;
    struct forecast *out;
    struct instance *instances; // by arena * threads + thread
    struct object *objects;     // by slot
    uint32_t threads;
    uint64_t live_bytes;
    uint64_t held_bytes;
    uint64_t arena_live_bytes;
    uint64_t arena_slot_bytes; // the same, each object rounded up
    uint64_t slab_live_bytes;
    uint64_t slab_held_bytes;
};

static void birth(struct forecaster *f, const struct stream_op *op, struct object *object) {
    int32_t arena_idx = f->plan->arena_of_site[op->op->site];
    int32_t slab_idx = f->plan->slab_of_site[op->op->site];
    *object = (struct object){.filled = true};
    if (slab_idx != PLAN_STAYS) {
        struct forecast_slab *slab = &f->out->slabs[slab_idx];
        object->slab = (uint32_t)slab_idx + 1;
        f->slab_held_bytes += slot_bytes(f->plan->element_bytes[slab_idx]);
        slab->objects++;
        raise_to(&slab->peak_live, ++slab->live);
    }
    if (arena_idx == PLAN_STAYS)
        return;
    uint32_t idx = (uint32_t)arena_idx * f->threads + op->thread;
    struct instance *instance = &f->instances[idx];
    struct forecast_arena *arena = &f->out->arenas[arena_idx];
    object->instance = idx + 1;
    if (instance->last_slot == 0)
        arena->instances++;
    if (instance->live++ == 0) {
        arena->generations++;
        instance->opener = op->op->site;
        f->out->openers[instance->opener].generations++;
    }
    f->out->openers[instance->opener].objects++;
    arena->objects++;
}

/* Of an object that has one. */
static struct forecast_arena *arena_of(struct forecaster *f, const struct object *object) {
    return &f->out->arenas[(object->instance - 1) / f->threads];
}

/* The object has `bytes` now: at birth, or resized. */
static void grow(struct forecaster *f, const struct stream_op *op, struct object *object) {
    f->live_bytes += op->size_bytes - object->bytes;
    if (object->instance) {
        struct instance *instance = &f->instances[object->instance - 1];
        bool resized = op->op->kind == QRP_REALLOC;
        uint64_t had_bytes = resized ? slot_bytes(object->bytes) : 0;
        uint64_t added_bytes = slot_bytes(op->size_bytes), more_bytes = added_bytes - had_bytes;
        bool in_place = resized && instance->last_slot == (uint64_t)op->op->slot + 1;
        added_bytes = added_bytes <= had_bytes ? 0 : added_bytes - (in_place ? had_bytes : 0);
        if (added_bytes > 0)
            instance->last_slot = (uint64_t)op->op->slot + 1;
        instance->held_bytes += added_bytes;
        f->held_bytes += added_bytes;
        f->arena_live_bytes += op->size_bytes - object->bytes;
        f->arena_slot_bytes += more_bytes;
        struct forecast_arena *arena = arena_of(f, object);
        arena->held_bytes += added_bytes;
        arena->live_bytes += more_bytes;
        raise_to(&arena->peak_bytes, instance->held_bytes);
        raise_to(&arena->held_peak_bytes, arena->held_bytes);
        raise_to(&arena->live_peak_bytes, arena->live_bytes);
    }
    if (object->slab)
        f->slab_live_bytes += op->size_bytes - object->bytes;
    object->bytes = op->size_bytes;
}

static void death(struct forecaster *f, struct object *object) {
    f->live_bytes -= object->bytes;
    object->filled = false;
    if (object->slab) {
        f->slab_live_bytes -= object->bytes;
        f->slab_held_bytes -= slot_bytes(f->plan->element_bytes[object->slab - 1]);
        f->out->slabs[object->slab - 1].live--;
    }
    if (!object->instance)
        return;
    struct instance *instance = &f->instances[object->instance - 1];
    struct forecast_arena *arena = arena_of(f, object);
    f->arena_live_bytes -= object->bytes;
    f->arena_slot_bytes -= slot_bytes(object->bytes);
    arena->live_bytes -= slot_bytes(object->bytes);
    if (--instance->live > 0)
        return;
    f->held_bytes -= instance->held_bytes;
    arena->held_bytes -= instance->held_bytes;
    instance->held_bytes = 0;
}

static void forecast_op(struct forecaster *f, const struct stream_op *op) {
    struct object *object = &f->objects[op->op->slot];
    bool needs_object = op->op->kind == QRP_FREE || op->op->kind == QRP_REALLOC;
    if (object->filled != needs_object)
        return;
    if (op->op->kind == QRP_FREE) {
        death(f, object);
        return;
    }
    if (!needs_object)
        birth(f, op, object);
    grow(f, op, object);
    raise_to(&f->out->peak_live_bytes, f->live_bytes);
    raise_to(&f->out->peak_planned_bytes, f->live_bytes - f->arena_live_bytes - f->slab_live_bytes +
                                              f->held_bytes + f->slab_held_bytes);
    raise_to(&f->out->arena_peak_bytes, f->held_bytes);
    raise_to(&f->out->arena_live_peak_bytes, f->arena_slot_bytes);
}

void forecast(struct forecast *out, const struct stream *stream, const struct plan *plan) {
    size_t slots = (size_t)stream->header->slots;
    size_t instances = (size_t)stream->header->threads * plan->arenas;
    struct forecaster f = {.plan = plan, .out = out, .threads = stream->header->threads};
    *out = (struct forecast){.arenas = out->arenas, .openers = out->openers, .slabs = out->slabs};
    memset(out->arenas, 0, plan->arenas * sizeof *out->arenas);
    memset(out->openers, 0, plan->sites * sizeof *out->openers);
    if (plan->slabs)
        memset(out->slabs, 0, plan->slabs * sizeof *out->slabs);
    f.instances = stream_memory(instances, sizeof *f.instances);
    f.objects = stream_memory(slots, sizeof *f.objects);
    struct stream_walk walk;
    struct stream_op op;
    stream_walk_begin(&walk, stream);
    while (stream_walk_next(&walk, &op))
        forecast_op(&f, &op);
    stream_walk_end(&walk);
    stream_memory_give(f.instances, instances, sizeof *f.instances);
    stream_memory_give(f.objects, slots, sizeof *f.objects);
}
