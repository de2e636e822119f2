// SPDX-License-Identifier: MIT
/*
 * slab_speed.c - the workloads in which a thread frees what it allocated: `stress`, `sizes`, `replace`, `single`, `pairs`.
 *
 *   one round of `stress`, over an array of `count` elements a thread; # is freed and allocated again, in this order:
 *
 *     blocks    ####....####....####....        runs in the order of allocation: 500, then 50, every second one
 *     strides   #.#.#.#.#.#.#.#.#.#.#.#.        every 2nd, 3rd, 7th
 *     all       ########################
 *
 * Elements are written whole when allocated and verified whole before they are freed.  With --allocator none the same happens on an array: what
 * is left when allocating costs nothing.
 *
 * `replace`: `count` elements a thread, of which a random one is freed and allocated again, `rounds` times: whether a pair costs more where more live.
 *
 * `single` and `pairs`: `batch` elements allocated, the first word of each written, then freed in the same order; the former under the slab's
 * promise of one thread at a time, the latter without it.
 *
 * Not here: frees by another thread (slab_remote.c), a million at once (slab_burst.c), memory (slab_memory.c).
 */
#include <string.h>

#include "slab_driver.h"

enum { ELEMENTS = 10000, WARM_UPS = 3, STRESS_ROUNDS = 2000, REPLACE_ROUNDS = 10000000, BATCH_MAX = 1 << 20, SINGLE_PAIRS = 20000000, THREADS_MAX = 512 };
enum { MEMORY_BYTES_MAX = 40 << 20 };

/* start, length of a run, distance of two runs */
static const struct sweep {
    size_t first, run, step;
} sweeps[] = {{0, 500, 1000}, {50, 50, 100}, {1, 1, 2}, {0, 1, 3}, {5, 1, 7}, {0, SIZE_MAX, SIZE_MAX}};

struct board {
    char **elements;
    char *array; /* of KIND_NONE */
};

ALWAYS_INLINE void fill(enum slab_kind kind, struct slab_worker *w, struct board *board, size_t i)
{
    board->elements[i] = kind == KIND_NONE ? board->array + i * w->element_bytes : slab_take(kind, w->slab, w->element_bytes);
    slab_write(board->elements[i], w->element_bytes, slab_seed(w->idx, i));
}

ALWAYS_INLINE void empty(enum slab_kind kind, struct slab_worker *w, struct board *board, size_t i)
{
    slab_verify(board->elements[i], w->element_bytes, slab_seed(w->idx, i));
    if (kind != KIND_NONE)
        slab_give(kind, w->slab, board->elements[i]);
}

ALWAYS_INLINE size_t run_end(const struct sweep *s, size_t start, size_t count)
{
    return s->run < count - start ? start + s->run : count;
}

ALWAYS_INLINE size_t next_start(const struct sweep *s, size_t start, size_t count)
{
    return s->step < count - start ? start + s->step : count;
}

ALWAYS_INLINE void sweep_once(enum slab_kind kind, struct slab_worker *w, struct board *board, const struct sweep *s)
{
    for (size_t start = s->first; start < w->count; start = next_start(s, start, w->count))
        for (size_t i = start, end = run_end(s, start, w->count); i < end; i++) {
            empty(kind, w, board, i);
            w->pairs++;
        }
    for (size_t start = s->first; start < w->count; start = next_start(s, start, w->count))
        for (size_t i = start, end = run_end(s, start, w->count); i < end; i++)
            fill(kind, w, board, i);
}

ALWAYS_INLINE void *stress_thread(enum slab_kind kind, struct slab_worker *w)
{
    struct board board = {.elements = bench_scratch(w->count, sizeof(char *)),
                          .array = kind == KIND_NONE ? bench_scratch(w->count, w->element_bytes) : NULL};
    uint64_t began = 0;
    for (size_t i = 0; i < w->count; i++)
        fill(kind, w, &board, i);
    for (uint64_t r = 0; r < WARM_UPS + w->rounds; r++) {
        if (r == WARM_UPS) {
            pthread_barrier_wait(w->line);
            w->pairs = 0;
            began = bench_thread_ns();
        }
        for (size_t s = 0; s < sizeof sweeps / sizeof sweeps[0]; s++)
            sweep_once(kind, w, &board, &sweeps[s]);
    }
    w->cpu_ns = bench_thread_ns() - began;
    for (size_t i = 0; i < w->count; i++)
        empty(kind, w, &board, i);
    return NULL;
}

