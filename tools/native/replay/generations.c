// SPDX-License-Identifier: MIT
/*
 * generations.c - three walks over the recorded program: facts of all sites, generations of the
 * busy ones, and the forecast of a plan.
 *
 *   walk 1: counts, sizes, peaks  ->  candidates (the sites that matter)  ->  walk 2: their spans
 *
 * A site with very many generations keeps at most SPANS_MAX spans a thread.  When one is full, all
 * sites are thinned: half of all windows of ops are given up, and generations that touch none
 * of the others are no longer kept.  So what is kept of two sites can be compared one by one.
 *
 *   windows     |  kept  |        |        |  kept  |           those given up are scattered: a
 *   site 4      [--] [--]   .  .     .    .   [--] [-]          program that repeats itself every
 *   site 5       [-]  [-]   .  .     .    .    [-]  []          4,096 ops is seen at all its points
 *   site 6      [-------------------------------------]   long ones touch a kept window, all of them
 *
 * Invariants:
 *   N1  spans of one site and thread do not overlap and are in order
 *   N2  the bytes of a site's spans, and those skipped, add up to what its arenas would have taken
 *   N3  a generation is kept if it touches a kept window; also the first one of each site and thread
 *
 * Locks: none; one thread.
 * Not here: time; the replay measures that.
 */
#include "replay/generations.h"

#include <string.h>

enum { SPANS_MAX = 1 << 15, SPANS_MIN = 1 << 9, CANDIDATES_MAX = 160, CANDIDATE_ALLOCS_MIN = 64 };

// Spans of all sites and threads together: 192 MB, as long as SPANS_MIN for each is not more.
enum { SPANS_ALL = 6 << 20 };

/* One thread's open generation of one site. */
struct open_spans {
    struct spans *spans;
    uint64_t live;
    uint64_t last_slot; // + 1: the object allocated last, which can grow in place
};

struct slot_owner {
    uint64_t bytes;
    uint32_t owner; // thread
    bool filled;
};

struct gatherer {
    const struct stream *stream;
    struct facts *facts;
    struct slot_owner *slots;
    struct open_spans *open; // by candidate number * threads + thread
    uint32_t *candidate_idx; // by site: + 1
    uint64_t *clock;         // by thread: its ops so far
    size_t open_count;
    size_t spans_max; // of one site and thread
    uint16_t window_log2;
    uint16_t thinned_log2;
};

static size_t slots_count(const struct stream *stream) {
    return (size_t)stream->header->slots;
}

/* An object of the site has that size now: at birth, or resized. */
static void count_size(struct site_facts *site, uint64_t bytes) {
    site->bytes += bytes;
    site->slot_bytes += slot_bytes(bytes);
    site->live_bytes += bytes;
    site->live_slot_bytes += slot_bytes(bytes);
    raise_to(&site->peak_live_bytes, site->live_bytes);
    raise_to(&site->peak_slot_bytes, site->live_slot_bytes);
    raise_to(&site->largest_bytes, bytes);
}

/* Walk 1, one op. */
static void count_op(struct gatherer *g, const struct stream_op *op, uint64_t *live_bytes) {
    struct slot_owner *slot = &g->slots[op->op->slot];
    struct site_facts *site = &g->facts->sites[op->op->site];
    bool needs_object = op->op->kind == QRP_FREE || op->op->kind == QRP_REALLOC;
    if (slot->filled != needs_object)
        return;
    if (needs_object) {
        site->live_bytes -= slot->bytes;
        site->live_slot_bytes -= slot_bytes(slot->bytes);
        *live_bytes -= slot->bytes;
    }
    if (op->op->kind == QRP_FREE) {
        site->frees++;
        site->frees_elsewhere += slot->owner != op->thread;
        site->live--;
        slot->filled = false;
        return;
    }
    if (op->op->kind == QRP_REALLOC) {
        site->resizes++;
        site->resized_elsewhere |= slot->owner != op->thread;
    } else {
        *slot = (struct slot_owner){.owner = op->thread, .filled = true};
        site->allocs++;
        site->live++;
        site->over_aligned |= op->op->align_log2 > SLOT_ALIGN_LOG2;
    }
    slot->bytes = op->size_bytes;
    count_size(site, op->size_bytes);
    *live_bytes += op->size_bytes;
    raise_to(&site->peak_live, site->live);
    raise_to(&g->facts->peak_live_bytes, *live_bytes);
}

