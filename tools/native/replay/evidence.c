// SPDX-License-Identifier: MIT
/*
 * evidence.c - the objects that a judgement on "die together" can be checked with.
 *
 *   alive
 *    100 |    ____________
 *        |   /            \              few_since: one in a hundred is left, or one
 *      1 |  /              \_________
 *        +--begin-------------------end-- allocations        first, last: who died first and last
 *
 * Of each subject the worst generations are kept: those that hold most bytes that nobody uses, for
 * longest.
 *
 * Invariants:
 *   W1  a generation is kept only when it holds more than lives in it at its peak, or holds it on
 *       for a few objects
 *   W2  few_since is from the last time that it came true: births put it back
 *
 * Locks: none; one thread.
 * Not here: what is chosen in the end (group.c), what memory that takes (forecast.c).
 */
#include "replay/evidence.h"

#include <string.h>

// Of fewer objects than that none is "the last few".
enum { FEW_PEAK_MIN = 16, FEW_SHARE = 100, LATE_SHARE = 10 };

struct open_generation {
    struct evidence_generation so_far;
    uint64_t live;
    uint64_t live_bytes; // rounded up, as an arena does: rounding is not what dies early
    uint64_t last_slot; // + 1: the object allocated last, which can grow in place
};

struct evidence_slot {
    uint64_t bytes;
    uint64_t born;
    uint32_t site;
    uint32_t thread;
    uint32_t generation; // + 1, index into `open`; 0: of no subject
    bool filled;
};

struct witness {
    struct evidence_all *out;
    struct evidence_slot *slots;
    struct open_generation *open; // by subject * threads + thread
    uint32_t *subject_of_site;    // + 1
    uint32_t threads;
    uint64_t births; // of the whole program
};

/* Bytes that nobody uses, by how long they are held. */
static double waste_of(const struct evidence_generation *generation) {
    uint64_t length = generation->end - generation->begin + 1;
    uint64_t tail = generation->few_since ? generation->end - generation->few_since : 0;
    uint64_t unused_bytes = generation->held_bytes > generation->peak_live_bytes
                                ? generation->held_bytes - generation->peak_live_bytes
                                : 0;
    return (double)unused_bytes * (double)length + (double)generation->held_bytes * (double)tail;
}

static void keep_worst(struct evidence *subject, const struct evidence_generation *generation) {
    uint32_t at = EVIDENCE_SHOWN;
    while (at > 0 && (subject->worst[at - 1].objects == 0 ||
                      waste_of(&subject->worst[at - 1]) < waste_of(generation)))
        at--;
    if (at == EVIDENCE_SHOWN)
        return;
    memmove(&subject->worst[at + 1], &subject->worst[at],
            (EVIDENCE_SHOWN - 1 - at) * sizeof *generation);
    subject->worst[at] = *generation;
}

/* The generation is over, or the program is. */
static void close_generation(struct witness *w, size_t idx, bool ended) {
    struct evidence *subject = &w->out->subjects[idx / w->threads];
    struct evidence_generation *generation = &w->open[idx].so_far;
    generation->end = w->births;
    generation->ended = ended;
    uint64_t length = generation->end - generation->begin + 1;
    if (generation->few_since &&
        (generation->end - generation->few_since) * LATE_SHARE >= length) {
        subject->late_generations++;
        subject->late_objects += generation->few;
    } else {
        generation->few_since = 0;
    }
    if (waste_of(generation) > 0)
        keep_worst(subject, generation);
    w->open[idx].live = 0;
}

static void hold(struct open_generation *open, const struct stream_op *op, uint64_t had_bytes) {
    uint64_t added_bytes = slot_bytes(op->size_bytes);
    bool in_place = open->last_slot == (uint64_t)op->op->slot + 1;
    if (added_bytes <= had_bytes)
        return;
    open->so_far.held_bytes += added_bytes - (in_place ? had_bytes : 0);
    open->last_slot = (uint64_t)op->op->slot + 1;
}

static void birth(struct witness *w, const struct stream_op *op, struct evidence_slot *slot) {
    uint32_t subject = w->subject_of_site[op->op->site];
    *slot = (struct evidence_slot){.bytes = op->size_bytes,
                                   .born = ++w->births,
                                   .site = op->op->site,
                                   .thread = op->thread,
                                   .filled = true};
    if (!subject)
        return;
    size_t idx = (size_t)(subject - 1) * w->threads + op->thread;
    struct open_generation *open = &w->open[idx];
    struct evidence_generation *so_far = &open->so_far;
    struct evidence *known = &w->out->subjects[subject - 1];
    slot->generation = (uint32_t)idx + 1;
    if (open->live++ == 0)
        *open = (struct open_generation){.live = 1,
                                         .so_far = {.number = ++known->generations,
                                                    .begin = w->births,
                                                    .thread = op->thread}};
    so_far->objects++;
    known->objects++;
    open->live_bytes += slot_bytes(op->size_bytes);
    raise_to(&so_far->peak_live, open->live);
    raise_to(&so_far->peak_live_bytes, open->live_bytes);
    if (open->live * FEW_SHARE > so_far->peak_live && open->live > 1)
        so_far->few_since = 0;
    hold(open, op, 0);
}

