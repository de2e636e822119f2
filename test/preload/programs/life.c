// SPDX-License-Identifier: MIT
/*
 * life - malloc at unusual moments of a program's life; each group by its name, below.
 *
 *     before_main  key_destructors  at_exit  plugin PATH  many_threads COUNT  fork COUNT  fork_stdio  signals  signal_handler
 *     small_stacks  exit_from_small_stack  cancel  stacks_are_cached  exit_while_busy
 */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "churn.h"
#include "must.h"

static char *from_constructor;

static __attribute__((constructor)) void at_load(void)
{
    from_constructor = malloc(1000);
    if (from_constructor)
        memset(from_constructor, 9, 1000);
    free(realloc(malloc(10), 100000));
}

static void *churn_thread(void *seed)
{
    churn((unsigned)(uintptr_t)seed, 1 << 30);
    return NULL;
}

enum { BUSY = 4 };
static pthread_t busy[BUSY];
static void busy_start(void)
{
    for (uintptr_t i = 0; i < BUSY; i++)
        pthread_create(&busy[i], NULL, churn_thread, (void *)i);
}
static void busy_end(void)
{
    stop = true;
    for (int i = 0; i < BUSY; i++)
        pthread_join(busy[i], NULL);
    stop = false;
}

static void before_main(int unused)
{
    (void)unused;
    MUST(from_constructor[999] == 9, "a block of the constructor's");
    free(from_constructor);
    churn(1, 10000);
}

/* ---- a thread's last destructors allocate ---- */

enum { KEYS = 40, ROUNDS = 3 }; /* above 32 keys libc itself allocates for them */
static pthread_key_t keys[KEYS];
static int destroyed;

static void key_destroy(void *value)
{
    char *p = value;
    MUST(p[0] >= 0 && p[0] < ROUNDS, "a value was written to");
    char *next = p[0] + 1 < ROUNDS ? malloc(300) : NULL;
    if (next) {
        next[0] = (char)(p[0] + 1);
        pthread_setspecific(keys[(unsigned char)p[1]], next);
        next[1] = p[1];
    }
    free(p);
    free(malloc(50000));
    __atomic_add_fetch(&destroyed, 1, __ATOMIC_RELAXED);
}

static void *keyed_thread(void *unused)
{
    for (int i = 0; i < KEYS; i++) {
        char *p = malloc(200);
        p[0] = 0;
        p[1] = (char)i;
        pthread_setspecific(keys[i], p);
    }
    return unused;
}

static void key_destructors(int threads)
{
    for (int i = 0; i < KEYS; i++)
        pthread_key_create(&keys[i], key_destroy);
    long before = 0;
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, keyed_thread, NULL);
        pthread_join(thread, NULL);
        if (i == threads / 10)
            before = resident_kib();
    }
    MUST(destroyed == threads * KEYS * ROUNDS, "%d destructors ran", destroyed);
    MUST(resident_kib() < before + 10 * 1024, "%ld KiB after %ld", resident_kib(), before);
}

static void exit_handler(void)
{
    churn(5, 10000);
    if (must_end() == 0)
        fflush(stdout);
}

static void at_exit(int unused)
{
    (void)unused;
    atexit(exit_handler);
    exit(0);
}

static void *plugin_user(void *library)
{
    char *(*block)(size_t) = (char *(*)(size_t))dlsym(library, "plugin_block");
    void (*take)(char *) = (void (*)(char *))dlsym(library, "plugin_take");
    for (size_t n = 1; n < 100000; n = n * 3 / 2 + 1) {
        char *p = block(n);
        MUST(p[n - 1] == 4 && malloc_usable_size(p) >= n, "a block of the plug-in's");
        free(p);
        take(malloc(n));
    }
    return NULL;
}

static void plugin(const char *path)
{
    for (int i = 0; i < 20; i++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        MUST(library, "%s", dlerror());
        if (!library)
            return;
        pthread_t thread;
        pthread_create(&thread, NULL, plugin_user, library);
        plugin_user(library);
        pthread_join(thread, NULL);
        dlclose(library);
    }
}

/* ---- threads that come and go ---- */

static void *leaves_a_block(void *unused)
{
    (void)unused;
    free(malloc(100));
    free(malloc(3000));
    return malloc(64);
}

static void many_threads(int count)
{
    long before = resident_kib();
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        void *block;
        MUST(pthread_create(&thread, NULL, leaves_a_block, NULL) == 0, "thread %d", i);
        pthread_join(thread, &block);
        free(block);
    }
    MUST(resident_kib() < before + 20 * 1024, "%ld KiB after %ld", resident_kib(), before);
}

static void fork_often(int count)
{
    busy_start();
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(100);
            for (int j = 0; j < BUSY; j++)
                busy[j] = 0;
            churn((unsigned)i, 300);
            _exit(must_broken != 0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        MUST(status == 0, "child %d ended with %x", i, status);
        if (status != 0)
            break;
    }
    busy_end();
}

