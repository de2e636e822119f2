// SPDX-License-Identifier: MIT
/*
 * slab_remote.c - every element is freed by another thread than the one that allocated it: the workloads `remote` and `exchange`.
 *
 *   remote     producer 0 --[ ring ]--> consumer 1         threads / 2 such pairs, side by side over one allocator
 *              producer 2 --[ ring ]--> consumer 3
 *
 *   exchange   0 --[ ring ]--> 1 --[ ring ]--> 2 ... --> 0      each allocates for the next and frees what the one before allocated
 *
 * Elements are written whole, handed over `batch` at a time, verified whole and freed.  A slab is asked by its batch calls when batch > 1,
 * unless --single-calls.  In `remote` memory moves one way, and an allocator has to bring it back; in `exchange` an allocator that gives a thread
 * what it just freed never has to.
 *
 * Invariants: R1  0 <= tail - head <= RING; the thread before the ring alone writes tail, the one behind it head.
 *             R2  a thread that waits sleeps, and what waiting costs it is not counted: a figure is allocator, elements and ring, whatever
 *                 the scheduler does with more threads than CPUs.
 */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "slab_driver.h"

enum { RING = 4096, BATCH_MAX = 1024, TURN = 256, WARM_UP_ELEMENTS = 200000, ELEMENTS = 10000000, WAIT_NS = 30000, THREADS_MAX = 512 };

struct ring {
    _Alignas(128) _Atomic uint64_t tail;
    uint64_t head_seen; /* the producer's copy: one look at the other's line for many elements */
    _Alignas(128) _Atomic uint64_t head;
    uint64_t tail_seen;
    _Alignas(128) void *elements[RING];
};

static struct ring *rings;

/* Sleeps until *theirs is `wanted` beyond `mine`; returns it.  The CPU time of that goes onto w->cpu_ns, which is taken off in the end. */
static uint64_t ring_wait(_Atomic uint64_t *theirs, uint64_t mine, uint64_t wanted, struct slab_worker *w)
{
    uint64_t began = bench_thread_ns(), now;
    while ((now = atomic_load_explicit(theirs, memory_order_acquire)) - mine < wanted)
        nanosleep(&(struct timespec){0, WAIT_NS}, NULL);
    w->cpu_ns += bench_thread_ns() - began;
    return now;
}

ALWAYS_INLINE void hand_over(enum slab_kind kind, bool batched, struct slab_worker *w, struct ring *ring)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    size_t batch = w->config->batch;
    void *fresh[BATCH_MAX];
    slab_take_many(kind, batched, w, fresh, batch);
    for (size_t i = 0; i < batch; i++) {
        slab_write(fresh[i], w->element_bytes, slab_seed(0, tail + i));
        ring->elements[(tail + i) % RING] = fresh[i];
    }
    atomic_store_explicit(&ring->tail, tail + batch, memory_order_release);
}

ALWAYS_INLINE void take_over(enum slab_kind kind, bool batched, struct slab_worker *w, struct ring *ring)
{
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    size_t batch = w->config->batch;
    void *stale[BATCH_MAX];
    for (size_t i = 0; i < batch; i++) {
        stale[i] = ring->elements[(head + i) % RING];
        slab_verify(stale[i], w->element_bytes, slab_seed(0, head + i));
    }
    atomic_store_explicit(&ring->head, head + batch, memory_order_release);
    slab_give_many(kind, batched, w, stale, batch);
}

ALWAYS_INLINE uint64_t room(const struct ring *ring)
{
    return ring->head_seen + RING - atomic_load_explicit(&ring->tail, memory_order_relaxed);
}

ALWAYS_INLINE uint64_t waiting(const struct ring *ring)
{
    return ring->tail_seen - atomic_load_explicit(&ring->head, memory_order_relaxed);
}

ALWAYS_INLINE void produce(enum slab_kind kind, bool batched, struct slab_worker *w, uint64_t elements)
{
    struct ring *ring = &rings[w->idx / 2];
    for (uint64_t done = 0; done < elements; done += w->config->batch) {
        if (room(ring) < w->config->batch)
            ring->head_seen = ring_wait(&ring->head, ring->tail - RING, RING / 2, w);
        hand_over(kind, batched, w, ring);
    }
}

ALWAYS_INLINE void consume(enum slab_kind kind, bool batched, struct slab_worker *w, uint64_t elements)
{
    struct ring *ring = &rings[w->idx / 2];
    for (uint64_t left = elements; left > 0; left -= w->config->batch) {
        if (waiting(ring) < w->config->batch)
            ring->tail_seen = ring_wait(&ring->tail, ring->head, left < RING / 2 ? left : RING / 2, w);
        take_over(kind, batched, w, ring);
    }
}