static void count_all(struct gatherer *g) {
    struct stream_walk walk;
    struct stream_op op;
    uint64_t live_bytes = 0;
    stream_walk_begin(&walk, g->stream);
    while (stream_walk_next(&walk, &op))
        count_op(g, &op, &live_bytes);
    stream_walk_end(&walk);
    for (uint32_t s = 0; s < g->facts->sites_count; s++) {
        g->facts->allocs += g->facts->sites[s].allocs;
        g->facts->frees += g->facts->sites[s].frees;
        g->facts->resizes += g->facts->sites[s].resizes;
    }
}

/* Marks the busiest sites; how many. */
static uint32_t choose_candidates(struct gatherer *g) {
    uint32_t count = 0;
    while (count < CANDIDATES_MAX) {
        struct site_facts *best = NULL;
        for (uint32_t s = 0; s < g->facts->sites_count; s++) {
            struct site_facts *site = &g->facts->sites[s];
            if (!site->candidate && (!best || site->allocs > best->allocs))
                best = site;
        }
        if (!best || best->allocs < CANDIDATE_ALLOCS_MIN)
            break;
        best->candidate = true;
        best->spans = stream_memory(g->stream->header->threads, sizeof *best->spans);
        g->candidate_idx[best - g->facts->sites] = ++count;
    }
    return count;
}

static size_t spans_max_of(size_t open_count) {
    size_t share = open_count ? SPANS_ALL / open_count : SPANS_MAX;
    return share > SPANS_MAX ? SPANS_MAX : share < SPANS_MIN ? SPANS_MIN : share;
}

/*
 * As large as can be, since what crosses a window's edge may be kept of one site and not of another.
 * A generation takes two ops or more, so two windows' fit, and window 0 is always kept.
 */
static uint16_t window_log2_of(size_t spans_max) {
    return (uint16_t)(62 - __builtin_clzll((unsigned long long)spans_max));
}

/* Scattered, and those of a higher level are among those of each lower one. */
static bool window_is_kept(uint64_t window, uint32_t thinned_log2) {
    return thinned_log2 == 0 || window * 0x9E3779B97F4A7C15ull >> (64 - thinned_log2) == 0;
}

static bool is_kept(const struct gatherer *g, const struct span *span) {
    uint64_t window = span->start >> g->window_log2, last = span->end >> g->window_log2;
    if ((last - window) >> g->thinned_log2 >= 64)
        return true; // surely one of so many
    for (; window <= last; window++)
        if (window_is_kept(window, g->thinned_log2))
            return true;
    return false;
}

/* Spans that are not kept at this level leave their bytes with the one before them. */
static void thin(const struct gatherer *g, struct spans *spans) {
    size_t kept = spans->count > 0;
    for (size_t i = 1; i < spans->count; i++) {
        if (is_kept(g, &spans->at[i]))
            spans->at[kept++] = spans->at[i];
        else
            spans->at[kept - 1].skipped_bytes += spans->at[i].bytes + spans->at[i].skipped_bytes;
    }
    spans->count = kept;
}

static void thin_all(struct gatherer *g) {
    g->thinned_log2++;
    for (size_t i = 0; i < g->open_count; i++)
        if (g->open[i].spans)
            thin(g, g->open[i].spans);
}

/* A birth where nothing lived. */
static void begin_generation(struct gatherer *g, struct spans *spans, uint64_t now) {
    if (!spans->at)
        spans->at = stream_memory(g->spans_max, sizeof *spans->at);
    while (spans->count == g->spans_max)
        thin_all(g);
    spans->at[spans->count++] = (struct span){.start = now, .end = UINT64_MAX};
}

static void end_generation(struct gatherer *g, struct spans *spans, uint64_t now) {
    struct span *span = &spans->at[spans->count - 1];
    span->end = now;
    spans->length += now - span->start;
    if (spans->count == 1 || is_kept(g, span))
        return;
    span[-1].skipped_bytes += span->bytes;
    spans->count--;
}

