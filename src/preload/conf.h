// SPDX-License-Identifier: MIT
/*
 * conf.h - what QUIRE_CONF asks for.
 */
#ifndef QUIRE_PRELOAD_CONF_H
#define QUIRE_PRELOAD_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum conf_format { CONF_TEXT, CONF_JSON, CONF_PROMETHEUS };
enum { CONF_FILE_BYTES = 512 };

/* All zero, but for CONF_START: the defaults. */
#define CONF_START {.prof_exit = true, .prof_file = "quire.%p.%n.heap", .record_limit_bytes = UINT64_C(8) << 30}
struct conf {
    bool stats_at_exit;
    bool leaks;
    bool secure;
    bool tags;
    bool passthrough;
    bool decay_is_set;
    uint32_t format;      /* enum conf_format */
    uint64_t check_every; /* 0: never, and not at exit */
    uint64_t limit_bytes; /* 0: none */
    uint64_t pressure_percent; /* 0: not looked at */
    uint64_t decay_ns;
    uint64_t top_ns; /* 0: not shown */
    bool plan_control, plan_timed;
    uint64_t prof_every_bytes, prof_at_bytes; /* 0: no profile; at no threshold */
    uint64_t prof_signal; /* 0: none */
    uint64_t guard_every; /* blocks; 0: none is guarded */
    uint64_t record_signal; /* 0: none */
    uint64_t record_limit_bytes;
    bool prof_exit;
    char prof_file[CONF_FILE_BYTES];
    char file[CONF_FILE_BYTES]; /* empty: standard error */
    char plan[CONF_FILE_BYTES]; /* empty: none */
    char record[CONF_FILE_BYTES]; /* the same */
};

/*
 * Read "key:value,key:value".  What cannot be understood is said on `fd`, a line each, and left out.  Neither allocates nor asks the locale.
 */
void conf_parse(struct conf *conf, const char *text, int fd);

#endif
