// SPDX-License-Identifier: MIT
/*
 * recorded.cc - a program whose calls are known, for the tests of QUIRE_CONF=record.
 *
 *   recorded all      every function of malloc's family and every form of new, by functions of their own, in three threads
 *   recorded batches  the same once for each line of standard input; answers each with "done"
 *   recorded fork     PARENTS calls by parents(), then a child that makes CHILDS by childs()
 *   recorded steady   until its standard input ends: blocks are made and freed, by two threads; prints how many
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EACH = 700, THREADS = 3, PARENTS = 300, CHILDS = 500 };
#define APART extern "C" __attribute__((noinline))

/* Addresses: of a program that is not position-independent they are those of way stations in it. */
static void *(*volatile make)(size_t, size_t);
static void (*volatile give)(void *);
static void *(*volatile never_called)(size_t);

APART void *by_malloc(size_t n) { void *p = malloc(n); memset(p, 1, n); return p; }
APART void *by_calloc(size_t n) { void *p = make(2, n); if (((char *)p)[0]) abort(); return p; }
APART void *by_realloc(void *p, size_t n) { void *q = realloc(p, n); memset(q, 1, n); return q; }
APART void *by_aligned(size_t n) { void *p = nullptr; if (posix_memalign(&p, 64, n)) abort(); return p; }
APART char *by_new(size_t n) { char *p = new char[n]; p[0] = 1; return p; }
APART long *by_new_one() { long *p = new long(1); __asm__ volatile("" : : "r"(p) : "memory"); return p; }
APART char *by_new_nothrow(size_t n) { char *p = new (std::nothrow) char[n]; p[0] = 1; return p; }
struct alignas(128) Wide { char room[128]; };
APART Wide *by_new_aligned() { Wide *p = new Wide; p->room[0] = 1; return p; }
/* An exception passes through new; recording goes on after it. */
APART int by_new_that_throws() { try { char *volatile p = new char[(size_t)-1 / 4]; (void)p; } catch (const std::bad_alloc &) { return 1; } return 0; }

static void *all(void *)
{
    for (size_t i = 1; i <= EACH; i++) {
        void *p = by_realloc(by_malloc(i % 300 + 1), i % 500 + 1);
        char *text = by_new(i % 200 + 1), *other = by_new_nothrow(i % 100 + 1);
        long *one = by_new_one();
        Wide *wide = by_new_aligned();
        give(by_calloc(i % 64 + 1));
        free(by_aligned(i % 9 * 64 + 64));
        if (i % 100 == 0 && by_new_that_throws() != 1) abort();
        if (i % 7) free(p);
        delete[] text;
        delete[] other;
        delete one;
        delete wide;
    }
    return nullptr;
}

static void all_threads()
{
    pthread_t thread[THREADS];
    for (pthread_t &one : thread) pthread_create(&one, nullptr, all, nullptr);
    for (pthread_t &one : thread) pthread_join(one, nullptr);
}

static void *steady(void *end)
{
    unsigned long count = 0;
    for (; !*(std::atomic<bool> *)end; count++) {
        void *kept[50];
        for (unsigned i = 0; i < 50; i++) kept[i] = i % 2 ? by_malloc(i + 1) : by_new(i + 1);
        for (unsigned i = 0; i < 50; i++) if (i % 2) free(kept[i]); else delete[] (char *)kept[i];
        if (count % 64 == 0) usleep(200);
    }
    return (void *)count;
}

static void steady_until_end()
{
    std::atomic<bool> end{false};
    pthread_t thread[2];
    for (pthread_t &one : thread) pthread_create(&one, nullptr, steady, &end);
    char byte;
    while (read(0, &byte, 1) > 0) { }
    end = true;
    for (pthread_t &one : thread) {
        void *count;
        pthread_join(one, &count);
        printf("%lu\n", (unsigned long)count);
    }
}

APART void parents() { for (int i = 0; i < PARENTS; i++) free(malloc(i + 1)); }
APART void childs() { for (int i = 0; i < CHILDS; i++) free(malloc(i + 1)); }

static void with_a_child()
{
    parents();
    if (fork() == 0) { childs(); exit(0); }
    int status = 0;
    wait(&status);
    if (status != 0) abort();
}

int main(int, char **argv)
{
    char line[64];
    make = calloc;
    give = free;
    never_called = malloc;
    if (strcmp(argv[1], "all") == 0) all_threads();
    else if (strcmp(argv[1], "fork") == 0) with_a_child();
    else if (strcmp(argv[1], "steady") == 0) steady_until_end();
    else while (fgets(line, sizeof line, stdin)) { all_threads(); puts("done"); fflush(stdout); }
    puts("sound");
    return 0;
}
