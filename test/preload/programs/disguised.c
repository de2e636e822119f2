// SPDX-License-Identifier: MIT
/*
 * disguised.c - misuse: memory of the program's own looks as if libc's malloc had mapped it, together with what lies before it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
    size_t page = (size_t)getpagesize();
    char *start = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || mprotect(start, page, PROT_READ) != 0)
        return 1;
    uintptr_t *chunk = (uintptr_t *)(void *)(start + page + 2 * sizeof(uintptr_t));
    enum { IS_MAPPED = 2 };
    chunk[0] = page + 2 * sizeof(uintptr_t);
    chunk[1] = (3 * page - chunk[0]) | IS_MAPPED;
    char *volatile block = (char *)(chunk + 2);
    free(block);
    printf("%d\n", *start);
    return 0;
}
