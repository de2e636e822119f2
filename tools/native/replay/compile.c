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
 * owner's next op; by the killer if the owner ended.  One that the plan keeps is reset instead, and
 * created only once.
 *
 * Invariants:
 *   C1  every await waits for something earlier in the global order, so no replay can deadlock:
 *       what is in an earlier window has been done, what is in this one comes
 *   C2  each instance's creates and destroys (or resets) alternate, and all its objects die between them
 *   C3  a window ends before an op whose steps might not fit into the pool
 *
 * Memory: WINDOW_CHUNKS, 32 bytes a slot, resident from the beginning: the replay's resident set
 * must not grow by ours.
 * Locks: none; one thread, while all others wait.
 * Not here: carrying the steps out (carry.c).
 */
#include "replay/compile.h"

#include <assert.h>
#include <string.h>

enum { NOBODY = UINT32_MAX };

static_assert(PLAN_SLABS_MAX < UINT16_MAX, "a step has 16 bits for its slab, a slot for slab + 1");

struct slot_state {
    uint64_t bytes;
    uint32_t instance; // + 1; 0: of no arena
    uint32_t toucher;  // thread + 1; 0: nobody yet
    uint32_t birth_thread;
    uint32_t posts;
    uint16_t slab; // + 1; 0: of no slab
    bool filled;
    bool heap; // of the default heap
};

struct instance_state {
    uint64_t live;
    uint32_t owner;
    uint32_t deaths_elsewhere;
    bool open;
    bool kept;            // its arena stays between generations, and is reset
    bool created;         // it is there
    bool ended_elsewhere; // the owner destroys it at its next op
};

struct compiler {
    struct compiled *out;
    const struct stream *stream;
    const struct plan *plan;
    const struct compile_opts *opts;
    struct stream_walk walk;
    struct slot_state *slots;
    struct instance_state *instances;
    uint32_t *pending;      // by thread: how many instances wait to be destroyed by it
    uint32_t pending_most;  // of any thread at any time so far
    uint32_t before_thread; // of the op before this one in the global order
    uint32_t samples;       // placed so far
    uint64_t live_bytes;    // that the program asked for, up to here
};

static void append(struct compiler *c, uint32_t thread, struct step step) {
    step_append(&c->out->pool, &c->out->lists[thread], step);
}

static uint32_t saturate(uint64_t bytes) {
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* The arena instance of a site's objects when this thread allocates them; 0: libc. */
static uint32_t instance_for(const struct compiler *c, uint32_t site, uint32_t thread) {
    int32_t arena = c->plan->arena_of_site[site];
    if (arena == PLAN_STAYS)
        return 0;
    return c->out->ahead.instance_of[(size_t)arena * c->out->threads + thread];
}

static void end_instance(struct compiler *c, uint32_t thread, uint32_t instance_idx) {
    struct instance_state *instance = &c->instances[instance_idx];
    if (instance->deaths_elsewhere)
        append(c, thread,
               (struct step){.kind = STEP_DEATH_AWAIT,
                             .slot = instance_idx,
                             .size = instance->deaths_elsewhere});
    uint8_t kind = instance->kept ? STEP_ARENA_RESET : STEP_ARENA_DESTROY;
    append(c, thread, (struct step){.kind = kind, .slot = instance_idx});
    instance->created = instance->kept;
    instance->open = false;
    instance->ended_elsewhere = false;
}

/* Destroys what other threads ended since this thread's last op. */
static void flush_pending(struct compiler *c, uint32_t thread) {
    for (uint32_t i = 0; i < c->out->ahead.instances && c->pending[thread]; i++) {
        if (c->instances[i].owner != thread || !c->instances[i].ended_elsewhere)
            continue;
        end_instance(c, thread, i);
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
        end_instance(c, op->thread, instance_idx);
    } else if (op->position > c->out->ahead.last[instance->owner]) {
        append(c, op->thread, (struct step){.kind = STEP_THREAD_AWAIT, .slot = instance->owner});
        end_instance(c, op->thread, instance_idx);
    } else {
        instance->ended_elsewhere = true;
        if (++c->pending[instance->owner] > c->pending_most)
            c->pending_most = c->pending[instance->owner];
    }
}

/* Turns a step of libc's into the slab's. */
static void serve_by_slab(struct compiler *c, struct step *step, uint32_t slab) {
    static const uint8_t kinds[] = {[STEP_ALLOC] = STEP_SLAB_ALLOC,
                                    [STEP_CALLOC] = STEP_SLAB_CALLOC,
                                    [STEP_ALIGNED] = STEP_SLAB_ALLOC,
                                    [STEP_FREE] = STEP_SLAB_FREE};
    if (step->kind == STEP_ALIGNED)
        step->untouched = 0;
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
                        .slot = op->op->slot,
                        .size = (uint32_t)op->size_bytes};
    if (op->op->kind == QRP_ALLOC_ALIGNED)
        step.align_log2 = op->op->align_log2;
    else
        step.untouched = (uint8_t)(op->op->flags >> QRP_UNTOUCHED_SHIFT);
    if (instance) {
        struct instance_state *state = &c->instances[instance - 1];
        if (!state->open) {
            if (!state->created)
                append(c, op->thread,
                       (struct step){.kind = STEP_ARENA_CREATE, .slot = instance - 1});
            state->kept = c->plan->kept_of_arena[c->plan->arena_of_site[op->op->site]];
            state->created = state->open = true;
            c->out->arena_generations++;
        }
        state->live++;
        step.kind = arena_kinds[op->op->kind];
        step.old = instance - 1;
    }
    slot->slab = instance ? 0 : (uint16_t)slab_for(c->plan, op);
    if (slot->slab)
        serve_by_slab(c, &step, slot->slab);
    slot->heap = c->plan->class_of_site[op->op->site] == PLAN_HEAP;
    if (slot->heap)
        serve_by_heap(c, &step);
    if (op->size_bytes > UINT32_MAX)
        append(c, op->thread,
               (struct step){.kind = STEP_WIDE, .size = (uint32_t)(op->size_bytes >> 32)});
    append(c, op->thread, step);
    slot->filled = true;
    slot->instance = instance;
    slot->birth_thread = op->thread;
    slot->bytes = op->size_bytes;
    c->live_bytes += op->size_bytes;
}

