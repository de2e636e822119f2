// SPDX-License-Identifier: MIT
/*
 * shapes.c - elements of one size, allocated and freed in the shapes that programs have; the slab, or whatever malloc is loaded.
 *
 *     local      each thread: `count` elements, runs and strides of them freed and allocated again, all freed
 *     alternate  each thread: `count` elements, all freed; then a twentieth as many blocks of 32 KiB from malloc, all freed
 *     replace    each thread: one of 1,000, at random, freed and allocated again
 *     ring       each thread frees in batches of 256 what the thread before it allocated
 *     produce    of each two threads one allocates, the other frees; up to 8 batches between them
 *     handover   each thread replaces among 1,000, 20,000 times, then ends: a new thread takes its elements over (as `larson` does)
 *
 * Elements are written whole when allocated and looked at before they are freed.  M allocations a second of the process's CPU time.
 *
 * Not here: running every allocator in turn (shapes_table.py), memory (slab_memory.c), batches (slab_remote.c).
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <quire/slab.h>

#include "bench.h"

enum { LIVE = 1000, BATCH = 256, SLOTS = 8, HANDOVER_STEPS = 20000, THREADS_MAX = 128, LINE = 64, LARGE_BYTES = 32 << 10, LARGE_PART = 20 };

static struct quire_slab *slab; /* NULL: malloc */
static size_t element_bytes, count, threads;
static atomic_bool stop;
static atomic_ullong allocations;

static inline unsigned char *take(void)
{
    unsigned char *p = slab ? quire_slab_alloc(slab) : malloc(element_bytes);
    if (!p)
        bench_die("no memory");
    return memset(p, 0x5a, element_bytes);
}

static inline void give(unsigned char *p)
{
    if (p[element_bytes - 1] != 0x5a || p[element_bytes / 2] != 0x5a)
        bench_die("an element has another owner");
    if (slab)
        quire_slab_free(slab, p);
    else
        free(p);
}

static bool stopped(void)
{
    return atomic_load_explicit(&stop, memory_order_relaxed);
}

/* ---- local ---- */

static void renew(unsigned char **v, size_t end, size_t step)
{
    for (size_t i = 0; i < end; i += step)
        give(v[i]);
    for (size_t i = 0; i < end; i += step)
        v[i] = take();
}

static void *local(void *unused)
{
    unsigned char **v = bench_scratch(count, sizeof *v);
    unsigned long long done = 0;
    (void)unused;
    while (!stopped()) {
        for (size_t i = 0; i < count; i++)
            v[i] = take();
        done += count;
        for (size_t part = 5; part >= 2; done += count / part, part--)
            renew(v, count / part, 1);
        for (size_t step = 50; step >= 10; done += count / step, step -= 10)
            renew(v, count, step);
        for (size_t i = 0; i < count; i++)
            give(v[i]);
    }
    allocations += done;
    return NULL;
}

/* ---- alternate ---- */

static void *alternate(void *unused)
{
    unsigned char **v = bench_scratch(count, sizeof *v);
    unsigned long long done = 0;
    (void)unused;
    for (; !stopped(); done += count) {
        for (size_t i = 0; i < count; i++)
            v[i] = take();
        for (size_t i = 0; i < count; i++)
            give(v[i]);
        for (size_t i = 0; i < count / LARGE_PART; i++)
            if (!(v[i] = malloc(LARGE_BYTES)))
                bench_die("no memory");
        for (size_t i = 0; i < count / LARGE_PART; i++)
            free(v[i]);
    }
    allocations += done;
    return NULL;
}

/* ---- replace ---- */

static void replace_some(unsigned char **v, uint64_t *seed, size_t steps)
{
    for (size_t i = 0; i < steps; i++) {
        size_t k = bench_below(bench_random(seed), LIVE);
        give(v[k]);
        v[k] = take();
    }
}

static unsigned char **fresh(void)
{
    unsigned char **v = bench_scratch(LIVE, sizeof *v);
    for (size_t i = 0; i < LIVE; i++)
        v[i] = take();
    return v;
}

static void *replace(void *thread)
{
    uint64_t seed = UINT64_C(88172645463325252) + (uintptr_t)thread * 1234567;
    unsigned char **v = fresh();
    unsigned long long done = 0;
    for (; !stopped(); done += LIVE)
        replace_some(v, &seed, LIVE);
    allocations += done;
    return NULL;
}

/* ---- ring, produce ---- */

static struct box {
    _Alignas(LINE) _Atomic(unsigned char **) full;
} box[THREADS_MAX];

