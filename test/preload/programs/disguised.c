// SPDX-License-Identifier: MIT
/*
 * disguised.c - misuse: memory of the program's own looks as if libc's malloc had mapped it, together with what lies before it; or, with a word more, as if
 * it were of libc's first arena.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **words)
{
    size_t page = (size_t)getpagesize();
    char *start = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start, page, PROT_READ) != 0)
        return 1;
    uintptr_t *chunk = (uintptr_t *)(void *)(start + page + 2 * sizeof(uintptr_t));
    enum { IS_BEHIND_LIVE = 1, IS_MAPPED = 2, WORDS = 8 };
    chunk[0] = page + 2 * sizeof(uintptr_t);
    chunk[1] = (3 * page - chunk[0]) | IS_MAPPED;
    if (count > 1)
        chunk[1] = chunk[1 + WORDS] = WORDS * sizeof(uintptr_t) | IS_BEHIND_LIVE;
    char *volatile block = (char *)(chunk + 2);
    free(block);
    printf("%d\n", *start);
    return 0;
}
