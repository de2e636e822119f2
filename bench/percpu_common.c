// SPDX-License-Identifier: MIT
/*
 * percpu_common.c - what the workloads of the driver `percpu` share: places, threads and who moves them, the head of a row, a process without
 * restartable sequences.
 */
#include <malloc.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "percpu_driver.h"

enum { MOVE_US = 150, LINE_WORDS_MAX = 64, COMMAND_BYTES = 4096 };

/* Of glibc since 2.35; elsewhere nothing registers an area. */
extern const unsigned int __rseq_size __attribute__((weak));

bool percpu_has_rseq(void)
{
    return &__rseq_size && __rseq_size > 0;
}

const char *percpu_kind_name(enum percpu_kind kind)
{
    static const char *const names[KINDS] = {[KIND_PERCPU] = "quire-percpu", [KIND_AREA_MAP] = "area-map",   [KIND_LOCAL] = "thread-local",
                                             [KIND_ATOMIC] = "shared-atomic", [KIND_MUTEX] = "mutex"};
    return kind == KIND_MALLOC ? bench_malloc_name() : names[kind];
}

void percpu_row_open(const struct percpu_config *config, enum percpu_kind kind)
{
    bench_row_open(config->json, config->workload, percpu_kind_name(kind));
}

static struct quire_percpu *pool_open(unsigned cpus)
{
    struct quire_percpu *pool = quire_percpu_create(&(struct quire_percpu_opts){.name = "bench", .cpus = cpus});
    if (!pool)
        bench_die("no pool: out of memory");
    return pool;
}

struct percpu_place percpu_place_open(const struct percpu_config *config, enum percpu_kind kind, size_t object_bytes, size_t count)
{
    struct percpu_place place = {.kind = kind};
    if (kind == KIND_MALLOC)
        malloc_trim(0); /* libc's heap begins anew, as the others do: its lists would keep the order in which the last pass freed */
    if (kind == KIND_PERCPU)
        place.pool = pool_open((unsigned)config->cpus);
    if (kind == KIND_AREA_MAP) {
        size_t a_chunk = area_map_fits(object_bytes, percpu_align_bytes(object_bytes));
        place.map = area_map_create(config->cpus ? (unsigned)config->cpus : AREA_MAP_CPUS, count / a_chunk + 2);
        if (!place.map)
            bench_die("no area map: out of memory");
    }
    return place;
}

void percpu_place_sound(const struct percpu_place *place, size_t live)
{
    const char *broken = place->map ? area_map_check(place->map, live) : NULL;
    if (place->pool) {
        struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
        quire_percpu_stats(place->pool, &stats);
        if (stats.mapped_bytes != stats.live_bytes + stats.free_bytes + stats.meta_bytes)
            bench_die("statistics: mapped is not live + free + meta");
        if (stats.live_objects != live)
            bench_die("statistics: another number of live objects than the workload holds");
        broken = quire_percpu_check(place->pool);
    }
    if (broken)
        bench_die(broken);
}

void percpu_place_close(struct percpu_place *place, size_t live)
{
    percpu_place_sound(place, live);
    quire_percpu_destroy(place->pool);
    area_map_destroy(place->map);
    *place = (struct percpu_place){0};
}

char *percpu_first_copy(const struct percpu_place *place, uintptr_t bits)
{
    return place->pool ? quire_percpu_at(place->pool, (struct quire_percpu_ref){bits}, 0) : (char *)bits; /* NOLINT: it was a pointer */
}

void percpu_shuffle(uintptr_t *values, size_t count, uint64_t *state)
{
    for (size_t i = count; i-- > 1;) {
        size_t j = bench_random(state) % (i + 1);
        uintptr_t other = values[i];
        values[i] = values[j];
        values[j] = other;
    }
}

static atomic_bool moving;

struct moved {
    const struct percpu_worker *workers;
    size_t count;
};

/* Sends the threads to CPUs at random, one after the other, until they have ended. */
static void *move_threads(void *arg)
{
    const struct moved *moved = arg;
    cpu_set_t allowed, one;
    uint64_t state = 88172645463325252u;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (size_t t = 0; atomic_load_explicit(&moving, memory_order_relaxed); t = (t + 1) % moved->count) {
        unsigned cpu = 0;
        do {
            cpu = (unsigned)(bench_random(&state) % CPU_SETSIZE);
        } while (!CPU_ISSET(cpu, &allowed));
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_setaffinity(moved->workers[t].tid, sizeof one, &one); /* fails once that thread has ended */
        usleep(MOVE_US);
    }
    return NULL;
}

struct start {
    struct percpu_worker *worker;
    void *(*run)(void *worker);
};

static void *worker_start(void *arg)
{
    struct start *start = arg;
    start->worker->tid = gettid();
    pthread_barrier_wait(start->worker->line);
    return start->run(start->worker);
}

void percpu_workers_run(struct percpu_worker *like, size_t count, void *(*run)(void *worker))
{
    static struct percpu_worker workers[PERCPU_THREADS_MAX];
    static struct start starts[PERCPU_THREADS_MAX];
    pthread_barrier_t line;
    pthread_t mover;
    bool migrate = like->config->migrate;
    if (pthread_barrier_init(&line, NULL, (unsigned)count + 1) != 0)
        bench_die("no barrier");
    for (size_t i = 0; i < count; i++) {
        workers[i] = *like;
        workers[i].line = &line;
        workers[i].idx = i;
        starts[i] = (struct start){&workers[i], run};
        if (pthread_create(&workers[i].thread, NULL, worker_start, &starts[i]) != 0)
            bench_die("no thread: out of memory, or over the limit of `ulimit -u`");
    }
    struct moved moved = {workers, count};
    pthread_barrier_wait(&line); /* their ids are known */
    atomic_store_explicit(&moving, migrate, memory_order_relaxed);
    if (migrate && pthread_create(&mover, NULL, move_threads, &moved) != 0)
        bench_die("no thread to move the others");
    like->done = like->cpu_ns = 0;
    for (size_t i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        like->done += workers[i].done;
        like->cpu_ns += workers[i].cpu_ns;
    }
    atomic_store_explicit(&moving, false, memory_order_relaxed);
    if (migrate)
        pthread_join(mover, NULL);
    pthread_barrier_destroy(&line);
}

void percpu_run_without_rseq(void)
{
    static char line[COMMAND_BYTES];
    char *words[LINE_WORDS_MAX + 4] = {NULL};
    size_t count = 0;
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t bytes = file ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file)
        fclose(file);
    for (size_t at = 0; at < bytes && count < LINE_WORDS_MAX; at += strlen(line + at) + 1)
        words[count++] = line + at;
    static char without[] = "--without-rseq", allocator[] = "--allocator", percpu[] = "percpu";
    words[count] = without, words[count + 1] = allocator, words[count + 2] = percpu;
    pid_t child;
    int status = -1;
    if (bytes == 0 || posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ) != 0 || waitpid(child, &status, 0) != child || status != 0)
        bench_die("the process without restartable sequences failed");
}
