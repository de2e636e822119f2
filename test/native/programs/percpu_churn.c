// SPDX-License-Identifier: MIT
/*
 * percpu_churn.c - pools over a source, with objects that cross threads, through every kind of failure: ends with status 0 as long as each
 * refusal is {0} + ENOMEM, every object keeps what was added to it, and all memory is back at the end.
 *
 *     percpu_churn default|anon|malloc [--touch-after-free | --touch-behind | --free-twice | --free-other | --nowait]
 *
 * --nowait: between the two lines "nowait begins" and "nowait ends" on standard error only quire_percpu_alloc_nowait() is called.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <quire/percpu.h>

enum { COUNT = 400, OBJECT_BYTES = 208, CPUS = 5, NODES = 64 };
typedef struct quire_percpu_ref ref_t;
static int failed;

static ref_t must_be_enomem(ref_t ref)
{
    if (!ref.bits && errno != ENOMEM) {
        fprintf(stderr, "errno %d instead of ENOMEM\n", errno);
        failed = 1;
    }
    return ref;
}

static void fail_if(int wrong, const char *what)
{
    if (wrong) {
        fprintf(stderr, "%s\n", what);
        failed = 1;
    }
}

struct some {
    struct quire_percpu *pool;
    ref_t refs[COUNT], list;
    struct node {
        struct node *link;
        long number;
    } nodes[NODES];
};

/* Adds to what the other thread allocated, frees half of it, and allocates what that one will free. */
static void *exchange(void *arg)
{
    struct some *some = arg;
    for (int i = 0; i < COUNT; i++)
        if (some->refs[i].bits)
            quire_percpu_add(some->pool, some->refs[i], i);
    for (int i = 0; i < COUNT / 2; i++) {
        quire_percpu_free(some->pool, some->refs[i]);
        some->refs[i] = must_be_enomem(quire_percpu_alloc(some->pool, OBJECT_BYTES, 0));
        if (some->refs[i].bits)
            quire_percpu_add(some->pool, some->refs[i], 2 * i);
    }
    for (int i = 0; i < NODES / 2; i++)
        if (some->list.bits)
            quire_percpu_push(some->pool, some->list, &some->nodes[i]);
    return NULL;
}

/* Every node comes back once, from whichever CPU's list. */
static void lists(struct some *some)
{
    long seen = 0, count = 0;
    if (!some->list.bits)
        return;
    for (int i = NODES / 2; i < NODES; i++)
        quire_percpu_push(some->pool, some->list, &some->nodes[i]);
    for (int tries = 0; tries < 1000 && count < 8; tries++) { /* some by popping, on the CPUs that we come by */
        struct node *node = quire_percpu_pop(some->pool, some->list);
        if (node)
            seen += node->number, count++;
    }
    for (unsigned cpu = 0; cpu < quire_percpu_cpus(some->pool); cpu++)
        for (struct node *node = *(struct node **)quire_percpu_at(some->pool, some->list, cpu); node; node = node->link)
            seen += node->number, count++;
    fail_if(count > NODES || (count == NODES && seen != NODES * (NODES - 1) / 2), "a node was lost or doubled");
}

static void misuse(struct quire_percpu *pool, const char *how)
{
    ref_t ref = quire_percpu_alloc(pool, OBJECT_BYTES, 0);
    if (!ref.bits || !how)
        return;
    volatile char *p = quire_percpu_at(pool, ref, 1);
    if (strcmp(how, "--touch-behind") == 0)
        p[OBJECT_BYTES] = 1;
    quire_percpu_free(pool, ref);
    if (strcmp(how, "--touch-after-free") == 0)
        p[0] = 1;
    if (strcmp(how, "--free-twice") == 0)
        quire_percpu_free(pool, ref);
    if (strcmp(how, "--free-other") == 0)
        quire_percpu_free(quire_percpu_create(NULL), quire_percpu_alloc(pool, 8, 0));
}

static void round_of(struct quire_source *source, const char *how)
{
    struct quire_percpu_opts opts = {.name = "churn", .source = source, .chunk_bytes = 60000, .cpus = CPUS, .reserve_bytes = 1000};
    struct some *some = calloc(1, sizeof *some);
    if (!some || !(some->pool = quire_percpu_create(&opts))) {
        must_be_enomem((ref_t){0});
        free(some);
        return;
    }
    for (int i = 0; i < NODES; i++)
        some->nodes[i].number = i;
    for (int pass = 0; pass < 3; pass++) {
        some->list = must_be_enomem(quire_percpu_alloc(some->pool, sizeof(void *), 0));
        for (int i = 0; i < COUNT; i++)
            some->refs[i] = must_be_enomem(quire_percpu_alloc(some->pool, OBJECT_BYTES, 0));
        pthread_t thread;
        int threads = pthread_create(&thread, NULL, exchange, some) == 0;
        if (threads)
            pthread_join(thread, NULL);
        for (int i = 0; i < COUNT; i++)
            if (some->refs[i].bits)
                fail_if(quire_percpu_sum(some->pool, some->refs[i]) != (threads ? i < COUNT / 2 ? 2 * i : i : 0), "an object lost what was added");
        lists(some);
        for (int i = 0; i < COUNT; i++)
            quire_percpu_free(some->pool, some->refs[i]);
        quire_percpu_free(some->pool, some->list);
        misuse(some->pool, how);
        quire_percpu_trim(some->pool);
        const char *error = quire_percpu_check(some->pool);
        fail_if(error != NULL, error);
    }
    must_be_enomem(quire_percpu_alloc(some->pool, 8, 0));
    quire_percpu_destroy(some->pool);
    free(some);
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        failed = 1;
}

/* From the thread's own chunk and then from the reserve, until nothing is left. */
static int nowait(struct quire_source *source)
{
    struct quire_percpu_opts opts = {.source = source, .chunk_bytes = 60000, .cpus = CPUS, .reserve_bytes = 20000};
    struct quire_percpu *pool = quire_percpu_create(&opts);
    quire_percpu_alloc(pool, 8, 0);
    int count = 0;
    say("nowait begins\n");
    while (quire_percpu_alloc_nowait(pool, 64, 0).bits)
        count++;
    say("nowait ends\n");
    quire_percpu_destroy(pool);
    printf("%d\n", count);
    return 0;
}

static struct quire_source *source_of(const char *name)
{
    if (strcmp(name, "anon") == 0)
        return quire_source_anon();
    return strcmp(name, "malloc") == 0 ? quire_source_malloc() : quire_source_default();
}

int main(int argc, char **argv)
{
    struct quire_source *source = source_of(argc > 1 ? argv[1] : "default"), *books = quire_source_default();
    const char *how = argc > 2 ? argv[2] : NULL;
    struct quire_source_stats before = {.struct_bytes = sizeof before}, after = {.struct_bytes = sizeof after}, books_before = {.struct_bytes = sizeof books_before}, books_after = {.struct_bytes = sizeof books_after};
    if (how && strcmp(how, "--nowait") == 0)
        return nowait(source);
    round_of(source, NULL); /* what threads keep for good is there now */
    quire_source_stats(source, &before);
    quire_source_stats(books, &books_before);
    for (int i = 0; i < 4; i++) {
        round_of(source, how);
        quire_source_trim(books);
    }
    quire_source_stats(source, &after);
    quire_source_stats(books, &books_after);
    fail_if(after.taken_bytes > before.taken_bytes, "memory is missing");
    fail_if(books_after.taken_bytes > books_before.taken_bytes, "bookkeeping is missing");
    fail_if(quire_source_check(books) != NULL, "the source's check");
    puts(failed ? "failed" : "sound");
    return failed;
}
