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
        kept[at] = what < 800 ? small() : what < 999 ? middle() : large();
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

/* Whenever it is told to go on it allocates again. */
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
    else if (!failed && strcmp(argv[1], "wait") == 0)
        failed = wait_for_end();
    else if (!failed && strcmp(argv[1], "wait-urgent") == 0)
        failed = signal(SIGURG, on_urgent) == SIG_ERR || wait_for_end();
    fprintf(stderr, "small %llu middle %llu large %llu\n", (unsigned long long)bytes_of[0], (unsigned long long)bytes_of[1], (unsigned long long)bytes_of[2]);
    return failed;
}
