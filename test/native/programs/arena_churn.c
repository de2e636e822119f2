// SPDX-License-Identifier: MIT
/*
 * arena_churn.c - arenas over a source, through every kind of failure: ends with status 0 as long as each refusal is NULL + ENOMEM, no block
 * overlaps another, and all memory is back at the end.
 *
 *     arena_churn default|anon [--touch-after-reset]
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quire/arena.h>

static int failed;

static void *must_be_enomem(void *p)
{
    if (!p && errno != ENOMEM) {
        fprintf(stderr, "errno %d instead of ENOMEM\n", errno);
        failed = 1;
    }
    return p;
}

static void round_of(struct quire_source *source, int touch_after_reset)
{
    struct quire_arena *arena = must_be_enomem(quire_arena_create(&(struct quire_arena_opts){.name = "churn", .source = source}));
    if (!arena)
        return;
    for (int pass = 0; pass < 3; pass++) {
        char *blocks[400];
        for (int i = 0; i < 400; i++) {
            size_t bytes = i % 100 == 99 ? (size_t)5 << 20 : 3000;
            blocks[i] = must_be_enomem(quire_arena_alloc(arena, bytes));
            if (blocks[i])
                memset(blocks[i], i, 3000);
        }
        for (int i = 0; i < 400; i++)
            if (blocks[i] && (blocks[i][0] != (char)i || blocks[i][2999] != (char)i))
                failed = 1;
        quire_arena_reset(arena);
        if (touch_after_reset && blocks[0])
            blocks[0][0] = 1;
        if (quire_arena_check(arena))
            failed = 1;
    }
    quire_arena_destroy(arena);
}

int main(int argc, char **argv)
{
    struct quire_source *source = argc > 1 && strcmp(argv[1], "anon") == 0 ? quire_source_anon() : quire_source_default();
    for (int i = 0; i < 4; i++) {
        round_of(source, argc > 2);
        quire_source_trim(source);
    }
    struct quire_source_stats stats = {.struct_bytes = sizeof stats};
    quire_source_stats(source, &stats);
    if (stats.taken_bytes != 0 || quire_source_check(source))
        failed = 1;
    puts(failed ? "failed" : "sound");
    return failed;
}
