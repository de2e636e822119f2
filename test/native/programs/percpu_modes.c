// SPDX-License-Identifier: MIT
/*
 * percpu_modes.c - a fixed mixture of everything that the per-CPU allocator does on this CPU's copy, and what came of it: the same lines, whichever
 * way the library went, on however many CPUs.
 *
 *     percpu_modes [--own-area]
 *
 * stdout: the results.  stderr: "sequences: used" or "sequences: never", as seen in the area that libc registered.
 *   --own-area   register an area of this program's own with the kernel in every thread (libc must have been told not to): the library must leave it
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <quire/percpu.h>

enum { THREADS = 4, COUNTERS = 64, STEPS = 20000, NODES = 300, LISTS = 3, BUCKETS = 8 };

/* The kernel's struct rseq, and the number that stands before every place where it restarts. */
struct area {
    uint32_t cpu_id_start, cpu_id;
    uint64_t rseq_cs;
    uint32_t flags, unused[3];
} __attribute__((aligned(32)));
#if QUIRE_CPU_X86_64
#define SIGNATURE 0x53053053u
#else
#define SIGNATURE 0xd428bc00u
#endif
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

static __thread struct area own_area = {.cpu_id = UINT32_MAX};
static int with_own_area, failed, sequences_seen;

/* The first failure says what it is: it may come with every step. */
static void fail(const char *what)
{
    if (__atomic_exchange_n(&failed, 1, __ATOMIC_RELAXED) == 0)
        fprintf(stderr, "%s\n", what);
}

static void register_own_area(void)
{
    if (with_own_area && syscall(SYS_rseq, &own_area, sizeof own_area, 0, SIGNATURE) != 0)
        fail("this program's own area could not be registered");
}

/* After an operation: did it tell the kernel of a sequence, through libc's area, or through one that is none of the library's business? */
static void look_at_areas(void)
{
    if (&__rseq_size != NULL && __rseq_size != 0) {
        const struct area *libcs = (const void *)((const char *)__builtin_thread_pointer() + __rseq_offset);
        if (__atomic_load_n(&libcs->rseq_cs, __ATOMIC_RELAXED) != 0)
            __atomic_store_n(&sequences_seen, 1, __ATOMIC_RELAXED);
    }
    if (__atomic_load_n(&own_area.rseq_cs, __ATOMIC_RELAXED) != 0)
        fail("the library used an area that is not libc's");
    if (with_own_area && __atomic_load_n(&own_area.cpu_id, __ATOMIC_RELAXED) == UINT32_MAX)
        fail("the kernel does not write this program's own area");
}

/* ---- CPUs ---- */

static unsigned cpus[CPU_SETSIZE], cpu_count;

static void find_cpus(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_SET(0, &set);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[cpu_count++] = cpu;
}

static void bind_to(unsigned i)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[i % cpu_count], &set);
    sched_setaffinity(0, sizeof set, &set); /* refused: the results are the same */
}

/* ---- the mixture ---- */

struct node {
    void *link;
    uint32_t value;
    int taken;
};

static struct quire_percpu *pool;
static struct quire_percpu_ref counter[COUNTERS], exchanged, list[LISTS];
static struct node nodes[NODES];

/* Pushes its part of the nodes; then takes nodes off, and puts them onto the next list. */
static void juggle(unsigned thread)
{
    for (unsigned i = thread; i < NODES; i += THREADS)
        quire_percpu_push(pool, list[i % LISTS], &nodes[i]);
    for (unsigned i = 0; i < STEPS / 10; i++) {
        struct node *node = quire_percpu_pop(pool, list[i % LISTS]);
        if (!node)
            continue;
        if (__atomic_exchange_n(&node->taken, 1, __ATOMIC_RELAXED) != 0)
            fail("a node was taken twice");
        node->value += 1u << 16;
        __atomic_store_n(&node->taken, 0, __ATOMIC_RELAXED);
        quire_percpu_push(pool, list[(i + 1) % LISTS], node);
    }
}

