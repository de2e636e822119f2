// SPDX-License-Identifier: MIT
/*
 * arena_text.c - strings, which need no alignment, side by side.
 *
 *     | block | one\0two\0three\0 ......... | block | block |  free
 *                 text ^      text_end ^            cursor ^
 *
 * A pocket is a block like any other, with room for some strings; what comes between strings stays aligned. When a string does not fit, the next pocket is
 * taken; it joins the last one where nothing came between, else what is left of that is lost. A long string that does not fit is a block of its own.
 *
 * Invariant, checked by quire_arena_check():
 *   A7  text <= text_end, and both lie in the current round; a mark and a way back close the pocket, so that strings are freed by the rewind that they
 *       came before
 *
 * When a sanitizer watches there are no pockets: every string has a red zone.
 *
 * Locks: none.
 */
#define QUIRE_ARENA_INLINE 0
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "arena/arena_internal.h"
#include "base/bits.h"
#include "base/compiler.h"

enum { POCKET_BYTES = 1024, LONG_BYTES = 64, STEP_BYTES = 16, LEAST_PAGE_BYTES = 4096 };

/*
 * Short strings, which are most, are measured and copied in one pass, 16 bytes at a time. It may read past the string's end, but not past its page. The
 * bytes of the string, its zero too; 0: it is longer than LONG_BYTES.
 */
static ALWAYS_INLINE size_t copy_short(char *to, const char *string)
{
    for (size_t at = 0; at < LONG_BYTES; at += STEP_BYTES) {
        bytes16 words;
        memcpy(&words, string + at, sizeof words);
        memcpy(to + at, &words, sizeof words);
        unsigned zeros = bytes16_zeros(words);
        if (zeros)
            return at + bits_lowest(zeros) + 1;
    }
    return 0;
}

/* Room for so many bytes of text, at any address; NULL and errno ENOMEM. */
static NOINLINE char *text_place(struct quire_arena *arena, size_t bytes)
{
    int kept = errno;
    if (bytes > (size_t)(arena->text_end - arena->text)) {
        char *pocket = bytes >= LONG_BYTES || arena->watched ? NULL : quire_arena_alloc(arena, POCKET_BYTES);
        if (!pocket) {
            char *p = quire_arena_alloc(arena, bytes);
            errno = p ? kept : errno;
            return p;
        }
        if (unlikely(arena_newest_large(arena) == pocket)) /* memory is short: it is this string's alone, for a large block grows over what lies in it */
            return pocket;
        if (pocket != arena->text_end)
            arena->text = pocket;
        arena->text_end = pocket + POCKET_BYTES;
    }
    char *p = arena->text;
    arena->text += bytes;
    return p;
}

static NOINLINE char *strdup_slow(struct quire_arena *arena, const char *string)
{
    if (!string) {
        errno = EINVAL;
        return NULL;
    }
    size_t bytes = strlen(string) + 1;
    char *p = text_place(arena, bytes);
    return p ? memcpy(p, string, bytes) : NULL;
}

NO_SANITIZE char *quire_arena_strdup(struct quire_arena *arena, const char *string)
{
    char *p = arena->text;
    bool is_near_end = ((uintptr_t)string & (LEAST_PAGE_BYTES - 1)) > LEAST_PAGE_BYTES - LONG_BYTES;
    if (unlikely((size_t)(arena->text_end - p) < LONG_BYTES) || unlikely(is_near_end) || unlikely(!string))
        return strdup_slow(arena, string);
    size_t bytes = copy_short(p, string);
    if (unlikely(bytes == 0))
        return strdup_slow(arena, string);
    arena->text = p + bytes;
    return p;
}

bool arena_text_resize(struct quire_arena *arena, char *old, size_t old_bytes, size_t new_bytes)
{
    size_t need = new_bytes ? new_bytes : 1;
    if (!arena->text || old + old_bytes != arena->text || need > (size_t)(arena->text_end - old))
        return false;
    arena->text = old + need;
    return true;
}

char *quire_arena_vprintf(struct quire_arena *arena, const char *format, va_list words)
{
    va_list again;
    va_copy(again, words);
    size_t room = (size_t)(arena->text_end - arena->text);
    int count = vsnprintf(arena->text, room, format, words);
    char *p = NULL;
    if (count >= 0 && (size_t)count < room) {
        p = arena->text;
        arena->text += count + 1;
    } else if (count >= 0 && (p = text_place(arena, (size_t)count + 1)) != NULL) {
        (void)vsnprintf(p, (size_t)count + 1, format, again);
    }
    va_end(again);
    return p;
}

char *quire_arena_printf(struct quire_arena *arena, const char *format, ...)
{
    va_list words;
    va_start(words, format);
    char *p = quire_arena_vprintf(arena, format, words);
    va_end(words);
    return p;
}
