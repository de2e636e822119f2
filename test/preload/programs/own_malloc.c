// SPDX-License-Identifier: MIT
/*
 * own_malloc - a program that brings its own malloc, as many large ones do: a cursor in a static array, nothing is ever given back.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "must.h"

static char memory[64 << 20] __attribute__((aligned(64)));
static size_t used;
static int freed;

void *memalign(size_t align_bytes, size_t bytes);
void *memalign(size_t align_bytes, size_t bytes)
{
    size_t at = (used + 16 + align_bytes - 1) & ~(align_bytes - 1);
    used = at + bytes;
    *(size_t *)(void *)(memory + at - sizeof(size_t)) = bytes;
    return memory + at;
}
void *malloc(size_t bytes) { return memalign(16, bytes); }
void *calloc(size_t count, size_t bytes) { return memalign(16, count * bytes); }
void *aligned_alloc(size_t align_bytes, size_t bytes) { return memalign(align_bytes, bytes); }
void free(void *p)
{
    MUST(!p || ((char *)p >= memory && (char *)p < memory + sizeof memory), "a foreign block %p", p);
    freed += p != NULL;
}
void *realloc(void *p, size_t bytes)
{
    char *to = malloc(bytes);
    size_t had = p ? *(size_t *)(void *)((char *)p - sizeof(size_t)) : 0;
    memcpy(to, p ? p : to, had < bytes ? had : bytes);
    return to;
}

int main(void)
{
    int (*serving)(void) = (int (*)(void))(uintptr_t)dlsym(RTLD_DEFAULT, "quire_malloc_serving");
    void (*operator_delete)(void *) = (void (*)(void *))(uintptr_t)dlsym(RTLD_DEFAULT, "_ZdlPv");
    void *(*operator_new)(size_t) = (void *(*)(size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "_Znwm");
    MUST(serving && !serving(), "the library thinks that it serves");
    char *copy = strdup("text");
    MUST(copy >= memory && copy < memory + sizeof memory, "strdup is served by another");
    int before = freed;
    operator_delete(copy); /* the library's name, the program's block */
    MUST(freed == before + 1, "freed by another");
    operator_delete(operator_new(100));
    return must_end();
}
