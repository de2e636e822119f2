// SPDX-License-Identifier: MIT
/*
 * group_phases.c - unions of spans.
 *
 *   a        [----]                 [----]        kept generations of a
 *   b          [---] . . .  . .  .    [--]        kept generations of b, and bytes of those skipped, evenly spread
 *   as one   [-----] . . .  . .  .  [----]
 *
 * Skipped bytes that lie within a generation of the union count as held by it.
 *
 * Locks: none; one thread.
 * Not here: judging (group.c).
 */
#include "replay/group_phases.h"

enum { TOLERATED_SHARE = 20, PROBES = 32 };

/* One of two lists on its way through a union. */
struct side {
    const struct spans *spans;
    size_t next; // index of its next span
};

/* What was skipped after span `idx`, and lies between two positions. */
static uint64_t gap_bytes(const struct spans *spans, size_t idx, uint64_t from, uint64_t to) {
    const struct span *span = &spans->at[idx];
    uint64_t end = idx + 1 < spans->count ? spans->at[idx + 1].start : spans->until;
    if (span->skipped_bytes == 0 || end <= span->end)
        return 0;
    from = from > span->end ? from : span->end;
    to = to < end ? to : end;
    if (to <= from)
        return 0;
    double share = (double)(to - from) / (double)(end - span->end);
    return (uint64_t)(share * (double)span->skipped_bytes);
}

static uint64_t gap_after_last(const struct side *side, uint64_t from, uint64_t to) {
    return side->next ? gap_bytes(side->spans, side->next - 1, from, to) : 0;
}

/* How many generations a kept one stands for: short ones met a kept window by chance. */
static double weight_of(const struct span *span, const struct spans *of) {
    double windows = (double)((span->end - span->start) >> of->window_log2) + 1;
    double share = windows / (double)(1ull << of->thinned_log2);
    return share >= 1 ? 1 : 1 / share;
}

/* A union on its way. */
struct uniting {
    struct side sides[2];
    struct spans *out; // `at` may be NULL: only counted
    struct span now;
    double generations;
};

/* The span at hand is complete. */
static void close_span(struct uniting *u) {
    struct span *now = &u->now;
    for (int i = 0; i < 2; i++)
        now->bytes += gap_after_last(&u->sides[i], now->start, now->end);
    if (now->bytes > u->out->heaviest_bytes)
        u->out->heaviest_bytes = now->bytes;
    u->generations += weight_of(now, u->out);
}

/* Puts it away, with what was skipped from its end to the next one's start. */
static void store_span(struct uniting *u, uint64_t next_start) {
    struct span *now = &u->now;
    for (int i = 0; i < 2; i++)
        now->skipped_bytes += gap_after_last(&u->sides[i], now->end, next_start);
    if (u->out->at)
        u->out->at[u->out->count] = *now;
    u->out->count++;
}

static void take_span(struct uniting *u, struct side *side, bool any) {
    const struct span *next = &side->spans->at[side->next];
    if (any && next->start <= u->now.end) {
        if (side->next)
            u->now.bytes += gap_bytes(side->spans, side->next - 1, u->now.start, next->start);
        u->now.end = next->end > u->now.end ? next->end : u->now.end;
        u->now.bytes += next->bytes;
    } else {
        if (any) {
            close_span(u);
            store_span(u, next->start);
        }
        u->now = (struct span){.start = next->start, .end = next->end, .bytes = next->bytes};
    }
    side->next++;
}

/* The union of two lists; spans that touch become one.  How many generations it stands for. */
static double unite(const struct spans *a, const struct spans *b, struct spans *out) {
    struct uniting u = {.sides = {{.spans = a}, {.spans = b}}, .out = out};
    bool any = false;
    for (;;) {
        struct side *left = &u.sides[0], *right = &u.sides[1];
        bool more_left = left->next < a->count, more_right = right->next < b->count;
        if (!more_left && !more_right)
            break;
        bool from_left =
            !more_right || (more_left && a->at[left->next].start <= b->at[right->next].start);
        take_span(&u, from_left ? left : right, any);
        any = true;
    }
    if (any) {
        close_span(&u);
        store_span(&u, out->until);
    }
    return u.generations;
}

