// SPDX-License-Identifier: MIT
/* What the packages' tests compile: an arena and a block of malloc's that are used, and the version of the library that runs. */
#include <quire/arena.h>
#include <quire/quire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    struct quire_arena *arena = quire_arena_create(NULL);
    char *text = quire_arena_alloc(arena, 100), *volatile block = malloc(100); /* a linker that leaves out what nobody needs sees that it is */
    strcpy(block, "arena works");
    strcpy(text, block);
    printf("%s: %s\n", text, quire_version());
    free(block);
    quire_arena_destroy(arena);
    return 0;
}