/* By turns: up to TURN elements for the next thread, then as many from the one before. */
ALWAYS_INLINE void exchange(enum slab_kind kind, bool batched, struct slab_worker *w, uint64_t elements)
{
    struct ring *in = &rings[w->idx], *out = &rings[(w->idx + 1) % w->config->threads];
    uint64_t to_make = elements, to_free = elements, batch = w->config->batch;
    while (to_make + to_free > 0) {
        uint64_t before = to_make + to_free;
        if (room(out) < TURN)
            out->head_seen = atomic_load_explicit(&out->head, memory_order_acquire);
        for (uint64_t turn = 0; turn < TURN && to_make > 0 && room(out) >= batch; turn += batch, to_make -= batch)
            hand_over(kind, batched, w, out);
        if (waiting(in) < TURN)
            in->tail_seen = atomic_load_explicit(&in->tail, memory_order_acquire);
        for (uint64_t turn = 0; turn < TURN && to_free > 0 && waiting(in) >= batch; turn += batch, to_free -= batch)
            take_over(kind, batched, w, in);
        if (to_make + to_free < before)
            continue;
        if (to_free == 0)
            out->head_seen = ring_wait(&out->head, out->tail - RING, RING / 2, w);
        else
            in->tail_seen = ring_wait(&in->tail, in->head, to_free < RING / 2 ? to_free : RING / 2, w);
    }
}

ALWAYS_INLINE void *remote_thread(enum slab_kind kind, bool batched, struct slab_worker *w)
{
    uint64_t warm_ups = WARM_UP_ELEMENTS / w->config->batch * w->config->batch, counted = w->rounds * w->config->batch;
    bool all_alike = strcmp(w->config->workload, "exchange") == 0;
    for (int pass = 0; pass < 2; pass++) {
        pthread_barrier_wait(w->line);
        w->cpu_ns = 0; /* what waiting cost */
        uint64_t began = bench_thread_ns(), elements = pass ? counted : warm_ups;
        if (all_alike)
            exchange(kind, batched, w, elements);
        else if (w->idx % 2 == 0)
            produce(kind, batched, w, elements);
        else
            consume(kind, batched, w, elements);
        w->cpu_ns = bench_thread_ns() - began - w->cpu_ns;
    }
    w->pairs = all_alike || w->idx % 2 == 0 ? counted : 0;
    pthread_barrier_wait(w->line);
    return NULL;
}

static void *remote_slab(void *worker)
{
    return remote_thread(KIND_SLAB, false, worker);
}

static void *remote_slab_batched(void *worker)
{
    return remote_thread(KIND_SLAB, true, worker);
}

static void *remote_malloc(void *worker)
{
    return remote_thread(KIND_MALLOC, false, worker);
}

static void remote_row(const struct slab_config *config, const struct slab_worker *sum)
{
    double ns = (double)sum->cpu_ns / (double)sum->pairs;
    slab_row_open(config, sum->element_bytes);
    bench_row_count("batch", config->batch);
    bench_row_count("pairs", sum->pairs);
    bench_row_count("cpu_ns", sum->cpu_ns);
    bench_row_number("ns_per_pair", ns);
    bench_row_number("m_pairs_per_cpu_s", 1e3 / ns);
    bench_row_close();
}

void slab_remote(const struct slab_config *config)
{
    static struct slab_worker workers[THREADS_MAX];
    size_t element_bytes = config->element_bytes ? config->element_bytes : 64;
    size_t rings_count = strcmp(config->workload, "exchange") == 0 ? config->threads : config->threads / 2;
    if (config->threads % 2 || config->threads > THREADS_MAX)
        bench_usage("this workload needs an even number of threads, at most 512", "--threads 2");
    if (config->batch > BATCH_MAX)
        bench_usage("a batch of more than 1024 is larger than what a ring hands over", "--batch 100");
    struct slab_worker like = {.config = config, .element_bytes = element_bytes};
    size_t elements = config->count ? config->count : ELEMENTS;
    like.rounds = elements / rings_count / config->batch;
    like.rounds = like.rounds ? like.rounds : 1;
    like.slab = slab_make(config, element_bytes, 0);
    rings = bench_scratch(rings_count, sizeof *rings);
    slab_workers_start(workers, config->threads, like,
                       config->kind == KIND_MALLOC                        ? remote_malloc
                       : config->batch == 1 || config->single_calls ? remote_slab
                                                                    : remote_slab_batched);
    for (int pass = 0; pass < 3; pass++)
        pthread_barrier_wait(workers[0].line);
    slab_workers_end(workers, config->threads);
    remote_row(config, &workers[0]);
    slab_sound(like.slab, 0);
    quire_slab_destroy(like.slab);
}
