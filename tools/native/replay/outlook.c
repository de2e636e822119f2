// SPDX-License-Identifier: MIT
/*
 * outlook.c - one walk over the program, before any of it is compiled.
 *
 * Invariants:
 *   O1  threads that share a lane never overlap
 *   O2  a bit of `posts` is set exactly where another thread touches the slot next
 *
 * Memory: a bit an op; 12 bytes a slot while it looks.
 * Locks: none; one thread, before the replay.
 * Not here: what is done with it (compile.c, play.c).
 */
#include "replay/outlook.h"

/* The last touch of each slot so far. */
struct touches {
    uint64_t *position;
    uint32_t *thread; // + 1
};

static void note_touch(struct outlook *out, const struct touches *touches,
                       const struct stream_op *op) {
    uint32_t slot = op->op->slot;
    if (touches->thread[slot] && touches->thread[slot] != op->thread + 1) {
        uint64_t position = touches->position[slot];
        out->posts[position / 8] |= (uint8_t)(1u << (position % 8));
        out->slots_shared = true;
    }
    touches->thread[slot] = op->thread + 1;
    touches->position[slot] = op->position;
}

/* Turns come by themselves: threads in order of their first op. */
static void note_thread(struct outlook *out, const struct stream_op *op) {
    if (!out->first[op->thread]) {
        out->first[op->thread] = op->position;
        out->turn[out->turns++] = op->thread;
    }
    out->last[op->thread] = op->position;
}

static void note_birth(struct outlook *out, const struct plan *plan, const struct stream_op *op,
                       uint32_t threads) {
    int32_t arena = plan->arena_of_site[op->op->site];
    if (arena == PLAN_STAYS) {
        uint32_t slab = slab_for(plan, op);
        if (slab)
            out->slab_objects[slab - 1]++;
        return;
    }
    uint32_t *known = &out->instance_of[(size_t)arena * threads + op->thread];
    if (*known == 0) {
        out->owner[out->instances] = op->thread;
        *known = ++out->instances;
    }
}

/* Gives each thread a lane: the first one whose threads have all ended (O1), else a new one. */
static const char *assign_lanes(struct outlook *out, bool order_guessed) {
    uint64_t busy_until[LANES_MAX];
    for (uint32_t i = 0; i < out->turns; i++) {
        uint32_t thread = out->turn[i], lane = 0;
        // A guessed order tells nothing about overlaps: all side by side, as long as that is few.
        bool may_share = !order_guessed || out->lanes >= LANES_GUESSED_MAX;
        while (lane < out->lanes && !(may_share && busy_until[lane] < out->first[thread]))
            lane++;
        if (lane == LANES_MAX)
            return "has more threads alive at once than can be replayed (512)";
        if (lane == out->lanes)
            out->lanes++;
        busy_until[lane] = out->last[thread];
        out->lane[thread] = lane;
    }
    if (out->lanes == 0)
        out->lanes = 1;
    return NULL;
}

static void walk_all(struct outlook *out, const struct stream *stream, const struct plan *plan) {
    size_t slots = (size_t)stream->header->slots;
    struct touches touches = {.position = stream_memory(slots, sizeof *touches.position),
                              .thread = stream_memory(slots, sizeof *touches.thread)};
    struct stream_walk walk;
    struct stream_op op;
    stream_walk_begin(&walk, stream);
    while (stream_walk_next(&walk, &op)) {
        note_thread(out, &op);
        note_touch(out, &touches, &op);
        if (op.op->kind == QRP_FREE)
            continue;
        if (op.size_bytes > out->largest_bytes)
            out->largest_bytes = op.size_bytes;
        if (op.op->kind != QRP_REALLOC)
            note_birth(out, plan, &op, stream->header->threads);
    }
    stream_walk_end(&walk);
    stream_memory_give(touches.position, slots, sizeof *touches.position);
    stream_memory_give(touches.thread, slots, sizeof *touches.thread);
}

const char *outlook(struct outlook *out, const struct stream *stream, const struct plan *plan) {
    uint32_t threads = stream->header->threads;
    size_t instances = (size_t)threads * plan->arenas;
    *out = (struct outlook){.first = stream_memory(threads, sizeof *out->first),
                            .last = stream_memory(threads, sizeof *out->last),
                            .lane = stream_memory(threads, sizeof *out->lane),
                            .turn = stream_memory(threads, sizeof *out->turn),
                            .posts = stream_memory((size_t)(stream->header->ops / 8 + 1), 1),
                            .instance_of = stream_memory(instances, sizeof *out->instance_of),
                            .owner = stream_memory(instances, sizeof *out->owner),
                            .slab_objects = stream_memory(plan->slabs, sizeof *out->slab_objects)};
    walk_all(out, stream, plan);
    return assign_lanes(out, stream->order_guessed);
}
