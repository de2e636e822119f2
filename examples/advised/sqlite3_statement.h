// SPDX-License-Identifier: MIT
/*
 * sqlite3_statement.h - SQLite's parse trees and operands on one arena for each statement, as `./quire try` advises.
 *
 *   the shell:  statement_begin(sql) | prepare, step, step ..., finalize | statement_end()
 *   sqlite3.c:  statement_alloc() at the advised call sites;  frees of its objects are nothing
 *
 * Included into sqlite3.c where its allocator is declared.  SQLite frees objects of all origins by one function, so that asks for the
 * address range, as it does for its own lookaside memory (which Debian leaves out).
 * Statements that make a schema stay with malloc: parts of their trees live on in it.  Not for virtual tables that keep statements.
 */
#pragma once

#include <quire/arena.h>
#include <string.h>

enum { STATEMENT_BYTES_MAX = 64 << 20 };

extern struct quire_arena *statement_arena; // NULL: none at hand
extern char statement_memory[STATEMENT_BYTES_MAX];

static inline int statement_owns(const void *p) { return (size_t)p - (size_t)statement_memory < STATEMENT_BYTES_MAX; }

static inline void *statement_alloc(sqlite3 *db, sqlite3_uint64 bytes) {
    void *memory = statement_arena ? quire_arena_alloc(statement_arena, bytes) : NULL;
    return memory ? memory : sqlite3DbMallocRawNN(db, bytes);
}

static inline void *statement_resize(sqlite3 *db, void *old, size_t old_bytes, size_t new_bytes) {
    if (!statement_owns(old))
        return sqlite3DbRealloc(db, old, new_bytes);
    void *memory = quire_arena_resize(statement_arena, old, old_bytes, new_bytes);
    if (!memory && (memory = sqlite3DbMallocRawNN(db, new_bytes)))
        memcpy(memory, old, old_bytes);
    return memory;
}

static inline char *statement_text(sqlite3 *db, const char *from, size_t bytes) {
    char *text = statement_alloc(db, bytes + 1);
    if (text) {
        memcpy(text, from, bytes);
        text[bytes] = '\0';
    }
    return text;
}
