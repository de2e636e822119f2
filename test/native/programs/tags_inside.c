// SPDX-License-Identifier: MIT
/*
 * tags_inside.c - what the library itself keeps, and what has become of memory that had tags: linked with its objects (../arm64_tags_test.py).
 *
 *     tags_inside             prints what holds
 *     tags_inside header      writes into the bookkeeping by a block's address
 */
#include <stdio.h>
#include <string.h>

#include "heap/heap_secure.h"

enum { BLOCKS = 3000, BYTES = 100 };

static struct quire_heap *secure(void)
{
    struct quire_heap_opts opts = {.flags = QUIRE_HEAP_SECURE};
    return quire_heap_create(&opts);
}

static bool untagged(const char *start, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += OS_TAG_BYTES)
        if (os_tagged(start + at) != start + at)
            return false;
    return true;
}

static int sums(void *p, size_t bytes, void *sum)
{
    *(size_t *)sum += bytes + ((const char *)p)[bytes - 1];
    return 0;
}

int main(int count, char **words)
{
    if (os_tags_start() != 0)
        return 3;
    struct quire_heap *heap = secure();
    static char *block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        memset(block[i] = quire_heap_alloc(heap, BYTES), 1, BYTES);
    struct heap_page *page = heap_page_find(block[0]);
    if (count > 1) {
        uintptr_t tag = (uintptr_t)block[0] >> 56 << 56;
        ((struct heap_page *)((uintptr_t)page | tag))->until++;
        return 1;
    }
    size_t sum = 0;
    (void)quire_heap_walk(heap, sums, &sum);
    printf("a walk: %zu\n", sum);
    printf("owns: %d %d\n", quire_heap_owns(heap, block[1]), quire_heap_of(block[2]) == heap);
    printf("usable: %zu\n", quire_heap_usable_bytes(block[3]));
    printf("tagged: %d\n", !untagged(page->span.start, page->span.bytes));
    const char *start = page->span.start;
    size_t bytes = page->span.bytes;
    for (int i = 0; i < BLOCKS; i++)
        quire_heap_free(heap, block[i]);
    quire_heap_trim(heap);
    printf("given back: %d, without tags: %d\n", heap_page_find(start) == NULL, untagged(start, bytes));
    printf("check: %s\n", quire_heap_check(heap) ? quire_heap_check(heap) : "sound");
    (void)quire_heap_alloc(heap, BYTES);
    quire_heap_destroy(heap);
    return 0;
}
