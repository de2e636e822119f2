// SPDX-License-Identifier: MIT
/*
 * slab_memory.c - the workloads that ask what is held: `full`, `fragment`, `many`, `idle`.
 *
 *   full       a million elements live: what each costs above its bytes; then all are freed: what stays
 *   fragment   a million, a random 90 % freed, then rounds that free `round` random live ones and allocate as many: held over live
 *   many       a thousand slabs that once held one element each
 *   idle       a thousand threads that each had one element of each of ten slabs once, and live on; above the same threads before
 *
 * Held is resident memory above the process's own before the first element; the slab's own statistics stand beside it where there is a slab.
 * Right after freeing, after two decays (--decay), and after the allocator was asked to give back (its own call, of each peer too).
 * Elements are written whole and verified whole.
 */
#include <stdio.h>
#include <unistd.h>

#include "slab_driver.h"

enum { ELEMENTS = 1000000, ELEMENT_BYTES = 64, FREED_PERCENT = 90, FRAGMENT_ROUNDS = 300, SLABS = 1000, THREADS_MAX = 64 };
enum { IDLE_THREADS = 1000, IDLE_SLABS = 10, IDLE_SLABS_MAX = 64, STACK_BYTES = 65536, STACK_TOUCHED = 8192 };

static uint64_t address_seed(const void *element)
{
    return ((uint64_t)(uintptr_t)element | 1) * 0x9e3779b97f4a7c15u;
}

ALWAYS_INLINE void *take_written(enum slab_kind kind, const struct slab_worker *w)
{
    void *element = slab_take(kind, w->slab, w->element_bytes);
    slab_write(element, w->element_bytes, address_seed(element));
    return element;
}

ALWAYS_INLINE void give_verified(enum slab_kind kind, const struct slab_worker *w, void *element)
{
    slab_verify(element, w->element_bytes, address_seed(element));
    slab_give(kind, w->slab, element);
}

static void *take_one(const struct slab_worker *w)
{
    return w->config->kind == KIND_SLAB ? take_written(KIND_SLAB, w) : take_written(KIND_MALLOC, w);
}

static void give_one(const struct slab_worker *w, void *element)
{
    if (w->config->kind == KIND_SLAB)
        give_verified(KIND_SLAB, w, element);
    else
        give_verified(KIND_MALLOC, w, element);
}

static double above_bytes(size_t start_bytes)
{
    return (double)bench_rss_bytes() - (double)start_bytes;
}

/* What was held at each point: all of it is looked at before a row is printed, for printing takes memory, too. */
struct held {
    double full, freed, decayed, trimmed;
    size_t mapped_full, mapped_freed, mapped_trimmed;
};

static void held_rows(const struct slab_config *config, const struct held *h, double payload, size_t count, bool is_slab)
{
    bench_row_count("count", count);
    bench_row_number("payload_bytes", payload);
    bench_row_number("held_full_bytes", h->full);
    bench_row_number("overhead_bytes_per_element", (h->full - payload) / (double)count);
    if (is_slab)
        bench_row_number("mapped_overhead_bytes_per_element", ((double)h->mapped_full - payload) / (double)count);
    bench_row_number("held_freed_bytes", h->freed);
    if (config->decay)
        bench_row_number("held_decayed_bytes", h->decayed);
    bench_row_number("held_trimmed_bytes", h->trimmed);
    if (is_slab) {
        bench_row_count("mapped_freed_bytes", h->mapped_freed);
        bench_row_count("mapped_trimmed_bytes", h->mapped_trimmed);
    }
}