static const char *resize(struct compiler *c, const struct stream_op *op, struct slot_state *slot) {
    struct step step = {.kind = STEP_REALLOC,
                        .untouched = (uint8_t)(op->op->flags >> QRP_UNTOUCHED_SHIFT),
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
    c->out->frees_elsewhere += op->thread != slot->birth_thread;
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
    const struct outlook *ahead = &c->out->ahead;
    uint32_t before = c->before_thread;
    c->before_thread = op->thread;
    if (before == NOBODY || before == op->thread || c->stream->order_guessed)
        return;
    if (ahead->first[op->thread] == op->position)
        append(c, before, (struct step){.kind = STEP_THREAD_START, .slot = op->thread});
    if (ahead->last[before] < op->position && ahead->lane[before] != ahead->lane[op->thread])
        append(c, op->thread, (struct step){.kind = STEP_THREAD_AWAIT, .slot = before});
}

/* A sample after this op, when the next one is due. */
static void place_sample(struct compiler *c, const struct stream_op *op) {
    struct timeline *timeline = c->opts->timeline;
    uint64_t ops = c->stream->header->ops;
    if (c->samples == timeline->count ||
        op->position * (__uint128_t)timeline->count < ops * (__uint128_t)(c->samples + 1))
        return;
    timeline->samples[c->samples].ops = c->out->ops;
    timeline->samples[c->samples].live_bytes = c->live_bytes;
    append(c, op->thread, (struct step){.kind = STEP_SAMPLE, .slot = c->samples++});
}

/* The op and what it waits for and posts. */
static const char *compile_next(struct compiler *c, const struct stream_op *op) {
    struct slot_state *slot = &c->slots[op->op->slot];
    uint32_t slot_idx = op->op->slot;
    order_threads(c, op);
    flush_pending(c, op->thread);
    if (slot->toucher && slot->toucher != op->thread + 1)
        append(c, op->thread,
               (struct step){.kind = STEP_SLOT_AWAIT, .slot = slot_idx, .size = slot->posts});
    slot->toucher = op->thread + 1;
    const char *wrong = compile_op(c, op);
    if (c->out->ahead.posts[op->position / 8] >> (op->position % 8) & 1)
        append(c, op->thread,
               (struct step){.kind = STEP_SLOT_POST, .slot = slot_idx, .size = ++slot->posts});
    place_sample(c, op);
    return wrong;
}

/* Whether the steps of any op fit still (C3): few, but for two for each instance to destroy. */
static bool has_room(const struct compiler *c) {
    return step_chunks_left(&c->out->pool) > 4 + c->pending_most * 2 / (CHUNK_STEPS / 2);
}

const char *compile_window(struct compiled *out) {
    struct compiler *c = out->compiler;
    uint64_t left = c->opts->window_ops ? c->opts->window_ops : UINT64_MAX;
    const char *wrong = NULL;
    struct stream_op op;
    memset(out->lists, 0, out->threads * sizeof *out->lists);
    out->pool.used = 0;
    out->windows++;
    if (!has_room(c))
        return "ends too many arenas at once to be replayed";
    while (!wrong && left-- > 0 && has_room(c)) {
        out->more = stream_walk_next(&c->walk, &op);
        if (!out->more) {
            c->opts->timeline->count = c->samples;
            break;
        }
        wrong = compile_next(c, &op);
        out->position = op.position;
    }
    for (uint32_t t = 0; t < out->threads; t++)
        step_close(&out->lists[t]);
    return wrong;
}

static void start_walk(struct compiler *c) {
    const struct outlook *ahead = &c->out->ahead;
    size_t slots = c->out->slots;
    c->slots = stream_memory(slots, sizeof *c->slots);
    memset(c->slots, 0, slots * sizeof *c->slots);
    c->instances = stream_memory(ahead->instances, sizeof *c->instances);
    for (uint32_t i = 0; i < ahead->instances; i++)
        c->instances[i].owner = ahead->owner[i];
    c->pending = stream_memory(c->out->threads, sizeof *c->pending);
    stream_walk_begin(&c->walk, c->stream);
}

const char *compile_begin(struct compiled *out, const struct stream *stream,
                          const struct plan *plan, const struct compile_opts *opts) {
    *out = (struct compiled){.threads = stream->header->threads,
                             .slots = (size_t)stream->header->slots,
                             .peak_live_bytes = stream->header->peak_live_bytes,
                             .all_start = stream->order_guessed,
                             .slabs = plan->slabs,
                             .element_bytes = plan->element_bytes};
    const char *wrong = outlook(&out->ahead, stream, plan);
    if (wrong)
        return wrong;
    step_pool_begin(&out->pool, WINDOW_CHUNKS);
    out->lists = stream_memory(out->threads, sizeof *out->lists);
    out->compiler = stream_memory(1, sizeof *out->compiler);
    *out->compiler = (struct compiler){
        .out = out, .stream = stream, .plan = plan, .opts = opts, .before_thread = NOBODY};
    start_walk(out->compiler);
    return compile_window(out);
}
