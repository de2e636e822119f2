# SPDX-License-Identifier: MIT
"""
c.py - the advice on a site as a C header: functions of one shape for all classes.

    NAME_begin  NAME_end  NAME_alloc  NAME_alloc_zero  NAME_strdup  NAME_free

so that a call of malloc becomes NAME_alloc and needs no other change.
Not here: what the names and sizes are (patch/code.py), C++ (patch/cpp.py).
"""

import patch.source as patch_source

TOP = """/* quire_{name}.h - {purpose}
 *
 * {place}
 * {about}.
 * For one .c file: the {what} is its own.  Link with -lquire.
 */
#ifndef QUIRE_SITE_{upper}_H
#define QUIRE_SITE_{upper}_H

#include <errno.h>
#include <quire/{header}.h>
#include <stddef.h>
#include <string.h>

"""

PHASE_LARGE = """/* One for each thread: an arena is for one thread at a time. */
static _Thread_local struct quire_arena *{name}_arena;

/* Where the phase begins.  0, or -1 with errno ENOMEM. */
static inline int {name}_begin(void)
{{
    const struct quire_arena_opts opts = {{.name = "{name}", .size_hint_bytes = {bytes}}};
    {name}_arena = quire_arena_create(&opts);
    return {name}_arena != NULL ? 0 : -1;
}}

/* Where the phase ends: all of them are dead.  The phases are large, or rare: their memory is given back. */
static inline void {name}_end(void)
{{
    quire_arena_destroy({name}_arena);
    {name}_arena = NULL;
}}

"""

PHASE_SMALL = """/* One for each thread: an arena is for one thread at a time. */
static _Thread_local struct quire_arena *{name}_arena;

/*
 * Where the phase begins.  0, or -1 with errno ENOMEM.  The phases are small and many: to create and destroy an arena for
 * each would cost as much as ten small objects do, so the first phase of a thread makes it and all others find it empty.
 */
static inline int {name}_begin(void)
{{
    const struct quire_arena_opts opts = {{.name = "{name}", .size_hint_bytes = {bytes}}};
    if ({name}_arena == NULL)
        {name}_arena = quire_arena_create(&opts);
    return {name}_arena != NULL ? 0 : -1;
}}

/* Where the phase ends: all of them are dead.  Their memory stays for the next one: at most {bytes} bytes were seen. */
static inline void {name}_end(void)
{{
    if ({name}_arena != NULL)
        quire_arena_reset({name}_arena);
}}

/* Where a thread ends that does not end with the program: gives that memory back. */
static inline void {name}_quit(void)
{{
    quire_arena_destroy({name}_arena);
    {name}_arena = NULL;
}}

"""

ARENA = """/* In place of malloc, within the phase. */
static inline void *{name}_alloc(size_t bytes)
{{
    return quire_arena_alloc({name}_arena, bytes);
}}

/* In place of calloc. */
static inline void *{name}_alloc_zero(size_t count, size_t bytes)
{{
    return quire_arena_alloc_zero({name}_arena, count, bytes);
}}

/* In place of realloc, which knew the old size by itself. */
static inline void *{name}_resize(void *old, size_t old_bytes, size_t bytes)
{{
    return quire_arena_resize({name}_arena, old, old_bytes, bytes);
}}

/* In place of strdup. */
static inline char *{name}_strdup(const char *string)
{{
    return quire_arena_strdup({name}_arena, string);
}}

/* In place of free: all go at once, at the end. */
static inline void {name}_free(void *p)
{{
    (void)p;
}}
"""

SLAB = """enum {{ {upper}_BYTES = {bytes} }};

static struct quire_slab *{name}_slab;

/* Once, before the first of these objects.  0, or -1 with errno ENOMEM. */
static inline int {name}_begin(void)
{{
    const struct quire_slab_opts opts = {{.name = "{name}"}};
    {name}_slab = quire_slab_create({upper}_BYTES, &opts);
    return {name}_slab != NULL ? 0 : -1;
}}

/* In place of malloc, in any thread.  No object was larger than an element; one that is gets NULL with errno ENOMEM. */
static inline void *{name}_alloc(size_t bytes)
{{
    if (bytes <= {upper}_BYTES)
        return quire_slab_alloc({name}_slab);
    errno = ENOMEM;
    return NULL;
}}

/* In place of calloc. */
static inline void *{name}_alloc_zero(size_t count, size_t bytes)
{{
    if (bytes == 0 || count <= {upper}_BYTES / bytes)
        return quire_slab_alloc_zero({name}_slab);
    errno = ENOMEM;
    return NULL;
}}

/* In place of strdup. */
static inline char *{name}_strdup(const char *string)
{{
    size_t bytes = strlen(string) + 1;
    char *copy = {name}_alloc(bytes);
    return copy != NULL ? memcpy(copy, string, bytes) : NULL;
}}

/* In place of free, in any thread. */
static inline void {name}_free(void *p)
{{
    quire_slab_free({name}_slab, p);
}}

/* When no such object is used any more; what is left goes too. */
static inline void {name}_end(void)
{{
    quire_slab_destroy({name}_slab);
    {name}_slab = NULL;
}}
"""

HEAP = """/* In place of malloc, in any thread. */
static inline void *{name}_alloc(size_t bytes)
{{
    return quire_heap_alloc(quire_heap_default(), bytes);
}}

/* In place of calloc. */
static inline void *{name}_alloc_zero(size_t count, size_t bytes)
{{
    return quire_heap_alloc_zero(quire_heap_default(), count, bytes);
}}

/* In place of realloc. */
static inline void *{name}_realloc(void *p, size_t bytes)
{{
    return quire_heap_realloc(quire_heap_default(), p, bytes);
}}

/* In place of strdup. */
static inline char *{name}_strdup(const char *string)
{{
    size_t bytes = strlen(string) + 1;
    char *copy = {name}_alloc(bytes);
    return copy != NULL ? memcpy(copy, string, bytes) : NULL;
}}

/* In place of free, in any thread. */
static inline void {name}_free(void *p)
{{
    quire_heap_free(quire_heap_default(), p);
}}
"""

END = "\n#endif\n"

BODIES = {"arena": ARENA, "slab": SLAB, "recycling slot": SLAB, "heap": HEAP}
HEADERS = {"arena": "arena", "slab": "slab", "recycling slot": "slab", "heap": "heap"}
PURPOSES = {
    "arena": "objects that are born in a phase and die together",
    "slab": "many objects of nearly one size",
    "recycling slot": "one object at a time, whose memory is used again and again",
    "heap": "objects of any size that live and die on their own",
}


def commented(text):
    """Text that cannot end the comment it stands in, nor begin another line."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")


def code(change):
    """The header's text."""
    element = f"; the objects are {commented(change.type)}" if change.type else ""
    values = {
        "name": change.name,
        "upper": change.name.upper(),
        "bytes": change.bytes,
        "purpose": PURPOSES[change.klass] + ".",
        "place": commented(patch_source.place(change.site)) + element,
        "about": commented(change.about),
        "what": HEADERS[change.klass],
        "header": HEADERS[change.klass],
    }
    phase = (PHASE_SMALL if change.kept else PHASE_LARGE) if change.klass == "arena" else ""
    return (TOP + phase + BODIES[change.klass] + END).format(**values)