void slab_full(const struct slab_config *config)
{
    size_t count = config->count ? config->count : ELEMENTS;
    struct slab_worker w = {.config = config, .element_bytes = config->element_bytes ? config->element_bytes : ELEMENT_BYTES, .count = count};
    if (config->threads != 1)
        bench_usage("this workload has one thread", "--threads 1");
    void **elements = bench_scratch(count, sizeof *elements);
    double payload = (double)count * (double)w.element_bytes;
    bench_rss_bytes(); /* what reading it allocates is not part of a difference */
    size_t start_bytes = bench_rss_bytes();
    w.slab = slab_make(config, w.element_bytes, 0);
    for (size_t i = 0; i < count; i++)
        elements[i] = take_one(&w);
    struct held h = {.full = above_bytes(start_bytes), .mapped_full = slab_sound(w.slab, count)};
    for (size_t i = 0; i < count; i++)
        give_one(&w, elements[i]);
    h.freed = above_bytes(start_bytes);
    h.mapped_freed = slab_sound(w.slab, 0);
    if (config->decay) {
        bench_sleep_ms(TWO_DECAYS_MS);
        h.decayed = above_bytes(start_bytes);
    }
    slab_give_back(config->kind, w.slab);
    h.trimmed = above_bytes(start_bytes);
    h.mapped_trimmed = slab_sound(w.slab, 0);
    slab_row_open(config, w.element_bytes);
    held_rows(config, &h, payload, count, w.slab != NULL);
    bench_row_close();
    quire_slab_destroy(w.slab);
}

static void shuffle(void **elements, size_t count, uint64_t *state)
{
    for (size_t i = count; i-- > 1;) {
        size_t j = bench_random(state) % (i + 1);
        void *other = elements[i];
        elements[i] = elements[j];
        elements[j] = other;
    }
}

/* Frees `count` of the `live` elements at random and allocates as many: those chosen move to the end. */
static void churn(const struct slab_worker *w, void **elements, size_t live, size_t count, uint64_t *state)
{
    for (size_t i = 0; i < count; i++) {
        size_t last = live - 1 - i, chosen = bench_random(state) % (last + 1);
        void *element = elements[chosen];
        elements[chosen] = elements[last];
        give_one(w, element);
    }
    for (size_t i = 0; i < count; i++)
        elements[live - count + i] = take_one(w);
}

static size_t live_after(size_t count)
{
    return count - count / 100 * FREED_PERCENT;
}

static void *fragment_thread(void *worker)
{
    struct slab_worker *w = worker;
    uint64_t state = 88172645463325252u + w->idx * 1000003u;
    void **elements = bench_scratch(w->count, sizeof *elements);
    size_t live = live_after(w->count), round = w->config->round / w->config->threads;
    pthread_barrier_wait(w->line); /* main looks, and makes the slab */
    pthread_barrier_wait(w->line);
    uint64_t began = bench_thread_ns();
    for (size_t i = 0; i < w->count; i++)
        elements[i] = take_one(w);
    shuffle(elements, w->count, &state);
    for (size_t i = live; i < w->count; i++)
        give_one(w, elements[i]);
    for (uint64_t r = 0; r < w->rounds; r++)
        churn(w, elements, live, round < live ? round : live, &state);
    w->cpu_ns = bench_thread_ns() - began;
    pthread_barrier_wait(w->line); /* main looks */
    pthread_barrier_wait(w->line);
    for (size_t i = 0; i < live; i++)
        give_one(w, elements[i]);
    return NULL;
}

static void fragment_row(const struct slab_worker *like, struct quire_slab *slab, size_t start_bytes)
{
    const struct slab_config *config = like->config;
    size_t live = live_after(like->count) * config->threads;
    double payload = (double)live * (double)like->element_bytes, held = above_bytes(start_bytes);
    slab_row_open(config, like->element_bytes);
    bench_row_count("defrag", config->defrag);
    bench_row_count("count", like->count * config->threads);
    bench_row_count("round", config->round);
    bench_row_number("payload_bytes", payload);
    bench_row_number("held_over_live", held / payload);
    if (slab)
        bench_row_number("mapped_over_live", (double)slab_sound(slab, live) / payload);
    if (config->decay) {
        bench_sleep_ms(TWO_DECAYS_MS);
        bench_row_number("held_over_live_decayed", above_bytes(start_bytes) / payload);
        if (slab)
            bench_row_number("mapped_over_live_decayed", (double)slab_sound(slab, live) / payload);
    }
    slab_give_back(config->kind, slab);
    bench_row_number("held_over_live_trimmed", above_bytes(start_bytes) / payload);
    if (slab)
        bench_row_number("mapped_over_live_trimmed", (double)slab_sound(slab, live) / payload);
}

