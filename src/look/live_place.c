// SPDX-License-Identifier: MIT
/*
 * live_place.c - where a process shows itself: files that only its user may read, each replaced whole.
 *
 *     /dev/shm/quire.UID/         0700, this user's, or nothing is written; else $TMPDIR/quire.UID, /tmp/quire.UID
 *         PID.json                the page
 *         PID.ask                 "stats TOKEN", "prom TOKEN" or "map TOKEN", put there by whoever looks
 *         PID.TOKEN               the answer
 *         PID.new                 while it is being written; then renamed, so that nobody ever reads half a file
 *
 * No descriptor is kept and nothing stays mapped: a program may close all its descriptors, and somebody may remove or cut the files, without harm to it.
 *
 * Locks: none: only the thread that publishes comes here, and the process's end when that is done.
 * Not here: what is in the files (live.c, live_map.c).
 */
#include <errno.h>
#include <string.h>

#include "look/live.h"
#include "look/look_out.h"
#include "os/os.h"

enum { NAME_BYTES = 64, ASK_BYTES = 64, PATH_BYTES = LIVE_DIR_BYTES + NAME_BYTES };

static bool append(char *text, size_t room, const char *more)
{
    size_t used = strlen(text), bytes = strlen(more);
    if (used + bytes >= room)
        return false;
    memcpy(text + used, more, bytes + 1);
    return true;
}

bool live_append_number(char *text, size_t room, uint64_t n)
{
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = 0;
    do
        digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    return append(text, room, digits + at);
}

static void name_of(char name[NAME_BYTES], const char *suffix)
{
    name[0] = 0;
    (void)live_append_number(name, NAME_BYTES, os_process_id());
    (void)append(name, NAME_BYTES, ".");
    (void)append(name, NAME_BYTES, suffix);
}

/* A descriptor, or -errno. */
static int dir_open(const char *dir)
{
    int error = os_dir_create(dir, 0700), fd = error ? error : os_dir_open(dir);
    if (fd >= 0 && !os_dir_is_private(fd)) {
        os_close(fd);
        fd = -EPERM;
    }
    return fd;
}

bool live_place_is_for_now(int error)
{
    return error == -EMFILE || error == -ENFILE;
}

/* The first that will do, and that one as long as it does. */
static int place_open(struct live_place *place)
{
    const char *parents[] = {"/dev/shm", os_setting("TMPDIR"), "/tmp"};
    int fd = -ENOENT;
    if (place->dir[0])
        fd = dir_open(place->dir);
    if (fd < 0 && !live_place_is_for_now(fd))
        place->dir[0] = 0; /* the program has another root or another user by now */
    for (int i = 0; i < 3 && fd < 0 && !live_place_is_for_now(fd); i++) {
        if (!parents[i] || !append(place->dir, LIVE_DIR_BYTES, parents[i]) || !append(place->dir, LIVE_DIR_BYTES, "/quire.") ||
            !live_append_number(place->dir, LIVE_DIR_BYTES, os_user_id()))
            place->dir[0] = 0;
        else
            fd = dir_open(place->dir);
        if (fd < 0)
            place->dir[0] = 0;
    }
    return fd;
}

void live_place_find(struct live_place *place)
{
    int fd = place_open(place);
    if (fd >= 0)
        os_close(fd);
}

int live_place_write(struct live_place *place, const char *suffix, live_writer *fn, const void *arg)
{
    char name[NAME_BYTES], fresh[NAME_BYTES];
    struct out out;
    name_of(name, suffix);
    name_of(fresh, "new");
    int dir = place_open(place);
    if (dir < 0)
        return dir;
    int fd = os_file_create(dir, fresh);
    if (fd == -EEXIST) { /* of a process that was killed in the middle of it and had this number */
        (void)os_unlink(dir, fresh);
        fd = os_file_create(dir, fresh);
    }
    int error = fd < 0 ? fd : 0;
    if (fd >= 0) {
        out_begin(&out, fd);
        fn(&out, arg);
        error = out_end(&out);
        os_close(fd);
        if (!error)
            error = os_rename(dir, fresh, name);
        if (error)
            (void)os_unlink(dir, fresh);
    }
    os_close(dir);
    return error;
}

static bool path_of(const struct live_place *place, const char *suffix, char path[PATH_BYTES])
{
    char name[NAME_BYTES];
    name_of(name, suffix);
    path[0] = 0;
    return place->dir[0] && append(path, PATH_BYTES, place->dir) && append(path, PATH_BYTES, "/") && append(path, PATH_BYTES, name);
}

void live_place_remove(const struct live_place *place, const char *suffix)
{
    char name[NAME_BYTES];
    int dir = place->dir[0] ? os_dir_open(place->dir) : -1;
    if (dir < 0)
        return;
    name_of(name, suffix);
    (void)os_unlink(dir, name);
    os_close(dir);
}

/* The next word of a question; what is too long, or has other signs than those of a token, is none. */
static bool word_of(const char **at, char *word, size_t room)
{
    size_t bytes = strspn(*at, "abcdefghijklmnopqrstuvwxyz0123456789");
    if (bytes == 0 || bytes >= room)
        return false;
    memcpy(word, *at, bytes);
    word[bytes] = 0;
    *at += bytes + ((*at)[bytes] == ' ');
    return true;
}

bool live_place_asked(const struct live_place *place, struct live_question *out)
{
    static const char *const own[] = {"json", "ask", "new"};
    char path[PATH_BYTES], text[ASK_BYTES];
    const char *at = text;
    if (!path_of(place, "ask", path) || os_read_text(path, text, sizeof text) < 0)
        return false;
    live_place_remove(place, "ask");
    bool is_sound = word_of(&at, out->kind, sizeof out->kind) && word_of(&at, out->token, sizeof out->token);
    for (int i = 0; i < 3 && is_sound; i++)
        is_sound = strcmp(out->token, own[i]) != 0;
    return is_sound;
}