static void *stress_slab(void *worker)
{
    return stress_thread(KIND_SLAB, worker);
}

static void *stress_malloc(void *worker)
{
    return stress_thread(KIND_MALLOC, worker);
}

static void *stress_none(void *worker)
{
    return stress_thread(KIND_NONE, worker);
}

ALWAYS_INLINE void *replace_thread(enum slab_kind kind, struct slab_worker *w)
{
    struct board board = {.elements = bench_scratch(w->count, sizeof(char *)),
                          .array = kind == KIND_NONE ? bench_scratch(w->count, w->element_bytes) : NULL};
    uint64_t state = 88172645463325252u + w->idx * 1000003u;
    for (size_t i = 0; i < w->count; i++)
        fill(kind, w, &board, i);
    pthread_barrier_wait(w->line);
    uint64_t began = bench_thread_ns();
    for (uint64_t r = 0; r < w->rounds; r++) {
        size_t i = bench_below(bench_random(&state), w->count);
        empty(kind, w, &board, i);
        fill(kind, w, &board, i);
    }
    w->cpu_ns = bench_thread_ns() - began;
    w->pairs = w->rounds;
    for (size_t i = 0; i < w->count; i++)
        empty(kind, w, &board, i);
    return NULL;
}

static void *replace_slab(void *worker)
{
    return replace_thread(KIND_SLAB, worker);
}

static void *replace_malloc(void *worker)
{
    return replace_thread(KIND_MALLOC, worker);
}

static void *replace_none(void *worker)
{
    return replace_thread(KIND_NONE, worker);
}

static void speed_row(const struct slab_config *config, const struct slab_worker *sum, uint64_t process_ns)
{
    double ns = (double)sum->cpu_ns / (double)sum->pairs;
    slab_row_open(config, sum->element_bytes);
    bench_row_count("count", sum->count);
    bench_row_count("pairs", sum->pairs);
    bench_row_count("cpu_ns", sum->cpu_ns);
    bench_row_count("process_cpu_ns", process_ns); /* with threads of the allocator's own */
    bench_row_number("ns_per_pair", ns);
    bench_row_number("m_pairs_per_cpu_s", 1e3 / ns);
    bench_row_close();
}

/* All threads of a workload and its row; `rounds` are those of all together, where nobody asked for other. */
static void speed(const struct slab_config *config, struct slab_worker like, void *(*run)(void *), uint64_t rounds)
{
    static struct slab_worker workers[THREADS_MAX];
    like.config = config;
    like.rounds = config->rounds ? config->rounds : rounds / config->threads;
    like.rounds = like.rounds ? like.rounds : 1;
    if (config->threads > THREADS_MAX)
        bench_usage("more than 512 threads", "--threads 16");
    like.slab = slab_make(config, like.element_bytes, 0);
    slab_workers_start(workers, config->threads, like, run);
    pthread_barrier_wait(workers[0].line);
    uint64_t began = bench_process_ns();
    slab_workers_end(workers, config->threads);
    speed_row(config, &workers[0], bench_process_ns() - began);
    slab_sound(like.slab, 0);
    quire_slab_destroy(like.slab);
}

static void stress(const struct slab_config *config, size_t element_bytes, size_t count)
{
    static void *(*const run[])(void *) = {[KIND_SLAB] = stress_slab, [KIND_MALLOC] = stress_malloc, [KIND_NONE] = stress_none};
    speed(config, (struct slab_worker){.element_bytes = element_bytes, .count = count}, run[config->kind], STRESS_ROUNDS);
}

