// SPDX-License-Identifier: MIT
/*
 * stats_frugal.c - writes the statistics of some objects in each format to /dev/null, with a malloc of its own that counts, and "begin" and
 * "end" round it on standard output, for who traces system calls.  Prints how often malloc and its family were called meanwhile.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <quire/heap.h>
#include <quire/percpu.h>
#include <quire/slab.h>
#include <quire/source.h>
#include <quire/stats.h>

extern void *__libc_malloc(size_t bytes), *__libc_calloc(size_t count, size_t bytes), *__libc_realloc(void *p, size_t bytes);
extern void __libc_free(void *p);
static unsigned long calls;

#if !WATCHED
void *malloc(size_t bytes)
{
    calls++;
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
    calls++;
    return __libc_calloc(count, bytes);
}
void *realloc(void *p, size_t bytes)
{
    calls++;
    return __libc_realloc(p, bytes);
}
void free(void *p)
{
    calls++;
    __libc_free(p);
}
#endif

static void say(const char *word)
{
    (void)!write(1, word, strlen(word));
}

int main(void)
{
    /* The thread that gives idle memory back stands still: who met it at a lock would make a system call more. */
    if (quire_source_set_decay(quire_source_default(), 3600000000000) != 0)
        return 1;
    struct quire_slab *slab = quire_slab_create(40, &(struct quire_slab_opts){.name = "slab"});
    struct quire_percpu *pool = quire_percpu_create(&(struct quire_percpu_opts){.name = "pool"});
    struct quire_heap *heap = quire_heap_create(&(struct quire_heap_opts){.name = "heap"});
    for (int i = 0; i < 1000; i++)
        if (!quire_slab_alloc(slab) || !quire_percpu_alloc(pool, 8, 0).bits || !quire_heap_alloc(heap, (size_t)i * 50))
            return 1;
    int fd = open("/dev/null", O_WRONLY);
    say("begin\n");
    unsigned long before = calls;
    int failed = 0;
    for (uint32_t format = QUIRE_STATS_TEXT; format <= QUIRE_STATS_PROMETHEUS; format++)
        failed |= quire_stats_write(fd, format);
    unsigned long after = calls;
    say("end\n");
    printf("%lu calls\n", after - before);
    quire_heap_destroy(heap);
    quire_percpu_destroy(pool);
    quire_slab_destroy(slab);
    return failed ? 1 : 0;
}
