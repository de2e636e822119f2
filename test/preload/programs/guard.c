// SPDX-License-Identifier: MIT
/* One misuse, of a block between guards (guard:1/1): which one the first argument says. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>
#include <malloc.h>

__attribute__((noinline)) static char *birth(size_t bytes)
{
    char *p = malloc(bytes);
    memset(p, 1, bytes);
    return p;
}

__attribute__((noinline)) static void death(char *p)
{
    free(p);
}

static volatile char sink;

/* A block that lies at the end of its page, or at its beginning. */
static char *placed(size_t bytes, int at_end)
{
    for (int i = 0; i < 200; i++) {
        char *p = birth(bytes);
        if (((uintptr_t)p % 4096 == 0) != at_end)
            return p;
    }
    abort();
}

static int mistake(const char *what)
{
    char *p = birth(40), *end = placed(48, 1), *begin = placed(48, 0);
    if (strcmp(what, "read-freed") == 0)
        death(p), sink = p[8];
    else if (strcmp(what, "write-freed") == 0)
        death(p), p[39] = 1;
    else if (strcmp(what, "read-past") == 0)
        sink = end[48];
    else if (strcmp(what, "write-past") == 0)
        end[50] = 1;
    else if (strcmp(what, "read-before") == 0)
        sink = begin[-1];
    else if (strcmp(what, "write-before") == 0)
        begin[-4] = 1;
    else if (strcmp(what, "write-slack") == 0)
        p = placed(41, 1), p[41] = 1, death(p);
    else if (strcmp(what, "write-in-front") == 0)
        end[-1] = 1, death(end);
    else if (strcmp(what, "free-twice") == 0)
        death(p), death(p);
    else if (strcmp(what, "free-inside") == 0)
        death(p + 16);
    else if (strcmp(what, "free-guard") == 0)
        death((char *)((uintptr_t)begin & ~(uintptr_t)4095) - 64);
    else if (strcmp(what, "use-old-after-realloc") == 0) {
        char *fresh = realloc(p, 41);
        fresh[40] = p[0];
    } else if (strcmp(what, "calloc-past") == 0)
        p = calloc(6, 8), sink = p[4096];
    return 0;
}

static void *exchange(void *arg)
{
    static void *_Atomic shared[64];
    unsigned seed = (unsigned)(uintptr_t)arg;
    int steps = getenv("QUIRE_TEST_LONG") ? 40000 : 8000;
    for (int i = 0; i < steps; i++) {
        seed = seed * 1664525 + 1013904223;
        size_t bytes = seed >> 20;
        char *p = i % 3 ? malloc(bytes) : calloc(1, bytes);
        if (i % 3 == 0)
            for (size_t at = 0; at < bytes; at += 61)
                if (p[at])
                    abort();
        if (bytes > 3)
            p[0] = p[bytes - 1] = (char)i;
        if (i % 7 == 0)
            p = realloc(p, bytes + 20);
        if (malloc_usable_size(p) < bytes)
            abort();
        free(__atomic_exchange_n((void **)&shared[seed >> 9 & 63], p, __ATOMIC_ACQ_REL));
    }
    return NULL;
}

static int sound(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, exchange, (void *)(i + 1));
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        int status;
        if (child == 0) {
            exchange((void *)9);
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            return 1;
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    puts("sound");
    return 0;
}

/* How many blocks of short threads have no room for more: guarded ones, and a few of the heap's own. */
static void *lives_shortly(void *exact)
{
    for (int i = 0; i < 50000; i++) {
        void *volatile p = malloc(17);
        *(int *)exact += malloc_usable_size(p) == 17;
        free(p);
    }
    return NULL;
}

static int short_threads(void)
{
    int exact = 0;
    pthread_t thread;
    for (int i = 0; i < 400; i++)
        if (pthread_create(&thread, NULL, lives_shortly, &exact) != 0 || pthread_join(thread, NULL) != 0)
            return 1;
    printf("%d\n", exact);
    return 0;
}

static void own_handler(int number)
{
    static const char text[] = "own handler\n";
    _exit(number == SIGSEGV && write(1, text, sizeof text - 1) > 0 ? 7 : 8);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 1;
    if (strcmp(argv[1], "sound") == 0)
        return sound();
    if (strcmp(argv[1], "short") == 0)
        return short_threads();
    if (strcmp(argv[1], "wild") == 0)
        return *(volatile char *)(uintptr_t)(argc + 8);
    if (strcmp(argv[1], "own") == 0) {
        signal(SIGSEGV, own_handler);
        return *(volatile char *)(uintptr_t)(argc + 8);
    }
    if (strcmp(argv[1], "leak") == 0)
        return birth(12345 % 1000 + 1000) == NULL;
    return mistake(argv[1]);
}
