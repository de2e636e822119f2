// SPDX-License-Identifier: MIT
/*
 * percpu_grow.c - nanoseconds a call over the number of objects and of configured CPUs: the workload `grow`, for the plot of quire bench seeds.
 *
 * 10,000 to 10,000,000 objects (--count N: up to N) for 2, 8, 64 and 512 CPUs (--cpus N: for N), allocated, and freed in order or at random: each
 * beginning with a new pool, so that the first chunk is paid by few objects where there are few.  Where objects are few there are several passes in
 * a round.  libc's malloc beside it, which has one copy whatever the CPUs: what is left of growth there is the machine's caches.
 */
#include "percpu_driver.h"

enum { COUNT_FIRST = 10000, COUNT_LAST = 10000000, PASS_COUNT = 200000, OBJECT_BYTES = 8 };
static const size_t cpu_counts[] = {2, 8, 64, 512};
enum { CPU_COUNTS = sizeof cpu_counts / sizeof cpu_counts[0] };
enum part { ALLOC, FREE_IN_ORDER, FREE_RANDOM, PARTS };
static const char *const part_keys[PARTS] = {"alloc_ns", "free_in_order_ns", "free_random_ns"};

struct pass {
    struct percpu_place place;
    uintptr_t *bits;
    size_t object_bytes, count;
    uint64_t part_ns[PARTS];
};

ALWAYS_INLINE void pass_run(enum percpu_kind kind, struct pass *pass, bool at_random)
{
    uint64_t state = 88172645463325252u, began = bench_thread_ns();
    for (size_t i = 0; i < pass->count; i++)
        pass->bits[i] = percpu_take(kind, &pass->place, pass->object_bytes, percpu_align_bytes(pass->object_bytes));
    pass->part_ns[ALLOC] += bench_thread_ns() - began;
    if (at_random)
        percpu_shuffle(pass->bits, pass->count, &state);
    began = bench_thread_ns();
    for (size_t i = 0; i < pass->count; i++)
        percpu_give(kind, &pass->place, pass->bits[i]);
    pass->part_ns[at_random ? FREE_RANDOM : FREE_IN_ORDER] += bench_thread_ns() - began;
}

/* Nanoseconds of each part's call. */
static void measure(const struct percpu_config *config, enum percpu_kind kind, size_t count, double *ns)
{
    struct pass pass = {.count = count, .object_bytes = config->object_bytes ? config->object_bytes : OBJECT_BYTES};
    size_t passes = count < PASS_COUNT ? PASS_COUNT / count : 1;
    pass.bits = bench_scratch(count, sizeof *pass.bits);
    for (size_t i = 0; i < 2 * passes; i++) {
        pass.place = percpu_place_open(config, kind, pass.object_bytes, 0);
        if (kind == KIND_PERCPU)
            pass_run(KIND_PERCPU, &pass, i % 2 == 1);
        else
            pass_run(KIND_MALLOC, &pass, i % 2 == 1);
        percpu_place_close(&pass.place, 0);
    }
    bench_scratch_free(pass.bits, count, sizeof *pass.bits);
    for (enum part part = 0; part < PARTS; part++)
        ns[part] = (double)pass.part_ns[part] / (double)(count * passes * (part == ALLOC ? 2 : 1));
}

static void rows_of(const struct percpu_config *config, enum percpu_kind kind, size_t count)
{
    double ns[PARTS][ROUNDS_MAX], of_round[PARTS];
    for (size_t round = 0; round < config->rounds; round++) {
        measure(config, kind, count, of_round);
        for (enum part part = 0; part < PARTS; part++)
            ns[part][round] = of_round[part];
    }
    percpu_row_open(config, kind);
    bench_row_count("count", count);
    bench_row_count("cpus", config->cpus);
    for (enum part part = 0; part < PARTS; part++)
        bench_row_number(part_keys[part], bench_median(ns[part], config->rounds));
    bench_row_close();
}

void percpu_grow(const struct percpu_config *config)
{
    size_t last = config->count ? config->count : COUNT_LAST;
    for (size_t count = last < COUNT_FIRST ? last : COUNT_FIRST; count <= last; count *= 10) {
        struct percpu_config one = *config;
        for (size_t c = 0; c < (config->cpus ? 1 : CPU_COUNTS) && config->kinds & KIND_BIT(KIND_PERCPU); c++) {
            one.cpus = config->cpus ? config->cpus : cpu_counts[c];
            rows_of(&one, KIND_PERCPU, count);
        }
        one.cpus = 1;
        if (config->kinds & KIND_BIT(KIND_MALLOC))
            rows_of(&one, KIND_MALLOC, count);
    }
}