static void *reads_lines(void *unused)
{
    char *line = NULL;
    size_t bytes = 0;
    while (!stop) {
        FILE *file = fopen("/proc/self/maps", "r");
        while (file && getline(&line, &bytes, file) > 0)
            ;
        if (file)
            fclose(file);
    }
    free(line);
    return unused;
}

static void fork_stdio(int count)
{
    pthread_t reader;
    pthread_create(&reader, NULL, reads_lines, NULL);
    busy_start();
    for (int i = 0; i < count; i++) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            alarm(100);
            free(malloc(100));
            fflush(NULL);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        MUST(status == 0, "child %d ended with %x", i, status);
    }
    stop = true;
    pthread_join(reader, NULL);
    busy_end();
}

/* ---- signals ---- */

static volatile int handled;
static void handle_nothing(int number)
{
    (void)number;
    handled++;
}
static void handle_with_malloc(int number)
{
    (void)number;
    handled++;
    free(malloc((size_t)handled % 500));
}

static void with_signals(void (*handler)(int), int ms)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec often = {{0, 200000}, {0, 200000}}; /* as often as a slow machine can, too */
    timer_settime(timer, 0, &often, NULL);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, churn_thread, (void *)i);
    sleep_ms(ms);
    for (int waited = 0; waited < 20000 && handled <= ms / 10; waited++) /* a machine that was elsewhere meanwhile */
        sleep_ms(1);
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    timer_delete(timer);
    MUST(handled > ms / 10, "only %d signals came", handled);
}

static void signals(int ms)
{
    with_signals(handle_nothing, ms);
}

/* Not allowed: the promise is only that nothing hangs. */
static void signal_handler(int ms)
{
    with_signals(handle_with_malloc, ms);
}

/* ---- threads ---- */

static void *deep_churn(void *unused)
{
    churn(7, 20000);
    return unused;
}

static void small_stacks(int unused)
{
    (void)unused;
    pthread_attr_t small;
    pthread_attr_init(&small);
    MUST(pthread_attr_setstacksize(&small, 16 << 10) == 0, "16 KiB of stack");
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        MUST(pthread_create(&thread, &small, deep_churn, NULL) == 0, "a small thread");
        pthread_join(thread, NULL);
    }
}

static void *ends_the_program(void *unused)
{
    (void)unused;
    free(malloc(100));
    exit(must_end());
}

static void exit_from_small_stack(int unused)
{
    (void)unused;
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16 << 10);
    pthread_create(&thread, &small, ends_the_program, NULL);
    pthread_join(thread, NULL);
}

static void cancel(int count)
{
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, reads_lines, NULL); /* stdio has points of cancellation, malloc must have none */
        if (i % 8 == 0)
            sleep_ms(1);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    churn(3, 10000);
}

/* libc frees the vectors of cached stacks while it holds a lock that thread creation wants too. */
static void *holds_memory(void *barrier)
{
    enum { BLOCKS = 200 };
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(60000), 1, 60000);
    pthread_barrier_wait(barrier);
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    return NULL;
}

static void stacks_are_cached(int rounds)
{
    enum { THREADS = 16 };
    for (int round = 0; round < rounds; round++) {
        pthread_t threads[THREADS];
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, NULL, THREADS);
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, holds_memory, &barrier);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        pthread_barrier_destroy(&barrier);
        pid_t child = fork(); /* in which no thread of ours runs yet */
        if (child == 0) {
            alarm(100);
            for (int i = 0; i < THREADS; i++)
                pthread_create(&threads[i], NULL, leaves_a_block, NULL);
            for (int i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        MUST(status == 0, "child %d ended with %x", round, status);
    }
}

static void exit_while_busy(int unused)
{
    (void)unused;
    busy_start();
    sleep_ms(20);
    printf("sound\n");
    exit(0);
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        void (*run)(int number);
    } groups[] = {{"before_main", before_main}, {"key_destructors", key_destructors}, {"at_exit", at_exit}, {"many_threads", many_threads},
        {"fork", fork_often}, {"fork_stdio", fork_stdio}, {"signals", signals}, {"signal_handler", signal_handler},
        {"small_stacks", small_stacks}, {"exit_from_small_stack", exit_from_small_stack}, {"cancel", cancel},
        {"stacks_are_cached", stacks_are_cached}, {"exit_while_busy", exit_while_busy}};
    if (count == 3 && strcmp(words[1], "plugin") == 0) {
        plugin(words[2]);
        return must_end();
    }
    for (size_t i = 0; count >= 2 && i < sizeof groups / sizeof groups[0]; i++) {
        if (strcmp(words[1], groups[i].name) == 0) {
            groups[i].run(count > 2 ? atoi(words[2]) : 0);
            return must_end();
        }
    }
    return 2;
}
