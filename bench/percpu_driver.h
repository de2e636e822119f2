// SPDX-License-Identifier: MIT
/*
 * percpu_driver.h - what the workloads of the driver `percpu` share: the configuration, the allocators, threads, the head of a row.
 *
 * A workload is written once over `enum percpu_kind` and compiled once for each kind, as an always-inlined function with a constant argument: no
 * branch and no pointer stands between the loop and what is measured.  All kinds take turns in one process, round by round: what disturbs the
 * machine for a second hits them all.
 */
#ifndef QUIRE_BENCH_PERCPU_DRIVER_H
#define QUIRE_BENCH_PERCPU_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <quire/percpu.h>

#include "area_map.h"
#include "bench.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum percpu_kind {
    KIND_PERCPU,
    KIND_MALLOC,   /* whatever malloc is loaded: one copy, not one for each CPU */
    KIND_AREA_MAP, /* area_map.c, one thread only */
    KIND_LOCAL,    /* `add`, `list`: a word of each thread's own; nobody else can read it */
    KIND_ATOMIC,   /* `add`: one word for all */
    KIND_MUTEX,    /* `add`, `list`: the same under a lock */
    KINDS
};
#define KIND_BIT(kind) (1u << (kind))

enum { AREA_MAP_CPUS = 2, ROUNDS_MAX = 99, PERCPU_THREADS_MAX = 64 };

/* As asked on the command line; 0 stands for the workload's own default. */
struct percpu_config {
    const char *workload;
    unsigned kinds; /* a bit for each kind that takes part */
    size_t threads, object_bytes, count, rounds, cpus, written, area_count, limit_ms, fill_mib;
    bool all, without_rseq, migrate, json; /* all: no --allocator was given */
};

/* Where objects come from. */
struct percpu_place {
    enum percpu_kind kind;
    struct quire_percpu *pool;
    struct area_map *map;
};

/* One thread of a workload.  Its function fills in the last two. */
struct percpu_worker {
    const struct percpu_config *config;
    struct percpu_place *place;
    void *shared; /* more, when the workload has more */
    pthread_barrier_t *line;
    size_t idx, object_bytes;
    uint64_t count;
    pthread_t thread;
    int tid;
    uint64_t done, cpu_ns;
};

/* The workloads: each prints its rows. */
void percpu_objects(const struct percpu_config *config);
void percpu_aligned(const struct percpu_config *config);
void percpu_churn(const struct percpu_config *config);
void percpu_threads(const struct percpu_config *config);
void percpu_add(const struct percpu_config *config);
void percpu_list(const struct percpu_config *config);
void percpu_grow(const struct percpu_config *config);
void percpu_memory(const struct percpu_config *config);

/* `count` objects of that size and alignment will be wanted at once. */
struct percpu_place percpu_place_open(const struct percpu_config *config, enum percpu_kind kind, size_t object_bytes, size_t count);
/* Ends the process unless the place is sound and holds `live` objects. */
void percpu_place_sound(const struct percpu_place *place, size_t live);
/* Sound, and gone with the `live` objects that are left. */
void percpu_place_close(struct percpu_place *place, size_t live);
/* CPU 0's copy, or the only one. */
char *percpu_first_copy(const struct percpu_place *place, uintptr_t bits);

/* The head of a row. */
void percpu_row_open(const struct percpu_config *config, enum percpu_kind kind);
/* Whether this process's threads have restartable sequences. */
bool percpu_has_rseq(void);
/* Runs this program again, with the same arguments, as a process without restartable sequences, for the rows of the pool alone. */
void percpu_run_without_rseq(void);
/* `count` threads run `run` on copies of *like; the sums of done and cpu_ns come back in *like.  With --migrate they are moved between CPUs. */
void percpu_workers_run(struct percpu_worker *like, size_t count, void *(*run)(void *worker));
/* Names of `kinds` bits of a workload, for --allocator. */
const char *percpu_kind_name(enum percpu_kind kind);
void percpu_shuffle(uintptr_t *values, size_t count, uint64_t *state);

ALWAYS_INLINE size_t percpu_align_bytes(size_t object_bytes)
{
    return object_bytes < 8 ? 4 : 8;
}

/* The object's bits, never 0. */
ALWAYS_INLINE uintptr_t percpu_take(enum percpu_kind kind, const struct percpu_place *place, size_t bytes, size_t align_bytes)
{
    uintptr_t bits = kind == KIND_PERCPU   ? quire_percpu_alloc(place->pool, bytes, align_bytes).bits
                     : kind == KIND_MALLOC ? (uintptr_t)malloc(bytes)
                                           : (uintptr_t)area_map_alloc(place->map, bytes, align_bytes);
    if (__builtin_expect(bits == 0, 0))
        bench_die("out of memory");
    return bits;
}

ALWAYS_INLINE void percpu_give(enum percpu_kind kind, const struct percpu_place *place, uintptr_t bits)
{
    if (kind == KIND_PERCPU)
        quire_percpu_free(place->pool, (struct quire_percpu_ref){bits});
    else if (kind == KIND_MALLOC)
        free((void *)bits); /* NOLINT: it was a pointer */
    else
        area_map_free(place->map, (void *)bits);
}

#endif