void slab_fragment(const struct slab_config *config)
{
    static struct slab_worker workers[THREADS_MAX];
    struct slab_config rounded = *config;
    struct slab_worker like = {.element_bytes = config->element_bytes ? config->element_bytes : ELEMENT_BYTES};
    size_t count = config->count ? config->count : ELEMENTS;
    if (config->threads > THREADS_MAX || count / config->threads < 100)
        bench_usage("more than 64 threads, or fewer than 100 elements for each", "--threads 1 --count 1000000");
    rounded.round = config->round ? config->round : count / 100;
    like.config = &rounded;
    like.count = count / config->threads;
    like.rounds = config->rounds ? config->rounds : FRAGMENT_ROUNDS;
    slab_workers_start(workers, config->threads, like, fragment_thread);
    bench_rss_bytes(); /* what reading it allocates is not part of a difference */
    pthread_barrier_wait(workers[0].line);
    size_t start_bytes = bench_rss_bytes();
    struct quire_slab *slab = slab_make(config, like.element_bytes, 0);
    for (size_t t = 0; t < config->threads; t++)
        workers[t].slab = slab; /* read after the next barrier */
    pthread_barrier_wait(workers[0].line);
    pthread_barrier_wait(workers[0].line);
    fragment_row(&like, slab, start_bytes);
    pthread_barrier_wait(workers[0].line);
    slab_workers_end(workers, config->threads);
    bench_row_number("cpu_ms", (double)workers[0].cpu_ns / 1e6);
    bench_row_close();
    slab_sound(slab, 0);
    quire_slab_destroy(slab);
}

static size_t mapped_together(struct quire_slab **slabs, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += slab_sound(slabs[i], 0);
    return bytes;
}

void slab_many(const struct slab_config *config)
{
    size_t count = config->count ? config->count : SLABS, element_bytes = config->element_bytes ? config->element_bytes : ELEMENT_BYTES;
    if (config->threads != 1 || config->kind != KIND_SLAB)
        bench_usage("many asks slabs only, on one thread", "--workload many --allocator slab");
    struct quire_slab **slabs = bench_scratch(count, sizeof *slabs);
    bench_rss_bytes(); /* what reading it allocates is not part of a difference */
    size_t start_bytes = bench_rss_bytes();
    for (size_t i = 0; i < count; i++) {
        slabs[i] = slab_make(config, element_bytes, 0);
        void *element = slab_take(KIND_SLAB, slabs[i], element_bytes);
        slab_write(element, element_bytes, address_seed(element));
        slab_give(KIND_SLAB, slabs[i], element);
    }
    slab_row_open(config, element_bytes);
    bench_row_count("slabs", count);
    bench_row_number("held_bytes", above_bytes(start_bytes));
    bench_row_count("mapped_bytes", mapped_together(slabs, count));
    if (config->decay) {
        bench_sleep_ms(TWO_DECAYS_MS);
        bench_row_number("held_decayed_bytes", above_bytes(start_bytes));
        bench_row_count("mapped_decayed_bytes", mapped_together(slabs, count));
    }
    for (size_t i = 0; i < count; i++)
        slab_give_back(KIND_SLAB, slabs[i]);
    bench_row_number("held_trimmed_bytes", above_bytes(start_bytes));
    bench_row_count("mapped_trimmed_bytes", mapped_together(slabs, count));
    bench_row_close();
    for (size_t i = 0; i < count; i++)
        quire_slab_destroy(slabs[i]);
}

/* ---- idle ---- */

