// SPDX-License-Identifier: MIT
/*
 * requests.c - servers in which no call site makes many objects a request, but a request as a whole does.
 *
 *     requests SHAPE [REQUESTS]
 *
 *     ten      one object of each of ten kinds           [----------------]   one request
 *     three    six objects of each of three kinds          [------------]     its objects: born and dead with it
 *     two      two kinds of request, in turn, ten kinds      [-------]
 *     threads  `ten`, in two threads at once
 *     late     `ten`, but one object in a hundred stays for the next hundred requests
 *     queue    ten kinds, each in a queue of its own: whoever is oldest dies
 *     apart    ten kinds, one after the other: none lives while another does
 *
 * With -DARENA=1 the objects of a request are on an arena, as advised (ten, three, two, threads only).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if ARENA
#include <quire/arena.h>
static _Thread_local struct quire_arena *arena;
#define TAKE(bytes) quire_arena_alloc(arena, (bytes))
#define DROP(object) ((void)(object))
#define BEGIN() (arena = arena ? arena : quire_arena_create(NULL))
#define END() quire_arena_reset(arena)
#else
#define TAKE(bytes) malloc(bytes)
#define DROP(object) free(object)
#define BEGIN() ((void)0)
#define END() ((void)0)
#endif

enum { KINDS = 10, QUEUED = 64, EACH = 6, LATE_EVERY = 10, LATE_FOR = 100, REQUESTS_DEFAULT = 20000 };

typedef void *maker(unsigned salt);

static void *filled(void *memory, unsigned salt, size_t bytes)
{
    if (!memory)
        exit(1);
    memset(memory, (int)salt, bytes);
    return memory;
}

/* Each kind is made on a line of its own. */
#define KIND(number, bytes)                                                                                            \
    static __attribute__((noinline)) void *make_##number(unsigned salt) { return filled(TAKE(bytes), salt, bytes); }
KIND(0, 200)
KIND(1, 24)
KIND(2, 48)
KIND(3, 112)
KIND(4, 64)
KIND(5, 32)
KIND(6, 320)
KIND(7, 40)
KIND(8, 80)
KIND(9, 56)
static maker *const makers[KINDS] = {make_0, make_1, make_2, make_3, make_4, make_5, make_6, make_7, make_8, make_9};

static unsigned long long answered;

static unsigned long long look(const void *object, unsigned salt)
{
    return ((const unsigned char *)object)[salt % 24];
}

/* One object each of the kinds from `first` to before `end`, or `each` of them. */
static void request(unsigned salt, unsigned first, unsigned end, unsigned each)
{
    void *objects[KINDS * EACH];
    unsigned count = 0;
    unsigned long long sum = 0;
    BEGIN();
    for (unsigned i = 0; i < each; i++)
        for (unsigned kind = first; kind < end; kind++)
            objects[count++] = makers[kind](salt + kind);
    for (unsigned i = 0; i < count; i++)
        sum += look(objects[i], salt);
    for (unsigned i = 0; i < count; i++)
        DROP(objects[i]);
    END();
    __atomic_fetch_add(&answered, sum, __ATOMIC_RELAXED);
}

static void *serve_ten(void *requests)
{
    for (unsigned i = 0; i < *(unsigned *)requests; i++)
        request(i, 0, KINDS, 1);
    return NULL;
}

static void serve_two_threads(unsigned requests)
{
    pthread_t other;
    if (pthread_create(&other, NULL, serve_ten, &requests) != 0)
        exit(1);
    serve_ten(&requests);
    pthread_join(other, NULL);
}

/* Two kinds of request that share half of their kinds of object. */
static void serve_two(unsigned requests)
{
    for (unsigned i = 0; i < requests; i++)
        request(i, i % 3 == 0 ? 0 : 2, i % 3 == 0 ? 8 : KINDS, 1);
}

static void serve_three(unsigned requests)
{
    for (unsigned i = 0; i < requests; i++)
        request(i, 0, 3, EACH);
}

/* Now and then an object of each kind stays for a hundred requests more. */
static void serve_late(unsigned requests)
{
    void *left[LATE_FOR / LATE_EVERY] = {0};
    unsigned at = 0;
    for (unsigned i = 0; i < requests; i++) {
        void *objects[KINDS];
        for (unsigned kind = 0; kind < KINDS; kind++)
            objects[kind] = makers[kind](i);
        if (i % LATE_EVERY == 0) {
            free(left[at]);
            left[at] = objects[i / LATE_EVERY % KINDS];
            objects[i / LATE_EVERY % KINDS] = NULL;
            at = (at + 1) % (LATE_FOR / LATE_EVERY);
        }
        for (unsigned kind = 0; kind < KINDS; kind++)
            free(objects[kind]);
    }
}

static void serve_queue(unsigned requests)
{
    static void *queue[KINDS][QUEUED];
    for (unsigned i = 0; i < requests; i++)
        for (unsigned kind = 0; kind < KINDS; kind++) {
            unsigned at = i * (kind + 1) % (QUEUED - kind);
            free(queue[kind][at]);
            queue[kind][at] = makers[kind](i);
        }
}

static void serve_apart(unsigned requests)
{
    for (unsigned i = 0; i < requests; i++)
        for (unsigned kind = 0; kind < KINDS; kind++)
            free(makers[kind](i));
}

int main(int argc, char **argv)
{
    const char *shape = argc > 1 ? argv[1] : "ten";
    unsigned requests = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : REQUESTS_DEFAULT;
    if (strcmp(shape, "ten") == 0)
        serve_ten(&requests);
    else if (strcmp(shape, "three") == 0)
        serve_three(requests);
    else if (strcmp(shape, "two") == 0)
        serve_two(requests);
    else if (strcmp(shape, "threads") == 0)
        serve_two_threads(requests);
    else if (strcmp(shape, "late") == 0)
        serve_late(requests);
    else if (strcmp(shape, "queue") == 0)
        serve_queue(requests);
    else if (strcmp(shape, "apart") == 0)
        serve_apart(requests);
    else
        return 2;
    printf("%llu\n", answered);
    return 0;
}
