// SPDX-License-Identifier: MIT
/*
 * sqlite3_statement.c - the arena of the statement at hand, made and ended by SQLite's shell (sqlite3_statement.h).
 *
 * Its memory is one fixed range, so that whoever frees can tell by an address.
 */
#include <quire/arena.h>
#include <stdlib.h>
#include <strings.h>

enum { STATEMENT_BYTES_MAX = 64 << 20 }; // as in sqlite3_statement.h

struct quire_arena *statement_arena;
_Alignas(4096) char statement_memory[STATEMENT_BYTES_MAX];
static struct quire_source *source;

void statement_begin(const char *sql);
void statement_end(void);

void statement_end(void) {
    quire_arena_destroy(statement_arena);
    statement_arena = NULL;
}

void statement_begin(const char *sql) {
    static const char *const words[] = {"select", "insert", "update", "delete", "replace", "values"};
    statement_end();
    if (!source && !(source = quire_source_fixed(statement_memory, sizeof statement_memory)))
        exit(1);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncasecmp(sql, words[i], 6) == 0)
            statement_arena = quire_arena_create(&(struct quire_arena_opts){.source = source});
}
