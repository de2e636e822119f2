// SPDX-License-Identifier: MIT
/* A program that is linked with libquire.so and uses what its argument says: then what the process holds of that library. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <quire/arena.h>
#include <quire/heap.h>
#include <quire/percpu.h>
#include <quire/slab.h>

enum { COUNT = 100000, LIVE = 1000 };

static void slab(void)
{
    static void *elements[COUNT];
    struct quire_slab *slab = quire_slab_create(64, NULL);
    for (int round = 0; slab && round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            elements[i] = quire_slab_alloc(slab);
        for (int i = 0; i < COUNT; i++)
            quire_slab_free(slab, elements[i]);
    }
}

static void arena(void)
{
    for (int round = 0; round < 3; round++) {
        struct quire_arena *arena = quire_arena_create(NULL);
        for (int i = 0; arena && i < COUNT; i++)
            if (!quire_arena_alloc(arena, 40) || !quire_arena_strdup(arena, "text"))
                _exit(1);
        quire_arena_destroy(arena);
    }
}

static void heap(void)
{
    static void *blocks[LIVE];
    struct quire_heap *heap = quire_heap_create(NULL);
    for (int i = 0; heap && i < 2 * COUNT; i++) {
        quire_heap_free(heap, blocks[i % LIVE]);
        blocks[i % LIVE] = quire_heap_alloc(heap, 16 + (size_t)i % 900);
    }
    quire_heap_destroy(heap);
}

static void percpu(void)
{
    static struct quire_percpu_ref objects[LIVE];
    struct quire_percpu *pool = quire_percpu_create(NULL);
    for (int i = 0; pool && i < COUNT / 5; i++) {
        quire_percpu_free(pool, objects[i % LIVE]);
        objects[i % LIVE] = quire_percpu_alloc(pool, 16 + (size_t)i % 90, 8);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*use)(void);
    } uses[] = {{"slab", slab}, {"arena", arena}, {"heap", heap}, {"percpu", percpu}};
    static char text[1 << 16];
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++)
        if (argc > 1 && strcmp(argv[1], uses[i].name) == 0)
            uses[i].use();
    int fd = open("/proc/self/smaps", O_RDONLY);
    for (ssize_t got; fd >= 0 && (got = read(fd, text, sizeof text)) > 0;)
        if (write(STDOUT_FILENO, text, (size_t)got) != got)
            return 1;
    return fd < 0;
}
