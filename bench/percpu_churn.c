// SPDX-License-Identifier: MIT
/*
 * percpu_churn.c - objects come and go: the workloads `churn` and `threads`.
 *
 *   churn     8 MiB of each copy (--fill-mib) filled with objects of 4 bytes to 1 KiB; a random part freed, until it is 50 % or 95 % full; then one
 *             object at random is freed and one of another size allocated, again and again.  How full chunks are at the end stands in the row:
 *             it is the allocator's business whether it finds room, takes another chunk, or empties one
 *   threads   each thread allocates 1,000 objects and frees them, over one pool; pairs a CPU-second, and in relation to one thread
 */
#include "percpu_driver.h"

enum { PAIRS = 500000, FILL_MIB = 8, SIZE_WORDS_MAX = 256, WORD_BYTES = 4, MEAN_BYTES = (1 + SIZE_WORDS_MAX) * WORD_BYTES / 2 };
enum { FITS_PERCENT = 98, TOP_UPS_MAX = 400, ROOM = 4 };
enum { BATCH = 1000, THREAD_PAIRS = 4000000, OBJECT_BYTES = 64 };
static const unsigned percents[] = {50, 95};
static const size_t thread_counts[] = {1, 2, 8};
enum { PERCENTS = sizeof percents / sizeof percents[0], THREAD_COUNTS = sizeof thread_counts / sizeof thread_counts[0] };

struct board {
    struct percpu_place *place;
    uintptr_t *bits;
    size_t live, full; /* full: so many fit into the chunks, on average */
    uint64_t state;
};

ALWAYS_INLINE uintptr_t take_any(enum percpu_kind kind, struct board *board)
{
    return percpu_take(kind, board->place, (1 + bench_random(&board->state) % SIZE_WORDS_MAX) * WORD_BYTES, WORD_BYTES);
}

ALWAYS_INLINE void exchange(enum percpu_kind kind, struct board *board, size_t pairs)
{
    for (size_t i = 0; i < pairs; i++) {
        size_t chosen = bench_random(&board->state) % board->live;
        percpu_give(kind, board->place, board->bits[chosen]);
        board->bits[chosen] = take_any(kind, board);
    }
}

/* Of all chunks; 0 where nobody knows. */
static double full_percent(const struct percpu_place *place)
{
    struct quire_percpu_stats stats = {.struct_bytes = sizeof stats};
    if (!place->pool)
        return 0;
    quire_percpu_stats(place->pool, &stats);
    return 100 - 100 * (double)stats.unit_free_bytes / ((double)stats.chunks * (double)stats.unit_bytes);
}

/* Chunks as full as they shall be, and no longer fresh. */
ALWAYS_INLINE void prepare(enum percpu_kind kind, struct board *board, unsigned percent)
{
    while (board->live < board->full * FITS_PERCENT / 100)
        board->bits[board->live++] = take_any(kind, board);
    percpu_shuffle(board->bits, board->live, &board->state);
    while (board->live > board->full * percent / 100)
        percpu_give(kind, board->place, board->bits[--board->live]);
    exchange(kind, board, board->live);
    for (int i = 0; kind == KIND_PERCPU && i < TOP_UPS_MAX && full_percent(board->place) < percent - 1; i++) {
        size_t more = board->live / 100 + 1;
        for (size_t j = 0; j < more && board->live < ROOM * board->full; j++)
            board->bits[board->live++] = take_any(kind, board);
        exchange(kind, board, more);
    }
}

ALWAYS_INLINE double churn_kind(enum percpu_kind kind, struct board *board, unsigned percent, size_t pairs)
{
    prepare(kind, board, percent);
    uint64_t began = bench_thread_ns();
    exchange(kind, board, pairs);
    return (double)(bench_thread_ns() - began) / (double)pairs;
}

/* Nanoseconds a pair; how full it was at the end in *full. */
static double churn_once(const struct percpu_config *config, enum percpu_kind kind, unsigned percent, double *full)
{
    size_t fill_bytes = (config->fill_mib ? config->fill_mib : FILL_MIB) << 20, fits = fill_bytes / MEAN_BYTES;
    size_t pairs = config->count ? config->count : PAIRS;
    struct percpu_place place = percpu_place_open(config, kind, WORD_BYTES, 2 * fill_bytes / WORD_BYTES);
    struct board board = {.place = &place, .bits = bench_scratch(ROOM * fits, sizeof(uintptr_t)), .full = fits, .state = 88172645463325252u};
    double ns = kind == KIND_PERCPU   ? churn_kind(KIND_PERCPU, &board, percent, pairs)
                : kind == KIND_MALLOC ? churn_kind(KIND_MALLOC, &board, percent, pairs)
                                      : churn_kind(KIND_AREA_MAP, &board, percent, pairs / 10 + 1);
    *full = full_percent(&place);
    percpu_place_sound(&place, kind == KIND_MALLOC ? 0 : board.live);
    while (board.live > 0)
        percpu_give(kind, &place, board.bits[--board.live]);
    percpu_place_close(&place, 0);
    bench_scratch_free(board.bits, ROOM * fits, sizeof(uintptr_t));
    return ns;
}

