// SPDX-License-Identifier: MIT
/*
 * compile.c - walks the recorded program once in its global order and writes each thread's steps.
 *
 *   op "free slot 7" by thread 2, last touched by thread 1, an object of an arena of thread 1:
 *
 *     steps of thread 1:  ... ARENA_ALLOC 7 | SLOT_POST 7 ...         | DEATH_AWAIT | ARENA_DESTROY
 *     steps of thread 2:            SLOT_AWAIT 7 | DEATH_POST (the free is gone) ...
 *
 * A slab belongs to all threads and to the whole run: it is created before the first step.
 * An arena instance belongs to the thread that allocates in it.  It is created before the first
 * object of a generation and destroyed after the death of the last: by its owner, at once or at the
 * owner's next op; by the killer if the owner ended.
 *
 * Invariants:
 *   C1  every await waits for something earlier in the global order, so no replay can deadlock
 *   C2  each instance's creates and destroys alternate, and all its objects die between them
 *   C3  threads that share a lane never overlap
 *
 * Locks: none; one thread, before the replay.
 * Not here: carrying the steps out (play.c).
 */
#include "replay/compile.h"

#include <assert.h>
#include <string.h>

// A slab's elements are aligned to 16 bytes, as malloc's blocks are.
enum { NOBODY = UINT32_MAX, SLAB_ALIGN_LOG2 = 4 };

static_assert(PLAN_SLABS_MAX <= UINT16_MAX, "a step has 16 bits for its slab");

struct slot_state {
    uint64_t bytes;
    uint32_t instance; // + 1; 0: of no arena
    uint32_t slab;     // + 1; 0: of no slab
    uint32_t toucher;  // thread + 1; 0: nobody yet
    uint32_t posts;
    bool heap; // of the default heap
    bool filled;
};

struct instance_state {
    uint64_t live;
    uint32_t owner;
    uint32_t deaths_elsewhere;
    bool open;
    bool ended_elsewhere; // the owner destroys it at its next op
};

struct compiler {
    struct compiled *out;
    const struct stream *stream;
    const struct plan *plan;
    struct slot_state *slots;
    struct instance_state *instances;
    uint32_t *instance_of;  // by arena * threads + thread: instance + 1
    uint32_t *pending;      // by thread: how many instances wait to be destroyed by it
    uint64_t *first;        // by thread: position of its first op, 0: none
    uint64_t *last;         // by thread: position of its last op
    uint8_t *posts;         // by position, a bit: the slot is touched next by another thread
    uint32_t before_thread; // of the op before this one in the global order
    uint64_t live_bytes;    // that the program asked for, up to here
    struct timeline *timeline;
    uint32_t samples; // placed so far
};

static void append(struct compiler *c, uint32_t thread, struct step step) {
    struct steps *steps = &c->out->steps[thread];
    if (steps->count == steps->room) {
        size_t room = steps->room ? steps->room * 2 : 1u << 16;
        struct step *at = stream_memory(room, sizeof *at);
        if (steps->room) {
            memcpy(at, steps->at, steps->count * sizeof *at);
            stream_memory_give(steps->at, steps->room, sizeof *at);
        }
        steps->at = at;
        steps->room = room;
    }
    steps->at[steps->count++] = step;
}