void slab_replace(const struct slab_config *config)
{
    static void *(*const run[])(void *) = {[KIND_SLAB] = replace_slab, [KIND_MALLOC] = replace_malloc, [KIND_NONE] = replace_none};
    size_t element_bytes = config->element_bytes ? config->element_bytes : 64, count = config->count ? config->count : ELEMENTS;
    speed(config, (struct slab_worker){.element_bytes = element_bytes, .count = count}, run[config->kind], REPLACE_ROUNDS);
}

void slab_stress(const struct slab_config *config)
{
    stress(config, config->element_bytes ? config->element_bytes : 64, config->count ? config->count : ELEMENTS);
}

void slab_sizes(const struct slab_config *config)
{
    static const size_t sizes[] = {8, 16, 24, 64, 100, 256, 1024, 4096, 8200};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        if (config->element_bytes && config->element_bytes != sizes[s])
            continue;
        size_t fits = MEMORY_BYTES_MAX / sizes[s] / config->threads, count = config->count ? config->count : ELEMENTS;
        struct slab_config one = *config;
        if (!one.rounds && sizes[s] > 64) /* as many bytes written for each size */
            one.rounds = STRESS_ROUNDS * 64 / sizes[s] / config->threads;
        stress(&one, sizes[s], count < fits ? count : fits);
    }
}

ALWAYS_INLINE void pairs_loop(enum slab_kind kind, bool batched, struct slab_worker *w, uint64_t rounds)
{
    void **elements = w->result;
    size_t batch = w->count;
    for (uint64_t r = 0; r < rounds; r++) {
        if (kind == KIND_SLAB && batched) {
            slab_take_many(kind, true, w, elements, batch);
            for (size_t i = 0; i < batch; i++)
                *(uint64_t *)elements[i] = r;
            slab_give_many(kind, true, w, elements, batch);
            continue;
        }
        for (size_t i = 0; i < batch; i++) {
            elements[i] = slab_take(kind, w->slab, w->element_bytes);
            *(uint64_t *)elements[i] = r;
            bench_use(elements[i]);
        }
        for (size_t i = 0; i < batch; i++)
            slab_give(kind, w->slab, elements[i]);
    }
}

static void pairs_run(struct slab_worker *w, uint64_t rounds)
{
    if (w->config->kind == KIND_MALLOC)
        pairs_loop(KIND_MALLOC, false, w, rounds);
    else if (w->config->single_calls || w->count == 1)
        pairs_loop(KIND_SLAB, false, w, rounds);
    else
        pairs_loop(KIND_SLAB, true, w, rounds);
}

void slab_single(const struct slab_config *config)
{
    size_t element_bytes = config->element_bytes ? config->element_bytes : 64;
    uint32_t flags = strcmp(config->workload, "single") == 0 ? QUIRE_SLAB_SINGLE_THREAD : 0u;
    if (config->threads != 1)
        bench_usage("this workload has one thread", "--threads 1");
    if (element_bytes < sizeof(uint64_t))
        bench_usage("this workload writes a word into each element", "--element 8");
    if (config->batch > BATCH_MAX)
        bench_usage("a batch of more than a million", "--batch 10000");
    struct slab_worker w = {.config = config, .element_bytes = element_bytes, .count = config->batch};
    w.rounds = config->rounds ? config->rounds : SINGLE_PAIRS / config->batch;
    w.rounds = w.rounds ? w.rounds : 1;
    w.slab = slab_make(config, element_bytes, flags);
    w.result = bench_scratch(config->batch, sizeof(void *));
    pairs_run(&w, w.rounds / 10 + 1);
    uint64_t process_ns = bench_process_ns(), began = bench_thread_ns();
    pairs_run(&w, w.rounds);
    w.cpu_ns = bench_thread_ns() - began;
    w.pairs = w.rounds * config->batch;
    speed_row(config, &w, bench_process_ns() - process_ns);
    slab_sound(w.slab, 0);
    quire_slab_destroy(w.slab);
}