void percpu_churn(const struct percpu_config *config)
{
    static double ns[KINDS][PERCENTS][ROUNDS_MAX], full[KINDS][PERCENTS][ROUNDS_MAX];
    for (size_t round = 0; round < config->rounds; round++)
        for (size_t p = 0; p < PERCENTS; p++)
            for (enum percpu_kind kind = 0; kind < KINDS; kind++)
                if (config->kinds & KIND_BIT(kind))
                    ns[kind][p][round] = churn_once(config, kind, percents[p], &full[kind][p][round]);
    for (size_t p = 0; p < PERCENTS; p++)
        for (enum percpu_kind kind = 0; kind < KINDS; kind++) {
            if (!(config->kinds & KIND_BIT(kind)))
                continue;
            percpu_row_open(config, kind);
            bench_row_count("full_percent", percents[p]);
            bench_row_number("ns_per_pair", bench_median(ns[kind][p], config->rounds));
            if (kind == KIND_PERCPU)
                bench_row_number("full_percent_at_end", bench_median(full[kind][p], config->rounds));
            bench_row_close();
        }
}

ALWAYS_INLINE void *pairs_loop(enum percpu_kind kind, struct percpu_worker *w)
{
    uintptr_t *bits = bench_scratch(BATCH, sizeof *bits);
    uint64_t began = 0;
    for (uint64_t done = 0; done < w->count + BATCH; done += BATCH) {
        if (done == BATCH) /* the first batch is not counted */
            began = bench_thread_ns();
        for (size_t i = 0; i < BATCH; i++)
            bits[i] = percpu_take(kind, w->place, w->object_bytes, percpu_align_bytes(w->object_bytes));
        for (size_t i = 0; i < BATCH; i++)
            percpu_give(kind, w->place, bits[i]);
        w->done = done;
    }
    w->cpu_ns = bench_thread_ns() - began;
    bench_scratch_free(bits, BATCH, sizeof *bits);
    return NULL;
}

static void *pairs_percpu(void *worker)
{
    return pairs_loop(KIND_PERCPU, worker);
}

static void *pairs_malloc(void *worker)
{
    return pairs_loop(KIND_MALLOC, worker);
}

/* Million pairs a CPU-second. */
static double threads_once(const struct percpu_config *config, enum percpu_kind kind, size_t threads)
{
    struct percpu_place place = percpu_place_open(config, kind, OBJECT_BYTES, 0);
    struct percpu_worker like = {.config = config, .place = &place, .object_bytes = config->object_bytes ? config->object_bytes : OBJECT_BYTES};
    like.count = ((config->count ? config->count : THREAD_PAIRS) / threads + BATCH - 1) / BATCH * BATCH;
    percpu_workers_run(&like, threads, kind == KIND_PERCPU ? pairs_percpu : pairs_malloc);
    percpu_place_close(&place, 0);
    return (double)like.done * 1e3 / (double)like.cpu_ns;
}

void percpu_threads(const struct percpu_config *config)
{
    static double speed[KINDS][THREAD_COUNTS][ROUNDS_MAX], of_one[ROUNDS_MAX];
    size_t counts = config->threads ? 2 : THREAD_COUNTS; /* one thread always: the others are seen in relation to it */
    for (size_t round = 0; round < config->rounds; round++)
        for (size_t t = 0; t < counts; t++)
            for (enum percpu_kind kind = 0; kind < KINDS; kind++)
                if (config->kinds & KIND_BIT(kind))
                    speed[kind][t][round] = threads_once(config, kind, t > 0 && config->threads ? config->threads : thread_counts[t]);
    for (enum percpu_kind kind = 0; kind < KINDS; kind++)
        for (size_t t = counts; t-- > 0 && config->kinds & KIND_BIT(kind);) { /* the first one last: a median sorts */
            size_t threads = t > 0 && config->threads ? config->threads : thread_counts[t];
            for (size_t round = 0; round < config->rounds; round++)
                of_one[round] = speed[kind][t][round] / speed[kind][0][round];
            percpu_row_open(config, kind);
            bench_row_count("threads", threads);
            bench_row_count("object_bytes", config->object_bytes ? config->object_bytes : OBJECT_BYTES);
            bench_row_number("m_pairs_per_cpu_s", bench_median(speed[kind][t], config->rounds));
            bench_row_number("of_one_thread", bench_median(of_one, config->rounds));
            bench_row_close();
        }
}
