// SPDX-License-Identifier: MIT
/* source.c - two tenants share a process: each has an account and a budget, and one that uses its own up does not hurt the other. */
#include <errno.h>
#include <quire/arena.h>
#include <quire/source.h>
#include <stdio.h>

int main(void)
{
    static const char *const names[] = {"greedy", "modest"};
    static const size_t wanted[] = {100000, 100}; /* blocks of 1000 bytes */
    for (int i = 0; i < 2; i++) {
        struct quire_source *account = quire_source_count(quire_source_default());
        struct quire_source *budget = quire_source_limit(account, 8 << 20);
        struct quire_arena *arena = quire_arena_create(&(struct quire_arena_opts){.name = names[i], .source = budget});
        if (!account || !budget || !arena)
            return perror("source"), 1;
        size_t had = 0;
        while (had < wanted[i] && quire_arena_alloc(arena, 1000))
            had++;
        struct quire_source_stats stats = {.struct_bytes = sizeof stats};
        quire_source_stats(account, &stats);
        printf("%s: %s, within its budget: %s\n", names[i], had == wanted[i] ? "has all it wanted" : errno == ENOMEM ? "was told ENOMEM" : "?",
            stats.taken_bytes <= 8 << 20 ? "yes" : "no");
        quire_arena_destroy(arena);
        quire_source_destroy(budget); /* the decorator first, then what it decorates */
        quire_source_destroy(account);
    }
}