static void resize(struct witness *w, const struct stream_op *op, struct evidence_slot *slot) {
    if (slot->generation) {
        struct open_generation *open = &w->open[slot->generation - 1];
        open->live_bytes += slot_bytes(op->size_bytes) - slot_bytes(slot->bytes);
        raise_to(&open->so_far.peak_live_bytes, open->live_bytes);
        hold(open, op, slot_bytes(slot->bytes));
    }
    slot->bytes = op->size_bytes;
}

static void death(struct witness *w, const struct stream_op *op, struct evidence_slot *slot) {
    slot->filled = false;
    if (!slot->generation)
        return;
    struct open_generation *open = &w->open[slot->generation - 1];
    struct evidence_generation *so_far = &open->so_far;
    struct evidence_object gone = {.bytes = slot->bytes,
                                   .born = slot->born,
                                   .died = w->births,
                                   .site = slot->site,
                                   .thread = slot->thread,
                                   .killer = op->thread};
    if (so_far->deaths == 0)
        so_far->first = gone;
    so_far->last[so_far->deaths++ % EVIDENCE_SHOWN] = gone;
    open->live_bytes -= slot_bytes(slot->bytes);
    open->live--;
    bool few = open->live <= 1 || open->live * FEW_SHARE <= so_far->peak_live;
    if (few && so_far->few_since == 0 && open->live > 0 && so_far->peak_live >= FEW_PEAK_MIN) {
        so_far->few_since = w->births;
        so_far->few = open->live;
    }
    if (open->live == 0)
        close_generation(w, slot->generation - 1, true);
}

static void hear(struct witness *w, const struct stream *stream) {
    struct stream_walk walk;
    struct stream_op op;
    stream_walk_begin(&walk, stream);
    while (stream_walk_next(&walk, &op)) {
        struct evidence_slot *slot = &w->slots[op.op->slot];
        bool needs_object = op.op->kind == QRP_FREE || op.op->kind == QRP_REALLOC;
        if (slot->filled != needs_object)
            continue;
        if (op.op->kind == QRP_FREE)
            death(w, &op, slot);
        else if (op.op->kind == QRP_REALLOC)
            resize(w, &op, slot);
        else
            birth(w, &op, slot);
    }
    stream_walk_end(&walk);
    for (size_t idx = 0; idx < (size_t)w->out->count * w->threads; idx++)
        if (w->open[idx].live > 0)
            close_generation(w, idx, false);
}

/* The busiest of the sites that were judged and got no arena, as subjects. */
static void choose_sites(struct witness *w, const struct plan *plan, const struct facts *facts) {
    struct evidence_all *out = w->out;
    while (out->count < out->arenas + EVIDENCE_SITES_MAX) {
        const struct site_facts *best = NULL;
        for (uint32_t s = 0; s < facts->sites_count; s++) {
            const struct site_facts *site = &facts->sites[s];
            if (site->candidate && plan->arena_of_site[s] == PLAN_STAYS &&
                !w->subject_of_site[s] && (!best || site->allocs > best->allocs))
                best = site;
        }
        if (!best)
            break;
        uint32_t site = (uint32_t)(best - facts->sites);
        out->subjects[out->count].site = site;
        w->subject_of_site[site] = ++out->count;
    }
}

void evidence_gather(struct evidence_all *out, const struct stream *stream,
                     const struct plan *plan, const struct facts *facts) {
    uint32_t subjects_max = plan->arenas + EVIDENCE_SITES_MAX;
    size_t open_max = (size_t)subjects_max * stream->header->threads;
    size_t slots = (size_t)stream->header->slots;
    struct witness w = {.out = out, .threads = stream->header->threads};
    *out = (struct evidence_all){.arenas = plan->arenas, .count = plan->arenas};
    out->subjects = stream_memory(subjects_max, sizeof *out->subjects);
    w.slots = stream_memory(slots, sizeof *w.slots);
    w.open = stream_memory(open_max, sizeof *w.open);
    w.subject_of_site = stream_memory(facts->sites_count, sizeof *w.subject_of_site);
    for (uint32_t s = 0; s < facts->sites_count; s++)
        if (plan->arena_of_site[s] != PLAN_STAYS)
            w.subject_of_site[s] = (uint32_t)plan->arena_of_site[s] + 1;
    choose_sites(&w, plan, facts);
    hear(&w, stream);
    stream_memory_give(w.slots, slots, sizeof *w.slots);
    stream_memory_give(w.open, open_max, sizeof *w.open);
    stream_memory_give(w.subject_of_site, facts->sites_count, sizeof *w.subject_of_site);
}