static void *work(void *arg)
{
    unsigned thread = (unsigned)(uintptr_t)arg;
    register_own_area();
    bind_to(thread);
    for (unsigned i = 0; i < STEPS; i++) {
        if (thread % 2 && i % 100 == 0)
            bind_to(thread + i / 100); /* half of the threads wander */
        quire_percpu_add(pool, counter[(i * 7 + thread) % COUNTERS], (intptr_t)i - 3 * (intptr_t)thread);
        if (i % 4 == 0) {
            intptr_t seen = 0;
            while (!quire_percpu_cmpxchg(pool, exchanged, &seen, seen + 5)) {
            }
        }
        look_at_areas();
    }
    juggle(thread);
    return NULL;
}

/* Takes every node off the copies of all CPUs of this process; prints what they held together. */
static void collect(void)
{
    unsigned found = 0;
    uint32_t values = 0;
    for (unsigned c = 0; c < cpu_count; c++) {
        bind_to(c);
        for (unsigned l = 0; l < LISTS; l++)
            for (unsigned nothing = 0; nothing < 40; nothing++) /* without sequences a thread looks only now and then where it is */
                for (struct node *node; (node = quire_percpu_pop(pool, list[l])) != NULL; found++)
                    values += node->value & 0xffff;
    }
    printf("nodes %u of %u, values %u\n", found, NODES, values);
    for (unsigned l = 0; l < LISTS; l++)
        if (quire_percpu_sum(pool, list[l]) != 0)
            fail("a list is not empty");
}

static void print_counters(void)
{
    unsigned histogram[BUCKETS] = {0};
    uintptr_t all = 0;
    intptr_t least = INTPTR_MAX, most = INTPTR_MIN;
    for (unsigned k = 0; k < COUNTERS; k++) {
        intptr_t sum = quire_percpu_sum(pool, counter[k]);
        all = all * 31 + (uintptr_t)sum;
        least = sum < least ? sum : least;
        most = sum > most ? sum : most;
    }
    for (unsigned k = 0; k < COUNTERS; k++)
        histogram[(size_t)(quire_percpu_sum(pool, counter[k]) - least) * BUCKETS / (size_t)(most - least + 1)]++;
    printf("sums %ld to %ld, hash %016lx\nhistogram", (long)least, (long)most, (unsigned long)all);
    for (unsigned b = 0; b < BUCKETS; b++)
        printf(" %u", histogram[b]);
    printf("\nexchanged %ld\n", (long)quire_percpu_sum(pool, exchanged));
}

static void run_mixture(void)
{
    struct quire_percpu_opts opts = {.name = "modes", .chunk_bytes = 4096};
    pool = quire_percpu_create(&opts);
    if (!pool) {
        fail("no pool");
        return;
    }
    for (unsigned k = 0; k < COUNTERS; k++)
        counter[k] = quire_percpu_alloc(pool, 8 + k * 8, 0);
    exchanged = quire_percpu_alloc(pool, sizeof(intptr_t), 0);
    for (unsigned l = 0; l < LISTS; l++)
        list[l] = quire_percpu_alloc(pool, sizeof(void *), 0);
    for (uint32_t i = 0; i < NODES; i++)
        nodes[i].value = i;
    pthread_t threads[THREADS];
    for (uintptr_t t = 0; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, work, (void *)t) != 0)
            fail("no thread");
    for (unsigned t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    print_counters();
    collect();
    struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
    quire_percpu_stats(pool, &stats);
    printf("live %zu, check %s\n", stats.live_objects, quire_percpu_check(pool) ? quire_percpu_check(pool) : "sound");
    for (unsigned k = 0; k < COUNTERS; k++)
        quire_percpu_free(pool, counter[k]);
    quire_percpu_stats(pool, &stats);
    printf("live %zu after the frees\n", stats.live_objects);
    quire_percpu_destroy(pool);
}

int main(int argc, char **argv)
{
    with_own_area = argc > 1 && strcmp(argv[1], "--own-area") == 0;
    find_cpus();
    register_own_area();
    run_mixture();
    fprintf(stderr, "sequences: %s\n", sequences_seen ? "used" : "never");
    return failed;
}
