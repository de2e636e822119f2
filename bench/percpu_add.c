// SPDX-License-Identifier: MIT
/*
 * percpu_add.c - writing to this CPU's copy: the workloads `add` and `list`.
 *
 *   add    all threads add 1 to one counter; beside it a word of each thread's own, one atomic for all, one word under a mutex
 *   list   each thread pushes a node and pops one; beside it a list of each thread's own, and one under a mutex
 *
 * Nothing may be lost: the counter must hold exactly the number of additions, each node must be on exactly one list or in one hand, or there is no
 * figure.  With --migrate the threads are sent from CPU to CPU meanwhile.  Unless one allocator was asked for, the same is measured again in a
 * process without restartable sequences.
 *
 * The loop itself, about a third of a nanosecond, is part of every figure.
 */
#include <stdatomic.h>

#include "percpu_driver.h"

enum { ADDS = 40000000, SLOW_ADDS = 4000000, PUSHES = 20000000, SLOW_PUSHES = 4000000, SPARE_NODES = 100000 };
static const size_t thread_counts[] = {1, 2, 8};
enum { THREAD_COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

struct node {
    struct node *link;
    char rest[56];
};

struct board {
    struct quire_percpu_ref ref;
    _Alignas(64) atomic_intptr_t atomic;
    _Alignas(64) pthread_mutex_t mutex;
    intptr_t locked;
    struct node *list;
    _Alignas(64) atomic_intptr_t sum; /* of the threads' own words */
    struct node *nodes;
    size_t node_count; /* of each thread */
};

static _Thread_local intptr_t own_word;
static _Thread_local struct node *own_list;

ALWAYS_INLINE void add_one(enum percpu_kind kind, struct quire_percpu *pool, struct quire_percpu_ref ref, struct board *board)
{
    if (kind == KIND_PERCPU)
        quire_percpu_add(pool, ref, 1);
    if (kind == KIND_LOCAL) {
        own_word++;
        __asm__ volatile("" : : : "memory");
    }
    if (kind == KIND_ATOMIC)
        atomic_fetch_add_explicit(&board->atomic, 1, memory_order_relaxed);
    if (kind == KIND_MUTEX) {
        pthread_mutex_lock(&board->mutex);
        board->locked++;
        pthread_mutex_unlock(&board->mutex);
    }
}

ALWAYS_INLINE void *add_loop(enum percpu_kind kind, struct percpu_worker *w)
{
    struct board *board = w->shared;
    struct quire_percpu *pool = w->place->pool;
    struct quire_percpu_ref ref = board->ref; /* in registers, as a counter's address is */
    uint64_t count = w->count, began = bench_thread_ns();
    for (uint64_t i = 0; i < count; i++)
        add_one(kind, pool, ref, board);
    w->cpu_ns = bench_thread_ns() - began;
    w->done = count;
    atomic_fetch_add_explicit(&board->sum, own_word, memory_order_relaxed);
    return NULL;
}

ALWAYS_INLINE void push_one(enum percpu_kind kind, const struct percpu_place *place, struct board *board, struct node *node)
{
    if (kind == KIND_PERCPU)
        quire_percpu_push(place->pool, board->ref, node);
    if (kind == KIND_LOCAL) {
        node->link = own_list;
        own_list = node;
        __asm__ volatile("" : : : "memory");
    }
    if (kind == KIND_MUTEX) {
        pthread_mutex_lock(&board->mutex);
        node->link = board->list;
        board->list = node;
        pthread_mutex_unlock(&board->mutex);
    }
}

ALWAYS_INLINE struct node *pop_one(enum percpu_kind kind, const struct percpu_place *place, struct board *board)
{
    if (kind == KIND_PERCPU)
        return quire_percpu_pop(place->pool, board->ref);
    if (kind == KIND_MUTEX)
        pthread_mutex_lock(&board->mutex);
    struct node **head = kind == KIND_LOCAL ? &own_list : &board->list, *node = *head;
    if (node)
        *head = node->link;
    if (kind == KIND_MUTEX)
        pthread_mutex_unlock(&board->mutex);
    __asm__ volatile("" : : : "memory");
    return node;
}

/* When the thread was moved in between, the list here may be empty: it goes on with another node of its own. */
ALWAYS_INLINE void *list_loop(enum percpu_kind kind, struct percpu_worker *w)
{
    struct board *board = w->shared;
    struct node *spare = board->nodes + w->idx * board->node_count, *end = spare + board->node_count, *node = spare++;
    uint64_t count = w->count, done = 0, began = bench_thread_ns();
    for (; done < count; done++) {
        push_one(kind, w->place, board, node);
        node = pop_one(kind, w->place, board);
        if (__builtin_expect(!node, 0)) {
            if (spare == end)
                bench_die("a thread was moved too often; fewer operations with --count");
            node = spare++;
        }
    }
    w->cpu_ns = bench_thread_ns() - began;
    w->done = done;
    node->rest[0]++; /* found in a hand */
    for (; spare < end; spare++)
        spare->rest[0]++; /* never used */
    for (struct node *left = own_list; left; left = left->link)
        left->rest[0]++;
    return NULL;
}

#define RUNS_OF(loop)                                                                                                                               \
    static void *loop##_percpu(void *w)                                                                                                             \
    {                                                                                                                                               \
        return loop(KIND_PERCPU, w);                                                                                                                \
    }                                                                                                                                               \
    static void *loop##_local(void *w)                                                                                                              \
    {                                                                                                                                               \
        return loop(KIND_LOCAL, w);                                                                                                                 \
    }                                                                                                                                               \
    static void *loop##_mutex(void *w)                                                                                                              \
    {                                                                                                                                               \
        return loop(KIND_MUTEX, w);                                                                                                                 \
    }
RUNS_OF(add_loop)
RUNS_OF(list_loop)

static void *add_loop_atomic(void *w)
{
    return add_loop(KIND_ATOMIC, w);
}

typedef void *run_function(void *worker);
static run_function *const add_runs[KINDS] = {
    [KIND_PERCPU] = add_loop_percpu, [KIND_LOCAL] = add_loop_local, [KIND_ATOMIC] = add_loop_atomic, [KIND_MUTEX] = add_loop_mutex};
static run_function *const list_runs[KINDS] = {[KIND_PERCPU] = list_loop_percpu, [KIND_LOCAL] = list_loop_local, [KIND_MUTEX] = list_loop_mutex};

static void lists_mark(const struct percpu_place *place, const struct board *board)
{
    for (struct node *node = board->list; node; node = node->link)
        node->rest[0]++;
    for (unsigned cpu = 0; place->pool && cpu < quire_percpu_cpus(place->pool); cpu++)
        for (struct node *node = *(struct node **)quire_percpu_at(place->pool, board->ref, cpu); node; node = node->link)
            node->rest[0]++;
}

static void all_counted(enum percpu_kind kind, const struct percpu_place *place, struct board *board, uint64_t adds)
{
    intptr_t sum = kind == KIND_PERCPU   ? quire_percpu_sum(place->pool, board->ref)
                   : kind == KIND_LOCAL  ? atomic_load(&board->sum)
                   : kind == KIND_ATOMIC ? atomic_load(&board->atomic)
                                         : board->locked;
    if (sum != (intptr_t)adds)
        bench_die("the counter does not hold what was added: additions were lost, or counted twice");
}

static void no_node_lost(const struct percpu_place *place, struct board *board, size_t threads)
{
    lists_mark(place, board);
    for (size_t i = 0; i < threads * board->node_count; i++)
        if (board->nodes[i].rest[0] != 1)
            bench_die("a node was lost, or is on two lists");
    bench_scratch_free(board->nodes, threads * board->node_count, sizeof(struct node));
}

/* Nanoseconds an operation. */
static double once(const struct percpu_config *config, enum percpu_kind kind, size_t threads, bool list)
{
    static struct board board;
    struct percpu_place place = percpu_place_open(config, kind, sizeof(intptr_t), 0);
    struct percpu_worker like = {.config = config, .place = &place, .shared = &board};
    uint64_t fast = list ? PUSHES : ADDS, slow = list ? SLOW_PUSHES : SLOW_ADDS, count = kind == KIND_MUTEX ? slow : fast;
    like.count = (config->count ? config->count : count) / threads;
    board = (struct board){.node_count = SPARE_NODES};
    pthread_mutex_init(&board.mutex, NULL);
    if (list)
        board.nodes = bench_scratch(threads * board.node_count, sizeof(struct node));
    if (place.pool)
        board.ref = quire_percpu_alloc(place.pool, sizeof(intptr_t), 0);
    percpu_workers_run(&like, threads, (list ? list_runs : add_runs)[kind]);
    if (list)
        no_node_lost(&place, &board, threads);
    else
        all_counted(kind, &place, &board, like.done);
    if (place.pool)
        quire_percpu_free(place.pool, board.ref);
    percpu_place_close(&place, 0);
    return (double)like.cpu_ns / (double)like.done;
}

static void rows(const struct percpu_config *config, bool list)
{
    static double ns[KINDS][THREAD_COUNTS][ROUNDS_MAX];
    size_t counts = config->threads ? 1 : THREAD_COUNTS;
    for (size_t round = 0; round < config->rounds; round++)
        for (size_t t = 0; t < counts; t++)
            for (enum percpu_kind kind = 0; kind < KINDS; kind++)
                if (config->kinds & KIND_BIT(kind))
                    ns[kind][t][round] = once(config, kind, config->threads ? config->threads : thread_counts[t], list);
    for (size_t t = 0; t < counts; t++)
        for (enum percpu_kind kind = 0; kind < KINDS; kind++) {
            if (!(config->kinds & KIND_BIT(kind)))
                continue;
            percpu_row_open(config, kind);
            bench_row_count("threads", config->threads ? config->threads : thread_counts[t]);
            bench_row_count("rseq", percpu_has_rseq());
            bench_row_count("migrate", config->migrate);
            bench_row_number(list ? "ns_per_push_pop" : "ns_per_add", bench_median(ns[kind][t], config->rounds));
            if (kind == KIND_PERCPU && config->kinds & KIND_BIT(KIND_ATOMIC))
                bench_row_number("over_atomic", bench_median(ns[kind][t], config->rounds) / bench_median(ns[KIND_ATOMIC][t], config->rounds));
            bench_row_close();
        }
    if (config->all && percpu_has_rseq())
        percpu_run_without_rseq();
}

void percpu_add(const struct percpu_config *config)
{
    rows(config, false);
}

void percpu_list(const struct percpu_config *config)
{
    rows(config, true);
}
