// SPDX-License-Identifier: MIT
/*
 * percpu_aligned.c - where most holes are of no use: the workload `aligned`.
 *
 *   words   #.#.#.#.#.#.#.    4-byte objects at multiples of 8: every second word stays free, and no other such object fits there
 *   holes   #.#.#.#.##..##    500,000 one-word holes among 4-byte objects, then 8-byte objects, at multiples of 4 and of 8
 *
 * In 2014 a million of the first kind took the kernel's area map 52 minutes.  Here it stops after --limit-ms and says how far it came, and what the
 * rest would take: the n-th allocation reads all n before it, so the whole grows with the square.
 */
#include "percpu_driver.h"

enum { OBJECTS = 1000000, LIMIT_MS = 2000, LOOK_EVERY = 256, WORD_BYTES = 4 };

static const struct question {
    const char *name;
    size_t object_bytes, align_bytes;
    bool holes;
    int plain; /* the question that asks the same at multiples of 4 */
} questions[] = {{"words", 4, 4, false, 0}, {"words", 4, 8, false, 0}, {"holes", 8, 4, true, 2}, {"holes", 8, 8, true, 2}};
enum { QUESTIONS = sizeof questions / sizeof questions[0] };

struct answers {
    double alloc_ms[ROUNDS_MAX], projected_ms[ROUNDS_MAX];
    size_t done;
};
static struct answers answers[KINDS][QUESTIONS];

struct work {
    const struct question *question;
    const struct percpu_place *place;
    uintptr_t *bits;
    size_t count, limit_ms;
};

/* Returns how many there are, fewer than wanted when the time is up. */
ALWAYS_INLINE size_t allocate(enum percpu_kind kind, const struct work *work)
{
    size_t done = 0;
    uint64_t end_ns = bench_thread_ns() + work->limit_ms * 1000000;
    for (; done < work->count; done++) {
        if (kind == KIND_AREA_MAP && done % LOOK_EVERY == 0 && bench_thread_ns() > end_ns)
            break;
        work->bits[done] = percpu_take(kind, work->place, work->question->object_bytes, work->question->align_bytes);
    }
    return done;
}

/* Words of which every second is free again; returns how many live: their bits stand in `bits`. */
static size_t holes_make(const struct percpu_place *place, size_t count, uintptr_t *bits)
{
    bool pool = place->kind == KIND_PERCPU;
    for (size_t i = 0; i < count; i++)
        bits[i] = pool ? percpu_take(KIND_PERCPU, place, WORD_BYTES, WORD_BYTES) : percpu_take(KIND_AREA_MAP, place, WORD_BYTES, WORD_BYTES);
    for (size_t i = 1; i < count; i += 2) {
        if (pool)
            percpu_give(KIND_PERCPU, place, bits[i]);
        else
            percpu_give(KIND_AREA_MAP, place, bits[i]);
    }
    for (size_t i = 0; 2 * i < count; i++)
        bits[i] = bits[2 * i];
    return (count + 1) / 2;
}

static void ask(const struct percpu_config *config, enum percpu_kind kind, size_t idx, size_t round)
{
    const struct question *q = &questions[idx];
    struct answers *answer = &answers[kind][idx];
    size_t count = config->count ? config->count : OBJECTS;
    uintptr_t *memory = bench_scratch(2 * count, sizeof *memory);
    struct percpu_place place = percpu_place_open(config, kind, 2 * q->align_bytes, 2 * count);
    struct work work = {q, &place, memory + count, count, config->limit_ms ? config->limit_ms : LIMIT_MS};
    size_t before = q->holes ? holes_make(&place, count, memory) : 0;
    uint64_t began = bench_thread_ns();
    answer->done = kind == KIND_PERCPU ? allocate(KIND_PERCPU, &work) : allocate(KIND_AREA_MAP, &work);
    double ms = (double)(bench_thread_ns() - began) / 1e6, rest = (double)count / (double)answer->done;
    answer->alloc_ms[round] = ms;
    answer->projected_ms[round] = ms * rest * rest;
    percpu_place_close(&place, before + answer->done);
    bench_scratch_free(memory, 2 * count, sizeof *memory);
}

static void row(const struct percpu_config *config, enum percpu_kind kind, size_t idx, const double *medians)
{
    const struct question *q = &questions[idx];
    percpu_row_open(config, kind);
    bench_row_text("where", q->name);
    bench_row_count("object_bytes", q->object_bytes);
    bench_row_count("align_bytes", q->align_bytes);
    bench_row_count("count", config->count ? config->count : OBJECTS);
    bench_row_number("alloc_ms", medians[idx]);
    bench_row_number("over_plain", medians[idx] / medians[q->plain]); /* the plain one comes first */
}

static bool asked(const struct percpu_config *config, enum percpu_kind kind, size_t idx)
{
    return config->kinds & KIND_BIT(kind) && (!config->object_bytes || config->object_bytes == questions[idx].object_bytes);
}

void percpu_aligned(const struct percpu_config *config)
{
    if (config->object_bytes && config->object_bytes != questions[0].object_bytes && config->object_bytes != questions[QUESTIONS - 1].object_bytes)
        bench_usage("this workload has objects of 4 and of 8 bytes", "--object 4");
    for (size_t round = 0; round < config->rounds; round++)
        for (size_t idx = 0; idx < QUESTIONS; idx++)
            for (enum percpu_kind kind = 0; kind < KINDS; kind++)
                if (asked(config, kind, idx) && (kind == KIND_PERCPU || round == 0)) /* the area map is slow: it is asked once */
                    ask(config, kind, idx, round);
    for (enum percpu_kind kind = 0; kind < KINDS; kind++) {
        double medians[QUESTIONS];
        size_t rounds = kind == KIND_PERCPU ? config->rounds : 1;
        for (size_t idx = 0; idx < QUESTIONS; idx++) {
            if (!asked(config, kind, idx))
                continue;
            medians[idx] = bench_median(answers[kind][idx].alloc_ms, rounds);
            row(config, kind, idx, medians);
            bench_row_count("measured", answers[kind][idx].done);
            bench_row_number("projected_ms", bench_median(answers[kind][idx].projected_ms, rounds));
            bench_row_close();
        }
    }
}
