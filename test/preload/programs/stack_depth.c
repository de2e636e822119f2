// SPDX-License-Identifier: MIT
/*
 * stack_depth.c - how much of the caller's stack each of malloc's functions takes, and the end of the program on a small one.
 *
 *     stack_depth calls BYTES            the deepest call of each, of main and of a thread, may take so much
 *     stack_depth end BYTES              a coroutine of main's with a stack of so many bytes ends the program
 *     stack_depth end_in_thread BYTES    so does one of another thread
 *     stack_depth end_in_child BYTES     which forks before; so does the child, whose first thread it is
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "must.h"

enum { PAINTED = 128 << 10, GUARD = 64 << 10, COUNT = 40000, PAINT = 0xA5 };

static void *blocks[COUNT];
static size_t fixed_bytes; /* 0: any */
static uint64_t state;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static size_t draw_bytes(void)
{
    return fixed_bytes ? fixed_bytes : draw() % 3000;
}

/* ---- what is called: so much of each that all ways are gone ---- */

static void nothing(void)
{
}

static void mallocs(void)
{
    for (int i = 0; i < COUNT; i++)
        blocks[i] = malloc(draw_bytes());
}

static void callocs(void)
{
    for (int i = 0; i < COUNT; i++)
        blocks[i] = calloc(1, draw_bytes());
}

static void reallocs(void)
{
    for (int i = 0; i < COUNT; i += 7)
        blocks[i] = realloc(blocks[i], draw() % 40000 + 1);
}

static void frees(void)
{
    for (int i = 0; i < COUNT; i++)
        free(blocks[i]);
}

static void usables(void)
{
    for (int i = 0; i < COUNT; i++)
        MUST(malloc_usable_size(blocks[i]) >= fixed_bytes, "block %d", i);
}

static void larges(void)
{
    for (int i = 0; i < 100; i++)
        free(realloc(malloc(draw() % 3000000 + 33000), draw() % 6000000 + 1));
}

static void aligned(void)
{
    for (int i = 0; i < 100; i++) {
        void *p = NULL;
        MUST(posix_memalign(&p, (size_t)64 << i % 10, 8192) == 0, "alignment %d", 64 << i % 10);
        free(p);
    }
}

static void trims(void)
{
    (void)malloc_trim(0);
}

static void too_large(void)
{
    volatile size_t bytes = SIZE_MAX / 4;
    MUST(malloc(bytes) == NULL, "a block that no machine has");
}

/* ---- on a painted stack of their own ---- */

static ucontext_t here, there;
static void (*called)(void);

static void begin(void)
{
    called();
}

/* Behind a guard, which a stack that is too small runs into. */
static char *stack_new(size_t bytes)
{
    char *stack = mmap(NULL, GUARD + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stack != MAP_FAILED && mprotect(stack, GUARD, PROT_NONE) == 0, "a stack");
    return stack + GUARD;
}

static void call_on(char *stack, size_t bytes, void (*call)(void))
{
    called = call;
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = bytes;
    there.uc_link = &here;
    makecontext(&there, begin, 0);
    swapcontext(&here, &there);
}

static size_t depth(char *stack, void (*call)(void))
{
    size_t untouched = 0;
    memset(stack, PAINT, PAINTED);
    call_on(stack, PAINTED, call);
    while (untouched < PAINTED && (unsigned char)stack[untouched] == PAINT)
        untouched++;
    return PAINTED - untouched;
}

static void shuffle(void)
{
    for (int i = 0; i < COUNT; i++) {
        size_t other = draw() % COUNT;
        void *block = blocks[i];
        blocks[i] = blocks[other];
        blocks[other] = block;
    }
}

static void *measure(void *most_)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = {{"malloc", mallocs}, {"free", frees}, {"malloc again", mallocs}, {"usable", usables}, {"free again", frees}, {"malloc once more", mallocs},
        {"free once more", frees}, {"calloc", callocs}, {"realloc", reallocs}, {"free of what was resized", frees}, {"large", larges}, {"aligned", aligned},
        {"trim", trims}, {"too large", too_large}};
    size_t most = *(const size_t *)most_;
    char *stack = stack_new(PAINTED);
    state = 88172645463325252u;
    for (int kind = 0; kind < 3; kind++) {
        fixed_bytes = kind == 0 ? 0 : kind == 1 ? 256 : 64;
        size_t none = depth(stack, nothing);
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
            size_t took = depth(stack, calls[i].call) - none;
            MUST(took <= most, "%s of %zu bytes took %zu", calls[i].name, fixed_bytes, took);
            shuffle();
        }
    }
    return NULL;
}

/* ---- the end of the program ---- */

static bool forks;

static void end(void)
{
    int status = 0;
    pid_t child = forks ? fork() : 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        _exit(1);
    free(malloc(100000)); /* more than a profile misses */
    exit(0);
}

static void *end_in_coroutine(void *bytes_)
{
    size_t bytes = *(const size_t *)bytes_;
    call_on(stack_new(bytes), bytes, end);
    return NULL;
}

int main(int count, char **words)
{
    size_t bytes = count == 3 ? strtoul(words[2], NULL, 0) : 0;
    pthread_t thread;
    if (bytes == 0)
        return 2;
    if (strcmp(words[1], "end") == 0)
        end_in_coroutine(&bytes);
    forks = strcmp(words[1], "end_in_child") == 0;
    bool calls = strcmp(words[1], "calls") == 0;
    if (calls)
        measure(&bytes);
    MUST(pthread_create(&thread, NULL, calls ? measure : end_in_coroutine, &bytes) == 0, "a thread");
    pthread_join(thread, NULL);
    return must_end();
}