static void *ring(void *thread)
{
    size_t id = (uintptr_t)thread;
    struct box *out = &box[id], *in = &box[(id + threads - 1) % threads];
    unsigned char **array[3], **mine, **got;
    unsigned long long done = 0;
    size_t turn = 0;
    for (int i = 0; i < 3; i++)
        array[i] = bench_scratch(BATCH, sizeof *mine);
    while (!stopped()) {
        if (!atomic_load_explicit(&out->full, memory_order_acquire)) {
            mine = array[turn++ % 3];
            for (size_t i = 0; i < BATCH; i++)
                mine[i] = take();
            done += BATCH;
            atomic_store_explicit(&out->full, mine, memory_order_release);
        }
        got = atomic_exchange_explicit(&in->full, NULL, memory_order_acq_rel);
        for (size_t i = 0; got && i < BATCH; i++)
            give(got[i]);
        if (!got)
            sched_yield();
    }
    allocations += done;
    return NULL;
}

static struct lane {
    _Alignas(LINE) atomic_ulong head;
    _Alignas(LINE) atomic_ulong tail;
    unsigned char *at[SLOTS][BATCH];
} lane[THREADS_MAX / 2];

static void *produce(void *thread)
{
    size_t id = (uintptr_t)thread;
    struct lane *l = &lane[id / 2];
    unsigned long long done = 0;
    while (!stopped()) {
        unsigned long head = atomic_load_explicit(&l->head, memory_order_acquire), tail = atomic_load_explicit(&l->tail, memory_order_acquire);
        if (id % 2 == 0 ? head - tail == SLOTS : head == tail) {
            sched_yield();
        } else if (id % 2 == 0) {
            for (size_t i = 0; i < BATCH; i++)
                l->at[head % SLOTS][i] = take();
            done += BATCH;
            atomic_store_explicit(&l->head, head + 1, memory_order_release);
        } else {
            for (size_t i = 0; i < BATCH; i++)
                give(l->at[tail % SLOTS][i]);
            atomic_store_explicit(&l->tail, tail + 1, memory_order_release);
        }
    }
    allocations += done;
    return NULL;
}

/* ---- handover ---- */

static _Atomic(unsigned char **) between;
static atomic_int running;

static void *handover(void *array)
{
    unsigned char **v = array;
    uint64_t seed = ((uintptr_t)v ^ bench_wall_ns()) | 1;
    pthread_t next;
    replace_some(v, &seed, HANDOVER_STEPS);
    allocations += HANDOVER_STEPS;
    v = atomic_exchange(&between, v); /* the next thread has another's */
    if (!stopped() && pthread_create(&next, NULL, handover, v) == 0)
        pthread_detach(next);
    else
        running--;
    return NULL;
}

/* ---- the run ---- */

static const struct shape {
    const char *name;
    void *(*run)(void *);
} shapes[] = {{"local", local}, {"alternate", alternate}, {"replace", replace}, {"ring", ring}, {"produce", produce}, {"handover", handover}};

static void *(*shape_named(const char *name))(void *)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (!strcmp(shapes[i].name, name))
            return shapes[i].run;
    bench_usage("no such shape", "--shape local, alternate, replace, ring, produce or handover");
}

/* Runs until the process has used so much CPU; a busy machine gets four times as long. */
static void wait_for(uint64_t began_ns, uint64_t cpu_ns)
{
    uint64_t until_ns = bench_wall_ns() + 4 * cpu_ns + 1000000000;
    while (bench_process_ns() - began_ns < cpu_ns && bench_wall_ns() < until_ns)
        bench_sleep_ms(2);
    stop = true;
}

int main(int argc, char **argv)
{
    void *(*run)(void *) = shape_named(bench_text(argc, argv, "--shape", "local"));
    bool is_slab = strcmp(bench_text(argc, argv, "--allocator", "slab"), "malloc") != 0;
    threads = bench_number(argc, argv, "--threads", 1);
    element_bytes = bench_number(argc, argv, "--bytes", 64);
    count = bench_number(argc, argv, "--count", 10000);
    if (threads > THREADS_MAX || (run == produce && threads % 2))
        bench_usage("so many threads cannot be", "1 to 128, of `produce` an even number");
    if (is_slab && !(slab = quire_slab_create(element_bytes, &(struct quire_slab_opts){.name = "shapes"})))
        bench_die("no memory");
    if (run == handover)
        between = fresh();
    running = (int)threads;
    pthread_t thread[THREADS_MAX];
    uint64_t began_ns = bench_process_ns();
    for (size_t i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, run, run == handover ? (void *)fresh() : (void *)i) != 0)
            bench_die("no thread");
    wait_for(began_ns, bench_number(argc, argv, "--cpu-ms", 300) * 1000000);
    for (size_t i = 0; i < threads; i++)
        if (run == handover)
            pthread_detach(thread[i]);
        else
            pthread_join(thread[i], NULL);
    while (run == handover && running > 0)
        bench_sleep_ms(1);
    bench_row_open(bench_flag(argc, argv, "--json"), bench_text(argc, argv, "--shape", "local"), slab ? "quire-slab" : bench_malloc_name());
    bench_row_count("threads", threads);
    bench_row_count("bytes", element_bytes);
    bench_row_number("m_allocations_per_cpu_s", (double)allocations * 1000 / (double)(bench_process_ns() - began_ns));
    bench_row_close();
    return 0;
}