/* Walk 2, one op of a candidate. */
static void span_op(struct gatherer *g, const struct stream_op *op, uint32_t candidate_idx) {
    uint32_t threads = g->stream->header->threads;
    struct slot_owner *slot = &g->slots[op->op->slot];
    struct site_facts *site = &g->facts->sites[op->op->site];
    bool needs_object = op->op->kind == QRP_FREE || op->op->kind == QRP_REALLOC;
    if (slot->filled != needs_object)
        return;
    uint32_t owner = needs_object ? slot->owner : op->thread;
    struct open_spans *open = &g->open[(size_t)candidate_idx * threads + owner];
    if (op->op->kind == QRP_FREE) {
        slot->filled = false;
        if (--open->live == 0)
            end_generation(g, open->spans, g->clock[owner]);
        return;
    }
    uint64_t added_bytes = slot_bytes(op->size_bytes);
    if (op->op->kind == QRP_REALLOC) {
        uint64_t had_bytes = slot_bytes(slot->bytes);
        if (added_bytes <= had_bytes)
            added_bytes = 0;
        else if (open->last_slot == (uint64_t)op->op->slot + 1)
            added_bytes -= had_bytes;
    } else {
        if (!open->spans) {
            open->spans = &site->spans[site->threads++];
            open->spans->thread = op->thread;
        }
        *slot = (struct slot_owner){.owner = op->thread, .filled = true};
        if (open->live++ == 0) {
            begin_generation(g, open->spans, g->clock[owner]);
            site->generations++;
        }
    }
    if (added_bytes > 0)
        open->last_slot = (uint64_t)op->op->slot + 1;
    slot->bytes = op->size_bytes;
    struct span *span = &open->spans->at[open->spans->count - 1];
    span->bytes += added_bytes;
    raise_to(&open->spans->heaviest_bytes, span->bytes);
}

static void span_all(struct gatherer *g) {
    struct stream_walk walk;
    struct stream_op op;
    stream_walk_begin(&walk, g->stream);
    while (stream_walk_next(&walk, &op)) {
        uint32_t idx = g->candidate_idx[op.op->site];
        g->clock[op.thread]++;
        if (idx)
            span_op(g, &op, idx - 1);
    }
    stream_walk_end(&walk);
    for (size_t i = 0; i < g->open_count; i++) {
        struct spans *spans = g->open[i].spans;
        if (!spans)
            continue;
        spans->window_log2 = g->window_log2;
        spans->thinned_log2 = g->thinned_log2;
        spans->until = g->clock[spans->thread];
        if (g->open[i].live > 0)
            spans->length += spans->until - spans->at[spans->count - 1].start;
    }
}

void facts_gather(struct facts *facts, const struct stream *stream) {
    uint32_t sites = stream->header->sites, threads = stream->header->threads;
    *facts = (struct facts){.sites_count = sites};
    facts->sites = stream_memory(sites, sizeof *facts->sites);
    struct gatherer g = {.stream = stream, .facts = facts};
    g.slots = stream_memory(slots_count(stream), sizeof *g.slots);
    g.candidate_idx = stream_memory(sites, sizeof *g.candidate_idx);
    g.clock = stream_memory(threads, sizeof *g.clock);
    count_all(&g);
    uint32_t candidates = choose_candidates(&g);
    g.open_count = (size_t)candidates * threads;
    g.spans_max = spans_max_of(g.open_count);
    g.window_log2 = window_log2_of(g.spans_max);
    g.open = stream_memory(g.open_count, sizeof *g.open);
    memset(g.slots, 0, slots_count(stream) * sizeof *g.slots);
    span_all(&g);
    stream_memory_give(g.open, g.open_count, sizeof *g.open);
    stream_memory_give(g.slots, slots_count(stream), sizeof *g.slots);
    stream_memory_give(g.candidate_idx, sites, sizeof *g.candidate_idx);
    stream_memory_give(g.clock, threads, sizeof *g.clock);
}
