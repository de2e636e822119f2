// SPDX-License-Identifier: MIT
/*
 * slab_driver.h - what the workloads of the driver `slab` share: the configuration, the allocators, the bytes written into an element, rows.
 *
 * A workload is written once over `enum slab_kind` and compiled once for each kind, as an always-inlined function with a constant argument: no
 * branch and no pointer stands between the loop and the allocator that is measured.
 */
#ifndef QUIRE_BENCH_SLAB_DRIVER_H
#define QUIRE_BENCH_SLAB_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <quire/slab.h>

#include "bench.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { TWO_DECAYS_MS = 2200 }; /* of the default source and of a slab's empty pages, 1 s each, and a little */

enum slab_kind {
    KIND_SLAB,
    KIND_MALLOC, /* whatever malloc is loaded */
    KIND_NONE    /* memory that nobody allocates: the limit of `stress` and `sizes`, the floor of `burst` */
};

/* As asked on the command line; 0 stands for the workload's own default. */
struct slab_config {
    const char *workload;
    enum slab_kind kind;
    size_t threads, element_bytes, batch, count, round, rounds;
    bool defrag, single, single_calls, decay, json;
    const char *file; /* directory for pages in files; NULL: the default source */
};

/* One thread of a workload.  Its function fills in the last three, and counts there: two threads in a line cost every allocator half its speed. */
struct slab_worker {
    _Alignas(128) const struct slab_config *config;
    struct quire_slab *slab; /* NULL: another kind */
    pthread_barrier_t *line; /* main waits at it too */
    size_t idx, element_bytes, count;
    uint64_t rounds;
    pthread_t thread;
    uint64_t pairs, cpu_ns;
    void *result; /* more, when the workload has more */
};

/* The workloads: each prints its rows. */
void slab_stress(const struct slab_config *config);
void slab_sizes(const struct slab_config *config);
void slab_replace(const struct slab_config *config);
void slab_single(const struct slab_config *config);
void slab_remote(const struct slab_config *config);
void slab_burst(const struct slab_config *config);
void slab_full(const struct slab_config *config);
void slab_fragment(const struct slab_config *config);
void slab_many(const struct slab_config *config);
void slab_idle(const struct slab_config *config);

/* The slab of a workload with the flags of the configuration; NULL for another kind. */
struct quire_slab *slab_make(const struct slab_config *config, size_t element_bytes, uint32_t flags);
/* Ends the process unless the slab is sound, holds `live` elements, and mapped = live + free + meta; returns mapped bytes, 0 for another kind. */
size_t slab_sound(struct quire_slab *slab, size_t live);
/* Asks the allocator for its idle memory back, by its own call. */
void slab_give_back(enum slab_kind kind, struct quire_slab *slab);
/* Sets up `count` workers and starts them; main passes the barrier `line` as often as `run` does. */
void slab_workers_start(struct slab_worker *workers, size_t count, struct slab_worker like, void *(*run)(void *worker));
/* Waits for their ends; the sums stand in the first one. */
void slab_workers_end(struct slab_worker *workers, size_t count);

/* The head of a row: workload, allocator, threads, element. */
void slab_row_open(const struct slab_config *config, size_t element_bytes);

static inline uint64_t slab_seed(size_t thread_idx, size_t element_idx)
{
    return (((uint64_t)thread_idx << 40) + element_idx + 1) * 0x9e3779b97f4a7c15u;
}

typedef uint64_t slab_vector __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t slab_word __attribute__((aligned(1), may_alias));

/* Every byte of an element depends on its seed. */
ALWAYS_INLINE void slab_write(void *element, size_t bytes, uint64_t seed)
{
    unsigned char *p = element;
    size_t at = 0;
    for (; at + 16 <= bytes; at += 16)
        *(slab_vector *)(void *)(p + at) = (slab_vector){seed, ~seed};
    for (; at + 8 <= bytes; at += 8)
        *(slab_word *)(void *)(p + at) = seed;
    for (; at < bytes; at++)
        p[at] = (unsigned char)(seed >> (at % 8 * 8));
}

/* Ends the process when a byte is not what slab_write wrote. */
ALWAYS_INLINE void slab_verify(const void *element, size_t bytes, uint64_t seed)
{
    const unsigned char *p = element;
    slab_vector wrong = {0, 0};
    uint64_t rest = 0;
    size_t at = 0;
    for (; at + 16 <= bytes; at += 16)
        wrong |= *(const slab_vector *)(const void *)(p + at) ^ (slab_vector){seed, ~seed};
    for (; at + 8 <= bytes; at += 8)
        rest |= *(const slab_word *)(const void *)(p + at) ^ seed;
    for (; at < bytes; at++)
        rest |= p[at] ^ (unsigned char)(seed >> (at % 8 * 8));
    if (__builtin_expect((wrong[0] | wrong[1] | rest) != 0, 0))
        bench_die("an element does not hold what was written into it");
}

ALWAYS_INLINE void *slab_take(enum slab_kind kind, struct quire_slab *slab, size_t bytes)
{
    void *element = kind == KIND_SLAB ? quire_slab_alloc(slab) : malloc(bytes);
    if (__builtin_expect(!element, 0))
        bench_die("out of memory");
    return element;
}

ALWAYS_INLINE void slab_give(enum slab_kind kind, struct quire_slab *slab, void *element)
{
    if (kind == KIND_SLAB)
        quire_slab_free(slab, element);
    else
        free(element);
}

/* `count` at once where the allocator has a call for it and `batched` allows it. */
ALWAYS_INLINE void slab_take_many(enum slab_kind kind, bool batched, const struct slab_worker *w, void **elements, size_t count)
{
    if (kind == KIND_SLAB && batched) {
        if (quire_slab_alloc_batch(w->slab, elements, count) != count)
            bench_die("out of memory");
        return;
    }
    for (size_t i = 0; i < count; i++)
        elements[i] = slab_take(kind, w->slab, w->element_bytes);
}

ALWAYS_INLINE void slab_give_many(enum slab_kind kind, bool batched, const struct slab_worker *w, void **elements, size_t count)
{
    if (kind == KIND_SLAB && batched) {
        quire_slab_free_batch(w->slab, elements, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        slab_give(kind, w->slab, elements[i]);
}

#endif
