// SPDX-License-Identifier: MIT
/*
 * life - malloc at unusual moments of a program's life; each group by its name, below.
 *
 *     before_main  key_destructors  at_exit  plugin PATH  many_threads COUNT  fork COUNT  fork_stdio  signals  signal_handler
 *     address_space  limit  refused  small_stacks  exit_from_small_stack  cancel  stacks_are_cached  give_back  exit_while_busy
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
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "must.h"

static char *from_constructor;
static volatile bool stop;

static __attribute__((constructor)) void at_load(void)
{
    from_constructor = malloc(1000);
    if (from_constructor)
        memset(from_constructor, 9, 1000);
    free(realloc(malloc(10), 100000));
}

static long resident_kib(void)
{
    long pages = 0, rss = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &pages, &rss) != 2)
        return 0;
    fclose(file);
    return rss * (sysconf(_SC_PAGESIZE) / 1024);
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0)
        ;
}

/* Allocates, verifies and frees blocks of many sizes; live ones are kept in a ring. */
static void churn(unsigned seed, int steps)
{
    enum { RING = 64 };
    unsigned char *ring[RING] = {NULL};
    size_t bytes[RING] = {0};
    uint32_t random = seed * 2654435761u + 1;
    for (int i = 0; i < steps && !stop; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned at = random >> 26;
        if (ring[at] && (ring[at][0] != (unsigned char)at || ring[at][bytes[at] - 1] != (unsigned char)at))
            MUST(false, "a block of %zu bytes was written to by somebody else", bytes[at]);
        free(ring[at]);
        bytes[at] = (random >> 8) % ((random & 127) == 0 ? 100000 : 600) + 1;
        ring[at] = malloc(bytes[at]);
        if (!ring[at])
            continue;
        ring[at][0] = ring[at][bytes[at] - 1] = (unsigned char)at;
    }
    for (int at = 0; at < RING; at++)
        free(ring[at]);
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
            alarm(10);
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
            alarm(10);
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
    struct itimerspec often = {{0, 50000}, {0, 50000}};
    timer_settime(timer, 0, &often, NULL);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, churn_thread, (void *)i);
    sleep_ms(ms);
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

/* ---- no memory ---- */

static void refused_then_fine(void)
{
    enum { BLOCKS = 100000 };
    static char *blocks[BLOCKS];
    int had = 0;
    errno = 0;
    for (; had < BLOCKS && (blocks[had] = malloc(10000)) != NULL; had++)
        blocks[had][0] = 1;
    MUST(had < BLOCKS && errno == ENOMEM, "%d blocks, errno %d", had, errno);
    for (size_t n = 16; n < ((size_t)1 << 40); n *= 4) {
        char *p = malloc(n);
        free(realloc(p, n * 2) ? NULL : p);
        errno = 0;
        MUST(calloc(n, 1 << 20) == NULL || n < 1 << 10, "calloc(%zu)", n);
    }
    for (int i = 0; i < had; i++)
        free(blocks[i]);
    char *p = malloc(100000);
    MUST(p, "after freeing %d blocks", had);
    free(p);
}

static void *thread_without_memory(void *out)
{
    *(bool *)out = malloc(64) != NULL || errno == ENOMEM;
    return NULL;
}

static void address_space(int mib)
{
    struct rlimit limit = {(rlim_t)mib << 20, (rlim_t)mib << 20};
    setrlimit(RLIMIT_AS, &limit);
    pthread_t thread;
    bool is_fine = true;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    if (pthread_create(&thread, &small, thread_without_memory, &is_fine) == 0)
        pthread_join(thread, NULL);
    MUST(is_fine, "a thread's first malloc");
    refused_then_fine();
}

static void limit(int unused)
{
    (void)unused;
    refused_then_fine();
}

/* The kernel refuses now and then (a tracer does): a block or NULL, never harm. */
static void refused(int unused)
{
    (void)unused;
    churn(11, 1000);
    char *p = NULL;
    for (size_t n = 1000; n < 8 << 20; n *= 2) {
        char *q = realloc(p, n);
        p = q ? q : p;
        if (q)
            memset(q, 1, n);
    }
    free(p);
    (void)malloc_trim(0);
    churn(12, 1000);
}

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
            alarm(10);
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

static void give_back(int unused)
{
    (void)unused;
    enum { BLOCKS = 300000 };
    char **blocks = malloc(BLOCKS * sizeof *blocks);
    long before = resident_kib();
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(400), 1, 400);
    long peak = resident_kib();
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    for (int waited = 0; waited < 50 && resident_kib() > before + 10 * 1024; waited++)
        sleep_ms(100);
    MUST(peak > before + 100 * 1024, "peak %ld KiB", peak);
    MUST(resident_kib() <= before + 10 * 1024, "%ld KiB after %ld, peak %ld", resident_kib(), before, peak);
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
        {"address_space", address_space}, {"limit", limit}, {"refused", refused}, {"small_stacks", small_stacks}, {"exit_from_small_stack", exit_from_small_stack}, {"cancel", cancel},
        {"stacks_are_cached", stacks_are_cached}, {"give_back", give_back}, {"exit_while_busy", exit_while_busy}};
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
