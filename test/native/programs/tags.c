// SPDX-License-Identifier: MIT
/*
 * tags.c - one use of blocks that bear tags a run, by its name (../arm64_tags_test.py); a right one prints and ends with 0, a wrong one should not come to its end.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 40, MANY = 4000, FEW = 200 };
static volatile char sink;

/* The compiler knows nothing of it. */
static void *hidden(void *p)
{
    __asm__ volatile("" : "+r"(p));
    return p;
}

static uintptr_t place(const void *p)
{
    return (uintptr_t)p << 8 >> 8;
}

static unsigned tag(const void *p)
{
    return (unsigned)((uintptr_t)p >> 56);
}

/* One that has a tag, if any has: a guarded or a sampled block has pages of its own instead. */
static char *block(void)
{
    char *p = NULL;
    for (int i = 0; i < FEW && tag(p) == 0; i++)
        p = hidden(malloc(BYTES));
    return p;
}

/* A block where that one was. */
static char *again(const void *p)
{
    for (char *other;; free(other))
        if (place(other = hidden(malloc(BYTES))) == place(p)) {
            puts("again");
            fflush(stdout);
            return other;
        }
}

static int tags_of_blocks(void)
{
    unsigned seen = 0;
    for (int i = 0; i < MANY; i++)
        seen |= 1U << tag(hidden(malloc(BYTES)));
    printf("%x\n", seen);
    return 0;
}

static int read_after_free(void)
{
    char *p = block();
    free(p);
    sink = p[0];
    return 1;
}

static int write_after_free(void)
{
    char *p = block();
    free(p);
    p[8] = 1;
    return 1;
}

static int write_after_reuse(void)
{
    char *p = block();
    free(p);
    again(p);
    p[0] = 1;
    return 1;
}

static int overflow(void)
{
    char *p = block();
    for (int i = 0; i < BYTES + 24; i++) /* its slot is of 48 bytes */
        p[i] = 1;
    return 1;
}

static int underflow(void)
{
    char *p[FEW];
    for (int i = 0; i < FEW; i++)
        p[i] = block();
    p[FEW / 2][-1] = 1;
    return 1;
}

/* An address that was no block's. */
static int no_tag(void)
{
    char *p = block();
    p = (char *)place(p);
    p[0] = 1;
    return 1;
}

static int free_twice(void)
{
    char *p = block();
    free(p);
    free(p);
    return 1;
}

static int free_after_reuse(void)
{
    char *p = block();
    free(p);
    again(p);
    free(p);
    return 1;
}

static int realloc_after_free(void)
{
    char *p = block();
    free(p);
    p = realloc(p, 20);
    return 1;
}

static void *frees(void *arg)
{
    char **p = arg;
    for (int i = 0; i < MANY; i++)
        free(p[i]);
    return NULL;
}

static int read_after_remote_free(void)
{
    static char *p[MANY];
    pthread_t thread;
    for (int i = 0; i < MANY; i++)
        p[i] = block();
    pthread_create(&thread, NULL, frees, p);
    pthread_join(thread, NULL);
    sink = *(char *)hidden(p[7]);
    return 1;
}

/* ---- right use ---- */

static unsigned seed = 1;
static unsigned draw(unsigned n)
{
    seed = seed * 1103515245 + 12345;
    return (seed >> 8) % n;
}

static void *works(void *arg)
{
    enum { LIVE = 500 };
    static char *volatile passed[8];
    char *p[LIVE] = {0};
    size_t bytes[LIVE] = {0};
    unsigned own = (unsigned)(uintptr_t)arg;
    for (unsigned n = 0; n < 4000; n++) {
        unsigned i = draw(LIVE);
        for (size_t at = 0; p[i] && at < bytes[i]; at++)
            if (p[i][at] != (char)(i + own))
                abort();
        if (draw(4) == 0 && p[i]) {
            size_t more = draw(3000) + 1;
            char *q = realloc(p[i], more);
            if (!q)
                abort();
            p[i] = q;
            bytes[i] = more;
        } else {
            if (draw(8) == 0) {
                char *other = __atomic_exchange_n(&passed[draw(8)], p[i], __ATOMIC_ACQ_REL);
                free(other);
            } else {
                free(p[i]);
            }
            bytes[i] = draw(16) ? draw(300) : draw(200000);
            p[i] = draw(2) ? malloc(bytes[i]) : calloc(1, bytes[i]);
            if (bytes[i] && draw(5) == 0) {
                free(p[i]);
                p[i] = aligned_alloc(64, bytes[i] = (bytes[i] + 63) / 64 * 64);
            }
        }
        if (p[i])
            memset(p[i], (char)(i + own), bytes[i]);
    }
    for (int i = 0; i < LIVE; i++)
        free(p[i]);
    return NULL;
}

static int right_use(void)
{
    pthread_t thread[3];
    for (uintptr_t i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, works, (void *)i);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    puts("done");
    return 0;
}

static int system_calls(void)
{
    int ends[2];
    char *out = malloc(64), *in = malloc(64);
    strcpy(out, "by the system");
    if (pipe(ends) || write(ends[1], out, 14) != 14 || read(ends[0], in, 14) != 14)
        return 1;
    puts(in);
    return 0;
}

static int child_of_a_fork(void)
{
    char *p = malloc(BYTES);
    strcpy(p, "both");
    pid_t child = fork();
    if (child == 0) {
        int bad = strcmp(p, "both") != 0;
        free(p);
        works((void *)1);
        _exit(bad);
    }
    int status;
    waitpid(child, &status, 0);
    puts(p);
    free(p);
    return status;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*fn)(void);
    } kinds[] = {{"tags_of_blocks", tags_of_blocks}, {"read_after_free", read_after_free}, {"write_after_free", write_after_free}, {"write_after_reuse", write_after_reuse}, {"overflow", overflow},
        {"underflow", underflow}, {"no_tag", no_tag}, {"free_twice", free_twice}, {"free_after_reuse", free_after_reuse}, {"realloc_after_free", realloc_after_free},
        {"read_after_remote_free", read_after_remote_free}, {"right_use", right_use}, {"system_calls", system_calls}, {"child_of_a_fork", child_of_a_fork}};
    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(argv[1], kinds[i].name) == 0)
            return kinds[i].fn();
    return 3;
}