static const struct spans *spans_of(const struct phases *phases, uint32_t thread) {
    static const struct spans none = {0};
    for (size_t i = 0; i < phases->spans_count; i++)
        if (phases->spans[i].thread == thread)
            return &phases->spans[i];
    return &none;
}

static uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

struct phases phases_merge(const struct phases *a, const struct phases *b, bool keep) {
    struct phases merged = {.objects = a->objects + b->objects, .owned = keep};
    double generations = 0;
    if (keep)
        merged.spans = stream_memory(a->spans_count + b->spans_count, sizeof *merged.spans);
    for (size_t i = 0; i < a->spans_count + b->spans_count; i++) {
        bool from_a = i < a->spans_count;
        const struct spans *one = from_a ? &a->spans[i] : &b->spans[i - a->spans_count];
        const struct spans *other = from_a ? spans_of(b, one->thread) : spans_of(a, one->thread);
        if (!from_a && other->count > 0)
            continue; // met already, from a's side
        struct spans out = {.thread = one->thread,
                            .window_log2 = one->window_log2,
                            .thinned_log2 = one->thinned_log2,
                            .until = one->until,
                            .heaviest_bytes = max_u64(one->heaviest_bytes, other->heaviest_bytes),
                            .length = max_u64(one->length, other->length)};
        out.at = keep ? stream_memory(one->count + other->count, sizeof *out.at) : NULL;
        generations += unite(one, other, &out);
        merged.held_bytes += out.heaviest_bytes;
        merged.kept += out.count;
        if (keep)
            merged.spans[merged.spans_count++] = out;
    }
    merged.generations = (uint64_t)(generations + 0.5);
    return merged;
}

struct phases phases_of_site(const struct site_facts *site) {
    static const struct phases nothing = {0};
    struct phases own = {.spans = site->spans, .spans_count = site->threads};
    struct phases measured = phases_merge(&own, &nothing, false);
    own.held_bytes = measured.held_bytes;
    own.generations = measured.generations;
    own.kept = measured.kept;
    own.objects = site->allocs;
    return own;
}

void phases_give(struct phases *phases) {
    for (size_t i = 0; phases->owned && i < phases->spans_count; i++)
        stream_memory_give(phases->spans[i].at, phases->spans[i].count, sizeof(struct span));
}

/* Does anything of `spans` live while `span` does? */
static bool meets(const struct spans *spans, const struct span *span) {
    size_t low = 0, high = spans->count;
    while (low < high) { // the first that ends no sooner than the span starts
        size_t middle = low + (high - low) / 2;
        if (spans->at[middle].end < span->start)
            low = middle + 1;
        else
            high = middle;
    }
    return low < spans->count && spans->at[low].start <= span->end;
}

/* A quick look at a few spans of the thread that has most: false where a union would be for nothing. */
static bool may_keep_time(const struct phases *fewer, const struct phases *more) {
    const struct spans *probed = &fewer->spans[0];
    for (size_t i = 1; i < fewer->spans_count; i++)
        if (fewer->spans[i].count > probed->count)
            probed = &fewer->spans[i];
    const struct spans *other = spans_of(more, probed->thread);
    size_t probes = probed->count < PROBES ? probed->count : PROBES, met = 0;
    for (size_t i = 0; i < probes; i++)
        met += meets(other, &probed->at[i * probed->count / probes]);
    return met + probes / 4 >= probes;
}

bool phases_keep_time(const struct phases *a, const struct phases *b) {
    const struct phases *more = a->kept >= b->kept ? a : b, *fewer = more == a ? b : a;
    if (fewer->spans_count == 0 || !may_keep_time(fewer, more))
        return false;
    struct phases merged = phases_merge(more, fewer, false);
    uint64_t tolerated = fewer->kept / TOLERATED_SHARE;
    return merged.kept <= more->kept + tolerated && more->kept <= merged.kept + tolerated;
}
