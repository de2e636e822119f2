// SPDX-License-Identifier: MIT
/*
 * percpu_objects.c - a million objects at once, freed in every order: the workload `objects`, the table of both kernel allocators.
 *
 *   allocated   0 1 2 3 4 5 6 7
 *   freed       0 1 2 3 4 5 6 7    in order          7 6 5 4 3 2 1 0    in reverse
 *               0 2 4 6 1 3 5 7    alternating       5 0 3 7 2 6 4 1    at random
 *
 * Each pass has a pool of its own; making and destroying it, and the order of freeing, are not counted.  The first passes are not counted either:
 * in them each object is looked at (zero at first, for those who promise it) and marked, and must still hold its mark when it is freed.
 * With --written N objects are filled on CPUs 0 .. N-1 before they are freed: freeing then has to clear them.
 *
 * The area map takes fewer objects (--area-count): a chunk's costs do not depend on how many other chunks are full, so its time is scaled up.
 */
#include <string.h>

#include "percpu_driver.h"

enum { OBJECTS = 1000000, AREA_OBJECTS = 100000 };
enum order { IN_ORDER, ALTERNATING, REVERSE, RANDOM, ORDERS };
static const char *const order_keys[ORDERS] = {"free_in_order_ms", "free_alternating_ms", "free_reverse_ms", "free_random_ms"};

struct pass {
    const struct percpu_config *config;
    struct percpu_place *place;
    size_t object_bytes, count;
    enum order order;
    bool marked;
    uintptr_t *bits, *sequence;
    uint64_t alloc_ns, free_ns;
};

/* Milliseconds for the wanted number of objects. */
struct figures {
    double alloc_ms[ORDERS * ROUNDS_MAX], free_ms[ORDERS][ROUNDS_MAX];
    double alloc, free[ORDERS], free_worst;
};

ALWAYS_INLINE void allocate(enum percpu_kind kind, struct pass *pass)
{
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < pass->count; i++)
        pass->bits[i] = percpu_take(kind, pass->place, pass->object_bytes, percpu_align_bytes(pass->object_bytes));
    pass->alloc_ns = bench_thread_ns() - began;
}

ALWAYS_INLINE void release(enum percpu_kind kind, struct pass *pass)
{
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < pass->count; i++)
        percpu_give(kind, pass->place, pass->sequence[i]);
    pass->free_ns = bench_thread_ns() - began;
}

static void sequence_fill(struct pass *pass)
{
    size_t count = pass->count, half = (count + 1) / 2;
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < count; i++) {
        size_t from = i;
        if (pass->order == ALTERNATING)
            from = i < half ? 2 * i : 2 * (i - half) + 1;
        if (pass->order == REVERSE)
            from = count - 1 - i;
        pass->sequence[i] = pass->bits[from];
    }
    if (pass->order == RANDOM)
        percpu_shuffle(pass->sequence, count, &state);
}

/* The first and the last word of each object. */
static void marks(const struct pass *pass, bool set)
{
    size_t last = pass->object_bytes / sizeof(uint32_t) - 1;
    bool zero = pass->place->kind != KIND_MALLOC;
    for (size_t i = 0; i < pass->count; i++) {
        uint32_t *words = (void *)percpu_first_copy(pass->place, pass->bits[i]), mark = (uint32_t)i + 1;
        if (set && zero && (words[0] | words[last]) != 0)
            bench_die("an object is not zero when it is handed out");
        if (set)
            words[0] = words[last] = mark;
        else if (words[0] != mark || words[last] != mark)
            bench_die("an object does not hold what was written into it");
    }
}

static void fill_copies(const struct pass *pass)
{
    const struct percpu_place *place = pass->place;
    for (size_t i = 0; i < pass->count; i++)
        for (unsigned cpu = 0; cpu < pass->config->written && (cpu == 0 || place->pool); cpu++) {
            char *copy = place->pool ? quire_percpu_at(place->pool, (struct quire_percpu_ref){pass->bits[i]}, cpu)
                                     : percpu_first_copy(place, pass->bits[i]);
            if (!copy)
                bench_usage("more CPUs to write on than there are copies", "--written 2 --cpus 2");
            memset(copy, 0x5a, pass->object_bytes);
        }
}

