// SPDX-License-Identifier: MIT
/*
 * slab_churn.c - slabs over a source, with elements that cross threads, through every kind of failure: ends with status 0 as long as each
 * refusal is NULL + ENOMEM, every element keeps its bytes, and all memory is back at the end.
 *
 *     slab_churn default|anon|malloc [--touch-after-free | --touch-behind | --free-twice]
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire/slab.h>

enum { COUNT = 600, ELEMENT_BYTES = 200 };
static int failed;

static void *must_be_enomem(void *p)
{
    if (!p && errno != ENOMEM) {
        fprintf(stderr, "errno %d instead of ENOMEM\n", errno);
        failed = 1;
    }
    return p;
}

static void fail_if(int wrong, const char *what)
{
    if (wrong) {
        fprintf(stderr, "%s\n", what);
        failed = 1;
    }
}

struct some {
    struct quire_slab *slab;
    void *elements[COUNT];
};

/* Frees what the other thread allocated, and allocates what it will free. */
static void *exchange(void *arg)
{
    struct some *some = arg;
    quire_slab_free_batch(some->slab, some->elements, COUNT / 2);
    for (int i = 0; i < COUNT / 2; i++) {
        some->elements[i] = must_be_enomem(quire_slab_alloc(some->slab));
        if (some->elements[i])
            memset(some->elements[i], i, ELEMENT_BYTES);
    }
    return NULL;
}

static void misuse(struct quire_slab *slab, const char *how)
{
    volatile char *p = quire_slab_alloc(slab);
    if (!p || !how)
        return;
    if (strcmp(how, "--touch-behind") == 0)
        p[ELEMENT_BYTES] = 1;
    quire_slab_free(slab, (void *)p);
    if (strcmp(how, "--touch-after-free") == 0)
        p[0] = 1;
    if (strcmp(how, "--free-twice") == 0)
        quire_slab_free(slab, (void *)p);
}

static void round_of(struct quire_source *source, const char *how)
{
    struct quire_slab_opts opts = {.name = "churn", .source = source};
    struct some some = {.slab = must_be_enomem(quire_slab_create(ELEMENT_BYTES, &opts))};
    if (!some.slab)
        return;
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < COUNT; i++) {
            some.elements[i] = must_be_enomem(quire_slab_alloc(some.slab));
            if (some.elements[i])
                memset(some.elements[i], i, ELEMENT_BYTES);
        }
        pthread_t thread;
        if (pthread_create(&thread, NULL, exchange, &some) == 0)
            pthread_join(thread, NULL);
        for (int i = 0; i < COUNT; i++) {
            const char *p = some.elements[i];
            fail_if(p && (p[0] != (char)i || p[ELEMENT_BYTES - 1] != (char)i), "an element lost its bytes");
        }
        quire_slab_free_batch(some.slab, some.elements, COUNT);
        misuse(some.slab, how);
        quire_slab_trim(some.slab);
        fail_if(quire_slab_check(some.slab) != NULL, "the slab's check");
    }
    must_be_enomem(quire_slab_alloc(some.slab));
    quire_slab_destroy(some.slab);
}

static struct quire_source *source_of(const char *name)
{
    if (strcmp(name, "anon") == 0)
        return quire_source_anon();
    return strcmp(name, "malloc") == 0 ? quire_source_malloc() : quire_source_default();
}

int main(int argc, char **argv)
{
    struct quire_source *source = source_of(argc > 1 ? argv[1] : "default");
    struct quire_source_stats before = {.struct_bytes = sizeof before}, after = {.struct_bytes = sizeof after};
    for (int i = 0; i < 2; i++)
        round_of(source, NULL); /* what is kept for good is there now, also if one refusal has ended the first before it was */
    quire_source_stats(source, &before);
    for (int i = 0; i < 4; i++) {
        round_of(source, argc > 2 ? argv[2] : NULL);
        quire_source_trim(source);
    }
    quire_source_stats(source, &after);
    fail_if(after.taken_bytes > before.taken_bytes, "memory is missing");
    fail_if(quire_source_check(source) != NULL, "the source's check");
    puts(failed ? "failed" : "sound");
    return failed;
}
