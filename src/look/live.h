// SPDX-License-Identifier: MIT
/*
 * live.h - a page that shows this process to others while it runs; only where QUIRE_CONF has top, or prof.
 *
 *     live.c        the thread: once an interval the page, at once what somebody asks for; fork, the end
 *     live_conf.c   top:1, top:100ms
 *     live_place.c  the user's own directory, and files there that are replaced whole
 *     live_map.c    which slots live, as JSON
 */
#ifndef QUIRE_LOOK_LIVE_H
#define QUIRE_LOOK_LIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

C_DECLARATIONS_BEGIN

struct out;

/* ---- live.c ---- */
/*
 * Publish every interval_ns from now on; 0: leave it.  Before main: the preload library's way, which has read QUIRE_CONF by itself.
 * `waits`: not before live_start_due() finds that somebody wants it, or that the program has threads of its own.
 */
void live_ask(uint64_t interval_ns, bool waits);
void live_start_due(void); /* hold no lock: starting a thread allocates */
bool live_is_waiting(void); /* for that: no thread sees what is asked */
void live_lines_go_to(int (*fd)(void)); /* what is to be said, in place of standard error */
void live_want(void);       /* it is to start at the next live_start_due() */
/* In a handler, before it makes a copy of the process; and in the copy: the page is written, and a question answered. */
void live_copy_ahead(void);
void live_show_from_copy(void);

/* One who answers a question of his own, and is called at each tick.  Before main. */
typedef void live_writer(struct out *out, const void *arg);
struct live_guest {
    const char *kind; /* NULL: he answers nothing */
    live_writer *answer;
    void (*turn)(void);
    struct live_guest *next; /* live.c's */
};
void live_guest_add(struct live_guest *guest);
/* In a copy of the process, before its repairs: there is no page, and no thread. */
void live_forget(void);

/* ---- live_conf.c ---- */
#define LIVE_INTERVAL_NS_DEFAULT UINT64_C(1000000000)
#define LIVE_INTERVAL_NS_MIN UINT64_C(10000000)
#define LIVE_INTERVAL_NS_MAX (UINT64_C(3600) * 1000000000u)
/* The value of the key `top`: 0, 1 (on, off, ...), or a time.  False: it is neither, or too short or long. */
bool live_conf_value(const char *text, size_t bytes, uint64_t *interval_ns);
/* The value in a whole QUIRE_CONF; 0: off.  What cannot be understood is said on `fd`; other keys are others' business. */
uint64_t live_conf_find(const char *conf, int fd);

/* ---- live_place.c ---- */
enum { LIVE_DIR_BYTES = 256, LIVE_TOKEN_BYTES = 17 };
struct live_place {
    char dir[LIVE_DIR_BYTES]; /* "": not found yet */
};
/* Whether a failure says nothing of the directory: there was no descriptor, and will be one again. */
bool live_place_is_for_now(int error);
/* The file PROCESS.SUFFIX becomes what `fn` writes: in one step, and for this user alone.  0, or a negative errno and nothing has changed. */
int live_place_write(struct live_place *place, const char *suffix, live_writer *fn, const void *arg);
void live_place_remove(const struct live_place *place, const char *suffix);
void live_place_find(struct live_place *place); /* the directory that live_place_write() would take */
/* What somebody asks for: "stats", "prom" or "map", and the suffix that the answer is to have.  False: nothing.  The question is gone then. */
struct live_question {
    char kind[8], token[LIVE_TOKEN_BYTES];
};
bool live_place_asked(const struct live_place *place, struct live_question *out);
/* Behind what stands in `text`; false: there is no room, and nothing has changed. */
bool live_append_number(char *text, size_t room, uint64_t n);

/* ---- live_map.c ---- */
void live_map(struct out *out, const void *unused);

C_DECLARATIONS_END
#endif