static uint32_t saturate(uint64_t bytes) {
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* Pass 1: who touches a slot next, and when threads begin and end. */
static void look_ahead(struct compiler *c) {
    uint64_t *last_touch = stream_memory((size_t)c->stream->header->slots, sizeof *last_touch);
    uint32_t *toucher = stream_memory((size_t)c->stream->header->slots, sizeof *toucher);
    struct stream_walk walk;
    struct stream_op op;
    stream_walk_begin(&walk, c->stream);
    while (stream_walk_next(&walk, &op)) {
        uint32_t slot = op.op->slot;
        if (toucher[slot] && toucher[slot] != op.thread + 1) {
            c->posts[last_touch[slot] / 8] |= (uint8_t)(1u << (last_touch[slot] % 8));
            c->out->slots_shared = true;
        }
        toucher[slot] = op.thread + 1;
        last_touch[slot] = op.position;
        if (!c->first[op.thread])
            c->first[op.thread] = op.position;
        c->last[op.thread] = op.position;
    }
    stream_walk_end(&walk);
    stream_memory_give(last_touch, (size_t)c->stream->header->slots, sizeof *last_touch);
    stream_memory_give(toucher, (size_t)c->stream->header->slots, sizeof *toucher);
}

/* Threads in order of their first op; threads without any are left out. */
static void order_turns(struct compiler *c) {
    struct stream_walk walk;
    struct stream_op op;
    stream_walk_begin(&walk, c->stream);
    while (c->out->turns < c->out->threads && stream_walk_next(&walk, &op))
        if (c->first[op.thread] == op.position)
            c->out->turn[c->out->turns++] = op.thread;
    stream_walk_end(&walk);
}

/* Gives each thread a lane: the first one whose threads have all ended (C3), else a new one. */
static const char *assign_lanes(struct compiler *c) {
    uint64_t busy_until[LANES_MAX];
    struct compiled *out = c->out;
    for (uint32_t i = 0; i < out->turns; i++) {
        uint32_t thread = out->turn[i], lane = 0;
        // A guessed order tells nothing about overlaps: all side by side, as long as that is few.
        bool may_share = !c->stream->order_guessed || out->lanes >= LANES_GUESSED_MAX;
        while (lane < out->lanes && !(may_share && busy_until[lane] < c->first[thread]))
            lane++;
        if (lane == LANES_MAX)
            return "has more threads alive at once than can be replayed (512)";
        if (lane == out->lanes)
            out->lanes++;
        busy_until[lane] = c->last[thread];
        out->lane[thread] = lane;
    }
    if (out->lanes == 0)
        out->lanes = 1;
    return NULL;
}

/* The arena instance of a site's objects when this thread allocates them; 0: libc. */
static uint32_t instance_for(struct compiler *c, uint32_t site, uint32_t thread) {
    int32_t arena = c->plan->arena_of_site[site];
    if (arena == PLAN_STAYS)
        return 0;
    uint32_t *known = &c->instance_of[(size_t)arena * c->out->threads + thread];
    if (*known == 0) {
        *known = ++c->out->arenas;
        c->instances[*known - 1].owner = thread;
    }
    return *known;
}

static void destroy_instance(struct compiler *c, uint32_t thread, uint32_t instance_idx) {
    struct instance_state *instance = &c->instances[instance_idx];
    if (instance->deaths_elsewhere)
        append(c, thread,
               (struct step){.kind = STEP_DEATH_AWAIT,
                             .slot = instance_idx,
                             .size = instance->deaths_elsewhere});
    append(c, thread, (struct step){.kind = STEP_ARENA_DESTROY, .slot = instance_idx});
    instance->open = false;
    instance->ended_elsewhere = false;
}

/* Destroys what other threads ended since this thread's last op. */
static void flush_pending(struct compiler *c, uint32_t thread) {
    for (uint32_t i = 0; i < c->out->arenas && c->pending[thread]; i++) {
        if (c->instances[i].owner != thread || !c->instances[i].ended_elsewhere)
            continue;
        destroy_instance(c, thread, i);
        c->pending[thread]--;
    }
}

/* An object of an arena died: nothing to do for the thread, unless others must hear of it. */
static void arena_death(struct compiler *c, const struct stream_op *op, uint32_t instance_idx) {
    struct instance_state *instance = &c->instances[instance_idx];
    instance->live--;
    if (op->thread != instance->owner) {
        instance->deaths_elsewhere++;
        append(c, op->thread, (struct step){.kind = STEP_DEATH_POST, .slot = instance_idx});
    }
    if (instance->live > 0)
        return;
    if (op->thread == instance->owner) {
        destroy_instance(c, op->thread, instance_idx);
    } else if (op->position > c->last[instance->owner]) {
        append(c, op->thread, (struct step){.kind = STEP_THREAD_AWAIT, .slot = instance->owner});
        destroy_instance(c, op->thread, instance_idx);
    } else {
        instance->ended_elsewhere = true;
        c->pending[instance->owner]++;
    }
}

/* The slab + 1 for a new object of the site; 0: none, or its elements are too small for it. */
static uint32_t slab_for(const struct compiler *c, const struct stream_op *op) {
    int32_t slab = c->plan->slab_of_site[op->op->site];
    if (slab == PLAN_STAYS || op->size_bytes > c->plan->element_bytes[slab] ||
        op->op->align_log2 > SLAB_ALIGN_LOG2)
        return 0;
    return (uint32_t)slab + 1;
}

/* Turns a step of libc's into the slab's. */
static void serve_by_slab(struct compiler *c, struct step *step, uint32_t slab) {
    static const uint8_t kinds[] = {[STEP_ALLOC] = STEP_SLAB_ALLOC,
                                    [STEP_CALLOC] = STEP_SLAB_CALLOC,
                                    [STEP_ALIGNED] = STEP_SLAB_ALLOC,
                                    [STEP_FREE] = STEP_SLAB_FREE};
    step->kind = kinds[step->kind];
    step->slab = (uint16_t)(slab - 1);
    c->out->ops_on_slabs++;
}

/* Turns a step of libc's into the default heap's. */
static void serve_by_heap(struct compiler *c, struct step *step) {
    static const uint8_t kinds[] = {[STEP_ALLOC] = STEP_HEAP_ALLOC,
                                    [STEP_CALLOC] = STEP_HEAP_CALLOC,
                                    [STEP_ALIGNED] = STEP_HEAP_ALIGNED,
                                    [STEP_REALLOC] = STEP_HEAP_REALLOC,
                                    [STEP_FREE] = STEP_HEAP_FREE};
    step->kind = kinds[step->kind];
    c->out->ops_on_heap++;
}

static void birth(struct compiler *c, const struct stream_op *op, struct slot_state *slot) {
    static const uint8_t libc_kinds[] = {
        [QRP_ALLOC] = STEP_ALLOC, [QRP_CALLOC] = STEP_CALLOC, [QRP_ALLOC_ALIGNED] = STEP_ALIGNED};
    static const uint8_t arena_kinds[] = {[QRP_ALLOC] = STEP_ARENA_ALLOC,
                                          [QRP_CALLOC] = STEP_ARENA_CALLOC,
                                          [QRP_ALLOC_ALIGNED] = STEP_ARENA_ALIGNED};
    uint32_t instance = instance_for(c, op->op->site, op->thread);
    struct step step = {.kind = libc_kinds[op->op->kind],
                        .align_log2 = op->op->align_log2,
                        .slot = op->op->slot,
                        .size = (uint32_t)op->size_bytes};
    if (instance) {
        struct instance_state *state = &c->instances[instance - 1];
        if (!state->open) {
            append(c, op->thread, (struct step){.kind = STEP_ARENA_CREATE, .slot = instance - 1});
            state->open = true;
            c->out->arena_creates++;
        }
        state->live++;
        step.kind = arena_kinds[op->op->kind];
        step.old = instance - 1;
    }
    slot->slab = instance ? 0 : slab_for(c, op);
    if (slot->slab) {
        serve_by_slab(c, &step, slot->slab);
        c->out->slab_objects[slot->slab - 1]++;
    }
    slot->heap = c->plan->class_of_site[op->op->site] == PLAN_HEAP;
    if (slot->heap)
        serve_by_heap(c, &step);
    if (op->size_bytes > UINT32_MAX)
        append(c, op->thread,
               (struct step){.kind = STEP_WIDE, .size = (uint32_t)(op->size_bytes >> 32)});
    append(c, op->thread, step);
    slot->filled = true;
    slot->instance = instance;
    slot->bytes = op->size_bytes;
    c->live_bytes += op->size_bytes;
}

static const char *resize(struct compiler *c, const struct stream_op *op, struct slot_state *slot) {
    struct step step = {.kind = STEP_REALLOC,
                        .slot = op->op->slot,
                        .size = (uint32_t)op->size_bytes,
                        .old = saturate(slot->bytes)};
    if (slot->instance) {
        if (c->instances[slot->instance - 1].owner != op->thread)
            return "resizes an arena's object in another thread: this plan cannot be replayed";
        step.kind = STEP_ARENA_RESIZE;
        step.old = slot->instance - 1;
    }
    if (slot->slab) {
        bool fits = op->size_bytes <= c->plan->element_bytes[slot->slab - 1];
        step.kind = fits ? STEP_SLAB_KEEP : STEP_SLAB_LEAVE;
        step.slab = (uint16_t)(slot->slab - 1);
        slot->slab = fits ? slot->slab : 0;
        c->out->ops_on_slabs++;
    }
    if (slot->heap)
        serve_by_heap(c, &step);
    if (slot->instance || op->size_bytes > UINT32_MAX)
        append(c, op->thread,
               (struct step){.kind = STEP_WIDE,
                             .size = (uint32_t)(op->size_bytes >> 32),
                             .old = saturate(slot->bytes)});
    append(c, op->thread, step);
    c->live_bytes += op->size_bytes - slot->bytes;
    slot->bytes = op->size_bytes;
    return NULL;
}

static void death(struct compiler *c, const struct stream_op *op, struct slot_state *slot) {
    struct step step = {
        .kind = STEP_FREE, .slot = op->op->slot, .old = saturate(slot->bytes)};
    slot->filled = false;
    c->live_bytes -= slot->bytes;
    if (slot->instance) {
        arena_death(c, op, slot->instance - 1);
        return;
    }
    if (slot->slab)
        serve_by_slab(c, &step, slot->slab);
    if (slot->heap)
        serve_by_heap(c, &step);
    append(c, op->thread, step);
}

/* The op itself, without what it waits for. */
static const char *compile_op(struct compiler *c, const struct stream_op *op) {
    struct slot_state *slot = &c->slots[op->op->slot];
    bool needs_object = op->op->kind == QRP_FREE || op->op->kind == QRP_REALLOC;
    if (slot->filled != needs_object) {
        c->out->ops_dropped++;
        return NULL;
    }
    c->out->ops++;
    if (op->size_bytes > c->out->largest_bytes && op->op->kind != QRP_FREE)
        c->out->largest_bytes = op->size_bytes;
    if (op->op->kind == QRP_REALLOC)
        return resize(c, op, slot);
    if (op->op->kind != QRP_FREE) {
        birth(c, op, slot);
        return NULL;
    }
    death(c, op, slot);
    return NULL;
}

/* A thread's first op starts it, another's last op is awaited by whoever comes next. */
static void order_threads(struct compiler *c, const struct stream_op *op) {
    uint32_t before = c->before_thread;
    c->before_thread = op->thread;
    if (before == NOBODY || before == op->thread || c->stream->order_guessed)
        return;
    if (c->first[op->thread] == op->position)
        append(c, before, (struct step){.kind = STEP_THREAD_START, .slot = op->thread});
    if (c->last[before] < op->position && c->out->lane[before] != c->out->lane[op->thread])
        append(c, op->thread, (struct step){.kind = STEP_THREAD_AWAIT, .slot = before});
}

/* A sample after this op, when the next one is due. */
static void place_sample(struct compiler *c, const struct stream_op *op) {
    struct timeline *timeline = c->timeline;
    uint64_t ops = c->stream->header->ops;
    if (c->samples == timeline->count ||
        op->position * (__uint128_t)timeline->count < ops * (__uint128_t)(c->samples + 1))
        return;
    timeline->samples[c->samples].ops = c->out->ops;
    timeline->samples[c->samples].live_bytes = c->live_bytes;
    append(c, op->thread, (struct step){.kind = STEP_SAMPLE, .slot = c->samples++});
}

static const char *compile_all(struct compiler *c) {
    struct stream_walk walk;
    struct stream_op op;
    const char *wrong = NULL;
    stream_walk_begin(&walk, c->stream);
    while (!wrong && stream_walk_next(&walk, &op)) {
        struct slot_state *slot = &c->slots[op.op->slot];
        order_threads(c, &op);
        flush_pending(c, op.thread);
        if (slot->toucher && slot->toucher != op.thread + 1)
            append(
                c, op.thread,
                (struct step){.kind = STEP_SLOT_AWAIT, .slot = op.op->slot, .size = slot->posts});
        slot->toucher = op.thread + 1;
        wrong = compile_op(c, &op);
        if (c->posts && c->posts[op.position / 8] >> (op.position % 8) & 1)
            append(
                c, op.thread,
                (struct step){.kind = STEP_SLOT_POST, .slot = op.op->slot, .size = ++slot->posts});
        place_sample(c, &op);
    }
    stream_walk_end(&walk);
    c->timeline->count = c->samples;
    return wrong;
}

const char *compile(struct compiled *out, const struct stream *stream, const struct plan *plan,
                    struct timeline *timeline) {
    uint32_t threads = stream->header->threads;
    size_t instances = (size_t)threads * plan->arenas;
    *out = (struct compiled){.threads = threads,
                             .slots = (size_t)stream->header->slots,
                             .peak_live_bytes = stream->header->peak_live_bytes,
                             .all_start = stream->order_guessed,
                             .slabs = plan->slabs,
                             .element_bytes = plan->element_bytes};
    out->slab_objects = stream_memory(plan->slabs, sizeof *out->slab_objects);
    out->steps = stream_memory(threads, sizeof *out->steps);
    out->lane = stream_memory(threads, sizeof *out->lane);
    out->turn = stream_memory(threads, sizeof *out->turn);
    struct compiler c = {.out = out,
                         .stream = stream,
                         .plan = plan,
                         .before_thread = NOBODY,
                         .timeline = timeline};
    c.slots = stream_memory((size_t)stream->header->slots, sizeof *c.slots);
    c.instances = stream_memory(instances, sizeof *c.instances);
    c.instance_of = stream_memory(instances, sizeof *c.instance_of);
    c.pending = stream_memory(threads, sizeof *c.pending);
    c.first = stream_memory(threads, sizeof *c.first);
    c.last = stream_memory(threads, sizeof *c.last);
    size_t posts_bytes = (size_t)(stream->header->ops / 8 + 1);
    c.posts = stream_memory(posts_bytes, 1);
    look_ahead(&c);
    order_turns(&c);
    const char *wrong = assign_lanes(&c);
    if (!wrong)
        wrong = compile_all(&c);
    stream_memory_give(c.slots, (size_t)stream->header->slots, sizeof *c.slots);
    stream_memory_give(c.instances, instances, sizeof *c.instances);
    stream_memory_give(c.instance_of, instances, sizeof *c.instance_of);
    stream_memory_give(c.pending, threads, sizeof *c.pending);
    stream_memory_give(c.first, threads, sizeof *c.first);
    stream_memory_give(c.last, threads, sizeof *c.last);
    stream_memory_give(c.posts, posts_bytes, 1);
    return wrong;
}
