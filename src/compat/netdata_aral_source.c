// SPDX-License-Identifier: MIT
/*
 * netdata_aral_source.c - where an array's pages come from: the default source or files, each page counted.
 *
 *     slab --take--> the array's source --take--> files "DIR/array_alloc.mmap/NAME.N"
 *                          |    \--- no room there ---> default source, the span marked as such
 *                      counted (netdata_aral_stats.c)
 *
 * An array that was to live in files and cannot works all the same, in anonymous memory; one line on standard error says so.
 *
 * Locks: none.  Not here: files that the dead left (pages/source_file_dir.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "compat/netdata_aral_internal.h"
#include "os/os.h"

enum { PATH_BYTES = 4096, LINE_BYTES = 512, DIRECTORY_MODE = 0775 };
/* In a span's flags: it came from the default source although the array has files. */
#define SPAN_NOT_A_FILE (1u << 31)

static ARAL *aral_of(struct quire_source *source)
{
    return (ARAL *)(void *)source;
}

/* One line: "quire: aral "NAME": anonymous memory instead of files: WHY". */
static void say(const ARAL *ar, const char *why)
{
    char line[LINE_BYTES];
    int used = snprintf(line, sizeof line, "quire: aral \"%s\": anonymous memory instead of files: %s", ar->name, why);
    size_t bytes = used < 0 ? 0 : (size_t)used < sizeof line ? (size_t)used : sizeof line - 1;
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 127)
            line[i] = '?';
    line[bytes] = '\n';
    os_write_stderr(line, bytes + 1);
}

/* ---- verbs ---- */

static int aral_take(struct quire_source *source, size_t bytes, size_t align_bytes, struct quire_span *out)
{
    ARAL *ar = aral_of(source);
    struct quire_source *inner = ar->files ? ar->files : quire_source_default();
    int error = inner->verbs->take(inner, bytes, align_bytes, out);
    if (error && ar->files) {
        if (u32_exchange_acquire(&ar->said_no_files, 1) == 0)
            say(ar, "no room for another page in a file; is the disk full?");
        inner = quire_source_default();
        error = inner->verbs->take(inner, bytes, align_bytes, out);
        out->flags |= error ? 0 : SPAN_NOT_A_FILE;
    }
    if (!error)
        aral_count_page(ar, bytes, true);
    return error;
}

static void aral_give(struct quire_source *source, const struct quire_span *span)
{
    ARAL *ar = aral_of(source);
    struct quire_span copy = *span; /* the span may lie in the memory it describes */
    struct quire_source *inner = ar->files && !(copy.flags & SPAN_NOT_A_FILE) ? ar->files : quire_source_default();
    copy.flags &= ~SPAN_NOT_A_FILE;
    inner->verbs->give(inner, &copy);
    aral_count_page(ar, copy.bytes, false);
}

/* Whether these pages lie in a file is not known here: files' verbs work on anonymous memory too. */
static void aral_idle(struct quire_source *source, void *start, size_t bytes)
{
    struct quire_source *inner = aral_of(source)->files ? aral_of(source)->files : quire_source_default();
    inner->verbs->idle(inner, start, bytes);
}

static int aral_busy(struct quire_source *source, void *start, size_t bytes)
{
    struct quire_source *inner = aral_of(source)->files ? aral_of(source)->files : quire_source_default();
    return inner->verbs->busy(inner, start, bytes);
}

static void aral_end(struct quire_source *source)
{
    (void)source; /* it ends with its array */
}

static const struct quire_source_verbs aral_verbs = {.take = aral_take, .give = aral_give, .idle = aral_idle, .busy = aral_busy, .fini = aral_end};

void aral_source_init(ARAL *ar)
{
    ar->source = (struct quire_source){&aral_verbs, ar->name};
}

void aral_source_fini(ARAL *ar)
{
    quire_source_destroy(ar->files);
    ar->source.verbs = NULL;
}

bool aral_source_is_of(const ARAL *ar)
{
    return ar->source.verbs == &aral_verbs;
}

/* ---- files ---- */

/* 0 or a negative errno, `path` being what it is about. */
static int open_files(ARAL *ar, char path[PATH_BYTES], const char *filename, const char *cache_dir)
{
    int used = snprintf(path, PATH_BYTES, "%s/array_alloc.mmap", cache_dir);
    int error = used < 0 || used >= PATH_BYTES ? -ENAMETOOLONG : os_dir_create(path, DIRECTORY_MODE);
    if (error)
        return error;
    ar->files = quire_source_file(path, filename);
    return ar->files ? 0 : -errno;
}

void aral_source_open_files(ARAL *ar, const char *filename, const char **cache_dir)
{
    char path[PATH_BYTES], why[LINE_BYTES];
    int kept = errno;
    if (!filename || !cache_dir || !*cache_dir || !**cache_dir) {
        say(ar, filename ? "no cache directory was given" : "no file name was given");
        return;
    }
    int error = open_files(ar, path, filename, *cache_dir);
    if (error) {
        snprintf(why, sizeof why, "%.300s: %s: the directory has to be there, writable and no link, and \"%.64s\" a file name", path,
                 strerror(-error), filename);
        say(ar, why);
    }
    errno = kept;
}