static struct idle {
    const struct slab_config *config;
    struct quire_slab *slabs[IDLE_SLABS_MAX];
    size_t count, element_bytes;
    pthread_barrier_t line;
} idle;

/* With malloc each "slab" is another size, so that ten bins are used. */
static void *idle_take(size_t i)
{
    size_t bytes = idle.element_bytes * (idle.slabs[i] ? 1 : i + 1);
    void *element = slab_take(idle.config->kind, idle.slabs[i], bytes);
    slab_write(element, idle.element_bytes, address_seed(element));
    return element;
}

static void *idle_thread(void *unused)
{
    volatile char stack[STACK_TOUCHED]; /* that its depth is no part of the difference */
    for (size_t i = 0; i < sizeof stack; i += 512)
        stack[i] = 0;
    pthread_barrier_wait(&idle.line); /* main looks */
    pthread_barrier_wait(&idle.line);
    for (size_t i = 0; i < idle.count; i++)
        slab_give(idle.config->kind, idle.slabs[i], idle_take(i));
    pthread_barrier_wait(&idle.line); /* main looks, and again after two decays */
    pthread_barrier_wait(&idle.line);
    return unused;
}

static void idle_row(size_t start_bytes, size_t start_anonymous)
{
    bench_row_count("slabs", idle.count);
    bench_row_number("held_used_bytes", above_bytes(start_bytes));
    if (idle.slabs[0])
        bench_row_count("mapped_used_bytes", mapped_together(idle.slabs, idle.count));
    if (!idle.config->decay)
        return;
    bench_sleep_ms(TWO_DECAYS_MS);
    bench_row_number("held_decayed_bytes", above_bytes(start_bytes));
    bench_row_number("anonymous_decayed_bytes", (double)bench_anonymous_bytes() - (double)start_anonymous);
    if (idle.slabs[0])
        bench_row_count("mapped_decayed_bytes", mapped_together(idle.slabs, idle.count));
}

void slab_idle(const struct slab_config *config)
{
    size_t threads = config->threads > 1 ? config->threads : IDLE_THREADS;
    struct slab_config counted = *config;
    counted.threads = threads;
    pthread_t *all = bench_scratch(threads, sizeof *all);
    pthread_attr_t small;
    idle.config = &counted;
    idle.count = config->count ? config->count : IDLE_SLABS;
    idle.element_bytes = config->element_bytes ? config->element_bytes : ELEMENT_BYTES;
    if (idle.count > IDLE_SLABS_MAX)
        bench_usage("more than 64 slabs", "--count 10");
    if (pthread_barrier_init(&idle.line, NULL, (unsigned)threads + 1) != 0 || pthread_attr_init(&small) != 0 ||
        pthread_attr_setstacksize(&small, STACK_BYTES) != 0)
        bench_die("no barrier, or no small stack");
    for (size_t i = 0; i < idle.count; i++) {
        idle.slabs[i] = slab_make(config, idle.element_bytes, 0);
        slab_give(config->kind, idle.slabs[i], idle_take(i)); /* what the first use costs is no thread's */
    }
    for (size_t i = 0; i < threads; i++)
        if (pthread_create(&all[i], &small, idle_thread, NULL) != 0)
            bench_die("no thread: out of memory, or over the limit of `ulimit -u`");
    pthread_barrier_wait(&idle.line);
    bench_rss_bytes(); /* what reading it allocates is not part of a difference */
    size_t start_bytes = bench_rss_bytes(), start_anonymous = bench_anonymous_bytes();
    pthread_barrier_wait(&idle.line);
    pthread_barrier_wait(&idle.line);
    slab_row_open(&counted, idle.element_bytes);
    idle_row(start_bytes, start_anonymous);
    bench_row_close();
    pthread_barrier_wait(&idle.line);
    for (size_t i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    for (size_t i = 0; i < idle.count; i++)
        quire_slab_destroy(idle.slabs[i]);
}
