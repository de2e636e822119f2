// SPDX-License-Identifier: MIT
/* outside.c - ten lines of a program that knows Quire only as installed: exit 0 when an arena works. */
#include <quire/arena.h>
#include <stdio.h>
int main(void)
{
    struct quire_arena *arena = quire_arena_create(NULL);
    char *word = arena ? quire_arena_strdup(arena, "arena works") : NULL;
    int status = word && puts(word) >= 0 && quire_arena_owns(arena, word) ? 0 : 1;
    quire_arena_destroy(arena);
    return status;
}
