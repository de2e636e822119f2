// SPDX-License-Identifier: MIT
/* A program that knows what it has allocated: by which functions, how much of it lives. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT 50000
static void *kept[KEPT];
static uint64_t bytes_of[4];
static uint64_t seed = 88172645463325252u;

static unsigned random_below(unsigned n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (unsigned)(seed >> 33) % n;
}

__attribute__((noinline)) static void *small(void)
{
    size_t bytes = 16 + random_below(64);
    bytes_of[0] += bytes;
    void *p = malloc(bytes);
    return p;
}

__attribute__((noinline)) static void *middle(void)
{
    size_t bytes = 100 + random_below(400);
    bytes_of[1] += bytes;
    void *p = calloc(1, bytes);
    return p;
}

__attribute__((noinline)) static void *large(void)
{
    size_t bytes = 1000 + random_below(60000);
    bytes_of[2] += bytes;
    void *p = NULL;
    return posix_memalign(&p, 64, bytes) == 0 ? p : NULL;
}

/* Grows to four times its size, for which it has to move. */
__attribute__((noinline)) static void *grown(void)
{
    size_t bytes = 32 + random_below(400);
    bytes_of[3] += 5 * bytes;
    void *p = realloc(NULL, bytes), *fresh = realloc(p, 4 * bytes);
    return fresh;
}

/* What cannot be had counts nothing, and leaves alone what is left to the next point. */
static int refused(void *p)
{
    volatile size_t too_much = (size_t)PTRDIFF_MAX + 1 + random_below(1000);
    return malloc(too_much) || malloc(SIZE_MAX - too_much % 7) || calloc(1, too_much) || calloc(too_much, 2) || realloc(p, too_much) || realloc(NULL, too_much);
}

static void *thread_main(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        free(kept[i]);
        kept[i] = small();
    }
    return arg;
}

static int run(unsigned long count)
{
    for (unsigned long i = 0; i < count; i++) {
        unsigned what = random_below(1000), at = random_below(KEPT);
        free(kept[at]);
        kept[at] = what < 800 ? small() : what < 900 ? middle() : what < 999 ? grown() : large();
        if (what == 0 && kept[at] && refused(kept[at]))
            return 3;
    }
    return 0;
}

/* Everything that the allocator has a name for, in threads and in children. */
static int mixed(void)
{
    pthread_t thread;
    run(300000);
    for (int i = 0; i < 5; i++) {
        pthread_create(&thread, NULL, thread_main, NULL);
        pthread_join(thread, NULL);
    }
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            run(100000);
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0)
            return 1;
    }
    char *p = NULL;
    for (size_t bytes = 1; bytes < 20000000; bytes += bytes / 3 + 1) {
        char *fresh = realloc(p, bytes);
        if (!fresh || (bytes > 100 && fresh[50] != 'x'))
            return 2;
        p = fresh;
        memset(p, 'x', bytes);
    }
    while (p && (p = realloc(p, 100)) && 0)
        ;
    free(p);
    return 0;
}

__attribute__((noinline)) static void in_child(void)
{
    for (int n = 0; n < 1024; n++)
        free(malloc(64));
}

/* Children that allocate less than lies between two points, all of them forked with the same place among them. */
static int children(void)
{
    free(malloc(64)); /* the parent has its place */
    for (int i = 0; i < 400; i++) {
        pid_t child = fork();
        if (child == 0) {
            in_child();
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0)
            return 1;
    }
    return 0;
}

/* Threads that allocate once more when the heap has seen their end: in the fourth round of destructors. */
static pthread_key_t late_key;
static void *volatile late_blocks[400];
static unsigned late_count;

static void late(void *round)
{
    if ((uintptr_t)round < 4)
        pthread_setspecific(late_key, (void *)((uintptr_t)round + 1));
    else
        late_blocks[late_count++] = malloc(16);
}

static void *ends_late(void *unused)
{
    free((void *)(late_blocks[late_count] = malloc(32)));
    pthread_setspecific(late_key, (void *)1);
    return unused;
}

static int late_threads(void)
{
    pthread_t thread;
    pthread_key_create(&late_key, late);
    while (late_count < 400)
        if (pthread_create(&thread, NULL, ends_late, NULL) != 0 || pthread_join(thread, NULL) != 0)
            return 1;
    return 0;
}

/* Whenever it is told to go on it allocates again. */
/* Misuse: what gets another size is no block's beginning. */
static int inside(size_t bytes)
{
    char *volatile block = malloc(bytes);
    return block && !realloc(block + 4000, bytes + (1 << 20));
}

static int wait_for_end(void)
{
    char line[16] = "go on\n";
    while (strcmp(line, "end\n") != 0) {
        if (strcmp(line, "go on\n") != 0)
            return 1;
        run(200000);
        puts("ready");
        fflush(stdout);
        if (fgets(line, sizeof line, stdin) == NULL)
            return 2;
    }
    return 0;
}

static void on_urgent(int number)
{
    (void)number;
    (void)!write(1, "urgent\n", 7);
}

int main(int argc, char **argv)
{
    int failed = argc < 2;
    if (!failed && strcmp(argv[1], "run") == 0)
        failed = run(strtoul(argv[2], NULL, 10));
    else if (!failed && strcmp(argv[1], "mixed") == 0)
        failed = mixed();
    else if (!failed && strcmp(argv[1], "children") == 0)
        failed = children();
    else if (!failed && strcmp(argv[1], "late") == 0)
        failed = late_threads();
    else if (!failed && strcmp(argv[1], "inside") == 0)
        failed = inside(strtoul(argv[2], NULL, 10));
    else if (!failed && strcmp(argv[1], "wait") == 0)
        failed = wait_for_end();
    else if (!failed && strcmp(argv[1], "wait-urgent") == 0)
        failed = signal(SIGURG, on_urgent) == SIG_ERR || wait_for_end();
    const char *const names[] = {"small", "middle", "large", "grown"};
    for (int i = 0; i < 4; i++)
        fprintf(stderr, "%s %llu\n", names[i], (unsigned long long)bytes_of[i]);
    return failed;
}