static void pass_run(struct pass *pass, enum percpu_kind kind)
{
    struct percpu_place place = percpu_place_open(pass->config, kind, pass->object_bytes, pass->count);
    pass->place = &place;
    if (kind == KIND_PERCPU)
        allocate(KIND_PERCPU, pass);
    else if (kind == KIND_MALLOC)
        allocate(KIND_MALLOC, pass);
    else
        allocate(KIND_AREA_MAP, pass);
    if (pass->marked)
        marks(pass, true);
    fill_copies(pass);
    if (pass->marked)
        percpu_place_sound(&place, kind == KIND_MALLOC ? 0 : pass->count);
    if (pass->marked && !pass->config->written)
        marks(pass, false);
    sequence_fill(pass);
    if (kind == KIND_PERCPU)
        release(KIND_PERCPU, pass);
    else if (kind == KIND_MALLOC)
        release(KIND_MALLOC, pass);
    else
        release(KIND_AREA_MAP, pass);
    percpu_place_close(&place, 0);
}

static size_t count_of(const struct percpu_config *config, enum percpu_kind kind)
{
    size_t count = config->count ? config->count : OBJECTS, most = config->area_count ? config->area_count : AREA_OBJECTS;
    return kind == KIND_AREA_MAP && count > most ? most : count;
}

static void summarize(struct figures *figures, size_t rounds)
{
    figures->alloc = bench_median(figures->alloc_ms, rounds * ORDERS);
    figures->free_worst = 0;
    for (enum order order = 0; order < ORDERS; order++) {
        figures->free[order] = bench_median(figures->free_ms[order], rounds);
        if (figures->free[order] > figures->free_worst)
            figures->free_worst = figures->free[order];
    }
}

static void row(const struct percpu_config *config, enum percpu_kind kind, size_t object_bytes, const struct figures *of_kind)
{
    const struct figures *figures = &of_kind[kind], *libc = &of_kind[KIND_MALLOC];
    percpu_row_open(config, kind);
    bench_row_count("object_bytes", object_bytes);
    bench_row_count("count", count_of(config, KIND_PERCPU));
    bench_row_count("measured", count_of(config, kind));
    bench_row_count("written", config->written);
    bench_row_number("alloc_ms", figures->alloc);
    bench_row_number("free_worst_ms", figures->free_worst);
    for (enum order order = 0; order < ORDERS; order++)
        bench_row_number(order_keys[order], figures->free[order]);
    if (kind == KIND_PERCPU && config->kinds & KIND_BIT(KIND_MALLOC)) {
        bench_row_number("alloc_over_malloc", figures->alloc / libc->alloc);
        bench_row_number("free_over_malloc", figures->free_worst / libc->free_worst);
    }
    bench_row_close();
}

static void objects_of(const struct percpu_config *config, size_t object_bytes, uintptr_t *memory)
{
    static struct figures of_kind[KINDS];
    size_t wanted = count_of(config, KIND_PERCPU);
    for (size_t round = 0; round <= config->rounds; round++) /* round 0 is not counted */
        for (enum order order = 0; order < ORDERS; order++)
            for (enum percpu_kind kind = 0; kind < KINDS; kind++) {
                struct pass pass = {.config = config, .object_bytes = object_bytes, .order = order, .marked = round == 0};
                if (!(config->kinds & KIND_BIT(kind)) || (round == 0 && order != ALTERNATING))
                    continue;
                pass.count = count_of(config, kind);
                pass.bits = memory;
                pass.sequence = memory + wanted;
                pass_run(&pass, kind);
                double scale = (double)wanted / (double)pass.count / 1e6;
                if (round > 0) {
                    of_kind[kind].alloc_ms[(round - 1) * ORDERS + order] = (double)pass.alloc_ns * scale;
                    of_kind[kind].free_ms[order][round - 1] = (double)pass.free_ns * scale;
                }
            }
    for (enum percpu_kind kind = 0; kind < KINDS; kind++)
        if (config->kinds & KIND_BIT(kind))
            summarize(&of_kind[kind], config->rounds);
    for (enum percpu_kind kind = 0; kind < KINDS; kind++)
        if (config->kinds & KIND_BIT(kind))
            row(config, kind, object_bytes, of_kind);
}

void percpu_objects(const struct percpu_config *config)
{
    static const size_t sizes[] = {4, 16, 64, 128, 1024};
    size_t wanted = count_of(config, KIND_PERCPU);
    uintptr_t *memory = bench_scratch(2 * wanted, sizeof *memory);
    if (config->object_bytes)
        objects_of(config, config->object_bytes, memory);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0] && !config->object_bytes; s++)
        objects_of(config, sizes[s], memory);
}
