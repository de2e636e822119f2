// SPDX-License-Identifier: MIT
/* arena.c - reads key=value lines into an arena, prints them, and frees all of it with one call. */
#include <errno.h>
#include <quire/arena.h>
#include <stdio.h>
#include <string.h>

struct pair {
    struct pair *next;
    char *key, *value;
};

int main(int argc, char **argv)
{
    FILE *file = argc > 1 ? fopen(argv[1], "r") : stdin;
    struct quire_arena *arena = quire_arena_create(&(struct quire_arena_opts){.name = "settings"});
    if (!file || !arena) {
        fprintf(stderr, "arena: %s: %s\n", argc > 1 ? argv[1] : "stdin", strerror(errno));
        return 1;
    }
    struct pair *first = NULL, **last = &first;
    char line[4096];
    while (fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '=');
        if (!equals)
            continue;
        *equals = '\0';
        struct pair *pair = quire_arena_alloc_zero(arena, 1, sizeof *pair);
        if (!pair || !(pair->key = quire_arena_strdup(arena, line)) || !(pair->value = quire_arena_strdup(arena, equals + 1)))
            return perror("arena"), 1;
        pair->value[strcspn(pair->value, "\n")] = '\0';
        *last = pair;
        last = &pair->next;
    }
    for (struct pair *pair = first; pair; pair = pair->next)
        printf("%s is %s\n", pair->key, pair->value);
    quire_arena_destroy(arena);
    return 0;
}
